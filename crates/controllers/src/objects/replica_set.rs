//! ReplicaSet and ReplicationController as far as controllers read them: two spellings of one thing.

use k8s_openapi::{
    api::{apps, apps::v1::ReplicaSetCondition, core},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_api::narrow;
use serde::Deserialize;
use serde_json::{Value, json};

use super::selector::{Selector, by_map};

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ReplicaSet {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub replicas: Option<i32>,
    #[serde(default)]
    pub min_ready_seconds: i32,
    #[serde(default)]
    pub selector: Selector,
    #[serde(default)]
    pub template: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ReplicationController {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: MapSpec,
    #[serde(default)]
    pub status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MapSpec {
    pub replicas: Option<i32>,
    #[serde(default)]
    pub min_ready_seconds: i32,
    #[serde(default, deserialize_with = "by_map")]
    pub selector: Selector,
    #[serde(default)]
    pub template: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    pub replicas: i32,
    pub fully_labeled_replicas: i32,
    pub ready_replicas: i32,
    pub available_replicas: i32,
    /// Only ReplicaSets tell.
    pub terminating_replicas: Option<i32>,
    pub observed_generation: i64,
    pub conditions: Vec<ReplicaSetCondition>,
}

impl Status {
    /// As a merge patch: what is nothing is not there.
    pub fn written(&self) -> Value {
        let some = |count: i32| (count != 0).then_some(count);
        json!({
            "replicas": self.replicas,
            "fullyLabeledReplicas": some(self.fully_labeled_replicas),
            "readyReplicas": some(self.ready_replicas),
            "availableReplicas": some(self.available_replicas),
            "terminatingReplicas": self.terminating_replicas,
            "observedGeneration": self.observed_generation,
            "conditions": (!self.conditions.is_empty()).then_some(&self.conditions),
        })
    }
}

narrow!(ReplicaSet, apps::v1::ReplicaSet);
narrow!(ReplicationController, core::v1::ReplicationController);
