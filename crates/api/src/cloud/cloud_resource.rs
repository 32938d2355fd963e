//! The kind CloudResource: an entry of the ledger of everything that was created in a cloud.
//!
//! It is written before the resource is created, with the tag by which the resource can be found, and completed with the resource's
//! id afterwards: a crash between the two leaves nothing unknown. It is removed when the cloud was seen without the resource.

use std::fmt;

use k8s_openapi::{ClusterResourceScope, apimachinery::pkg::apis::meta::v1::Time};
use serde::{Deserialize, Serialize};

use crate::own_object::{DefinitionDoc, OwnKind, OwnObject};

pub type CloudResource = OwnObject<CloudResourceSpec, CloudResourceStatus>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudResourceSpec {
    /// The cloud, as the configuration of clouds names it.
    pub cloud: String,
    /// The project in it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
    pub resource: ResourceType,
    /// Its name in the cloud.
    pub name: String,
    /// A tag or metadata value that no other resource has: by it the resource is found when its id was never learned.
    pub tag: String,
    /// Whatever else is needed to find and remove it: the router of a route, the port of an address pair.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parent: String,
    pub owner: ResourceOwner,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ResourceType {
    #[default]
    Server,
    ServerGroup,
    Volume,
    Snapshot,
    LoadBalancer,
    FloatingIP,
    Port,
    Route,
    AddressPair,
    SecurityGroup,
    SecurityGroupRule,
    User,
}

impl ResourceType {
    pub const ALL: [Self; 12] = [
        Self::Server,
        Self::ServerGroup,
        Self::Volume,
        Self::Snapshot,
        Self::LoadBalancer,
        Self::FloatingIP,
        Self::Port,
        Self::Route,
        Self::AddressPair,
        Self::SecurityGroup,
        Self::SecurityGroupRule,
        Self::User,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Self::Server => "Server",
            Self::ServerGroup => "ServerGroup",
            Self::Volume => "Volume",
            Self::Snapshot => "Snapshot",
            Self::LoadBalancer => "LoadBalancer",
            Self::FloatingIP => "FloatingIP",
            Self::Port => "Port",
            Self::Route => "Route",
            Self::AddressPair => "AddressPair",
            Self::SecurityGroup => "SecurityGroup",
            Self::SecurityGroupRule => "SecurityGroupRule",
            Self::User => "User",
        }
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The object here for whose sake it exists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceOwner {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudResourceStatus {
    /// Its id in the cloud, once that is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    pub phase: ResourcePhase,
    /// When the cloud last showed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Time>,
    /// What hinders its creation or removal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ResourcePhase {
    /// It is about to be created, or was, and its id was not written down yet.
    #[default]
    Intended,
    Created,
    Deleting,
}

impl OwnKind for CloudResourceSpec {
    type Scope = ClusterResourceScope;
    const KIND: &'static str = "CloudResource";
    const LIST_KIND: &'static str = "CloudResourceList";
    const PLURAL: &'static str = "cloudresources";
    const ABOUT: &'static str = "An entry of the ledger of everything that was created in a cloud.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "CloudResourceSpec",
            about: "CloudResourceSpec is what was to be created, and for whom. It cannot be changed.",
            fields: &[
                ("cloud", "The cloud, as the server's configuration names it."),
                ("name", "Its name in the cloud."),
                ("owner", "The object here for whose sake it exists."),
                ("parent", "Whatever else is needed to find it: the router of a route, the port of an address pair."),
                ("project", "The project in the cloud."),
                (
                    "resource",
                    "What it is: Server, ServerGroup, Volume, Snapshot, LoadBalancer, FloatingIP, Port, Route, AddressPair, SecurityGroup, SecurityGroupRule or User.",
                ),
                ("tag", "A tag or metadata value that nothing else has."),
            ],
        },
        DefinitionDoc {
            name: "CloudResourceStatus",
            about: "CloudResourceStatus is what became of it.",
            fields: &[
                ("id", "Its id in the cloud."),
                ("message", "What hinders its creation or removal."),
                ("observed", "When the cloud last showed it."),
                ("phase", "Intended, Created or Deleting."),
            ],
        },
        DefinitionDoc {
            name: "CloudResourceOwner",
            about: "CloudResourceOwner is an object of this cluster.",
            fields: &[
                ("apiVersion", "Its group and version."),
                ("kind", "Its kind."),
                ("name", "Its name."),
                ("namespace", "Its namespace."),
                ("uid", "Its uid."),
            ],
        },
    ];
}
