//! Evicts the pods of a node, all at a time, each as soon as its budget allows it, and waits until they are gone.
//!
//! Where the pod's Deployment may have more pods than it wants (`maxSurge`), its replacement comes first: the pod is marked
//! ([`REPLACE_FIRST`]), its ReplicaSet makes another one, and the pod is evicted once as many others as are wanted are ready. If no
//! replacement becomes ready in [`SURGE_TIMEOUT`], or in half of the time there is, because there is no room for it, the pod is evicted all the same: its budget
//! decides then.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions},
};
use mainstay_api::wellknown::mainstay::REPLACE_FIRST;
use serde_json::json;
use tokio::time::Instant;

use super::plan;

/// How often a pod that may not go yet, or is not gone yet, is looked at again.
const INTERVAL: Duration = Duration::from_millis(500);
/// Pods at work at the same time.
const AT_ONCE: usize = 64;
/// How long a pod waits for a replacement that nothing promises.
pub const SURGE_TIMEOUT: Duration = Duration::from_secs(60);

/// What becomes of a pod, as it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its replacement starts first.
    Replacing,
    /// With the budget's own words, when they change.
    Blocked(String),
    Evicting,
    Gone {
        after: Duration,
    },
}

pub struct Evictor<'a> {
    pub client: Client,
    /// Of the pods, if not their own.
    pub grace_seconds: Option<u32>,
    pub deadline: Option<Instant>,
    /// Asks as the node itself, which may look at no pod but its own: one that it may not look at is gone.
    pub is_own_node: bool,
    pub report: &'a (dyn Fn(&Pod, Progress) + Sync),
}

/// Why a pod is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    pub namespace: String,
    pub name: String,
    pub why: String,
}

impl Evictor<'_> {
    /// Returns the pods that are still there when time is up, or that could not be evicted at all.
    pub async fn evict_all(&self, pods: Vec<Pod>) -> Vec<Remaining> {
        let each = stream::iter(pods).map(async |pod| self.evict(&pod).await.err());
        each.buffer_unordered(AT_ONCE).filter_map(async |left| left).collect().await
    }

    async fn evict(&self, pod: &Pod) -> Result<(), Remaining> {
        let began = Instant::now();
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let left = |why: String| Remaining { namespace: namespace.clone(), name: name.clone(), why };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let mut why = "its replacement is not ready".to_owned();
        if let Some(set) = self.surging_set(pod).await {
            (self.report)(pod, Progress::Replacing);
            self.wait_for_replacement(pod, &set).await;
        }
        let mut reported = String::new();
        let mut evicted = false;
        loop {
            if !evicted {
                match pods.evict(&name, &self.params(pod)).await {
                    Ok(_) => {
                        (self.report)(pod, Progress::Evicting);
                        (evicted, why) = (true, "it has not ended".to_owned());
                    }
                    Err(kube::Error::Api(status)) if status.code == 404 => evicted = true,
                    // Replaced by another of its name; or something changed meanwhile, and it is asked again.
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        if self.is_gone(&pods, pod).await {
                            evicted = true;
                        } else {
                            why = status.message.clone();
                        }
                    }
                    Err(kube::Error::Api(status)) if status.code == 429 => {
                        why = refusal(&status);
                        if why != reported {
                            (self.report)(pod, Progress::Blocked(why.clone()));
                            reported.clone_from(&why);
                        }
                    }
                    // No answer may be one that was lost: asked again.
                    Err(kube::Error::Api(status)) if status.code < 500 => return Err(left(status.message.clone())),
                    Err(error) => why = mainstay_errors::error_chain(&error),
                }
            }
            if evicted && self.is_gone(&pods, pod).await {
                (self.report)(pod, Progress::Gone { after: began.elapsed() });
                return Ok(());
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(left(why));
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn params(&self, pod: &Pod) -> EvictParams {
        // Another of the same name must not go in its place.
        let preconditions = pod.uid().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let delete =
            DeleteParams { grace_period_seconds: self.grace_seconds, preconditions, ..DeleteParams::default() };
        EvictParams { delete_options: Some(delete), ..EvictParams::default() }
    }

    async fn is_gone(&self, pods: &Api<Pod>, pod: &Pod) -> bool {
        match pods.get_opt(&pod.name_any()).await {
            Ok(found) => found.and_then(|found| found.uid()) != pod.uid(),
            Err(kube::Error::Api(status)) => status.code == 403 && self.is_own_node,
            Err(_) => false,
        }
    }

    /// The ReplicaSet of a pod whose Deployment may have one pod more than it wants, if the pod is ready.
    async fn surging_set(&self, pod: &Pod) -> Option<ReplicaSet> {
        let ("ReplicaSet", set) = plan::controller(pod)? else { return None };
        is_ready(pod).then_some(())?;
        let namespace = pod.namespace()?;
        let set = Api::<ReplicaSet>::namespaced(self.client.clone(), &namespace).get_opt(set).await.ok()??;
        let owner = set.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Deployment")?;
        let deployment =
            Api::<Deployment>::namespaced(self.client.clone(), &namespace).get_opt(&owner.name).await.ok()??;
        may_surge(&deployment).then_some(set)
    }

    async fn wait_for_replacement(&self, pod: &Pod, set: &ReplicaSet) {
        let namespace = pod.namespace().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        // Not for ever: who drains may be killed.
        let until = Timestamp::now() + SURGE_TIMEOUT;
        let mark = json!({ "metadata": { "uid": pod.uid(), "annotations": { REPLACE_FIRST: until.to_string() } } });
        if let Err(error) = pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(mark)).await {
            tracing::debug!(%error, "cannot ask for a replacement of a pod; it is evicted without one");
            return;
        }
        let now = Instant::now();
        // The rest of the time is for the eviction itself.
        let half_of_rest = self.deadline.map(|deadline| deadline.saturating_duration_since(now) / 2);
        let until = now + half_of_rest.map_or(SURGE_TIMEOUT, |half| half.min(SURGE_TIMEOUT));
        while Instant::now() < until && !self.has_replacement(&pods, pod, set).await {
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Whether as many unmarked pods of the set are ready as are wanted, or the pod has gone.
    async fn has_replacement(&self, pods: &Api<Pod>, pod: &Pod, set: &ReplicaSet) -> bool {
        let Ok(all) = pods.list(&ListParams::default()).await else { return false };
        let Ok(set) = Api::<ReplicaSet>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default())
            .get(&set.name_any())
            .await
        else {
            return false;
        };
        let wanted = set.spec.replicas.unwrap_or(1);
        let is_of_set = |other: &&Pod| {
            other.metadata.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == set.uid().as_ref())
        };
        let stays = |other: &&Pod| is_ready(other) && !other.annotations().contains_key(REPLACE_FIRST);
        let staying = all.items.iter().filter(is_of_set).filter(stays).count();
        let is_there = all.items.iter().any(|other| other.uid() == pod.uid());
        !is_there || i32::try_from(staying).is_ok_and(|staying| staying >= wanted)
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether its rolling update may make a pod before another one ends.
fn may_surge(deployment: &Deployment) -> bool {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    let Some(strategy) = deployment.spec.strategy.as_ref() else { return false };
    let surge = strategy.rolling_update.as_ref().and_then(|rolling| rolling.max_surge.as_ref());
    strategy.type_.as_deref() == Some("RollingUpdate")
        && match surge {
            Some(IntOrString::Int(surge)) => *surge > 0,
            // A share of pods is rounded up.
            Some(IntOrString::String(share)) => share.trim_end_matches('%').parse::<i32>().is_ok_and(|share| share > 0),
            None => true,
        }
}

/// What the budget says, which names it; else what the server says.
fn refusal(status: &kube::core::Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes).map(|cause| cause.message.clone());
    causes.into_iter().find(|message| !message.is_empty()).unwrap_or_else(|| status.message.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn deployment(strategy: Value) -> Deployment {
        let spec = json!({ "selector": {}, "template": {}, "strategy": strategy });
        serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
    }

    #[test]
    fn only_a_rolling_update_with_room_for_one_more_surges() {
        let rolling = |surge: Value| json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge } });
        for (strategy, expected) in [
            (rolling(json!(1)), true),
            (rolling(json!("25%")), true),
            (rolling(json!(0)), false),
            (rolling(json!("0%")), false),
            (json!({ "type": "Recreate" }), false),
        ] {
            assert_eq!(may_surge(&deployment(strategy.clone())), expected, "{strategy}");
        }
    }
}
