//! So many pods of a kind: ReplicaSets and ReplicationControllers.
//!
//! * [`object`]: the two kinds, and what they have in common
//! * [`plan`]: the decision; [`surplus`]: which pods go when there are too many

pub mod object;
mod plan;
mod surplus;

use std::{collections::HashMap, fmt, marker::PhantomData, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::ReplicaSetCondition,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::selector::Labels;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    Turns, Workloads,
    owner::{self, Kind, Owner, selects},
    pod::Pod,
    template, turns,
};
use crate::{
    cache::{Change, Key, controller},
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};
use object::{ReplicaSet, ReplicationController, Set, Status};
use plan::{BURST, Desired, Step, World};

const REPLICA_FAILURE: &str = "ReplicaFailure";
/// News of pods that need an answer.
const SOON: Duration = Duration::from_millis(10);
/// News of pods that are merely counted.
const GATHERED: Duration = Duration::from_millis(50);

/// Both kinds begin to listen.
pub fn controllers(shared: &Arc<Workloads>) -> [Turns; 2] {
    [Replicas::<ReplicaSet>::start(shared), Replicas::<ReplicationController>::start(shared)]
}

struct Replicas<S> {
    shared: Arc<Workloads>,
    queue: Arc<Queue<Key>>,
    kind: Arc<Kind>,
    /// What went wrong in the turn under way, for its report.
    refused: Mutex<HashMap<Key, Refusal>>,
    set: PhantomData<S>,
}

struct Refusal {
    reason: &'static str,
    message: String,
}

impl<S: Set> Replicas<S> {
    fn start(shared: &Arc<Workloads>) -> Turns {
        let queue = Queue::new();
        let controller = Arc::new(Self {
            shared: shared.clone(),
            queue: queue.clone(),
            kind: Kind::new::<S>(S::COMPONENT),
            refused: Mutex::default(),
            set: PhantomData,
        });
        let sets = queue.clone();
        S::cache(&shared.caches).on_change(move |change| {
            let same = |meta: fn(&ObjectMeta) -> String| {
                change.before.map(|set| meta(set.meta())) == change.after.map(|set| meta(set.meta()))
            };
            let told = same(|meta| format!("{:?} {:?}", meta.generation, meta.deletion_timestamp));
            sets.wake_within(change.key.clone(), if told { GATHERED } else { Duration::ZERO });
        });
        let own = controller.clone();
        shared.caches.pods.on_change(move |change| own.pod_changed(&change));
        turns(controller, queue, Limits { width: 8, longest_pause: Duration::from_secs(60) })
    }

    fn pod_changed(&self, change: &Change<'_, Pod>) {
        let before = change.before.and_then(|pod| self.owner_of(pod));
        let after = change.after.and_then(|pod| self.owner_of(pod));
        let delay = if change.after.is_some_and(Pod::is_active) { GATHERED } else { SOON };
        if let Some(name) = before.filter(|_| before != after) {
            self.queue.wake_within(Key::new(change.key.namespace.clone(), name), SOON);
        }
        if let Some(name) = after.or(before) {
            self.queue.wake_within(Key::new(change.key.namespace.clone(), name), delay);
        }
        let orphan = change.after.filter(|pod| controller(&pod.metadata).is_none() && pod.is_active());
        let Some(orphan) = orphan else { return };
        let known = change.before.is_some_and(|before| {
            controller(&before.metadata).is_none() && before.metadata.labels == orphan.metadata.labels
        });
        if known {
            return;
        }
        for set in S::cache(&self.shared.caches).in_namespace(&change.key.namespace) {
            if selects(&set.selector().labels, &orphan.metadata) {
                self.queue.wake_within(Key::of(set.meta()), GATHERED);
            }
        }
    }

    fn owner_of<'p>(&self, pod: &'p Pod) -> Option<&'p str> {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        (owner.kind == self.kind.resource.kind).then_some(owner.name.as_str())
    }

    /// The pods of all sets of this kind that have the same controller, counted per machine.
    fn crowd(&self, meta: &ObjectMeta, own: &[Arc<Pod>]) -> surplus::Crowd {
        let Some(above) = controller(meta) else { return surplus::crowd(own) };
        let sets = S::cache(&self.shared.caches).controlled_by(above);
        let uids = sets.iter().filter_map(|set| set.meta().uid.as_deref());
        let pods: Vec<Arc<Pod>> = uids.flat_map(|uid| self.shared.caches.pods.controlled_by(uid)).collect();
        surplus::crowd(&pods)
    }
}

/// A step, with all that is needed to take it.
pub struct Action {
    step: Step,
    set: Arc<Making>,
}

struct Making {
    owner: Owner,
    template: Value,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.step.fmt(f)
    }
}

/// A snapshot, and whose it is.
pub struct Seen {
    world: World,
    set: Arc<Making>,
    version: String,
}

pub struct Report {
    status: Status,
    standing: Status,
    version: String,
    at: Timestamp,
}

impl<S: Set> Controller for Replicas<S> {
    const NAME: &'static str = S::NAME;
    const ABREAST: usize = 128;
    type Key = Key;
    type World = Seen;
    type Action = Action;
    type Status = Report;

    async fn observe(&self, key: &Key) -> Result<Option<Seen>, Failure> {
        self.refused.lock().remove(key);
        let caches = &self.shared.caches;
        let Some(set) = S::cache(caches).get(key) else { return Ok(None) };
        let owner = Owner::new(&self.kind, set.meta());
        let fits = |pod: &Pod| selects(&set.selector().labels, &pod.metadata);
        // Only pods that still run change hands.
        let (active, mut rest): (Vec<_>, Vec<_>) =
            caches.pods.controlled_by(&owner.uid).into_iter().partition(|pod| pod.is_active());
        let orphans = caches.pods.orphans_in(&key.namespace).into_iter().filter(|pod| pod.is_active());
        let mut claimed = owner::claim_among(&owner, active.into_iter().chain(orphans), fits);
        rest.retain(|pod| fits(pod));
        let active = claimed.held.len();
        claimed.held.extend(rest);
        let replicas = usize::try_from(set.replicas()).unwrap_or(0);
        let missing = replicas.saturating_sub(active).min(BURST);
        let taken = |name: &str| caches.pods.get(&Key::new(key.namespace.clone(), name)).is_some();
        let vacant = template::vacant(&key.name, &owner.uid, taken).take(missing).collect();
        let crowd = if active > replicas { self.crowd(set.meta(), &claimed.held) } else { surplus::Crowd::new() };
        let want = Desired {
            replicas,
            min_ready_seconds: set.min_ready_seconds(),
            template_labels: Labels::from_map(&set.template()["metadata"]["labels"]),
            generation: set.meta().generation.unwrap_or(0),
            leaving: owner.leaving,
            counts_leaving: S::COUNTS_LEAVING,
        };
        let standing = set.status().clone();
        let world = World { want, pods: claimed.held, claims: claimed.claims, vacant, crowd, standing };
        let version = set.meta().resource_version.clone().unwrap_or_default();
        Ok(Some(Seen { world, set: Arc::new(Making { owner, template: set.template().clone() }), version }))
    }

    fn plan(seen: &Seen, now: Timestamp) -> Plan<Action, Report> {
        let plan = plan::plan(&seen.world, now);
        let (version, standing) = (seen.version.clone(), seen.world.standing.clone());
        Plan {
            actions: plan.actions.into_iter().map(|step| Action { step, set: seen.set.clone() }).collect(),
            status: plan.status.map(|status| Report { status, standing, version, at: now }),
            wake_at: plan.wake_at,
        }
    }

    async fn apply(&self, key: &Key, Action { step, set }: Action) -> Result<(), Failure> {
        let (reason, result) = match step {
            Step::Claim(claim) => {
                return owner::settle(&self.shared.client, &self.shared.caches.pods, &set.owner, claim).await;
            }
            Step::Create { name } => {
                let pod = template::pod(&set.owner, &set.template, &name);
                ("FailedCreate", self.shared.create_pod(&set.owner, &pod).await)
            }
            Step::Delete { name, uid } => ("FailedDelete", self.shared.delete_pod(&set.owner, &name, &uid).await),
        };
        if let Err(failure) = &result
            && !failure.is_stale()
        {
            self.refused.lock().insert(key.clone(), Refusal { reason, message: failure.answer() });
        }
        result
    }

    async fn report(&self, key: &Key, report: Report) -> Result<(), Failure> {
        let Report { mut status, standing, version, at } = report;
        if let Some(refusal) = self.refused.lock().remove(key) {
            status.conditions.push(refusal.condition(&standing, at));
        }
        if status == standing {
            return Ok(());
        }
        let sets: Api<S> = Api::namespaced(self.shared.client.clone(), &key.namespace);
        let change = json!({ "metadata": { "resourceVersion": version }, "status": status.written() });
        match sets.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(set) => {
                S::cache(&self.shared.caches).wrote(set);
                Ok(())
            }
            Err(error) if failure::no_such_object(&error, &key.name) => Ok(()),
            Err(error) => Err(Failure::new(format!("write the status of {} {key:?}", self.kind.resource.kind), error)),
        }
    }
}

impl Refusal {
    /// One that stands with the same reason is left as it is.
    fn condition(self, standing: &Status, at: Timestamp) -> ReplicaSetCondition {
        let before = standing.conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE);
        match before.filter(|before| before.status == "True" && before.reason.as_deref() == Some(self.reason)) {
            Some(before) => before.clone(),
            None => ReplicaSetCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: Some(self.reason.to_owned()),
                message: Some(self.message),
                last_transition_time: Some(Time(at)),
            },
        }
    }
}
