//! Claims: bound to a volume that suits, or to one that is made for them.

mod plan;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use self::plan::{Action, ClaimChange, ClaimStatus, World};
use super::{BIND_COMPLETED, DIRECTORY, Desk, Key, fit::Machine, provision, say};
use crate::{
    failure::{self, Failure},
    shell::{Controller, Plan},
};

/// For what is not heard of: a machine that has yet to say where it keeps volumes.
const AGAIN: Duration = Duration::from_secs(2);

pub struct Claims {
    client: Client,
    desk: Arc<Desk>,
}

impl Claims {
    pub fn new(client: Client, desk: Arc<Desk>) -> Self {
        Self { client, desk }
    }

    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    async fn machine(&self, name: &str) -> Result<Option<Machine>, Failure> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_metadata_opt(name).await.map_err(Failure::when(format!("get node {name}")))?;
        Ok(node.map(|node| Machine {
            name: name.to_owned(),
            directory: node.metadata.annotations.as_ref().and_then(|all| all.get(DIRECTORY)).cloned(),
            labels: node.metadata.labels.unwrap_or_default(),
        }))
    }
}

impl Controller for Claims {
    const NAME: &'static str = "claims";
    type Key = Key;
    type World = World;
    type Action = Action;
    type Status = ClaimStatus;

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let (namespace, name) = key;
        let doing = || format!("look at claim {namespace}/{name}");
        let claim = self.claims(namespace).get_opt(name).await.map_err(Failure::when(doing()))?;
        let Some(claim) = claim else {
            self.desk.set_waiting(key, false);
            return Ok(None);
        };
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).filter(|name| !name.is_empty());
        // Before looking at what can change the answer, so that no change is missed.
        self.desk.set_waiting(key, deleting || bound.is_none());
        let mut world = World { claim, ..World::default() };
        if let Some(volume) = &bound {
            world.volumes.extend(self.volumes().get_opt(volume).await.map_err(Failure::when(doing()))?);
        } else {
            let all = ListParams::default();
            world.volumes = self.volumes().list(&all).await.map_err(Failure::when(doing()))?.items;
            let classes: Api<StorageClass> = Api::all(self.client.clone());
            world.classes = classes.list(&all).await.map_err(Failure::when(doing()))?.items;
        }
        if deleting || bound.is_none() {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let pods = pods.list(&ListParams::default()).await.map_err(Failure::when(doing()))?;
            world.pods = pods.items.into_iter().filter(|pod| plan::uses(pod, name)).collect();
        }
        if let Some(node) = plan::selected(&world) {
            world.machine = self.machine(&node).await?;
        }
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, ClaimStatus> {
        let mut plan = plan::plan(world);
        if plan.actions.iter().any(|action| matches!(action, Action::Say(_))) {
            plan.wake_at = Some(now + AGAIN).filter(|_| world.machine.is_some());
        }
        plan
    }

    async fn apply(&self, key: &Key, action: Action) -> Result<(), Failure> {
        let (namespace, name) = key;
        match action {
            Action::Take { volume, version, claim } => {
                let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"claimRef": claim}});
                let result = self.volumes().patch(&volume, &PatchParams::default(), &Patch::Merge(patch)).await;
                result.map(drop).map_err(Failure::when(format!("bind volume {volume} to {namespace}/{name}")))
            }
            Action::Provision(volume) => match self.volumes().create(&PostParams::default(), &volume).await {
                Ok(_) => Ok(()),
                Err(error) if failure::is(&error, 409) => Ok(()), // made before
                Err(error) => Err(Failure::new(format!("make a volume for {namespace}/{name}"), error)),
            },
            Action::Change(change) => {
                let patch = Patch::Merge(merge(&change));
                match self.claims(namespace).patch(name, &PatchParams::default(), &patch).await {
                    Ok(_) => Ok(()),
                    Err(error) if failure::is(&error, 404) => Ok(()),
                    Err(error) => Err(Failure::new(format!("change claim {namespace}/{name}"), error)),
                }
            }
            Action::Say(words) => {
                let claim = self.claims(namespace).get_metadata_opt(name).await;
                if let Ok(Some(claim)) = claim {
                    let about = PersistentVolumeClaim { metadata: claim.metadata, ..Default::default() };
                    say::say(&self.client, provision::reference(&about), words).await;
                }
                Ok(())
            }
        }
    }

    async fn report(&self, (namespace, name): &Key, status: ClaimStatus) -> Result<(), Failure> {
        let ClaimStatus { version, phase, capacity, access_modes } = status;
        let mut patch = json!({"metadata": {"resourceVersion": version}, "status": {"phase": phase}});
        if let Some(capacity) = capacity {
            patch["status"]["capacity"] = json!(capacity);
            patch["status"]["accessModes"] = json!(access_modes);
        }
        let result = self.claims(namespace).patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match result {
            Ok(_) => Ok(()),
            Err(error) if failure::is(&error, 404) || failure::is(&error, 409) => Ok(()), // heard of
            Err(error) => Err(Failure::new(format!("report on claim {namespace}/{name}"), error)),
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
