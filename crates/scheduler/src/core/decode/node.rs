//! Decodes Nodes and PodDisruptionBudgets.

use std::collections::BTreeMap;

use mainstay_api::wellknown::mainstay::ENDPOINTS_HOST_PORT;
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::{WireSelector, or_default, resource_list};
use crate::core::{
    selector::{Labels, Selector},
    view::{BudgetView, NodeView, Taint},
};

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNode {
    metadata: WireNodeMeta,
    #[serde(deserialize_with = "or_default")]
    spec: WireNodeSpec,
    #[serde(deserialize_with = "or_default")]
    status: WireNodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeMeta {
    name: String,
    namespace: String,
    #[serde(deserialize_with = "or_default")]
    labels: Labels,
    #[serde(deserialize_with = "or_default")]
    annotations: WireNodeAnnotations,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeAnnotations {
    /// [`mainstay_api::wellknown::mainstay::ENDPOINTS`].
    #[serde(rename = "mainstay.dev/endpoints")]
    endpoints: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeSpec {
    unschedulable: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    taints: Vec<WireTaint>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireTaint {
    key: String,
    value: Option<String>,
    effect: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeStatus {
    #[serde(deserialize_with = "or_default")]
    allocatable: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<WireNodeCondition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireNodeCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl<'de> Deserialize<'de> for NodeView {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let WireNode { metadata, spec, status } = WireNode::deserialize(from)?;
        let taint = |wire: WireTaint| Taint::parse(wire.key, wire.value, &wire.effect);
        Ok(Self {
            name: metadata.name,
            labels: metadata.labels,
            taints: spec.taints.into_iter().filter_map(taint).collect(),
            unschedulable: spec.unschedulable == Some(true),
            ready: status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            by_host_port: metadata.annotations.endpoints.as_deref() == Some(ENDPOINTS_HOST_PORT),
            allocatable: resource_list(&status.allocatable),
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireBudget {
    metadata: WireNodeMeta,
    spec: WireBudgetSpec,
    #[serde(deserialize_with = "or_default")]
    status: WireBudgetStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireBudgetSpec {
    selector: Option<WireSelector>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireBudgetStatus {
    disruptions_allowed: i32,
    #[serde(deserialize_with = "or_default")]
    disrupted_pods: BTreeMap<String, IgnoredAny>,
}

impl<'de> Deserialize<'de> for BudgetView {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let WireBudget { metadata, spec, status } = WireBudget::deserialize(from)?;
        Ok(Self {
            namespace: metadata.namespace,
            name: metadata.name,
            selector: spec.selector.map(Selector::from),
            disruptions_allowed: status.disruptions_allowed,
            disrupted: status.disrupted_pods.into_keys().collect(),
        })
    }
}
