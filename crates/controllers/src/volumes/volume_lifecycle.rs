//! Volume lifecycle: the phase of a PersistentVolume, its protection finalizer, and its deletion once it is released.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::{ON_DISK, PROVISIONED_BY, PROVISIONER, VOLUME_PROTECTION, claim_of, matching};
use crate::runtime::{
    ApiError, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error, index::GroupIndex,
};

pub struct VolumeController {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let (queue, caches) = (context.queue::<VolumeController>(), &context.caches);
    let by_claim: Arc<GroupIndex> = Arc::default();
    caches.volumes.on_change({
        let (queue, by_claim, volumes) = (queue.clone(), by_claim.clone(), Arc::downgrade(&caches.volumes));
        move |change| {
            by_claim.set_group(change.key, || claim_of(&*volumes.upgrade()?.get(change.key)?));
            queue.add(change.key.name.clone());
        }
    });
    caches.claims.on_change({
        let queue = queue.clone();
        move |change| by_claim.members(change.key).into_iter().for_each(|volume| queue.add(volume.name))
    });
    context.runnable(Arc::new(VolumeController { context: context.clone() }), queue, Limits::default())
}

pub struct World {
    volume: PersistentVolume,
    /// The claim it names, if there is one of that name.
    claim: Option<PersistentVolumeClaim>,
    /// Whether any of the nodes it can be reached from exists.
    node: bool,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Finalizers { version: String, finalizers: Vec<String> },
    Delete { uid: String },
}

#[derive(Debug, PartialEq)]
pub struct Phase {
    version: String,
    phase: &'static str,
}

impl VolumeController {
    fn api(&self) -> Api<PersistentVolume> {
        Api::all(self.context.client.clone())
    }
}

fn plan(world: &World) -> Plan<Action, Phase> {
    let World { volume, claim, node } = world;
    let meta = &volume.metadata;
    let version = meta.resource_version.clone().unwrap_or_default();
    let finalizers = meta.finalizers.clone().unwrap_or_default();
    let named = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let taken = named.and_then(|claim| claim.uid.as_deref()).is_some_and(|uid| !uid.is_empty());
    let bound = taken && claim.as_ref().is_some_and(|claim| matching::names(volume, claim));
    let phase = match (taken, bound) {
        (false, _) => "Available",
        (true, true) => "Bound",
        (true, false) => "Released",
    };
    let now = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let status = (now != Some(phase)).then(|| Phase { version: version.clone(), phase });
    let retained: Vec<String> = if meta.deletion_timestamp.is_some() {
        let goes = |own: &String| {
            // Without its node, nobody will ever take the directory away.
            (own == VOLUME_PROTECTION && !bound) || (own == ON_DISK && !bound && !node)
        };
        finalizers.iter().filter(|own| !goes(own)).cloned().collect()
    } else if finalizers.iter().any(|own| own == VOLUME_PROTECTION) {
        finalizers.clone()
    } else {
        finalizers.iter().cloned().chain([VOLUME_PROTECTION.to_owned()]).collect()
    };
    if retained != finalizers {
        return Plan::act([Action::Finalizers { version, finalizers: retained }]);
    }
    let ours = meta.annotations.as_ref().and_then(|all| all.get(PROVISIONED_BY)).is_some_and(|by| by == PROVISIONER);
    let delete =
        volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
    let mut plan = Plan { status, ..Plan::default() };
    if phase == "Released" && now == Some("Released") && ours && delete && meta.deletion_timestamp.is_none() {
        plan.actions.push(Action::Delete { uid: meta.uid.clone().unwrap_or_default() });
    }
    plan
}

impl Controller for VolumeController {
    const NAME: &'static str = "volumes";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = Phase;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let doing = || format!("read volume {name}");
        let Some(volume) = self.api().get_opt(name).await.map_err(ApiError::when(doing()))? else {
            return Ok(None);
        };
        let claim = match claim_of(&volume) {
            Some(ObjectKey { namespace, name }) => {
                let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), &namespace);
                claims.get_opt(&name).await.map_err(ApiError::when(doing()))?
            }
            None => None,
        };
        let mut node = true;
        if volume.metadata.deletion_timestamp.is_some() {
            let nodes: Api<Node> = Api::all(self.context.client.clone());
            let nodes = nodes.list_metadata(&Default::default()).await.map_err(ApiError::when(doing()))?;
            node = nodes.items.into_iter().any(|node| {
                let node = matching::NodeInfo {
                    name: node.metadata.name.unwrap_or_default(),
                    labels: node.metadata.labels.unwrap_or_default(),
                    directory: None,
                };
                matching::reaches(&volume, &node)
            });
        }
        Ok(Some(World { volume, claim, node }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, Phase> {
        plan(world)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        let result = match action {
            Action::Finalizers { version, finalizers } => {
                let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
            }
            Action::Delete { uid } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: None };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                self.api().delete(name, &params).await.map(drop)
            }
        };
        match result {
            Ok(()) => Ok(()),
            Err(error) if error::has_code(&error, 404) => Ok(()),
            Err(error) => Err(ApiError::new(format!("keep volume {name}"), error)),
        }
    }

    async fn report(&self, name: &String, Phase { version, phase }: Phase, _: &Outcomes<()>) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"resourceVersion": version}, "status": {"phase": phase}});
        match self.api().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(error) if error::has_code(&error, 404) || error::has_code(&error, 409) => Ok(()), // seen
            Err(error) => Err(ApiError::new(format!("report on volume {name}"), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn world(volume: Value, claim: Option<&str>, node: bool) -> World {
        let claim = claim.map(|uid| {
            serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": uid}})).unwrap()
        });
        World { volume: serde_json::from_value(volume).unwrap(), claim, node }
    }

    fn volume(claim: Option<&str>, phase: &str, finalizers: &[&str], deleting: bool) -> Value {
        let mut volume = json!({
            "metadata": {"name": "pv", "uid": "v", "resourceVersion": "7", "finalizers": finalizers,
                         "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete"}, "status": {"phase": phase},
        });
        if let Some(uid) = claim {
            volume["spec"]["claimRef"] = json!({"namespace": "n", "name": "c", "uid": uid});
        }
        if deleting {
            volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        volume
    }

    #[test]
    fn the_phase_of_a_volume_follows_its_claim() {
        let guarded = &[VOLUME_PROTECTION][..];
        let phase = |phase| Plan { status: Some(Phase { version: "7".to_owned(), phase }), ..Plan::default() };
        let nothing = Plan::default();
        assert_eq!(plan(&world(volume(None, "Pending", guarded, false), None, true)), phase("Available"));
        assert_eq!(plan(&world(volume(Some("u"), "Available", guarded, false), Some("u"), true)), phase("Bound"));
        assert_eq!(plan(&world(volume(Some("u"), "Bound", guarded, false), Some("u"), true)), nothing);
        assert_eq!(plan(&world(volume(Some("u"), "Bound", guarded, false), None, true)), phase("Released"));
        assert_eq!(plan(&world(volume(Some("u"), "Bound", guarded, false), Some("later"), true)), phase("Released"));
        let delete = Plan::act([Action::Delete { uid: "v".to_owned() }]);
        assert_eq!(plan(&world(volume(Some("u"), "Released", guarded, false), None, true)), delete);
        let mut retained = volume(Some("u"), "Released", guarded, false);
        retained["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        assert_eq!(plan(&world(retained, None, true)), nothing);
    }

    #[test]
    fn a_volume_that_is_deleted_waits_for_its_claim_and_its_node() {
        let left = |finalizers: &[&str]| {
            let finalizers = finalizers.iter().map(|own| (*own).to_owned()).collect();
            Plan::act([Action::Finalizers { version: "7".to_owned(), finalizers }])
        };
        let both = &[VOLUME_PROTECTION, ON_DISK, "other"][..];
        assert_eq!(plan(&world(volume(Some("u"), "Bound", both, true), Some("u"), true)), Plan::default());
        assert_eq!(plan(&world(volume(Some("u"), "Released", both, true), None, true)), left(&[ON_DISK, "other"]));
        assert_eq!(plan(&world(volume(Some("u"), "Released", both, true), None, false)), left(&["other"]));
        let on_disk = &[ON_DISK][..];
        assert_eq!(plan(&world(volume(Some("u"), "Released", on_disk, true), None, true)), Plan::default());
        assert_eq!(plan(&world(volume(None, "Available", &[], false), None, true)), left(&[VOLUME_PROTECTION]));
    }
}
