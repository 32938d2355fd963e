//! The StatefulSet controller: pods with stable names, and claims that stay with the names.
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
    controller_history::{self, RevisionRequest},
    controller_ref::{self, Owner, OwnerKind},
    event_handlers,
};
use crate::{
    config_rollout::workload::{awaits_versions, template_versions},
    runtime::{
        ApiError, Cache, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error, object_writes,
    },
};

const KIND: &str = "StatefulSet";

pub struct StatefulSets {
    context: Arc<Context>,
    kind: Arc<OwnerKind>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let (queue, caches) = (context.queue::<StatefulSets>(), &context.caches);
    caches.stateful_sets.on_change(event_handlers::add_object(&queue));
    caches.pods.on_change(event_handlers::add_owner(&queue, KIND, &caches.stateful_sets, selects, Duration::ZERO));
    caches.revisions.on_change(event_handlers::add_owner(&queue, KIND, &caches.stateful_sets, selects, Duration::ZERO));
    caches.claims.on_change({
        let (queue, sets) = (queue.clone(), caches.stateful_sets.clone());
        move |change| claimants(&sets, change.key).for_each(|set| queue.add(set))
    });
    let sets = StatefulSets { context: context.clone(), kind: OwnerKind::new::<StatefulSet>("statefulset-controller") };
    context.runnable(Arc::new(sets), queue, Limits::default())
}

fn selects(set: &StatefulSet, meta: &kube::api::ObjectMeta) -> bool {
    controller_ref::selects(&controller_ref::selector(&set.spec.selector), meta)
}

/// The sets that a claim may belong to, by its name.
fn claimants(sets: &Cache<StatefulSet>, claim: &ObjectKey) -> impl Iterator<Item = ObjectKey> {
    let is_claimant = |set: &Desired| {
        let own = |template: &String| claim.name.strip_prefix(template.as_str())?.strip_prefix('-');
        set.claims.iter().filter_map(own).any(|pod| set.ordinal(pod).is_some())
    };
    let sets = sets.in_namespace(&claim.namespace);
    let claimants: Vec<ObjectKey> = sets
        .iter()
        .filter(|set| is_claimant(&Desired::from_set(set)))
        .map(|set| ObjectKey::from_meta(&set.metadata))
        .collect();
    claimants.into_iter()
}

impl StatefulSets {
    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    /// The set that an action is for, unless it has gone.
    fn set(&self, key: &ObjectKey) -> Option<(Arc<StatefulSet>, Owner, Desired)> {
        let set = self.context.caches.stateful_sets.get(key)?;
        let (owner, want) = (Owner::new(&self.kind, &set.metadata), Desired::from_set(&set));
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
    ) -> Result<(), ApiError> {
        self.supply(set, owner, want, claims.into_iter().map(|claim| (claim, ordinal)).collect()).await?;
        let Some(template) = controller_history::template_of(revision) else { return Ok(()) };
        let pod = pods::make(owner, set, &template, controller_history::mark(revision), want, ordinal);
        let name = want.pod(ordinal);
        let made = self.context.post_pod(&owner.key.namespace, &pod).await;
        let events = &self.context.events;
        match made {
            Ok(made) => {
                self.context.caches.pods.wrote(made);
                let message = format!("create Pod {name} in StatefulSet {} successful", want.name);
                events.normal(owner, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                if !error::is_namespace_terminating(&error) {
                    let why = error::message(&error);
                    let message = format!("create Pod {name} in StatefulSet {} failed error: {why}", want.name);
                    events.warning(owner, "FailedCreate", message);
                }
                Err(ApiError::new(format!("create pod {}/{name}", owner.key.namespace), error))
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
    ) -> Result<(), ApiError> {
        let (namespace, events) = (&owner.key.namespace, &self.context.events);
        for (name, ordinal) in missing {
            let templates = set.spec.volume_claim_templates.iter().flatten();
            let is_its = |template: &&PersistentVolumeClaim| {
                want.claim(template.metadata.name.as_deref().unwrap_or_default(), ordinal) == name
            };
            let Some(template) = templates.into_iter().find(is_its) else { continue };
            let selected = set.spec.selector.match_labels.clone().unwrap_or_default();
            let kept_by = want.retention.with_set.then(|| owner.reference());
            let claim = claims::make(template, &name, namespace, selected, kept_by);
            let pod = want.pod(ordinal);
            match self.claims(namespace).create(&PostParams::default(), &claim).await {
                Ok(made) => {
                    self.context.caches.claims.wrote(made);
                    let message = format!("create Claim {name} Pod {pod} in StatefulSet {} success", want.name);
                    events.normal(owner, "SuccessfulCreate", message);
                }
                Err(error) if error::has_code(&error, 409) && !error::is_namespace_terminating(&error) => {}
                Err(error) => {
                    let why = error::message(&error);
                    let message =
                        format!("create Claim {name} for Pod {pod} in StatefulSet {} failed error: {why}", want.name);
                    events.warning(owner, "FailedCreate", message);
                    return Err(ApiError::new(format!("create persistentvolumeclaim {namespace}/{name}"), error));
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
    ) -> Result<(), ApiError> {
        let (name, set, events) = (want.pod(ordinal), &want.name, &self.context.events);
        let again = format!("StatefulSet {}/{set} is recreating", owner.key.namespace);
        match why {
            Why::Failed => events.warning(owner, "RecreatingFailedPod", format!("{again} failed Pod {name}")),
            Why::Succeeded => events.normal(owner, "RecreatingTerminatedPod", format!("{again} terminated Pod {name}")),
            Why::Surplus | Why::Outdated | Why::Broken => {}
        }
        let key = ObjectKey::new(&owner.key.namespace, &name);
        let pods = self.context.pods_in(&key.namespace);
        let deleted = object_writes::delete_if_unchanged(&pods, &self.context.caches.pods, &key, uid, version).await;
        match &deleted {
            Ok(true) => {
                events.normal(owner, "SuccessfulDelete", format!("delete Pod {name} in StatefulSet {set} successful"));
            }
            Ok(false) => {}
            Err(failure) if failure.is_conflict() => {}
            Err(failure) => {
                let why = failure.message();
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
    const NAME: &'static str = "statefulset";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = StatefulSetStatus;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some((set, owner, want)) = self.set(key) else { return Ok(None) };
        let spec = &set.spec;
        if awaits_versions(&set.metadata, template_versions(&spec.template)) {
            return Ok(None); // whoever writes them wakes us
        }
        let caches = &self.context.caches;
        let selector = controller_ref::selector(&spec.selector);
        let pods = controller_ref::claim_objects(&owner, &caches.pods, |pod| {
            controller_ref::selects(&selector, &pod.metadata) && want.ordinal(pod.name()).is_some()
        });
        let status = set.status.clone().unwrap_or_default();
        let wanted = RevisionRequest {
            owner: &owner,
            annotations: set.metadata.annotations.as_ref(),
            template: &spec.template,
            collisions: status.collision_count.unwrap_or(0),
        };
        let (revisions, template_revision) =
            controller_history::observe_revisions(&wanted, &selector, &caches.revisions);
        let of_status =
            |revision: &&Arc<_>| status.current_revision.as_deref() == Some(controller_history::name(revision));
        let current = revisions.held.iter().find(of_status).unwrap_or(&template_revision.revision).clone();
        let held: BTreeMap<Ordinal, _> =
            pods.held.into_iter().filter_map(|pod| Some((want.ordinal(pod.name())?, pod))).collect();
        let ordinals = want.within_reach(held.len()).chain(held.keys().copied());
        let claim = |name: String| Some((name.clone(), caches.claims.get(&ObjectKey::new(&key.namespace, name))?));
        let claims = match want.claims.is_empty() {
            true => BTreeMap::new(),
            false => ordinals.flat_map(|ordinal| want.claims_of(ordinal)).filter_map(claim).collect(),
        };
        Ok(Some(World {
            reference: owner.reference(),
            pods: held,
            claims,
            revisions: revisions.held,
            template_revision,
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

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let Some((set, owner, want)) = self.set(key) else { return Ok(()) };
        let (client, caches, namespace) = (&self.context.client, &self.context.caches, &key.namespace);
        match action {
            Action::Revise(write) => controller_history::write(client, &caches.revisions, &owner, write).await,
            Action::ClaimRevision(claim) => {
                controller_ref::apply_change(client, &caches.revisions, &owner, claim).await
            }
            Action::ClaimPod(claim) => controller_ref::apply_change(client, &caches.pods, &owner, claim).await,
            Action::Retain { claim, uid, version, owners } => {
                let metadata = json!({ "uid": uid, "resourceVersion": version, "ownerReferences": owners });
                let change = Patch::Merge(json!({ "metadata": metadata }));
                let doing = format!("change the owners of persistentvolumeclaim {namespace}/{claim}");
                let written = self.claims(namespace).patch(&claim, &PatchParams::default(), &change).await;
                caches.claims.wrote(written.map_err(ApiError::when(doing))?);
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
                let written = self.context.pods_in(namespace).patch(&name, &PatchParams::default(), &change).await;
                caches.pods.wrote(written.map_err(ApiError::when(format!("label pod {namespace}/{name}")))?);
                Ok(())
            }
            Action::Delete { ordinal, uid, version, why } => {
                self.delete(&owner, &want, ordinal, &uid, version, why).await
            }
        }
    }

    async fn report(&self, key: &ObjectKey, status: StatefulSetStatus, _: &Outcomes<()>) -> Result<(), ApiError> {
        object_writes::write_status(&self.context.client, &self.context.caches.stateful_sets, key, &status).await
    }
}
