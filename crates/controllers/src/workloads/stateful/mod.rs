//! StatefulSets: pods with names that stay, and claims that stay with the names.
//!
//! * [`desired`]: what a set asks for; [`plan`]: what to do next; [`claims`]: whose the claims are;
//!   [`pods`]: the pod of an ordinal

mod claims;
mod desired;
#[cfg(test)]
mod model;
mod plan;
mod pods;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetStatus},
    core::v1::PersistentVolumeClaim,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use self::{
    desired::{Desired, Ordinal},
    plan::{Action, Why, World},
};
use super::{
    Turns, Workloads, act,
    history::{self, Wanted},
    owner::{self, Kind, Owner},
    turns, wake,
};
use crate::{
    cache::{Cache, Key},
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};

const KIND: &str = "StatefulSet";

pub struct StatefulSets {
    shared: Arc<Workloads>,
    kind: Arc<Kind>,
}

/// Begins to listen.
pub fn listen(shared: &Arc<Workloads>) -> Turns {
    let (queue, caches) = (Queue::new(), &shared.caches);
    caches.stateful_sets.on_change(wake::itself(&queue));
    caches.pods.on_change(wake::owner(&queue, KIND, &caches.stateful_sets, selects, Duration::ZERO));
    caches.revisions.on_change(wake::owner(&queue, KIND, &caches.stateful_sets, selects, Duration::ZERO));
    caches.claims.on_change({
        let (queue, sets) = (queue.clone(), caches.stateful_sets.clone());
        move |change| claimants(&sets, change.key).for_each(|set| queue.wake(set))
    });
    let sets = StatefulSets { shared: shared.clone(), kind: Kind::new::<StatefulSet>("statefulset-controller") };
    turns(Arc::new(sets), queue, Limits::default())
}

fn selects(set: &StatefulSet, meta: &kube::api::ObjectMeta) -> bool {
    set.spec.as_ref().is_some_and(|spec| owner::selects(&owner::selector(&spec.selector), meta))
}

/// The sets that a claim may belong to, by its name.
fn claimants(sets: &Cache<StatefulSet>, claim: &Key) -> impl Iterator<Item = Key> {
    let is_claimant = |set: &Desired| {
        let own = |template: &String| claim.name.strip_prefix(template.as_str())?.strip_prefix('-');
        set.claims.iter().filter_map(own).any(|pod| set.ordinal(pod).is_some())
    };
    let sets = sets.in_namespace(&claim.namespace);
    let claimants: Vec<Key> =
        sets.iter().filter(|set| is_claimant(&Desired::of(set))).map(|set| Key::of(&set.metadata)).collect();
    claimants.into_iter()
}

impl StatefulSets {
    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.shared.client.clone(), namespace)
    }

    /// The set that an action is for, unless it has gone.
    fn set(&self, key: &Key) -> Option<(Arc<StatefulSet>, Owner, Desired)> {
        let set = self.shared.caches.stateful_sets.get(key)?;
        let (owner, want) = (Owner::new(&self.kind, &set.metadata), Desired::of(&set));
        Some((set, owner, want))
    }

    async fn create(
        &self,
        set: &StatefulSet,
        owner: &Owner,
        want: &Desired,
        ordinal: Ordinal,
        claims: Vec<String>,
        revision: &k8s_openapi::api::apps::v1::ControllerRevision,
    ) -> Result<(), Failure> {
        self.supply(set, owner, want, claims.into_iter().map(|claim| (claim, ordinal)).collect()).await?;
        let Some(template) = history::template_of(revision) else { return Ok(()) };
        let pod = pods::make(owner, set, &template, history::mark(revision), want, ordinal);
        let name = want.pod(ordinal);
        let made = self.shared.post_pod(&owner.key.namespace, &pod).await;
        let events = &self.shared.events;
        match made {
            Ok(made) => {
                self.shared.caches.pods.wrote(made);
                let message = format!("create Pod {name} in StatefulSet {} successful", want.name);
                events.normal(owner, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                if !failure::namespace_goes(&error) {
                    let why = failure::text(&error);
                    let message = format!("create Pod {name} in StatefulSet {} failed error: {why}", want.name);
                    events.warning(owner, "FailedCreate", message);
                }
                Err(Failure::new(format!("create pod {}/{name}", owner.key.namespace), error))
            }
        }
    }

    /// Makes claims that are missing.
    async fn supply(
        &self,
        set: &StatefulSet,
        owner: &Owner,
        want: &Desired,
        missing: Vec<(String, Ordinal)>,
    ) -> Result<(), Failure> {
        let Some(spec) = &set.spec else { return Ok(()) };
        let (namespace, events) = (&owner.key.namespace, &self.shared.events);
        for (name, ordinal) in missing {
            let templates = spec.volume_claim_templates.iter().flatten();
            let is_its = |template: &&PersistentVolumeClaim| {
                want.claim(template.metadata.name.as_deref().unwrap_or_default(), ordinal) == name
            };
            let Some(template) = templates.into_iter().find(is_its) else { continue };
            let selected = spec.selector.match_labels.clone().unwrap_or_default();
            let kept_by = want.retention.with_set.then(|| owner.reference());
            let claim = claims::make(template, &name, namespace, selected, kept_by);
            let pod = want.pod(ordinal);
            match self.claims(namespace).create(&PostParams::default(), &claim).await {
                Ok(made) => {
                    self.shared.caches.claims.wrote(made);
                    let message = format!("create Claim {name} Pod {pod} in StatefulSet {} success", want.name);
                    events.normal(owner, "SuccessfulCreate", message);
                }
                Err(error) if failure::is(&error, 409) && !failure::namespace_goes(&error) => {}
                Err(error) => {
                    let why = failure::text(&error);
                    let message =
                        format!("create Claim {name} for Pod {pod} in StatefulSet {} failed error: {why}", want.name);
                    events.warning(owner, "FailedCreate", message);
                    return Err(Failure::new(format!("create persistentvolumeclaim {namespace}/{name}"), error));
                }
            }
        }
        Ok(())
    }

    async fn delete(
        &self,
        owner: &Owner,
        want: &Desired,
        ordinal: Ordinal,
        uid: &str,
        version: Option<String>,
        why: Why,
    ) -> Result<(), Failure> {
        let (name, set, events) = (want.pod(ordinal), &want.name, &self.shared.events);
        let again = format!("StatefulSet {}/{set} is recreating", owner.key.namespace);
        match why {
            Why::Failed => events.warning(owner, "RecreatingFailedPod", format!("{again} failed Pod {name}")),
            Why::Succeeded => events.normal(owner, "RecreatingTerminatedPod", format!("{again} terminated Pod {name}")),
            Why::Surplus | Why::Outdated | Why::Broken => {}
        }
        let key = Key::new(&owner.key.namespace, &name);
        let pods = self.shared.pods_in(&key.namespace);
        let deleted = act::delete_seen(&pods, &self.shared.caches.pods, &key, uid, version).await;
        match &deleted {
            Ok(true) => {
                events.normal(owner, "SuccessfulDelete", format!("delete Pod {name} in StatefulSet {set} successful"));
            }
            Ok(false) => {}
            Err(failure) if failure.is_stale() => {}
            Err(failure) => {
                let why = failure.answer();
                events.warning(
                    owner,
                    "FailedDelete",
                    format!("delete Pod {name} in StatefulSet {set} failed error: {why}"),
                );
            }
        }
        deleted.map(drop)
    }
}

impl Controller for StatefulSets {
    const NAME: &'static str = "stateful-sets";
    const ABREAST: usize = 16;
    type Key = Key;
    type World = World;
    type Action = Action;
    type Status = StatefulSetStatus;

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let Some((set, owner, want)) = self.set(key) else { return Ok(None) };
        let Some(spec) = &set.spec else { return Ok(None) };
        let caches = &self.shared.caches;
        let selector = owner::selector(&spec.selector);
        let pods = owner::claim(&owner, &caches.pods, |pod| {
            owner::selects(&selector, &pod.metadata) && want.ordinal(pod.name()).is_some()
        });
        let revisions =
            owner::claim(&owner, &caches.revisions, |revision| owner::selects(&selector, &revision.metadata));
        let status = set.status.clone().unwrap_or_default();
        let wanted = Wanted {
            owner: &owner,
            annotations: set.metadata.annotations.as_ref(),
            template: &spec.template,
            collisions: status.collision_count.unwrap_or(0),
        };
        let taken = |name: &str| caches.revisions.get(&Key::new(&key.namespace, name)).is_some();
        let place = history::place(&wanted, &revisions.held, taken);
        let of_status = |revision: &&Arc<_>| status.current_revision.as_deref() == Some(history::name(revision));
        let current = revisions.held.iter().find(of_status).unwrap_or(&place.revision).clone();
        let held: BTreeMap<Ordinal, _> =
            pods.held.into_iter().filter_map(|pod| Some((want.ordinal(pod.name())?, pod))).collect();
        let ordinals = want.within_reach(held.len()).chain(held.keys().copied());
        let claim = |name: String| Some((name.clone(), caches.claims.get(&Key::new(&key.namespace, name))?));
        let claims = match want.claims.is_empty() {
            true => BTreeMap::new(),
            false => ordinals.flat_map(|ordinal| want.claims_of(ordinal)).filter_map(claim).collect(),
        };
        Ok(Some(World {
            reference: owner.reference(),
            pods: held,
            claims,
            revisions: revisions.held,
            place,
            current,
            pod_claims: pods.claims,
            revision_claims: revisions.claims,
            status,
            want,
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, StatefulSetStatus> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &Key, action: Action) -> Result<(), Failure> {
        let Some((set, owner, want)) = self.set(key) else { return Ok(()) };
        let (client, caches, namespace) = (&self.shared.client, &self.shared.caches, &key.namespace);
        match action {
            Action::Revise(write) => history::write(client, &caches.revisions, &owner, write).await,
            Action::ClaimRevision(claim) => owner::settle(client, &caches.revisions, &owner, claim).await,
            Action::ClaimPod(claim) => owner::settle(client, &caches.pods, &owner, claim).await,
            Action::Retain { claim, uid, version, owners } => {
                let metadata = json!({ "uid": uid, "resourceVersion": version, "ownerReferences": owners });
                let change = Patch::Merge(json!({ "metadata": metadata }));
                let doing = format!("change the owners of persistentvolumeclaim {namespace}/{claim}");
                let written = self.claims(namespace).patch(&claim, &PatchParams::default(), &change).await;
                caches.claims.wrote(written.map_err(Failure::when(doing))?);
                Ok(())
            }
            Action::Create { ordinal, claims, revision } => {
                self.create(&set, &owner, &want, ordinal, claims, &revision.0).await
            }
            Action::Supply { claims } => self.supply(&set, &owner, &want, claims).await,
            Action::Name { ordinal, uid, version } => {
                let labels: BTreeMap<_, _> = pods::labels(&want, ordinal).into();
                let metadata = json!({ "uid": uid, "resourceVersion": version, "labels": labels });
                let change = Patch::Merge(json!({ "metadata": metadata }));
                let name = want.pod(ordinal);
                let written = self.shared.pods_in(namespace).patch(&name, &PatchParams::default(), &change).await;
                caches.pods.wrote(written.map_err(Failure::when(format!("label pod {namespace}/{name}")))?);
                Ok(())
            }
            Action::Delete { ordinal, uid, version, why } => {
                self.delete(&owner, &want, ordinal, &uid, version, why).await
            }
        }
    }

    async fn report(&self, key: &Key, status: StatefulSetStatus) -> Result<(), Failure> {
        act::report(&self.shared.client, &self.shared.caches.stateful_sets, key, &status).await
    }
}
