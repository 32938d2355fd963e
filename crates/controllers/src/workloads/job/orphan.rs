//! Pods that still wait to be counted by a Job that is not there any more.
//!
//! Nobody will count them, and their finalizer would keep them for ever. Whether the Job is really gone is asked of
//! the API, not of a cache.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::Api;

use super::{job_of, release, view::TRACKING};
use crate::{
    cache::{self, Change, Key},
    failure::Failure,
    runner::{Limits, Queue},
    shell::{Controller, Plan},
    workloads::{Turns, Workloads, pod::Pod},
};

/// A Job that is deleted, and its pods with it, are gone together.
const GATHER: Duration = Duration::from_millis(20);

pub struct Orphans {
    shared: Arc<Workloads>,
}

pub fn start(shared: &Arc<Workloads>) -> Turns {
    let queue = Queue::new();
    let (wake, jobs) = (queue.clone(), shared.caches.jobs.clone());
    shared.caches.pods.on_change(move |change: Change<'_, Pod>| {
        let known = |pod: &Pod| {
            let job = job_of(pod).and_then(|key| jobs.get(&key));
            job.is_some_and(|job| job.metadata.uid.as_deref() == cache::controller(&pod.metadata))
        };
        if change.after.is_some_and(|pod| is_tracked(pod) && !known(pod)) {
            wake.wake_within(change.key.clone(), GATHER);
        }
    });
    let (wake, pods) = (queue.clone(), shared.caches.pods.clone());
    shared.caches.jobs.on_change(move |change: Change<'_, Job>| {
        if let (Some(gone), None) = (change.before, change.after) {
            let left = pods.controlled_by(gone.metadata.uid.as_deref().unwrap_or_default());
            left.iter().for_each(|pod| wake.wake_within(Key::of(&pod.metadata), GATHER));
        }
    });
    super::super::turns(Arc::new(Orphans { shared: shared.clone() }), queue, Limits { width: 16, ..Limits::default() })
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

/// A pod nobody will count.
pub struct World {
    uid: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    uid: String,
}

impl Controller for Orphans {
    const NAME: &'static str = "orphans of jobs";
    type Key = Key;
    type World = World;
    type Action = Release;
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        let Some(pod) = self.shared.caches.pods.get(key).filter(|pod| is_tracked(pod)) else { return Ok(None) };
        if let Some(job) = job_of(&pod) {
            let jobs: Api<Job> = Api::namespaced(self.shared.client.clone(), &key.namespace);
            let found = jobs.get_metadata_opt(&job.name).await.map_err(Failure::when(format!("get job {job:?}")))?;
            if found.is_some_and(|job| job.metadata.uid.as_deref() == cache::controller(&pod.metadata)) {
                return Ok(None);
            }
        }
        Ok(Some(World { uid: pod.uid().to_owned() }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Release, ()> {
        Plan::act([Release { uid: world.uid.clone() }])
    }

    async fn apply(&self, key: &Key, Release { uid }: Release) -> Result<(), Failure> {
        release(&self.shared, &key.namespace, &key.name, &uid, None).await
    }
}
