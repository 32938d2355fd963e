//! TTL after finished: deletes Jobs that finished, their pods first, when their `ttlSecondsAfterFinished` is over.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{DeleteParams, Preconditions, PropagationPolicy},
};

use super::job::finish;
use crate::runtime::{ApiError, Change, Context, Controller, Limits, ObjectKey, Plan, Runnable, error, object_writes};

pub struct TtlAfterFinished {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<TtlAfterFinished>();
    let own = queue.clone();
    context.caches.jobs.on_change(move |change: Change<'_, Job>| {
        if change.after.is_some_and(|job| World::from_job(job).is_some()) {
            own.add(change.key.clone());
        }
    });
    context.runnable(Arc::new(TtlAfterFinished { context: context.clone() }), queue, Limits::default())
}

/// A Job that ended and does not stay.
#[derive(Clone, Debug)]
pub struct World {
    uid: String,
    version: String,
    until: Timestamp,
}

impl World {
    fn from_job(job: &Job) -> Option<Self> {
        if job.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let (_, since) = finish::finished(job.status.as_ref()?)?;
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

impl Controller for TtlAfterFinished {
    const NAME: &'static str = "ttl_jobs_to_delete";
    type Key = ObjectKey;
    type World = World;
    type Action = Delete;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        Ok(self.context.caches.jobs.get(key).and_then(|job| World::from_job(&job)))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Delete, ()> {
        if now < world.until {
            return Plan { requeue_at: Some(world.until), ..Plan::default() };
        }
        Plan::act([Delete { uid: world.uid.clone(), version: world.version.clone() }])
    }

    async fn apply(&self, key: &ObjectKey, Delete { uid, version }: Delete) -> Result<(), ApiError> {
        let jobs: Api<Job> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: Some(version) }),
            ..DeleteParams::default()
        };
        match jobs.delete(&key.name, &params).await {
            Ok(answer) => match answer.left().filter(|job| object_writes::still_exists(&job.metadata)) {
                Some(job) => self.context.caches.jobs.wrote(job),
                None => self.context.caches.jobs.removed(key, &uid),
            },
            Err(error) if error::is_not_found(&error, &key.name) => self.context.caches.jobs.removed(key, &uid),
            Err(error) => return Err(ApiError::new(format!("delete finished job {key:?}"), error)),
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
        let world = World::from_job(&serde_json::from_value(job).unwrap())?;
        Some(TtlAfterFinished::plan(&world, Timestamp::from_second(now).unwrap()))
    }

    #[test]
    fn a_job_that_ended_stays_as_long_as_it_says() {
        let delete = || Plan::act([Delete { uid: "u".into(), version: "7".into() }]);
        let wait = || Plan { requeue_at: Some(Timestamp::from_second(130).unwrap()), ..Plan::default() };
        assert_eq!(judged(Some(30), "Complete", false, 129), Some(wait()));
        assert_eq!(judged(Some(30), "Complete", false, 130), Some(delete()));
        assert_eq!(judged(Some(30), "Failed", false, 131), Some(delete()));
        assert_eq!(judged(Some(0), "Failed", false, 100), Some(delete()));
        assert_eq!(judged(None, "Complete", false, 1000), None);
        assert_eq!(judged(Some(30), "SuccessCriteriaMet", false, 1000), None);
        assert_eq!(judged(Some(30), "Complete", true, 1000), None);
    }
}
