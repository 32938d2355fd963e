//! Pools of machines: as a part of a Kluster, and as the kind NodePool, which adds a pool to a Kluster.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Taint};
use serde::{Deserialize, Serialize};

use crate::own_object::{DefinitionDoc, OwnKind, OwnObject};

pub type NodePool = OwnObject<NodePoolSpec, PoolStatus>;

/// Bounds and stock values.
pub const MOST_NODES: i32 = 127;
pub const NAME_MAX: usize = 20;
pub const STOCK_IMAGE: &str = "flatcar-stable-amd64";
pub const ROOT_DISK_GIGABYTES: std::ops::RangeInclusive<i64> = 64..=1024;

/// A pool of a Kluster by an object of its own: `spec.kluster` names a Kluster of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolSpec {
    pub kluster: String,
    #[serde(flatten)]
    pub pool: PoolSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolSpec {
    pub name: String,
    pub size: i32,
    pub flavor: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub availability_zone: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_root_disk_size: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PoolConfig>,
}

/// What may be done to machines of the pool; both are allowed unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_reboot: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_replace: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolStatus {
    pub name: String,
    pub size: i32,
    pub running: i32,
    pub healthy: i32,
    pub schedulable: i32,
}

impl OwnKind for NodePoolSpec {
    type Scope = NamespaceResourceScope;
    const KIND: &'static str = "NodePool";
    const LIST_KIND: &'static str = "NodePoolList";
    const PLURAL: &'static str = "nodepools";
    const ABOUT: &'static str = "Machines of one flavor that belong to a Kluster of the same namespace.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "NodePoolSpec",
            about: "NodePoolSpec is a pool that is added to a Kluster.",
            fields: &[
                ("availabilityZone", "Where machines are made. Cannot be changed."),
                ("config", "What may be done to machines."),
                ("customRootDiskSize", "Gigabytes of a root disk that is a volume: 64 to 1024. Cannot be changed."),
                ("flavor", "The flavor of machines. Cannot be changed."),
                ("image", "The image of machines. flatcar-stable-amd64 if left out. Cannot be changed."),
                ("kluster", "The Kluster of the same namespace. Cannot be changed."),
                ("labels", "Labels that nodes have when they register."),
                (
                    "name",
                    "At most 20 lower-case letters, digits, dashes and dots. The name of the object if left out. Cannot be changed.",
                ),
                ("size", "How many machines: 0 to 127."),
                ("taints", "Taints that nodes have when they register."),
            ],
        },
        DefinitionDoc {
            name: "NodePoolStatus",
            about: "NodePoolStatus is how many machines a pool has.",
            fields: &[
                ("healthy", "How many of them are Ready nodes."),
                ("name", "Which pool."),
                ("running", "How many machines the cloud says are running."),
                ("schedulable", "How many of them take pods."),
                ("size", "How many machines were wanted when this was written."),
            ],
        },
        DefinitionDoc {
            name: "KlusterNodePool",
            about: "KlusterNodePool is a pool of machines of one flavor.",
            fields: &[
                ("availabilityZone", "Where machines are made. Cannot be changed."),
                ("config", "What may be done to machines."),
                ("customRootDiskSize", "Gigabytes of a root disk that is a volume: 64 to 1024. Cannot be changed."),
                ("flavor", "The flavor of machines. Cannot be changed."),
                ("image", "The image of machines. flatcar-stable-amd64 if left out. Cannot be changed."),
                ("labels", "Labels that nodes have when they register."),
                ("name", "At most 20 lower-case letters, digits, dashes and dots."),
                ("size", "How many machines: 0 to 127."),
                ("taints", "Taints that nodes have when they register."),
            ],
        },
        DefinitionDoc {
            name: "NodePoolConfig",
            about: "NodePoolConfig says what may be done to machines of a pool.",
            fields: &[
                ("allowReboot", "Whether machines may be rebooted to update them. true if left out."),
                ("allowReplace", "Whether machines may be replaced to update them. true if left out."),
            ],
        },
    ];
}
