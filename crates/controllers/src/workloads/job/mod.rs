//! Job: pods that run to an end, so many of them, so many at once.
//!
//! * [`plan`]: what to do; [`verdict`]: when it is over, and why; [`count`]: every pod counted once
//! * [`policy`]: what failures mean; [`backoff`]: how soon they are made good
//! * [`view`]: what all of them look at; [`indexes`]: sets of completion indexes; [`make`]: the pods
//! * [`orphan`]: pods whose Job is gone
//!
//! Counting must be right even if somebody else counts too, with a cache of their own. So before a
//! pod goes on record it is read again, past the cache; and a pod on record that the cache does not
//! know is looked for, before it is taken for gone.

mod backoff;
mod count;
mod indexes;
mod make;
pub mod orphan;
mod plan;
mod policy;
pub mod verdict;
mod view;

#[cfg(test)]
mod model;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use self::{
    count::{Begun, Tally},
    plan::{Action, Report},
    view::{Desired, TRACKING, View, World},
};
use super::{
    Turns, Workloads, act,
    events::Said,
    owner::{self, Kind, Owner},
    pod::Pod,
};
use crate::{
    cache::{Change, Key},
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};

/// News of pods that come together share a turn.
const GATHER: Duration = Duration::from_millis(20);
/// Reads under way at once.
const READS: usize = 16;

pub struct Jobs {
    shared: Arc<Workloads>,
    kind: Arc<Kind>,
    queue: Arc<Queue<Key>>,
}

pub fn start(shared: &Arc<Workloads>) -> Turns {
    let kind = Kind::counting::<Job>("job-controller", Some(TRACKING));
    let jobs = Arc::new(Jobs { shared: shared.clone(), kind, queue: Queue::new() });
    let queue = jobs.queue.clone();
    shared.caches.jobs.on_change(move |change| queue.wake(change.key.clone()));
    let (queue, all) = (jobs.queue.clone(), shared.caches.jobs.clone());
    shared.caches.pods.on_change(move |change: Change<'_, Pod>| {
        for pod in change.before.iter().chain(&change.after) {
            if let Some(job) = job_of(pod) {
                queue.wake_within(job, GATHER);
            }
        }
        if let Some(orphan) = change.after.filter(|pod| crate::cache::controller(&pod.metadata).is_none()) {
            for job in all.in_namespace(&change.key.namespace) {
                if owner::selects(&selector(&job), &orphan.metadata) {
                    queue.wake_within(Key::of(&job.metadata), GATHER);
                }
            }
        }
    });
    let queue = jobs.queue.clone();
    super::turns(jobs, queue, Limits { width: 16, ..Limits::default() })
}

/// The Job that controls a pod.
fn job_of(pod: &Pod) -> Option<Key> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == "Job")?;
    Some(Key::new(pod.metadata.namespace.clone().unwrap_or_default(), owner.name.clone()))
}

fn selector(job: &Job) -> mainstay_api::selector::Labels {
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.clone());
    owner::selector(&selector.unwrap_or_default())
}

impl Jobs {
    fn api(&self, namespace: &str) -> Api<Job> {
        Api::namespaced(self.shared.client.clone(), namespace)
    }

    fn look(&self, job: &Job, want: Desired) -> World {
        let owner = Owner::new(&self.kind, &job.metadata);
        let selector = selector(job);
        let fits = |pod: &Pod| owner::selects(&selector, &pod.metadata);
        let claimed = owner::claim(&owner, &self.shared.caches.pods, fits);
        let status = job.status.clone().unwrap_or_default();
        let over = verdict::finished(&status).is_some();
        World {
            want,
            version: job.metadata.resource_version.clone().unwrap_or_default(),
            pods: claimed.held.iter().map(|pod| View::of(pod, job)).collect(),
            claims: if over { Vec::new() } else { claimed.claims },
            status,
            foreign: Vec::new(),
        }
    }

    /// Reads all pods of a Job past the cache.
    async fn refresh(&self, job: &Job) -> Result<(), Failure> {
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let labels = selector.and_then(|selector| selector.match_labels.as_ref());
        let labels: Vec<String> = labels.into_iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
        let pods = self.shared.pods_in(namespace).list(&ListParams::default().labels(&labels.join(","))).await;
        let pods = pods.map_err(Failure::when(format!("list the pods of job {:?}", Key::of(&job.metadata))))?;
        pods.items.into_iter().for_each(|pod| self.shared.caches.pods.wrote(pod));
        Ok(())
    }

    /// The names we would give that others bear.
    fn foreign(&self, namespace: &str, world: &mut World) {
        loop {
            let slots = plan::missing(world, &Tally::of(world));
            let taken = slots.into_iter().map(|slot| slot.name);
            let pods = &self.shared.caches.pods;
            let taken: Vec<String> = taken.filter(|name| pods.get(&Key::new(namespace, name)).is_some()).collect();
            if taken.is_empty() {
                return;
            }
            world.foreign.extend(taken);
        }
    }

    /// Whether pods that are to go on record are still as we know them. What is read is taken in.
    async fn still_uncounted(&self, namespace: &str, begun: &[Begun]) -> Result<bool, Failure> {
        let mut all = true;
        for some in begun.chunks(READS) {
            let reads: Vec<_> = some.iter().map(|one| self.is_uncounted(namespace, one)).collect();
            for found in futures::future::join_all(reads).await {
                all &= found?;
            }
        }
        Ok(all)
    }

    async fn is_uncounted(&self, namespace: &str, Begun { name, uid }: &Begun) -> Result<bool, Failure> {
        let read = self.shared.pods_in(namespace).get_opt(name).await;
        let pod = read.map_err(Failure::when(format!("look again at pod {namespace}/{name}")))?;
        let Some(pod) = pod.filter(|pod| pod.uid() == uid) else {
            self.shared.caches.pods.removed(&Key::new(namespace, name), uid);
            return Ok(false);
        };
        let tracked = pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING);
        self.shared.caches.pods.wrote(pod);
        Ok(tracked)
    }
}

/// Takes our finalizer off a pod, if it still is of this version where that matters. Gone is as good.
async fn release(
    shared: &Workloads,
    namespace: &str,
    name: &str,
    uid: &str,
    version: Option<&str>,
) -> Result<(), Failure> {
    let mut change = json!({ "metadata": { "uid": uid, "$deleteFromPrimitiveList/finalizers": [TRACKING] } });
    if let Some(version) = version {
        change["metadata"]["resourceVersion"] = json!(version);
    }
    let key = Key::new(namespace, name);
    match shared.pods_in(namespace).patch(name, &PatchParams::default(), &Patch::Strategic(change)).await {
        Ok(pod) if pod.is_leaving() && !act::lingers(&pod.metadata) => shared.caches.pods.removed(&key, uid),
        Ok(pod) => shared.caches.pods.wrote(pod),
        Err(error) if failure::no_such_object(&error, name) => shared.caches.pods.removed(&key, uid),
        Err(error) => return Err(Failure::new(format!("release pod {key:?}"), error)),
    }
    Ok(())
}

impl Controller for Jobs {
    const NAME: &'static str = "jobs";
    const ABREAST: usize = 16;
    type Key = Key;
    type World = World;
    type Action = Action;
    type Status = Report;

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let Some(job) = self.shared.caches.jobs.get(key) else { return Ok(None) };
        let Some(want) = Desired::of(&job) else { return Ok(None) };
        let mut world = self.look(&job, want.clone());
        if !uncounted(&world.status).is_subset(&world.pods.iter().map(|pod| pod.uid.as_str()).collect()) {
            self.refresh(&job).await?;
            world = self.look(&job, want);
        }
        self.foreign(&key.namespace, &mut world);
        Ok(Some(world))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &Key, action: Action) -> Result<(), Failure> {
        let Some(job) = self.shared.caches.jobs.get(key) else { return Ok(()) };
        let owner = Owner::new(&self.kind, &job.metadata);
        match action {
            Action::Claim(claim) => owner::settle(&self.shared.client, &self.shared.caches.pods, &owner, claim).await,
            Action::Create(slot) if slot.job == owner.uid => {
                self.shared.create_pod(&owner, &make::pod(&owner, &job, &slot)).await
            }
            Action::Create(_) => Ok(()), // another Job of that name
            Action::Stop { name, uid } => self.shared.delete_pod(&owner, &name, &uid).await,
            Action::GiveUp { name, uid, version } => {
                release(&self.shared, &key.namespace, &name, &uid, Some(&version)).await?;
                self.shared.delete_pod(&owner, &name, &uid).await
            }
            Action::Release { name, uid, version } => {
                release(&self.shared, &key.namespace, &name, &uid, version.as_deref()).await
            }
        }
    }

    async fn report(&self, key: &Key, report: Report) -> Result<(), Failure> {
        if !self.still_uncounted(&key.namespace, &report.begun).await? {
            self.queue.wake(key.clone());
            return Ok(()); // somebody else is counting; what they did has been read
        }
        let Some(mut job) = self.shared.caches.jobs.get(key).map(|job| (*job).clone()) else { return Ok(()) };
        job.metadata.resource_version = Some(report.version);
        job.status = Some(report.status);
        match self.api(&key.namespace).replace_status(&key.name, &PostParams::default(), &job).await {
            Ok(written) => {
                let owner = Owner::new(&self.kind, &written.metadata);
                self.shared.caches.jobs.wrote(written);
                for say in report.say {
                    let (about, component) = (owner.subject(), owner.kind.component);
                    let said =
                        Said { about, component, warning: say.warning, reason: say.reason, message: say.message };
                    self.shared.events.say(said);
                }
                Ok(())
            }
            Err(error) if failure::no_such_object(&error, &key.name) => Ok(()),
            Err(error) => Err(Failure::new(format!("report about job {key:?}"), error)),
        }
    }
}

/// The uids that are on record and not in the totals.
fn uncounted(status: &JobStatus) -> HashSet<&str> {
    let lists = status.uncounted_terminated_pods.iter();
    lists.flat_map(|lists| lists.succeeded.iter().chain(&lists.failed)).flatten().map(String::as_str).collect()
}
