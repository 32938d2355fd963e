//! The kind TeardownReceipt: what became of each resource of a cluster that was torn down. It outlives the cluster.

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Time};
use serde::{Deserialize, Serialize};

use super::cloud_resource::{ResourceOwner, ResourceType};
use crate::own_object::{DefinitionDoc, OwnKind, OwnObject};

/// What was done about an item: its removal was asked of the cloud.
pub const DELETED: &str = "Deleted";
/// Its object was deleted, and the cluster's own controllers remove it.
pub const DELETED_BY_OWNER: &str = "DeletedByOwner";
/// Nothing: it is to stay.
pub const LEFT: &str = "Left";

/// Results of a teardown.
pub const COMPLETE: &str = "Complete";
pub const API_UNAVAILABLE: &str = "APIUnavailable";
pub const DEORBIT_HANGING: &str = "DeorbitHanging";

pub type TeardownReceipt = OwnObject<ReceiptSpec, ReceiptStatus>;

/// Whose teardown it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReceiptSpec {
    pub cluster: ResourceOwner,
    pub cloud: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReceiptStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// What is waited for now.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// When the present round began; a round that waits too long is reported and begun anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_started: Option<Time>,
    /// Since when the cluster's API does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_since: Option<Time>,
    /// Since when nothing was left; it has to stay so for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clear_since: Option<Time>,
    /// `Complete`, or why it was given up: `APIUnavailable`, `DeorbitHanging`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub result: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<ReceiptItem>,
}

/// One thing that was there: what was done about it, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReceiptItem {
    pub resource: ResourceType,
    pub id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The object in the cluster for whose sake it existed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// What was done: `Deleted`, `DeletedByOwner`, `Left`.
    pub action: String,
    /// When the cluster was first seen without that object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<Time>,
    /// When the cloud was first seen without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone: Option<Time>,
    /// Why it remains.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl OwnKind for ReceiptSpec {
    type Scope = NamespaceResourceScope;
    const KIND: &'static str = "TeardownReceipt";
    const LIST_KIND: &'static str = "TeardownReceiptList";
    const PLURAL: &'static str = "teardownreceipts";
    const ABOUT: &'static str = "What became of each resource of a cluster that was torn down.";
    const DEFINITIONS: &'static [DefinitionDoc] = &[
        DefinitionDoc {
            name: "TeardownReceiptSpec",
            about: "TeardownReceiptSpec is whose teardown it is. It cannot be changed.",
            fields: &[
                ("cloud", "The cloud, as the server's configuration names it."),
                ("cluster", "What was torn down."),
                ("project", "The project in the cloud."),
            ],
        },
        DefinitionDoc {
            name: "TeardownReceiptStatus",
            about: "TeardownReceiptStatus is what became of everything that it had in the cloud.",
            fields: &[
                ("clearSince", "Since when nothing was left; it has to stay so for a while."),
                ("finished", "When the teardown ended."),
                ("items", "One for each thing that was there."),
                ("result", "Complete, or why it was given up: APIUnavailable, DeorbitHanging."),
                ("roundStarted", "When the present round began."),
                ("stage", "What is waited for now."),
                ("started", "When the teardown began."),
                ("unavailableSince", "Since when the cluster's API does not answer."),
            ],
        },
        DefinitionDoc {
            name: "TeardownReceiptItem",
            about: "TeardownReceiptItem is one thing that was there.",
            fields: &[
                ("action", "What was done: Deleted, DeletedByOwner or Left."),
                ("gone", "When the cloud was first seen without it."),
                ("id", "Its id in the cloud."),
                ("message", "Why it remains."),
                ("name", "Its name in the cloud."),
                ("owner", "The object in the cluster for whose sake it existed."),
                ("released", "When the cluster was first seen without that object."),
                ("resource", "What it was."),
            ],
        },
    ];
}
