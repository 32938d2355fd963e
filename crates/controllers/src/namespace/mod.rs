//! Empties a namespace that is being deleted, then lets it go.
//!
//! Everything the server has resources for is listed and deleted in it, pods with their grace.
//! Only when every resource of every group was listed and nothing was found is the finalizer
//! taken away; a group that does not answer might hold something, so the namespace waits for it.
//! While something blocks, conditions name it. Nobody can add content meanwhile: the server
//! refuses creates in a namespace that is terminating.

mod conditions;
mod plan;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use parking_lot::Mutex;

use self::plan::{Action, Content, FINALIZER, World};
use crate::{
    catalogue::{Kinds, Resource},
    failure::{self, Failure},
    meta,
    runner::Queue,
    shell::{Controller, Plan},
};

/// Changes in a namespace that is being emptied share a look.
const TOGETHER: Duration = Duration::from_millis(30);

pub struct Namespaces {
    client: Client,
    pub queue: Arc<Queue<String>>,
    /// Those whose content is worth watching.
    terminating: Mutex<HashSet<String>>,
    /// What could not be deleted at the last attempt, and why.
    undeletable: Mutex<HashMap<String, BTreeSet<String>>>,
}

impl Namespaces {
    pub fn new(client: Client) -> Self {
        Self { client, queue: Queue::new(), terminating: Mutex::default(), undeletable: Mutex::default() }
    }

    /// A namespace is there or changed.
    pub fn present(&self, meta: &ObjectMeta) {
        let Some(name) = meta.name.clone().filter(|_| meta.deletion_timestamp.is_some()) else { return };
        self.terminating.lock().insert(name.clone());
        self.queue.wake(name);
    }

    pub fn gone(&self, name: &str) {
        self.terminating.lock().remove(name);
        self.undeletable.lock().remove(name);
    }

    /// Something in a namespace changed.
    pub fn content_changed(&self, namespace: &str) {
        if self.terminating.lock().contains(namespace) {
            self.queue.wake_within(namespace.to_owned(), TOGETHER);
        }
    }

    fn api(&self) -> Api<Namespace> {
        Api::all(self.client.clone())
    }

    async fn content(&self, resource: &Arc<Resource>, namespace: &str) -> Result<Content, kube::Error> {
        let mut content = Content { resource: resource.clone(), count: 0, fresh: 0, finalizers: BTreeMap::new() };
        meta::for_each(&self.client, resource, Some(namespace), |object| {
            content.count += 1;
            content.fresh += usize::from(object.deletion_timestamp.is_none());
            for finalizer in object.finalizers.into_iter().flatten() {
                *content.finalizers.entry(finalizer).or_default() += 1;
            }
        })
        .await?;
        Ok(content)
    }

    async fn empty(&self, resource: &Resource, namespace: &str) -> Result<(), kube::Error> {
        let api = resource.api(&self.client, Some(namespace));
        let background = DeleteParams::background();
        if resource.can("deletecollection") {
            match api.delete_collection(&background, &ListParams::default()).await {
                Err(error) if failure::is(&error, 405) => {} // said it could
                Err(error) if failure::is(&error, 404) => return Ok(()),
                other => return other.map(drop),
            }
        }
        let mut fresh = Vec::new();
        meta::for_each(&self.client, resource, Some(namespace), |object| {
            if object.deletion_timestamp.is_none() {
                fresh.push((object.name.unwrap_or_default(), object.uid));
            }
        })
        .await?;
        for (name, uid) in fresh {
            let fence = Preconditions { uid, resource_version: None };
            match api.delete(&name, &background.clone().preconditions(fence)).await {
                Err(error) if failure::is(&error, 404) || failure::is(&error, 409) => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}

impl Controller for Namespaces {
    const NAME: &'static str = "namespace";
    type Key = String;
    type World = World;
    type Action = Action;
    type Status = Namespace;

    async fn observe(&self, name: &String) -> Result<Option<World>, Failure> {
        let found = self.api().get_opt(name).await.map_err(Failure::when(format!("get namespace {name}")))?;
        let Some(namespace) = found.filter(|ns| ns.metadata.deletion_timestamp.is_some()) else {
            self.gone(name);
            return Ok(None);
        };
        let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
        if finalizers.is_none_or(|own| !own.iter().any(|f| f == FINALIZER)) {
            return Ok(None);
        }
        let kinds = Kinds::discover(&self.client).await?;
        let emptied = kinds.resources.iter().filter(|r| r.namespaced && r.can("list") && r.can("delete"));
        let (mut content, mut unlisted) = (Vec::new(), Vec::new());
        for resource in emptied {
            match self.content(resource, name).await {
                Ok(found) if found.count > 0 => content.push(found),
                Ok(_) => {}
                Err(error) => unlisted.push(format!("{resource}: {}", failure::text(&error))),
            }
        }
        let undeletable = self.undeletable.lock().get(name).cloned().unwrap_or_default();
        Ok(Some(World { namespace, silent: kinds.silent, content, unlisted, undeletable }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Namespace> {
        plan::plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), Failure> {
        match action {
            Action::Empty { resources } => {
                let (mut reasons, mut first) = (BTreeSet::new(), None);
                for resource in resources {
                    if let Err(error) = self.empty(&resource, name).await {
                        reasons.insert(format!("{resource}: {}", failure::text(&error)));
                        first.get_or_insert(Failure::new(format!("delete all {resource} in {name}"), error));
                    }
                }
                let mut undeletable = self.undeletable.lock();
                if reasons.is_empty() {
                    undeletable.remove(name);
                } else {
                    undeletable.insert(name.clone(), reasons);
                }
                first.map_or(Ok(()), Err)
            }
            Action::Finalize { namespace } => {
                let done = self.api().replace_subresource("finalize", name, &PostParams::default(), &*namespace).await;
                match done {
                    Ok(_) => Ok(()),
                    Err(error) if failure::is(&error, 404) => Ok(()), // another server was faster
                    Err(error) => Err(Failure::new(format!("finalize namespace {name}"), error)),
                }
            }
        }
    }

    async fn report(&self, name: &String, namespace: Namespace) -> Result<(), Failure> {
        match self.api().replace_status(name, &PostParams::default(), &namespace).await {
            Ok(_) => Ok(()),
            Err(error) if failure::is(&error, 404) => Ok(()),
            Err(error) => Err(Failure::new(format!("write the status of namespace {name}"), error)),
        }
    }
}
