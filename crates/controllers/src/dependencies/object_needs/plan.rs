//! Whether the workloads and objects that pods need are there, and which conditions say something else. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    batch::v1::Job,
};
use mainstay_api::needs::{NeedTarget, OBJECTS_CONDITION};

use crate::objects::{deployment::Deployment, pod::Pod};

pub struct NamespaceWorld {
    pub pods: Vec<PodNeeds>,
    /// By the text of the need.
    pub states: BTreeMap<String, ObjectState>,
}

pub struct PodNeeds {
    pub pod: Arc<Pod>,
    pub targets: Vec<NeedTarget>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectState {
    Missing,
    Exists,
    /// So many of the replicas that are wanted are ready.
    Replicas {
        ready: i32,
        wanted: i32,
    },
    /// Its controller has not looked at its latest version yet.
    NotObserved,
    JobComplete,
    JobRunning,
    JobFailed {
        reason: String,
    },
}

impl ObjectState {
    /// What is missing; nothing if the need is met.
    fn missing(&self) -> Option<String> {
        match self {
            Self::Exists | Self::JobComplete => None,
            Self::Replicas { ready, wanted } if ready >= wanted => None,
            Self::Missing => Some("does not exist".to_owned()),
            Self::Replicas { ready, wanted } => Some(format!("{ready} of {wanted} ready")),
            Self::NotObserved => Some("is being updated".to_owned()),
            Self::JobRunning => Some("is not complete".to_owned()),
            Self::JobFailed { reason } => Some(format!("has failed ({reason})")),
        }
    }
}

pub fn deployment_state(own: &Deployment) -> ObjectState {
    let status = &own.status;
    replicas(
        own.metadata.generation,
        Some(status.observed_generation),
        status.ready_replicas,
        own.spec.replicas.unwrap_or(1),
    )
}

pub fn stateful_set_state(own: &StatefulSet) -> ObjectState {
    let wanted = own.spec.replicas.unwrap_or(1);
    let status = own.status.clone().unwrap_or_default();
    replicas(own.metadata.generation, status.observed_generation, status.ready_replicas.unwrap_or(0), wanted)
}

pub fn daemon_set_state(own: &DaemonSet) -> ObjectState {
    let status = own.status.clone().unwrap_or_default();
    replicas(own.metadata.generation, status.observed_generation, status.number_ready, status.desired_number_scheduled)
}

fn replicas(generation: Option<i64>, observed: Option<i64>, ready: i32, wanted: i32) -> ObjectState {
    if observed.unwrap_or(0) < generation.unwrap_or(0) {
        return ObjectState::NotObserved;
    }
    ObjectState::Replicas { ready, wanted }
}

pub fn job_state(own: &Job) -> ObjectState {
    let conditions = own.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ended = conditions.filter(|condition| condition.status == "True");
    let mut states = ended.filter_map(|condition| match condition.type_.as_str() {
        "Complete" => Some(ObjectState::JobComplete),
        "Failed" => Some(ObjectState::JobFailed { reason: condition.reason.clone().unwrap_or_default() }),
        _ => None,
    });
    states.next_back().unwrap_or(ObjectState::JobRunning)
}

/// Writes the condition of one pod.
#[derive(Debug, PartialEq, Eq)]
pub struct SetCondition {
    pub name: String,
    pub uid: String,
    pub met: bool,
    /// A line for each need that is not met.
    pub message: String,
    /// Its status changes, and not only its message.
    pub is_transition: bool,
}

pub fn plan(world: &NamespaceWorld) -> Vec<SetCondition> {
    world.pods.iter().filter_map(|PodNeeds { pod, targets }| condition(pod, targets, &world.states)).collect()
}

fn condition(pod: &Pod, targets: &[NeedTarget], states: &BTreeMap<String, ObjectState>) -> Option<SetCondition> {
    let lines = targets.iter().filter_map(|target| {
        let target = target.to_string();
        let missing = states.get(&target)?.missing()?;
        Some(format!("{target}: {missing}"))
    });
    let message = lines.collect::<Vec<String>>().join("\n");
    let met = message.is_empty();
    let before = pod.condition(OBJECTS_CONDITION);
    let was_met = before.map(|condition| condition.status == "True");
    let said = before.and_then(|condition| condition.message.as_deref()).unwrap_or_default();
    if was_met == Some(met) && said == message {
        return None;
    }
    Some(SetCondition {
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        met,
        message,
        is_transition: was_met != Some(met),
    })
}

#[cfg(test)]
mod tests {
    use mainstay_api::needs::Needs;
    use serde_json::json;

    use super::*;

    fn plan_for(
        needs: &str,
        conditions: serde_json::Value,
        states: &[(&str, ObjectState)],
    ) -> Vec<(bool, String, bool)> {
        let meta = json!({ "name": "p", "namespace": "a", "uid": "u" });
        let pod: Pod =
            serde_json::from_value(json!({ "metadata": meta, "status": { "conditions": conditions } })).unwrap();
        let targets = needs.parse::<Needs>().unwrap().needs.into_iter().map(|need| need.target).collect();
        let states = states.iter().map(|(name, state)| ((*name).to_owned(), state.clone())).collect();
        let world = NamespaceWorld { pods: vec![PodNeeds { pod: Arc::new(pod), targets }], states };
        plan(&world).into_iter().map(|set| (set.met, set.message, set.is_transition)).collect()
    }

    #[test]
    fn a_condition_names_what_is_missing_and_is_written_when_that_changes() {
        let needs = "job/migrate, deployment/api, configmap/zones";
        let states = [
            ("job/migrate", ObjectState::JobFailed { reason: "BackoffLimitExceeded".to_owned() }),
            ("deployment/api", ObjectState::Replicas { ready: 1, wanted: 3 }),
            ("configmap/zones", ObjectState::Exists),
        ];
        let message = "job/migrate: has failed (BackoffLimitExceeded)\ndeployment/api: 1 of 3 ready".to_owned();
        assert_eq!(plan_for(needs, json!([]), &states), [(false, message.clone(), true)]);
        let said =
            |status: &str, message: &str| json!([{ "type": OBJECTS_CONDITION, "status": status, "message": message }]);
        assert_eq!(plan_for(needs, said("False", &message), &states), []);
        assert_eq!(plan_for(needs, said("False", "other"), &states), [(false, message.clone(), false)]);
        let met = [
            ("job/migrate", ObjectState::JobComplete),
            ("deployment/api", ObjectState::Replicas { ready: 3, wanted: 3 }),
            ("configmap/zones", ObjectState::Exists),
        ];
        assert_eq!(plan_for(needs, said("False", &message), &met), [(true, String::new(), true)]);
        assert_eq!(plan_for(needs, said("True", ""), &met), []);
    }

    #[test]
    fn a_workload_counts_once_its_controller_has_seen_its_latest_version() {
        let deployment = |observed: i64| -> Deployment {
            serde_json::from_value(json!({
                "metadata": { "name": "api", "generation": 2 }, "spec": { "replicas": 2 },
                "status": { "observedGeneration": observed, "readyReplicas": 2 },
            }))
            .unwrap()
        };
        assert_eq!(deployment_state(&deployment(1)), ObjectState::NotObserved);
        assert_eq!(deployment_state(&deployment(2)), ObjectState::Replicas { ready: 2, wanted: 2 });
        assert_eq!(deployment_state(&deployment(2)).missing(), None);
        let job = |conditions: serde_json::Value| -> Job {
            serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": conditions } })).unwrap()
        };
        assert_eq!(job_state(&job(json!([]))), ObjectState::JobRunning);
        let complete =
            json!([{ "type": "SuccessCriteriaMet", "status": "True" }, { "type": "Complete", "status": "True" }]);
        assert_eq!(job_state(&job(complete)), ObjectState::JobComplete);
    }
}
