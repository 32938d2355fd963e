//! What a claim needs next: protection, a class, a volume. Pure.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use mainstay_events::EventNote;

use crate::{
    runtime::Plan,
    volumes::{
        BIND_COMPLETED, CLAIM_PROTECTION, DEFAULT_CLASS, PROVISIONER, SELECTED_NODE,
        matching::{self, NodeInfo},
        provision,
    },
};

#[derive(Default)]
pub struct World {
    pub claim: PersistentVolumeClaim,
    /// All of them; only its own for a claim that names one.
    pub volumes: Vec<PersistentVolume>,
    pub classes: Vec<StorageClass>,
    /// Those that use the claim.
    pub pods: Vec<Pod>,
    /// Where the first of them was placed.
    pub node: Option<NodeInfo>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    /// The volume names the claim from now on.
    Take {
        volume: String,
        version: String,
        claim: Box<ObjectReference>,
    },
    Provision(Box<PersistentVolume>),
    Change(ClaimChange),
    RecordEvent(EventNote),
}

#[derive(Debug, Default, PartialEq)]
pub struct ClaimChange {
    pub version: String,
    pub finalizers: Option<Vec<String>>,
    pub class: Option<String>,
    pub volume: Option<String>,
}

#[derive(Debug, PartialEq)]
pub struct ClaimStatus {
    pub version: String,
    pub phase: &'static str,
    pub capacity: Option<BTreeMap<String, Quantity>>,
    pub access_modes: Vec<String>,
    /// Set when the claim is bound; later it is the business of whoever modifies the volume.
    pub attributes_class: Option<String>,
}

pub fn plan(world: &World) -> Plan<Action, ClaimStatus> {
    let claim = &world.claim;
    let version = claim.metadata.resource_version.clone().unwrap_or_default();
    let finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
    let protected = finalizers.iter().any(|own| own == CLAIM_PROTECTION);
    let mut change = ClaimChange { version, ..ClaimChange::default() };
    if claim.metadata.deletion_timestamp.is_some() {
        // A pod that runs with it keeps it; nothing new is begun for it.
        if !protected || world.pods.iter().any(is_running) {
            return Plan::default();
        }
        change.finalizers = Some(finalizers.into_iter().filter(|own| own != CLAIM_PROTECTION).collect());
        return Plan::act([Action::Change(change)]);
    }
    if !protected {
        change.finalizers = Some(finalizers.into_iter().chain([CLAIM_PROTECTION.to_owned()]).collect());
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let mut plan = Plan::default();
    if let Some(name) = spec.volume_name.as_ref().filter(|name| !name.is_empty()) {
        match world.volumes.iter().find(|volume| volume.metadata.name.as_ref() == Some(name)) {
            Some(volume) if matching::names(volume, claim) => {
                plan.actions.extend(take(volume, claim));
                plan.status = bound(claim, volume);
                if !annotated(claim, BIND_COMPLETED) {
                    change.volume = Some(name.clone());
                }
            }
            // The user named it; it is still free.
            Some(volume) if matching::is_free(volume) && matching::why_not(claim, volume, None).is_none() => {
                plan.actions.extend(take(volume, claim));
            }
            Some(volume) => {
                let why = matching::why_not(claim, volume, None).unwrap_or("it is bound to another claim");
                let message = format!("Cannot bind to requested volume {name:?}: {why}");
                plan.actions.push(warning("VolumeMismatch", message));
            }
            None if annotated(claim, BIND_COMPLETED) => plan.status = lost(claim),
            None => {}
        }
    } else {
        let class = match &spec.storage_class_name {
            Some(name) => world.classes.iter().find(|class| class.metadata.name.as_ref() == Some(name)),
            None => default_class(&world.classes),
        };
        if spec.storage_class_name.is_none() {
            change.class = class.and_then(|class| class.metadata.name.clone());
        }
        if change.class.is_none() {
            find(world, class, &mut plan.actions, &mut change);
        }
    }
    if change != (ClaimChange { version: change.version.clone(), ..ClaimChange::default() }) {
        plan.status = None; // by the next look, at the version this makes
        plan.actions.push(Action::Change(change));
    }
    plan
}

/// Looks for a volume, or has one made.
fn find(world: &World, class: Option<&StorageClass>, actions: &mut Vec<Action>, change: &mut ClaimChange) {
    let claim = &world.claim;
    if let Some(volume) = matching::promised(claim, &world.volumes) {
        actions.extend(take(volume, claim));
        change.volume.clone_from(&volume.metadata.name);
        return;
    }
    let waits = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    if waits && world.node.is_none() {
        let message = "waiting for first consumer to be created before binding".to_owned();
        actions.push(Action::RecordEvent(EventNote::normal("WaitForFirstConsumer", message)));
        return;
    }
    if let Some(volume) = matching::choose(claim, &world.volumes, world.node.as_ref().filter(|_| waits)) {
        actions.extend(take(volume, claim));
        change.volume.clone_from(&volume.metadata.name);
        return;
    }
    let failed = |why: String| warning("ProvisioningFailed", why);
    match (class, &world.node) {
        (Some(class), _) if class.provisioner != PROVISIONER => {
            let message = format!(
                "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
                 administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
                 registered.",
                class.provisioner
            );
            actions.push(Action::RecordEvent(EventNote::normal("ExternalProvisioning", message)));
        }
        (Some(_), _) if provision::refused(claim).is_some() => {
            actions.push(failed(provision::refused(claim).unwrap_or_default().to_owned()));
        }
        (Some(class), Some(node)) => match &node.directory {
            Some(directory) => {
                let volume = provision::volume(claim, class, node, directory);
                let message =
                    format!("Successfully provisioned volume {}", volume.metadata.name.as_deref().unwrap_or_default());
                actions.push(Action::Provision(Box::new(volume)));
                actions.push(Action::RecordEvent(EventNote::normal("ProvisioningSucceeded", message)));
            }
            None => actions.push(failed(format!("node {:?} has not said where it keeps volumes", node.name))),
        },
        (Some(_), None) => {
            let message =
                "waiting for a pod that uses the claim: volumes of local-path are made on its node".to_owned();
            actions.push(Action::RecordEvent(EventNote::normal("WaitForFirstConsumer", message)));
        }
        (None, _) => {
            let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
            actions.push(if name.is_empty() {
                let message = "no persistent volumes available for this claim and no storage class is set".to_owned();
                Action::RecordEvent(EventNote::normal("FailedBinding", message))
            } else {
                failed(format!("storageclass.storage.k8s.io {name:?} not found"))
            });
        }
    }
}

/// The volume names the claim, if it does not yet.
fn take(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<Action> {
    let named = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|named| named.uid.as_ref());
    (named.is_none() || named != claim.metadata.uid.as_ref()).then(|| Action::Take {
        volume: volume.metadata.name.clone().unwrap_or_default(),
        version: volume.metadata.resource_version.clone().unwrap_or_default(),
        claim: Box::new(provision::reference(claim)),
    })
}

fn bound(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<ClaimStatus> {
    let spec = volume.spec.clone().unwrap_or_default();
    let status = claim.status.clone().unwrap_or_default();
    let modes = spec.access_modes.unwrap_or_default();
    let is_bound = status.phase.as_deref() == Some("Bound");
    // As upstream: of a claim that is bound, whoever grows its filesystem says when it has the volume's new size.
    let capacity = status.capacity.clone().filter(|_| is_bound).or(spec.capacity).unwrap_or_default();
    let stands =
        is_bound && status.capacity.as_ref() == Some(&capacity) && status.access_modes.as_ref() == Some(&modes);
    let attributes_class = spec.volume_attributes_class_name.filter(|_| !is_bound);
    (!stands).then(|| ClaimStatus {
        capacity: Some(capacity),
        access_modes: modes,
        attributes_class,
        ..phase(claim, "Bound")
    })
}

fn lost(claim: &PersistentVolumeClaim) -> Option<ClaimStatus> {
    let now = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    (now != Some("Lost")).then(|| phase(claim, "Lost"))
}

fn phase(claim: &PersistentVolumeClaim, phase: &'static str) -> ClaimStatus {
    let version = claim.metadata.resource_version.clone().unwrap_or_default();
    ClaimStatus { version, phase, capacity: None, access_modes: Vec::new(), attributes_class: None }
}

fn warning(reason: &'static str, message: String) -> Action {
    Action::RecordEvent(EventNote::warning(reason, message))
}

fn annotated(claim: &PersistentVolumeClaim, name: &str) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(name))
}

/// Of several defaults, the newest.
fn default_class(classes: &[StorageClass]) -> Option<&StorageClass> {
    let is_default = |class: &&StorageClass| {
        class.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CLASS)).is_some_and(|value| value == "true")
    };
    let age = |class: &&StorageClass| {
        (class.metadata.creation_timestamp.clone(), std::cmp::Reverse(class.metadata.name.clone()))
    };
    classes.iter().filter(is_default).max_by_key(age)
}

/// Whether a pod refers to the claim.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| {
        let own = || format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name);
        volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim)
            || (volume.ephemeral.is_some() && own() == claim)
    })
}

/// Placed on a node, and not over.
fn is_running(pod: &Pod) -> bool {
    let placed = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    placed && !mainstay_api::pod::is_finished(pod)
}

/// The node that the volume must be reached from: the oldest pod's, unless a scheduler has chosen.
pub fn selected(world: &World) -> Option<String> {
    if let Some(node) = world.claim.metadata.annotations.as_ref().and_then(|all| all.get(SELECTED_NODE)) {
        return Some(node.clone());
    }
    let running = world.pods.iter().filter(|pod| is_running(pod) && pod.metadata.deletion_timestamp.is_none());
    let first = running.min_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone()))?;
    first.spec.as_ref()?.node_name.clone()
}

#[cfg(test)]
mod tests;
