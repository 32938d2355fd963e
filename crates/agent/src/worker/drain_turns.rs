//! Whose turn it is to be stopped, in sets of which only one pod is at a time ([`mainstay_api::exclusive`]).
//!
//! The turn is a Lease that names the pod as its holder: created, or taken over once its time is over, by compare-and-set. It is held for as long as stopping
//! the pod may take, its grace and a little more, and never renewed; so a holder that vanishes is followed when that time is over. The holder deletes it
//! when nothing of the pod runs any more. It belongs to the pod that holds it, and goes with it at the latest.
//!
//! Without an answer of the API for as long as a turn takes, a pod is stopped without having got one: whoever had it then has had its time. So two pods
//! may be stopped at once while the API is away, and none waits for ever.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};
use mainstay_api::{exclusive, needs::AnnotationMap};
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;

use crate::{heal::owner::controller, spec::pod_ref, task_scope::TaskScope};

/// Longest time to wait for the API.
const API_TIMEOUT: Duration = Duration::from_secs(3);
/// How soon to ask again.
const RETRY: Duration = Duration::from_secs(1);
/// How much longer than its grace a pod may take to be gone.
const MARGIN: Duration = Duration::from_secs(10);
const ATTEMPTS: usize = 4;

/// Whether a pod that ends may be stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DrainTurn {
    /// It need not wait for others.
    #[default]
    Free,
    /// Another pod is being stopped, or it is not known whether one is.
    Waiting { why: String, retry_at: Timestamp },
    /// Its grace runs from when its turn came.
    Granted { deadline: Timestamp },
}

pub struct DrainTurns {
    client: Client,
    tasks: TaskScope,
    pods: Arc<Mutex<BTreeMap<PodUid, TurnState>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TurnState {
    Waiting {
        why: String,
        retry_at: Timestamp,
        /// Since when the API gives no answer.
        unanswered_since: Option<Timestamp>,
    },
    Granted {
        since: Timestamp,
        /// The version of the Lease; nothing if it was not to be had.
        lease: Option<LeaseRef>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaseRef {
    namespace: String,
    name: String,
    version: String,
}

/// What a Lease says about a pod that wants the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TurnClaim {
    Held { since: Timestamp },
    TakeOver { version: String },
    Taken { holder: String, until: Timestamp },
}

impl DrainTurns {
    pub fn new(client: Client, tasks: TaskScope) -> Self {
        Self { client, tasks, pods: Arc::default() }
    }

    /// What is known now about a pod that is being deleted.
    pub fn observe(&self, pod: &Pod, now: Timestamp) -> DrainTurn {
        let Some(grace) = exclusive_grace(pod) else { return DrainTurn::Free };
        match self.pods.lock().get(&pod_ref(pod).uid) {
            None => DrainTurn::Waiting { why: "its turn is asked for".to_owned(), retry_at: now },
            Some(TurnState::Waiting { why, retry_at, .. }) => {
                DrainTurn::Waiting { why: why.clone(), retry_at: *retry_at }
            }
            Some(TurnState::Granted { since, .. }) => DrainTurn::Granted { deadline: *since + grace },
        }
    }

    /// Asks for the turn; [`DrainTurns::observe`] then says what came of it.
    pub async fn request(&self, pod: &Pod) {
        let (Some(grace), Some(set)) = (exclusive_grace(pod), controller(pod)) else { return };
        let uid = pod_ref(pod).uid;
        let acquired = acquire(&self.client, pod, &set.uid, grace);
        let answer = tokio::time::timeout(API_TIMEOUT, acquired).await;
        let now = Timestamp::now();
        let answer = match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error_chain(&error)),
            Err(_) => Err("the API does not answer".to_owned()),
        };
        let mut pods = self.pods.lock();
        let unanswered_since = match pods.get(&uid) {
            Some(TurnState::Waiting { unanswered_since, .. }) => *unanswered_since,
            Some(TurnState::Granted { .. }) => return,
            None => None,
        };
        let next = match answer {
            Ok(Ok((since, lease))) => TurnState::Granted { since, lease: Some(lease) },
            Ok(Err(why)) => TurnState::Waiting { why, retry_at: now + RETRY, unanswered_since: None },
            Err(why) => judge_silence(why, unanswered_since.unwrap_or(now), grace, now),
        };
        if let TurnState::Granted { lease: None, .. } = &next {
            tracing::warn!(pod = ?pod.metadata.name, "no answer about the turn to stop; the pod is stopped without one");
        }
        pods.insert(uid, next);
    }

    /// Nothing of the pod runs any more, or it is gone: the next one may be stopped.
    pub fn release(&self, pod: &PodUid) {
        let Some(TurnState::Granted { lease: Some(lease), .. }) = self.pods.lock().remove(pod) else { return };
        let client = self.client.clone();
        self.tasks.spawn(async move {
            let leases: Api<Lease> = Api::namespaced(client, &lease.namespace);
            let ours = Preconditions { resource_version: Some(lease.version), uid: None };
            let parameters = DeleteParams { preconditions: Some(ours), ..DeleteParams::default() };
            // Whoever took it over keeps it; if the API is away, its time runs out by itself.
            let _ = tokio::time::timeout(API_TIMEOUT, leases.delete(&lease.name, &parameters)).await;
        });
    }
}

/// After so long without an answer as a turn takes, whoever had it has had its time.
fn judge_silence(why: String, since: Timestamp, grace: Duration, now: Timestamp) -> TurnState {
    if now >= since + grace + MARGIN {
        return TurnState::Granted { since: now, lease: None };
    }
    let why = format!("whether another pod of the set is being stopped is not known: {why}");
    TurnState::Waiting { why, retry_at: now + RETRY, unanswered_since: Some(since) }
}

/// The grace of a pod that is being deleted and must not be stopped together with others of its set.
fn exclusive_grace(pod: &Pod) -> Option<Duration> {
    let meta = &pod.metadata;
    let is_exclusive = meta.annotations.annotation(exclusive::ANNOTATION) == Some(exclusive::DRAIN);
    let grace = meta.deletion_grace_period_seconds.filter(|_| is_exclusive && meta.deletion_timestamp.is_some())?;
    controller(pod)?;
    u64::try_from(grace).ok().filter(|grace| *grace > 0).map(Duration::from_secs)
}

type Acquired = Result<(Timestamp, LeaseRef), String>;

async fn acquire(client: &Client, pod: &Pod, set: &str, grace: Duration) -> Result<Acquired, kube::Error> {
    let own = pod_ref(pod);
    let leases: Api<Lease> = Api::namespaced(client.clone(), &own.namespace);
    let name = exclusive::lease_name(set);
    for _ in 0..ATTEMPTS {
        let now = Timestamp::now();
        let found = leases.get_opt(&name).await?;
        let claim = found.as_ref().map(|lease| judge_lease(lease, &own.uid, now));
        let written = match claim {
            Some(TurnClaim::Held { since }) => {
                let version = found.and_then(|lease| lease.metadata.resource_version).unwrap_or_default();
                return Ok(Ok((since, LeaseRef { namespace: own.namespace, name, version })));
            }
            Some(TurnClaim::Taken { holder, until }) => {
                return Ok(Err(format!("{holder} of the same set is being stopped, until {until} at the latest")));
            }
            Some(TurnClaim::TakeOver { version }) => {
                let lease = new_lease(pod, &name, grace, Some(version), now);
                leases.replace(&name, &PostParams::default(), &lease).await
            }
            None => leases.create(&PostParams::default(), &new_lease(pod, &name, grace, None, now)).await,
        };
        match written {
            Ok(lease) => {
                let version = lease.metadata.resource_version.unwrap_or_default();
                return Ok(Ok((now, LeaseRef { namespace: own.namespace, name, version })));
            }
            // Someone was faster, or gave it back.
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Err("other pods of the set ask for their turn as well".to_owned()))
}

fn judge_lease(lease: &Lease, pod: &PodUid, now: Timestamp) -> TurnClaim {
    let spec = lease.spec.clone().unwrap_or_default();
    let version = lease.metadata.resource_version.clone().unwrap_or_default();
    let since = spec.acquire_time.map_or(Timestamp::MIN, |MicroTime(at)| at);
    let lasts = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
    let until = since.checked_add(lasts).unwrap_or(Timestamp::MAX);
    let holder = spec.holder_identity.unwrap_or_default();
    if holder == pod.0 {
        return TurnClaim::Held { since };
    }
    if holder.is_empty() || now >= until {
        return TurnClaim::TakeOver { version };
    }
    let mut owners = lease.metadata.owner_references.iter().flatten();
    let holder = owners.find(|owner| owner.uid == holder).map_or(holder.clone(), |owner| format!("pod {}", owner.name));
    TurnClaim::Taken { holder, until }
}

fn new_lease(pod: &Pod, name: &str, grace: Duration, version: Option<String>, now: Timestamp) -> Lease {
    let own = pod_ref(pod);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let holder = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: own.name,
        uid: own.uid.0.clone(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: version,
            annotations: Some([(exclusive::NODE_ANNOTATION.to_owned(), node)].into()),
            owner_references: Some(vec![holder]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(own.uid.0),
            lease_duration_seconds: Some(i32::try_from((grace + MARGIN).as_secs()).unwrap_or(i32::MAX)),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    fn at_second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(name: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": format!("uid-{name}"),
                "annotations": {"mainstay.dev/exclusive": "drain"},
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "set", "controller": true}],
            },
            "spec": {"nodeName": "here", "containers": []},
        }))
        .unwrap()
    }

    #[test]
    fn only_pods_of_a_set_that_ask_for_it_and_have_grace_wait_for_their_turn() {
        assert_eq!(exclusive_grace(&pod("a")), Some(GRACE));
        let changed = |change: fn(&mut Pod)| {
            let mut pod = pod("a");
            change(&mut pod);
            exclusive_grace(&pod)
        };
        assert_eq!(changed(|pod| pod.metadata.annotations = None), None);
        assert_eq!(changed(|pod| pod.metadata.deletion_timestamp = None), None);
        assert_eq!(changed(|pod| pod.metadata.owner_references = None), None);
        assert_eq!(changed(|pod| pod.metadata.deletion_grace_period_seconds = Some(0)), None);
        assert_eq!(changed(|pod| pod.metadata.deletion_grace_period_seconds = Some(-5)), None);
    }

    #[test]
    fn a_turn_is_taken_over_when_its_time_is_over_and_not_before() {
        let mut lease = new_lease(&pod("a"), "drain-set", GRACE, None, at_second(100));
        lease.metadata.resource_version = Some("7".to_owned());
        assert_eq!(
            judge_lease(&lease, &PodUid("uid-a".to_owned()), at_second(120)),
            TurnClaim::Held { since: at_second(100) }
        );
        let other = PodUid("uid-b".to_owned());
        let taken = TurnClaim::Taken { holder: "pod a".to_owned(), until: at_second(140) };
        assert_eq!(judge_lease(&lease, &other, at_second(139)), taken);
        assert_eq!(judge_lease(&lease, &other, at_second(140)), TurnClaim::TakeOver { version: "7".to_owned() });
        // Whatever else is written there, nobody waits for ever.
        lease.spec = None;
        assert_eq!(judge_lease(&lease, &other, at_second(100)), TurnClaim::TakeOver { version: "7".to_owned() });
        lease.spec = Some(LeaseSpec {
            holder_identity: Some("x".to_owned()),
            lease_duration_seconds: Some(-1),
            acquire_time: Some(MicroTime(at_second(100))),
            ..LeaseSpec::default()
        });
        assert_eq!(judge_lease(&lease, &other, at_second(100)), TurnClaim::TakeOver { version: "7".to_owned() });
    }

    #[test]
    fn without_an_answer_a_pod_waits_for_as_long_as_a_turn_takes_and_no_longer() {
        let waiting = judge_silence("no route".to_owned(), at_second(100), GRACE, at_second(139));
        let TurnState::Waiting { unanswered_since, retry_at, why } = waiting else { panic!("{waiting:?}") };
        assert_eq!((unanswered_since, retry_at), (Some(at_second(100)), at_second(140)));
        assert!(why.ends_with("no route"), "{why}");
        let going_on = judge_silence("no route".to_owned(), at_second(100), GRACE, at_second(140));
        assert_eq!(going_on, TurnState::Granted { since: at_second(140), lease: None });
    }
}
