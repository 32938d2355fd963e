//! The fields of pods that hollow nodes read; the rest is skipped when decoding.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use mainstay_api::{
    narrow,
    pod::{complete_requests, is_terminal_phase},
    resources::{InitContainer, ResourceList, parse_list, peak},
};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Pod {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

narrow!(Pod, core::v1::Pod);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Empty while it is not bound.
    pub node_name: String,
    pub init_containers: Vec<Container>,
    pub containers: Vec<Container>,
    pub resources: Resources,
    pub overhead: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub image: String,
    pub restart_policy: String,
    pub resources: Resources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub requests: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub phase: String,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
}

impl Resources {
    fn amounts(&self) -> ResourceList {
        amounts(&self.requests)
    }
}

fn amounts(quantities: &BTreeMap<String, Quantity>) -> ResourceList {
    parse_list(quantities.iter().map(|(name, quantity)| (name.as_str(), quantity.0.as_str())))
}

impl Pod {
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Its resourceVersion as a number; 0 if it has none.
    pub fn version(&self) -> u64 {
        self.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub fn is_finished(&self) -> bool {
        is_terminal_phase(&self.status.phase)
    }

    /// What it takes of its node, by the rule that the scheduler and agents use too.
    pub fn requests(&self) -> ResourceList {
        let Spec { init_containers, containers, resources, overhead, .. } = &self.spec;
        let init = init_containers.iter().map(|container| match container.restart_policy == "Always" {
            true => InitContainer::Sidecar(container.resources.amounts()),
            false => InitContainer::Ordinary(container.resources.amounts()),
        });
        let mut requests = peak(init, containers.iter().map(|container| container.resources.amounts()));
        complete_requests(&mut requests, resources.amounts(), &amounts(overhead));
        requests
    }

    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn init_containers_and_overhead_count_as_in_the_scheduler() {
        let container = |cpu: &str| json!({ "resources": { "requests": { "cpu": cpu } } });
        let spec = json!({
            "initContainers": [container("900m")], "containers": [container("300m"), container("200m")],
            "overhead": { "cpu": "10m" },
        });
        let pod: Pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        assert_eq!(pod.requests(), ResourceList::from([("cpu".to_owned(), 910), ("pods".to_owned(), 1)]));
    }
}
