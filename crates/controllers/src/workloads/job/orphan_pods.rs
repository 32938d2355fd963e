//! Orphan pods of Jobs: removes the tracking finalizer of pods that still have it although their Job is gone.
//!
//! Nobody will count them, and the finalizer would keep them for ever. Whether the Job is really gone is asked of the
//! API, not of a cache. The finalizer is removed only from the very version of the pod that was judged: another Job may
//! adopt an orphan at any moment, and a pod of its own without the finalizer is one that the Job must give up.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::Api;

use super::{job_of, release, view::TRACKING};
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Change, Context, Controller, Limits, ObjectKey, Plan, Runnable, controller_of},
};

/// A Job that is deleted, and its pods with it, are gone together.
const DELETED_TOGETHER: Duration = Duration::from_millis(20);

pub struct OrphanPods {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<OrphanPods>();
    let (own, jobs) = (queue.clone(), context.caches.jobs.clone());
    context.caches.pods.on_change(move |change: Change<'_, Pod>| {
        let known = |pod: &Pod| {
            let job = job_of(pod).and_then(|key| jobs.get(&key));
            job.is_some_and(|job| job.metadata.uid.as_deref() == controller_of(&pod.metadata))
        };
        if change.after.is_some_and(|pod| is_tracked(pod) && !known(pod)) {
            own.add_after(change.key.clone(), DELETED_TOGETHER);
        }
    });
    let (own, pods) = (queue.clone(), Arc::downgrade(&context.caches.pods));
    context.caches.jobs.on_change(move |change: Change<'_, Job>| {
        if let (Some(gone), None, Some(pods)) = (change.before, change.after, pods.upgrade()) {
            let left = pods.controlled_by(gone.metadata.uid.as_deref().unwrap_or_default());
            left.iter().for_each(|pod| own.add_after(ObjectKey::from_meta(&pod.metadata), DELETED_TOGETHER));
        }
    });
    let limits = Limits { concurrent_reconciles: 16, ..Limits::default() };
    context.runnable(Arc::new(OrphanPods { context: context.clone() }), queue, limits)
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING)
}

/// A pod that nobody will count, as it was judged.
pub struct World {
    uid: String,
    version: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct RemoveFinalizer {
    uid: String,
    version: String,
}

impl Controller for OrphanPods {
    const NAME: &'static str = "job_orphan_pod";
    type Key = ObjectKey;
    type World = World;
    type Action = RemoveFinalizer;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(pod) = self.context.caches.pods.get(key).filter(|pod| is_tracked(pod)) else { return Ok(None) };
        if let Some(job) = job_of(&pod) {
            let jobs: Api<Job> = Api::namespaced(self.context.client.clone(), &key.namespace);
            let found = jobs.get_metadata_opt(&job.name).await.map_err(ApiError::when(format!("get job {job:?}")))?;
            if found.is_some_and(|job| job.metadata.uid.as_deref() == controller_of(&pod.metadata)) {
                return Ok(None);
            }
        }
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        Ok(Some(World { uid: pod.uid().to_owned(), version }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<RemoveFinalizer, ()> {
        Plan::act([RemoveFinalizer { uid: world.uid.clone(), version: world.version.clone() }])
    }

    async fn apply(&self, key: &ObjectKey, RemoveFinalizer { uid, version }: RemoveFinalizer) -> Result<(), ApiError> {
        release(&self.context, &key.namespace, &key.name, &uid, Some(&version)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod in the API. Writes that name another version are refused.
    #[derive(Clone, Default)]
    struct PodModel {
        version: u64,
        adopted: bool,
        tracked: bool,
    }

    impl PodModel {
        fn write(&mut self, judged: Option<u64>, change: impl FnOnce(&mut Self)) {
            if judged.is_none_or(|judged| judged == self.version) {
                change(self);
                self.version += 1;
            }
        }
    }

    /// Reads and writes of this controller and of a Job that adopts the pod, in the order that `schedule` says, twice
    /// each: whoever is refused looks again. Says whether a pod that was adopted has lost its finalizer.
    fn adopted_without_finalizer(schedule: u32, fenced: bool) -> bool {
        let mut pod = PodModel { tracked: true, ..PodModel::default() };
        let (mut removal, mut adoption): (Option<RemoveFinalizer>, Option<u64>) = (None, None);
        for step in 0..8 {
            if schedule >> step & 1 == 0 {
                match removal.take() {
                    None if pod.tracked && !pod.adopted => {
                        let world = World { uid: "u".into(), version: pod.version.to_string() };
                        removal = OrphanPods::plan(&world, Timestamp::UNIX_EPOCH).actions.pop();
                    }
                    None => {}
                    Some(RemoveFinalizer { version, .. }) => {
                        pod.write(fenced.then(|| version.parse().unwrap()), |pod| pod.tracked = false);
                    }
                }
            } else {
                match adoption.take() {
                    None if !pod.adopted => adoption = Some(pod.version),
                    None => {}
                    Some(version) => pod.write(Some(version), |pod| (pod.adopted, pod.tracked) = (true, true)),
                }
            }
        }
        pod.adopted && !pod.tracked
    }

    #[test]
    fn a_pod_that_is_adopted_meanwhile_keeps_its_finalizer_in_every_interleaving() {
        assert!((0..256).all(|schedule| !adopted_without_finalizer(schedule, true)));
        assert!((0..256).any(|schedule| adopted_without_finalizer(schedule, false)), "which the fence is for");
    }
}
