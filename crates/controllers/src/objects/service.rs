//! Service as far as controllers read it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{self as core, ServicePort},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_api::{narrow, narrow::or_default};
use serde::Deserialize;

use super::pod::lean;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Service {
    #[serde(deserialize_with = "lean")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    #[serde(deserialize_with = "or_default")]
    pub selector: BTreeMap<String, String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "type")]
    pub type_: String,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ServicePort>,
    pub publish_not_ready_addresses: bool,
    #[serde(deserialize_with = "or_default")]
    pub traffic_distribution: String,
}

narrow!(Service, core::Service);

impl Service {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn labels(&self) -> BTreeMap<String, String> {
        self.metadata.labels.clone().unwrap_or_default()
    }

    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Only a name for something elsewhere.
    pub fn is_alias(&self) -> bool {
        self.spec.type_ == "ExternalName"
    }

    /// Without an address of its own.
    pub fn is_headless(&self) -> bool {
        matches!(self.spec.cluster_ip.as_str(), "" | "None")
    }

    /// Whether callers are to be sent to pods of their own node if it has any.
    pub fn prefers_same_node(&self) -> bool {
        self.spec.traffic_distribution == "PreferSameNode"
    }

    /// Whether callers are to be sent to pods of their own zone if it has any.
    pub fn prefers_close(&self) -> bool {
        matches!(self.spec.traffic_distribution.as_str(), "PreferClose" | "PreferSameZone" | "PreferSameNode")
    }

    /// Whether its pods are found by their labels.
    pub fn selects(&self) -> bool {
        !self.is_alias() && !self.spec.selector.is_empty()
    }
}
