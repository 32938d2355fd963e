//! Followers: pods that move when the pod they are tied to has moved.
//!
//! Required pod affinity holds when a pod is scheduled and not afterwards: if the other pod, its leader, is made anew on
//! another node, the follower stays where it was. A pod with the annotation `mainstay.dev/follow: "true"` is evicted then, and
//! its controller makes another, which is scheduled beside the leader. Evictions honour PodDisruptionBudgets. A pod without a
//! controller is left alone: nobody would make another.

mod plan;

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod as FullPod, PodAffinityTerm},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, Preconditions},
};
use mainstay_api::validation::labels;
use mainstay_api::wellknown::mainstay;
use mainstay_events::EventNote;
use parking_lot::Mutex;

use self::plan::{Leader, Verdict, World};
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Change, Context, Controller, Limits, ObjectKey, Plan, Runnable, error},
};

const EVENT_COMPONENT: &str = "follow-controller";
/// How soon an eviction that a budget does not allow is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

pub struct Followers {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<Followers>();
    context.caches.pods.on_change({
        let queue = queue.clone();
        // There are few followers, and any pod may be somebody's leader.
        let followers = Mutex::new(BTreeSet::<ObjectKey>::new());
        move |change: Change<'_, Pod>| {
            let mut followers = followers.lock();
            if change.after.is_some_and(follows) {
                followers.insert(change.key.clone());
                queue.add(change.key.clone());
            } else {
                followers.remove(change.key);
            }
            let place = |pod: Option<&Pod>| {
                let active = pod.filter(|pod| pod.is_active());
                active.map(|pod| (pod.spec.node_name.clone(), pod.metadata.labels.clone(), pod.is_ready()))
            };
            if !followers.is_empty() && place(change.before) != place(change.after) {
                followers.iter().for_each(|follower| queue.add(follower.clone()));
            }
        }
    });
    context.runnable(Arc::new(Followers { context: context.clone() }), queue, Limits::default())
}

fn follows(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(mainstay::FOLLOW)).is_some_and(|value| value == "true")
}

impl Followers {
    /// The value of a node's label.
    fn domain(&self, node: &str, topology_key: &str) -> Option<String> {
        let node = self.context.caches.nodes.get(&ObjectKey::new("", node))?;
        node.metadata.labels.as_ref()?.get(topology_key).cloned()
    }

    /// The pods that a term of the follower's affinity selects, and where they are.
    fn leaders(&self, follower: &Pod, namespace: &str, term: &PodAffinityTerm) -> Vec<Leader> {
        let is_selected = |pod: &Pod| {
            let Some(selector) = &term.label_selector else { return false };
            pod.uid() != follower.uid()
                && pod.is_active()
                && !pod.spec.node_name.is_empty()
                && labels::matches(selector, &pod.metadata.labels.clone().unwrap_or_default())
        };
        let names: Vec<&str> = term.namespaces.iter().flatten().map(String::as_str).collect();
        let leaders = if names.is_empty() && term.namespace_selector.is_none() {
            let mut own = self.context.caches.pods.in_namespace(namespace);
            own.retain(|pod| is_selected(pod));
            own
        } else {
            let has_labels = |name: &str, selector: &LabelSelector| {
                let found = self.context.caches.namespaces.get(&ObjectKey::new("", name));
                found.is_some_and(|found| labels::matches(selector, &found.metadata.labels.clone().unwrap_or_default()))
            };
            self.context.caches.pods.select(|pod| {
                let own = pod.metadata.namespace.as_deref().unwrap_or_default();
                is_selected(pod)
                    && (names.contains(&own)
                        || term.namespace_selector.as_ref().is_some_and(|selector| has_labels(own, selector)))
            })
        };
        leaders
            .iter()
            .map(|pod| Leader {
                name: pod.name().to_owned(),
                domain: self.domain(&pod.spec.node_name, &term.topology_key),
                is_ready: pod.is_ready(),
            })
            .collect()
    }
}

/// Fenced by the uid of the pod that was judged.
#[derive(Debug)]
pub struct Evict {
    uid: String,
    why: String,
}

impl Controller for Followers {
    const NAME: &'static str = "follow";
    type Key = ObjectKey;
    type World = World;
    type Action = Evict;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(pod) = self.context.caches.pods.get(key) else { return Ok(None) };
        let is_controlled = pod.metadata.owner_references.iter().flatten().any(|own| own.controller == Some(true));
        if !follows(&pod) || !is_controlled || !pod.is_active() || pod.spec.node_name.is_empty() {
            return Ok(None);
        }
        let term = |term: &PodAffinityTerm| plan::Term {
            own_domain: self.domain(&pod.spec.node_name, &term.topology_key),
            leaders: self.leaders(&pod, &key.namespace, term),
        };
        let terms = pod.spec.affinity.required_pods.iter().map(term).collect();
        Ok(Some(World { uid: pod.uid().to_owned(), terms }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Evict, ()> {
        match plan::judge(world) {
            Verdict::Stay => Plan::default(),
            Verdict::Follow { why } => Plan {
                actions: vec![Evict { uid: world.uid.clone(), why }],
                requeue_at: now.checked_add(RETRY).ok(),
                ..Plan::default()
            },
        }
    }

    async fn apply(&self, key: &ObjectKey, Evict { uid, why }: Evict) -> Result<(), ApiError> {
        let pods: Api<FullPod> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let preconditions = Some(Preconditions { uid: Some(uid.clone()), resource_version: None });
        let delete = DeleteParams { preconditions, ..DeleteParams::default() };
        let params = EvictParams { delete_options: Some(delete), ..EvictParams::default() };
        match pods.evict(&key.name, &params).await {
            Ok(_) => {}
            // Gone or another pod by now, or a budget does not allow it yet: it is looked at again.
            Err(error) if [404, 409, 429].iter().any(|code| error::has_code(&error, *code)) => return Ok(()),
            Err(error) => return Err(ApiError::new(format!("evict pod {key:?}"), error)),
        }
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        self.context.events.record_as(EVENT_COMPONENT, involved, EventNote::normal("FollowsLeader", why));
        Ok(())
    }
}
