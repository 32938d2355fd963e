//! The Job controller: runs pods to completion, so many of them, so many at once.
//!
//! * [`plan`]: what to do; [`finish`]: when a Job is finished, and why; [`tracking`]: counts every pod once
//! * [`policy`]: podFailurePolicy and successPolicy; [`backoff`]: how soon failed pods are replaced
//! * [`view`]: what decisions depend on; [`indexes`]: sets of completion indexes; [`pod_spec`]: the pods
//! * [`orphan_pods`]: removes the finalizer of pods whose Job is gone
//!
//! Counting must be right even if somebody else counts too, with a cache of their own. So before a pod is recorded as
//! uncounted it is read again, past the cache; and a recorded pod that the cache does not know is looked for, before it
//! is taken for gone.

mod backoff;
pub mod finish;
mod indexes;
pub mod orphan_pods;
mod plan;
mod pod_spec;
mod policy;
mod tracking;
mod view;

#[cfg(test)]
mod model;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use self::{
    plan::{Action, Report},
    tracking::{NewlyCountedPod, Tally},
    view::{Desired, INDEX, TRACKING, View, World},
};
use super::{
    controller_ref::{self, Owner, OwnerKind},
    pod_names::PodNameHistory,
};
use crate::{
    names::Predecessor,
    objects::pod::Pod,
    runtime::{
        ApiError, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, WorkQueue, controller_of,
        error, object_writes,
    },
};

/// Changes of pods that come together share a reconcile.
const PODS_CHANGED: Duration = Duration::from_millis(20);
/// Reads under way at once.
const READS: usize = 16;

pub struct Jobs {
    context: Arc<Context>,
    kind: Arc<OwnerKind>,
    queue: Arc<WorkQueue<ObjectKey>>,
    names: Arc<PodNameHistory>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let kind = OwnerKind::with_finalizer::<Job>("job-controller", Some(TRACKING));
    let (queue, caches) = (context.queue::<Jobs>(), &context.caches);
    let names = PodNameHistory::follow(caches, &caches.jobs, |pod| {
        pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(INDEX)).cloned()
    });
    let own = queue.clone();
    caches.jobs.on_change(move |change| own.add(change.key.clone()));
    let (own, all) = (queue.clone(), caches.jobs.clone());
    caches.pods.on_change(move |change: Change<'_, Pod>| {
        for pod in change.before.iter().chain(&change.after) {
            if let Some(job) = job_of(pod) {
                own.add_after(job, PODS_CHANGED);
            }
        }
        if let Some(orphan) = change.after.filter(|pod| controller_of(&pod.metadata).is_none()) {
            for job in all.in_namespace(&change.key.namespace) {
                if controller_ref::selects(&selector(&job), &orphan.metadata) {
                    own.add_after(ObjectKey::from_meta(&job.metadata), PODS_CHANGED);
                }
            }
        }
    });
    let jobs = Jobs { context: context.clone(), kind, queue: queue.clone(), names };
    context.runnable(Arc::new(jobs), queue, Limits { concurrent_reconciles: 16, ..Limits::default() })
}

/// The Job that controls a pod.
fn job_of(pod: &Pod) -> Option<ObjectKey> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == "Job")?;
    Some(ObjectKey::new(pod.metadata.namespace.clone().unwrap_or_default(), owner.name.clone()))
}

fn selector(job: &Job) -> mainstay_api::selector::Labels {
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.clone());
    controller_ref::selector(&selector.unwrap_or_default())
}

impl Jobs {
    fn api(&self, namespace: &str) -> Api<Job> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn observe_pods(&self, job: &Job, want: Desired) -> World {
        let owner = Owner::new(&self.kind, &job.metadata);
        let selector = selector(job);
        let fits = |pod: &Pod| controller_ref::selects(&selector, &pod.metadata);
        let claimed = controller_ref::claim_objects(&owner, &self.context.caches.pods, fits);
        let status = job.status.clone().unwrap_or_default();
        let over = finish::finished(&status).is_some();
        World {
            want,
            version: job.metadata.resource_version.clone().unwrap_or_default(),
            pods: claimed.held.iter().map(|pod| View::from_pod(pod, job)).collect(),
            claims: if over { Vec::new() } else { claimed.claims },
            status,
            foreign: Vec::new(),
            used_numbers: self.names.used_numbers(&owner.uid),
            predecessors: self.predecessors(&owner.uid, job),
        }
    }

    /// The newest pod that each index ever had.
    fn predecessors(&self, uid: &str, job: &Job) -> HashMap<usize, Predecessor> {
        let spec = job.spec.as_ref();
        let indexed = spec.is_some_and(|spec| spec.completion_mode.as_deref() == Some("Indexed"));
        if indexed { self.names.predecessors(uid) } else { HashMap::new() }
    }

    /// Reads all pods of a Job past the cache.
    async fn refresh(&self, job: &Job) -> Result<(), ApiError> {
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let labels = selector.and_then(|selector| selector.match_labels.as_ref());
        let labels: Vec<String> = labels.into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
        let pods = self.context.pods_in(namespace).list(&ListParams::default().labels(&labels.join(","))).await;
        let pods =
            pods.map_err(ApiError::when(format!("list the pods of job {:?}", ObjectKey::from_meta(&job.metadata))))?;
        pods.items.into_iter().for_each(|pod| self.context.caches.pods.wrote(pod));
        Ok(())
    }

    /// The names we would give that others bear.
    fn foreign(&self, namespace: &str, world: &mut World) {
        loop {
            let slots = plan::missing(world, &Tally::new(world));
            let taken = slots.into_iter().map(|slot| slot.name);
            let pods = &self.context.caches.pods;
            let taken: Vec<String> =
                taken.filter(|name| pods.get(&ObjectKey::new(namespace, name)).is_some()).collect();
            if taken.is_empty() {
                return;
            }
            world.foreign.extend(taken);
        }
    }

    /// Whether pods that are to go on record are still as we know them. What is read is taken in.
    async fn still_uncounted(&self, namespace: &str, begun: &[NewlyCountedPod]) -> Result<bool, ApiError> {
        let mut all = true;
        for some in begun.chunks(READS) {
            let reads: Vec<_> = some.iter().map(|one| self.is_uncounted(namespace, one)).collect();
            for found in futures::future::join_all(reads).await {
                all &= found?;
            }
        }
        Ok(all)
    }

    async fn is_uncounted(
        &self,
        namespace: &str,
        NewlyCountedPod { name, uid }: &NewlyCountedPod,
    ) -> Result<bool, ApiError> {
        let read = self.context.pods_in(namespace).get_opt(name).await;
        let pod = read.map_err(ApiError::when(format!("read pod {namespace}/{name} again")))?;
        let Some(pod) = pod.filter(|pod| pod.uid() == uid) else {
            self.context.caches.pods.removed(&ObjectKey::new(namespace, name), uid);
            return Ok(false);
        };
        let tracked = pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING);
        self.context.caches.pods.wrote(pod);
        Ok(tracked)
    }
}

/// Removes our finalizer from a pod, if it still has this version where one is given. Gone is as good.
async fn release(
    context: &Context,
    namespace: &str,
    name: &str,
    uid: &str,
    version: Option<&str>,
) -> Result<(), ApiError> {
    let mut change = json!({ "metadata": { "uid": uid, "$deleteFromPrimitiveList/finalizers": [TRACKING] } });
    if let Some(version) = version {
        change["metadata"]["resourceVersion"] = json!(version);
    }
    let key = ObjectKey::new(namespace, name);
    match context.pods_in(namespace).patch(name, &PatchParams::default(), &Patch::Strategic(change)).await {
        Ok(pod) if pod.is_being_deleted() && !object_writes::still_exists(&pod.metadata) => {
            context.caches.pods.removed(&key, uid)
        }
        Ok(pod) => context.caches.pods.wrote(pod),
        Err(error) if error::is_not_found(&error, name) => context.caches.pods.removed(&key, uid),
        Err(error) => return Err(ApiError::new(format!("release pod {key:?}"), error)),
    }
    Ok(())
}

impl Controller for Jobs {
    const NAME: &'static str = "job";
    const CONCURRENT_ACTIONS: usize = 16;
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(job) = self.context.caches.jobs.get(key) else { return Ok(None) };
        let Some(want) = Desired::from_job(&job) else { return Ok(None) };
        let mut world = self.observe_pods(&job, want.clone());
        if !uncounted(&world.status).is_subset(&world.pods.iter().map(|pod| pod.uid.as_str()).collect()) {
            self.refresh(&job).await?;
            world = self.observe_pods(&job, want);
        }
        self.foreign(&key.namespace, &mut world);
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let Some(job) = self.context.caches.jobs.get(key) else { return Ok(()) };
        let owner = Owner::new(&self.kind, &job.metadata);
        match action {
            Action::OwnershipChange(change) => {
                controller_ref::apply_change(&self.context.client, &self.context.caches.pods, &owner, change).await
            }
            Action::Create(slot) if slot.job == owner.uid => {
                self.context.create_pod(&owner, &pod_spec::pod(&owner, &job, &slot)).await
            }
            Action::Create(_) => Ok(()), // another Job of that name
            Action::Stop { name, uid } => self.context.delete_pod(&owner, &name, &uid).await,
            Action::GiveUp { name, uid, version } => {
                release(&self.context, &key.namespace, &name, &uid, Some(&version)).await?;
                self.context.delete_pod(&owner, &name, &uid).await
            }
            Action::Release { name, uid, version } => {
                release(&self.context, &key.namespace, &name, &uid, version.as_deref()).await
            }
        }
    }

    async fn report(&self, key: &ObjectKey, report: Report, _: &Outcomes<()>) -> Result<(), ApiError> {
        if !self.still_uncounted(&key.namespace, &report.begun).await? {
            self.queue.add(key.clone());
            return Ok(()); // somebody else is counting; what they did has been read
        }
        let Some(mut job) = self.context.caches.jobs.get(key).map(|job| (*job).clone()) else { return Ok(()) };
        job.metadata.resource_version = Some(report.version);
        job.status = Some(report.status);
        match self.api(&key.namespace).replace_status(&key.name, &PostParams::default(), &job).await {
            Ok(written) => {
                let owner = Owner::new(&self.kind, &written.metadata);
                self.context.caches.jobs.wrote(written);
                report.events.into_iter().for_each(|note| self.context.events.record(&owner, note));
                Ok(())
            }
            Err(error) if error::is_not_found(&error, &key.name) => Ok(()),
            Err(error) => Err(ApiError::new(format!("write the status of job {key:?}"), error)),
        }
    }
}

/// The uids that are on record and not in the totals.
fn uncounted(status: &JobStatus) -> HashSet<&str> {
    let lists = status.uncounted_terminated_pods.iter();
    lists.flat_map(|lists| lists.succeeded.iter().chain(&lists.failed)).flatten().map(String::as_str).collect()
}
