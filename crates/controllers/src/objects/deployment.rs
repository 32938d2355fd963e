//! Deployment as far as controllers read it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::apps::v1::{self as apps, DeploymentCondition},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use mainstay_api::{
    int_or_percent::{self, Rounding},
    narrow,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::selector::Selector;

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Deployment {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub replicas: Option<i32>,
    pub min_ready_seconds: i32,
    pub selector: Selector,
    pub template: Value,
    pub strategy: Strategy,
    pub revision_history_limit: Option<i32>,
    pub paused: bool,
    pub progress_deadline_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    #[serde(rename = "type")]
    pub type_: String,
    pub rolling_update: Option<RollingUpdate>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    pub max_unavailable: Option<IntOrString>,
    pub max_surge: Option<IntOrString>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    pub observed_generation: i64,
    pub replicas: i32,
    pub updated_replicas: i32,
    pub ready_replicas: i32,
    pub available_replicas: i32,
    pub unavailable_replicas: i32,
    pub terminating_replicas: Option<i32>,
    pub collision_count: Option<i32>,
    pub conditions: Vec<DeploymentCondition>,
}

impl Status {
    /// As a merge patch: what is nothing is not there.
    pub fn written(&self) -> Value {
        let some = |count: i32| (count != 0).then_some(count);
        json!({
            "observedGeneration": self.observed_generation,
            "replicas": some(self.replicas),
            "updatedReplicas": some(self.updated_replicas),
            "readyReplicas": some(self.ready_replicas),
            "availableReplicas": some(self.available_replicas),
            "unavailableReplicas": some(self.unavailable_replicas),
            "terminatingReplicas": self.terminating_replicas,
            "collisionCount": self.collision_count,
            "conditions": self.conditions,
        })
    }

    pub fn condition(&self, type_: &str) -> Option<&DeploymentCondition> {
        self.conditions.iter().find(|condition| condition.type_.as_deref() == Some(type_))
    }
}

narrow!(Deployment, apps::Deployment);

impl Deployment {
    pub fn is_recreate(&self) -> bool {
        self.spec.strategy.type_ == "Recreate"
    }

    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.metadata.annotations.clone().unwrap_or_default()
    }

    /// How many pods more than wanted, and how many fewer, an update may have.
    pub fn leeway(&self) -> RolloutLimits {
        if self.is_recreate() {
            return RolloutLimits::default();
        }
        let replicas = self.spec.replicas.unwrap_or(1).max(0);
        let update = self.spec.strategy.rolling_update.clone().unwrap_or_default();
        let quarter = IntOrString::String("25%".to_owned());
        let count = |output: Option<IntOrString>, round| {
            let count = int_or_percent::resolve(output.as_ref().unwrap_or(&quarter), replicas.into(), round);
            i32::try_from(count.max(0)).unwrap_or(i32::MAX)
        };
        let (surge, unavailable) =
            (count(update.max_surge, Rounding::Up), count(update.max_unavailable, Rounding::Down));
        // Small shares may both come to nothing; then nothing could ever move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        RolloutLimits { surge, unavailable: unavailable.min(replicas) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutLimits {
    pub surge: i32,
    pub unavailable: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leeway(replicas: i32, surge: Value, unavailable: Value) -> (i32, i32) {
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {},
            "spec": { "replicas": replicas, "strategy": {
                "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable },
            } },
        }))
        .unwrap();
        let RolloutLimits { surge, unavailable } = deployment.leeway();
        (surge, unavailable)
    }

    #[test]
    fn surge_is_rounded_up_and_unavailable_down() {
        for (replicas, surge, unavailable, expected) in [
            (10, json!("25%"), json!("25%"), (3, 2)),
            (10, json!(null), json!(null), (3, 2)),
            (3, json!("25%"), json!("25%"), (1, 0)),
            (10, json!(2), json!(0), (2, 0)),
            (1, json!(0), json!("10%"), (0, 1)),
            (0, json!("25%"), json!("25%"), (0, 0)),
            (2, json!(0), json!(5), (0, 2)),
            (4, json!("100%"), json!("100%"), (4, 4)),
        ] {
            assert_eq!(
                leeway(replicas, surge.clone(), unavailable.clone()),
                expected,
                "{replicas} {surge} {unavailable}"
            );
        }
    }
}
