//! Namespace deletion: deletes the content of a namespace that is terminating, then removes its finalizer.
//!
//! Pods go first (upstream's `OrderedNamespaceDeletion`): what they use, such as network policies and secrets, stays
//! until the last of them is gone. Then everything that the server has resources for is listed and deleted. Only when
//! every resource of every group was listed and nothing was found is the finalizer removed; a group that fails discovery
//! might hold something, so the namespace waits for it. While something blocks, conditions name it. Nobody can add
//! content meanwhile: the server refuses creates in a namespace that is terminating.

mod conditions;
mod plan;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};

use self::plan::{Action, Content, FINALIZER, NamespaceReport, World};
use crate::runtime::{
    ApiError, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable,
    context::resync_every,
    discovery::{ServerResource, ServerResources},
    error,
    metadata_watch::MetadataEvent,
    object_meta,
};

/// Changes in a namespace that is terminating share a reconcile.
const CONTENT_CHANGED: Duration = Duration::from_millis(30);
/// How often every terminating namespace is looked at even if nothing changes.
const RESYNC: Duration = Duration::from_secs(600);

pub struct NamespaceController {
    context: Arc<Context>,
}

fn is_terminating(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_some()
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<NamespaceController>();
    let namespaces = context.caches.namespaces.clone();
    namespaces.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(is_terminating) {
                queue.add(change.key.name.clone());
            }
        }
    });
    context.metadata.on_event({
        let (queue, namespaces) = (queue.clone(), namespaces.clone());
        move |_, event| {
            let (MetadataEvent::Applied(meta) | MetadataEvent::Deleted(meta)) = event else { return };
            let Some(namespace) = &meta.namespace else { return };
            if namespaces.get(&ObjectKey::new("", namespace)).is_some_and(|namespace| is_terminating(&namespace)) {
                queue.add_after(namespace.clone(), CONTENT_CHANGED);
            }
        }
    });
    let add = queue.clone();
    let resync = resync_every(RESYNC, move || {
        let all = namespaces.all().into_iter().filter(|namespace| is_terminating(namespace));
        all.for_each(|namespace| add.add(namespace.metadata.name.clone().unwrap_or_default()));
    });
    let limits = Limits { longest_backoff: Duration::from_secs(5), ..Limits::default() };
    context.runnable(Arc::new(NamespaceController { context: context.clone() }), queue, limits).alongside(resync)
}

impl NamespaceController {
    fn api(&self) -> Api<Namespace> {
        Api::all(self.context.client.clone())
    }

    async fn content(&self, resource: &Arc<ServerResource>, namespace: &str) -> Result<Content, kube::Error> {
        let mut content = Content { resource: resource.clone(), count: 0, not_deleted: 0, finalizers: BTreeMap::new() };
        object_meta::list_metadata(&self.context.client, resource, Some(namespace), |object| {
            content.count += 1;
            content.not_deleted += usize::from(object.deletion_timestamp.is_none());
            for finalizer in object.finalizers.into_iter().flatten() {
                *content.finalizers.entry(finalizer).or_default() += 1;
            }
        })
        .await?;
        Ok(content)
    }

    async fn delete_all(&self, resource: &ServerResource, namespace: &str) -> Result<(), kube::Error> {
        let api = resource.api(&self.context.client, Some(namespace));
        let background = DeleteParams::background();
        if resource.can("deletecollection") {
            match api.delete_collection(&background, &ListParams::default()).await {
                Err(error) if error::has_code(&error, 405) => {} // not supported after all
                Err(error) if error::has_code(&error, 404) => return Ok(()),
                other => return other.map(drop),
            }
        }
        let mut not_deleted = Vec::new();
        object_meta::list_metadata(&self.context.client, resource, Some(namespace), |object| {
            if object.deletion_timestamp.is_none() {
                not_deleted.push((object.name.unwrap_or_default(), object.uid));
            }
        })
        .await?;
        for (name, uid) in not_deleted {
            let fence = Preconditions { uid, resource_version: None };
            match api.delete(&name, &background.clone().preconditions(fence)).await {
                Err(error) if error::has_code(&error, 404) || error::has_code(&error, 409) => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}

impl Controller for NamespaceController {
    const NAME: &'static str = "namespace";
    type Key = String;
    type World = World;
    type Action = Action;
    /// What could not be deleted, and why.
    type Outcome = Vec<String>;
    type Status = NamespaceReport;

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let found = self.api().get_opt(name).await.map_err(ApiError::when(format!("get namespace {name}")))?;
        let Some(namespace) = found.filter(is_terminating) else { return Ok(None) };
        let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
        if finalizers.is_none_or(|own| !own.iter().any(|f| f == FINALIZER)) {
            return Ok(None);
        }
        let ServerResources { resources, failed_groups, .. } = ServerResources::discover(&self.context.client).await?;
        let deletable = resources.iter().filter(|r| r.namespaced && r.can("list") && r.can("delete"));
        let (mut content, mut unlisted) = (Vec::new(), Vec::new());
        for resource in deletable {
            match self.content(resource, name).await {
                Ok(found) if found.count > 0 => content.push(found),
                Ok(_) => {}
                Err(error) => unlisted.push(format!("{resource}: {}", error::message(&error))),
            }
        }
        Ok(Some(World { namespace, failed_groups, content, unlisted }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, NamespaceReport> {
        plan::plan(world, now)
    }

    async fn apply(&self, name: &String, action: Action) -> Result<Vec<String>, ApiError> {
        match action {
            Action::DeleteContent { resources } => {
                let mut failures = Vec::new();
                for resource in resources {
                    if let Err(error) = self.delete_all(&resource, name).await {
                        failures.push(format!("{resource}: {}", error::message(&error)));
                    }
                }
                Ok(failures)
            }
            Action::Finalize { namespace } => {
                let done = self.api().replace_subresource("finalize", name, &PostParams::default(), &*namespace).await;
                match done {
                    Ok(_) => Ok(Vec::new()),
                    Err(error) if error::has_code(&error, 404) => Ok(Vec::new()), // another server was faster
                    Err(error) => Err(ApiError::new(format!("finalize namespace {name}"), error)),
                }
            }
        }
    }

    async fn report(
        &self,
        name: &String,
        report: NamespaceReport,
        outcomes: &Outcomes<Vec<String>>,
    ) -> Result<(), ApiError> {
        let failures: Vec<&str> = outcomes.iter().flatten().flatten().map(String::as_str).collect();
        if let Some(namespace) = report.with_failures(&failures) {
            match self.api().replace_status(name, &PostParams::default(), &namespace).await {
                Ok(_) => {}
                Err(error) if error::has_code(&error, 404) => {}
                Err(error) => return Err(ApiError::new(format!("write the status of namespace {name}"), error)),
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        // Deletes that failed are retried with back-off.
        let doing = format!("delete the content of namespace {name}");
        Err(ApiError::new(doing, kube::Error::Service(failures.join(", ").into())))
    }
}
