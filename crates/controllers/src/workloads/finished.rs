//! Jobs that ended and say how long they want to be kept are deleted after that time, and their pods before them.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{DeleteParams, Preconditions, PropagationPolicy},
};

use super::{Turns, Workloads, act, job::verdict};
use crate::{
    cache::{Change, Key},
    failure::{self, Failure},
    runner::{Limits, Queue},
    shell::{Controller, Plan},
};

pub struct Finished {
    shared: Arc<Workloads>,
}

pub fn start(shared: &Arc<Workloads>) -> Turns {
    let queue = Queue::new();
    let wake = queue.clone();
    shared.caches.jobs.on_change(move |change: Change<'_, Job>| {
        if change.after.is_some_and(|job| World::of(job).is_some()) {
            wake.wake(change.key.clone());
        }
    });
    super::turns(Arc::new(Finished { shared: shared.clone() }), queue, Limits::default())
}

/// A Job that ended and does not stay.
#[derive(Clone, Debug)]
pub struct World {
    uid: String,
    version: String,
    until: Timestamp,
}

impl World {
    fn of(job: &Job) -> Option<Self> {
        if job.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let (_, since) = verdict::finished(job.status.as_ref()?)?;
        let stays = job.spec.as_ref()?.ttl_seconds_after_finished?;
        Some(Self {
            uid: job.metadata.uid.clone()?,
            version: job.metadata.resource_version.clone()?,
            until: since?.checked_add(SignedDuration::from_secs(stays.into())).ok()?,
        })
    }
}

/// Deletes the very Job that was judged: a changed one may have been given more time.
#[derive(Debug, PartialEq, Eq)]
pub struct Delete {
    uid: String,
    version: String,
}

impl Controller for Finished {
    const NAME: &'static str = "finished jobs";
    type Key = Key;
    type World = World;
    type Action = Delete;
    type Status = ();

    async fn observe(&self, key: &Key) -> Result<Option<World>, Failure> {
        Ok(self.shared.caches.jobs.get(key).and_then(|job| World::of(&job)))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Delete, ()> {
        if now < world.until {
            return Plan { wake_at: Some(world.until), ..Plan::default() };
        }
        Plan::act([Delete { uid: world.uid.clone(), version: world.version.clone() }])
    }

    async fn apply(&self, key: &Key, Delete { uid, version }: Delete) -> Result<(), Failure> {
        let jobs: Api<Job> = Api::namespaced(self.shared.client.clone(), &key.namespace);
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: Some(version) }),
            ..DeleteParams::default()
        };
        match jobs.delete(&key.name, &params).await {
            Ok(answer) => match answer.left().filter(|job| act::lingers(&job.metadata)) {
                Some(job) => self.shared.caches.jobs.wrote(job),
                None => self.shared.caches.jobs.removed(key, &uid),
            },
            Err(error) if failure::no_such_object(&error, &key.name) => self.shared.caches.jobs.removed(key, &uid),
            Err(error) => return Err(Failure::new(format!("delete finished job {key:?}"), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(ttl: Option<i32>, condition: &str, deleted: bool, now: i64) -> Option<Plan<Delete, ()>> {
        let gone: Value = if deleted { json!("1970-01-01T00:00:00Z") } else { Value::Null };
        let job = json!({
            "metadata": { "name": "j", "uid": "u", "resourceVersion": "7", "deletionTimestamp": gone },
            "spec": { "ttlSecondsAfterFinished": ttl, "template": {} },
            "status": { "conditions": [{ "type": condition, "status": "True", "lastTransitionTime": "1970-01-01T00:01:40Z" }] },
        });
        let world = World::of(&serde_json::from_value(job).unwrap())?;
        Some(Finished::plan(&world, Timestamp::from_second(now).unwrap()))
    }

    #[test]
    fn a_job_that_ended_stays_as_long_as_it_says() {
        let delete = || Plan::act([Delete { uid: "u".into(), version: "7".into() }]);
        let wait = || Plan { wake_at: Some(Timestamp::from_second(130).unwrap()), ..Plan::default() };
        assert_eq!(judged(Some(30), "Complete", false, 129), Some(wait()));
        assert_eq!(judged(Some(30), "Complete", false, 130), Some(delete()));
        assert_eq!(judged(Some(30), "Failed", false, 131), Some(delete()));
        assert_eq!(judged(Some(0), "Failed", false, 100), Some(delete()));
        assert_eq!(judged(None, "Complete", false, 1000), None);
        assert_eq!(judged(Some(30), "SuccessCriteriaMet", false, 1000), None);
        assert_eq!(judged(Some(30), "Complete", true, 1000), None);
    }
}
