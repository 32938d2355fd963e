//! PersistentVolumeClaims: bound to a volume that matches, or to one that is provisioned for them.

mod plan;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use self::plan::{Action, ClaimChange, ClaimStatus, World};
use super::{BIND_COMPLETED, COMPONENT, DIRECTORY, claim_of, is_pending, matching::NodeInfo, provision};
use crate::{
    objects,
    runtime::{ApiError, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error},
};

/// For what no change tells: a node that has yet to say where it keeps volumes.
const RETRY: Duration = Duration::from_secs(2);

pub struct ClaimController {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let (queue, caches) = (context.queue::<ClaimController>(), &context.caches);
    caches.claims.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.key.clone())
    });
    let add_pending = {
        let (queue, claims) = (queue.clone(), caches.claims.clone());
        move |some: &dyn Fn(&ObjectKey) -> bool| {
            for claim in claims.all().into_iter().filter(|claim| is_pending(claim)) {
                let key = ObjectKey::from_meta(&claim.metadata);
                if some(&key) {
                    queue.add(key);
                }
            }
        }
    };
    caches.volumes.on_change({
        let (queue, add_pending) = (queue.clone(), add_pending.clone());
        move |change| {
            let named = [change.before, change.after].into_iter().flatten().filter_map(claim_of);
            named.for_each(|claim| queue.add(claim));
            add_pending(&|_| true);
        }
    });
    caches.storage_classes.on_change({
        let add_pending = add_pending.clone();
        move |_| add_pending(&|_| true)
    });
    caches.pods.on_change(move |change| {
        // Who uses a claim, where it was scheduled, and whether it still does.
        let view = |pod: &objects::pod::Pod| {
            (pod.uid().to_owned(), pod.spec.node_name.clone(), pod.is_finished(), pod.is_being_deleted())
        };
        if change.before.map(view) != change.after.map(view) {
            add_pending(&|claim| claim.namespace == change.key.namespace);
        }
    });
    context.runnable(Arc::new(ClaimController { context: context.clone() }), queue, Limits::default())
}

impl ClaimController {
    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.context.client.clone())
    }

    async fn node_info(&self, name: &str) -> Result<Option<NodeInfo>, ApiError> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let node = nodes.get_metadata_opt(name).await.map_err(ApiError::when(format!("get node {name}")))?;
        Ok(node.map(|node| NodeInfo {
            name: name.to_owned(),
            directory: node.metadata.annotations.as_ref().and_then(|all| all.get(DIRECTORY)).cloned(),
            labels: node.metadata.labels.unwrap_or_default(),
        }))
    }
}

impl Controller for ClaimController {
    const NAME: &'static str = "claims";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ClaimStatus;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let ObjectKey { namespace, name } = key;
        let doing = || format!("read claim {namespace}/{name}");
        let claim = self.claims(namespace).get_opt(name).await.map_err(ApiError::when(doing()))?;
        let Some(claim) = claim else { return Ok(None) };
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
        let mut world = World { claim, ..World::default() };
        if let Some(volume) = &bound {
            world.volumes.extend(self.volumes().get_opt(volume).await.map_err(ApiError::when(doing()))?);
        } else {
            let all = ListParams::default();
            world.volumes = self.volumes().list(&all).await.map_err(ApiError::when(doing()))?.items;
            let classes: Api<StorageClass> = Api::all(self.context.client.clone());
            world.classes = classes.list(&all).await.map_err(ApiError::when(doing()))?.items;
        }
        if deleting || bound.is_none() {
            let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
            let pods = pods.list(&ListParams::default()).await.map_err(ApiError::when(doing()))?;
            world.pods = pods.items.into_iter().filter(|pod| plan::uses(pod, name)).collect();
        }
        if let Some(node) = plan::selected(&world) {
            world.node = self.node_info(&node).await?;
        }
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, ClaimStatus> {
        let mut plan = plan::plan(world);
        if plan.actions.iter().any(|action| matches!(action, Action::RecordEvent(_))) {
            plan.requeue_at = Some(now + RETRY).filter(|_| world.node.is_some());
        }
        plan
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let ObjectKey { namespace, name } = key;
        match action {
            Action::Take { volume, version, claim } => {
                let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"claimRef": claim}});
                let result = self.volumes().patch(&volume, &PatchParams::default(), &Patch::Merge(patch)).await;
                result.map(drop).map_err(ApiError::when(format!("bind volume {volume} to {namespace}/{name}")))
            }
            Action::Provision(volume) => match self.volumes().create(&PostParams::default(), &volume).await {
                Ok(_) => Ok(()),
                Err(error) if error::has_code(&error, 409) => Ok(()), // provisioned before
                Err(error) => Err(ApiError::new(format!("provision a volume for {namespace}/{name}"), error)),
            },
            Action::Change(change) => {
                let patch = Patch::Merge(merge(&change));
                match self.claims(namespace).patch(name, &PatchParams::default(), &patch).await {
                    Ok(_) => Ok(()),
                    Err(error) if error::has_code(&error, 404) => Ok(()),
                    Err(error) => Err(ApiError::new(format!("change claim {namespace}/{name}"), error)),
                }
            }
            Action::RecordEvent(note) => {
                if let Some(claim) = self.context.caches.claims.get(key) {
                    let involved = ObjectReference { resource_version: None, ..provision::reference(&claim) };
                    self.context.events.record_as(COMPONENT, involved, note);
                }
                Ok(())
            }
        }
    }

    async fn report(
        &self,
        ObjectKey { namespace, name }: &ObjectKey,
        status: ClaimStatus,
        _: &Outcomes<()>,
    ) -> Result<(), ApiError> {
        let ClaimStatus { version, phase, capacity, access_modes, attributes_class } = status;
        let mut patch = json!({"metadata": {"resourceVersion": version}, "status": {"phase": phase}});
        if let Some(capacity) = capacity {
            patch["status"]["capacity"] = json!(capacity);
            patch["status"]["accessModes"] = json!(access_modes);
        }
        if let Some(class) = attributes_class {
            patch["status"]["currentVolumeAttributesClassName"] = json!(class);
        }
        let result = self.claims(namespace).patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match result {
            Ok(_) => Ok(()),
            Err(error) if error::has_code(&error, 404) || error::has_code(&error, 409) => Ok(()), // its next change tells
            Err(error) => Err(ApiError::new(format!("write the status of claim {namespace}/{name}"), error)),
        }
    }
}

/// Fenced by the version that was judged.
fn merge(change: &ClaimChange) -> Value {
    let mut patch = json!({"metadata": {"resourceVersion": change.version}});
    if let Some(finalizers) = &change.finalizers {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    let mut spec = BTreeMap::new();
    if let Some(class) = &change.class {
        spec.insert("storageClassName", class);
    }
    if let Some(volume) = &change.volume {
        spec.insert("volumeName", volume);
        patch["metadata"]["annotations"] = json!({BIND_COMPLETED: "yes"});
    }
    if !spec.is_empty() {
        patch["spec"] = json!(spec);
    }
    patch
}
