//! The CronJob controller: creates a Job at every time its schedule names.
//!
//! * [`plan`]: what to do; [`schedule`]: when a schedule is due

mod plan;
mod schedule;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::{
    api::batch::v1::{CronJob, Job},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use mainstay_api::groups::batch::rules::cron;

use self::plan::{Action, Concurrency, Desired, JobView, Report, World};
use super::{
    controller_ref::{Owner, OwnerKind},
    job::finish,
};
use crate::runtime::{
    ApiError, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, controller_of, error,
    object_writes,
};

/// The time a Job is for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

pub struct CronJobs {
    context: Arc<Context>,
    kind: Arc<OwnerKind>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<CronJobs>();
    let own = queue.clone();
    context.caches.cron_jobs.on_change(move |change| own.add(change.key.clone()));
    let own = queue.clone();
    context.caches.jobs.on_change(move |change: Change<'_, Job>| {
        // That its counts change is of no interest.
        let view = |job: Option<&Job>| job.map(|job| (ended(job), job.metadata.deletion_timestamp.is_some()));
        if view(change.before) == view(change.after) {
            return;
        }
        let owners = change.latest().and_then(|job| job.metadata.owner_references.as_ref()).into_iter().flatten();
        for owner in owners.filter(|owner| owner.controller == Some(true) && owner.kind == "CronJob") {
            own.add(ObjectKey::new(change.key.namespace.clone(), owner.name.clone()));
        }
    });
    let kind = OwnerKind::new::<CronJob>("cronjob-controller");
    context.runnable(Arc::new(CronJobs { context: context.clone(), kind }), queue, Limits::default())
}

fn ended(job: &Job) -> Option<bool> {
    job.status.as_ref().and_then(finish::finished).map(|(well, _)| well)
}

fn desired(cron: &CronJob) -> Desired {
    let spec = &cron.spec;
    let keep = |limit: Option<i32>| limit.map(|limit| usize::try_from(limit).unwrap_or_default());
    Desired {
        namespace: cron.metadata.namespace.clone().unwrap_or_default(),
        name: cron.metadata.name.clone().unwrap_or_default(),
        created: time(&cron.metadata.creation_timestamp).unwrap_or(Timestamp::UNIX_EPOCH),
        schedule: spec.schedule.clone(),
        policy: match spec.concurrency_policy.as_deref() {
            Some("Forbid") => Concurrency::Forbid,
            Some("Replace") => Concurrency::Replace,
            _ => Concurrency::Allow,
        },
        patience: spec.starting_deadline_seconds.map(SignedDuration::from_secs),
        suspended: spec.suspend == Some(true),
        leaving: cron.metadata.deletion_timestamp.is_some(),
        keep: [keep(spec.successful_jobs_history_limit), keep(spec.failed_jobs_history_limit)],
    }
}

fn view(job: &Job) -> JobView {
    let scheduled = job.metadata.annotations.as_ref().and_then(|annotations| annotations.get(SCHEDULED));
    let status = job.status.as_ref();
    JobView {
        name: job.metadata.name.clone().unwrap_or_default(),
        uid: job.metadata.uid.clone().unwrap_or_default(),
        scheduled: scheduled.and_then(|text| text.parse().ok()),
        ended: ended(job),
        started: status.and_then(|status| time(&status.start_time)),
        completed: status.and_then(|status| time(&status.completion_time)),
        leaving: job.metadata.deletion_timestamp.is_some(),
    }
}

fn time(time: &Option<Time>) -> Option<Timestamp> {
    time.as_ref().map(|Time(at)| *at)
}

/// The zone of a CronJob; without one, that of this machine.
fn zone(cron: &CronJob) -> Result<TimeZone, String> {
    match cron.spec.time_zone.as_deref() {
        None => Ok(TimeZone::system()),
        Some(name) => cron::zone(name).ok_or_else(|| format!("invalid timeZone: {name:?}: unknown time zone {name}")),
    }
}

impl CronJobs {
    fn jobs(&self, namespace: &str) -> Api<Job> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    fn cron_jobs(&self, namespace: &str) -> Api<CronJob> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    /// What the record calls active and the cache does not know is looked for, before it is taken for gone.
    async fn look_for_active(&self, cron: &CronJob, key: &ObjectKey) -> Result<(), ApiError> {
        let active = cron.status.iter().flat_map(|status| status.active.iter().flatten());
        for name in active.filter_map(|one| one.name.as_deref()) {
            if self.context.caches.jobs.get(&ObjectKey::new(key.namespace.clone(), name)).is_none() {
                let found = self.jobs(&key.namespace).get_opt(name).await;
                let found = found.map_err(ApiError::when(format!("look for job {}/{name}", key.namespace)))?;
                found.into_iter().for_each(|job| self.context.caches.jobs.wrote(job));
            }
        }
        Ok(())
    }

    /// Reads past the cache whether a Job may be started after all: somebody else may have started it, seen its end
    /// and removed it, or have started another, unknown to our cache.
    async fn look_again(&self, key: &ObjectKey, version: &str, alone: bool) -> Result<Option<CronJob>, ApiError> {
        let found = self.cron_jobs(&key.namespace).get_opt(&key.name).await;
        let Some(cron) = found.map_err(ApiError::when(format!("look again at cron job {key:?}")))? else {
            return Ok(None);
        };
        if cron.metadata.resource_version.as_deref() != Some(version) {
            self.context.caches.cron_jobs.wrote(cron);
            return Ok(None);
        }
        if alone {
            let jobs = self.jobs(&key.namespace).list(&ListParams::default()).await;
            let jobs = jobs.map_err(ApiError::when(format!("list the jobs of cron job {key:?}")))?.items.into_iter();
            let own = |job: &Job| controller_of(&job.metadata) == cron.metadata.uid.as_deref();
            let runs = |job: &Job| ended(job).is_none() && job.metadata.deletion_timestamp.is_none();
            let running: Vec<Job> = jobs.filter(|job| own(job) && runs(job) && view(job).scheduled.is_some()).collect();
            if !running.is_empty() {
                running.into_iter().for_each(|job| self.context.caches.jobs.wrote(job));
                return Ok(None);
            }
        }
        Ok(Some(cron))
    }

    async fn start(&self, owner: &Owner, cron: &CronJob, name: String, at: Timestamp) -> Result<(), ApiError> {
        let namespace = &owner.key.namespace;
        let job = new_job(owner, cron, name.clone(), at);
        match self.jobs(namespace).create(&PostParams::default(), &job).await {
            Ok(made) => {
                self.context.caches.jobs.wrote(made);
                self.context.events.normal(owner, "SuccessfulCreate", format!("Created job {name}"));
                Ok(())
            }
            // Ours, made before: it will be seen. Somebody else's: this time is theirs.
            Err(error) if error::has_code(&error, 409) => {
                let found = self.jobs(namespace).get_opt(&name).await;
                let found = found.map_err(ApiError::when(format!("look for job {namespace}/{name}")))?;
                found.into_iter().for_each(|job| self.context.caches.jobs.wrote(job));
                Ok(())
            }
            Err(error) => {
                if !error::is_namespace_terminating(&error) {
                    let message = format!("Error creating job: {}", error::message(&error));
                    self.context.events.warning(owner, "FailedCreate", message);
                }
                Err(ApiError::new(format!("create job {namespace}/{name}"), error))
            }
        }
    }
}

/// The Job for a time.
fn new_job(owner: &Owner, cron: &CronJob, name: String, at: Timestamp) -> Job {
    let template = cron.spec.job_template.clone();
    let given = template.metadata.unwrap_or_default();
    let mut annotations: BTreeMap<String, String> = given.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), shown(cron, at));
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(owner.key.namespace.clone()),
            labels: given.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner.reference()]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// A time as people in the zone of the CronJob write it.
fn shown(cron: &CronJob, at: Timestamp) -> String {
    let named = cron.spec.time_zone.is_some();
    let zone = zone(cron).ok().filter(|_| named).unwrap_or(TimeZone::UTC);
    let local = at.to_zoned(zone);
    let zoned = if local.offset().is_zero() { "Z".to_owned() } else { local.strftime("%:z").to_string() };
    format!("{}{zoned}", local.strftime("%Y-%m-%dT%H:%M:%S"))
}

impl Controller for CronJobs {
    const NAME: &'static str = "cronjob";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(cron) = self.context.caches.cron_jobs.get(key) else { return Ok(None) };
        let want = desired(&cron);
        self.look_for_active(&cron, key).await?;
        let uid = cron.metadata.uid.as_deref().unwrap_or_default();
        Ok(Some(World {
            want,
            version: cron.metadata.resource_version.clone().unwrap_or_default(),
            status: cron.status.clone().unwrap_or_default(),
            jobs: self.context.caches.jobs.controlled_by(uid).iter().map(|job| view(job)).collect(),
            zone: zone(&cron),
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let Some(cron) = self.context.caches.cron_jobs.get(key) else { return Ok(()) };
        let owner = Owner::new(&self.kind, &cron.metadata);
        match action {
            Action::RecordEvent(note) => {
                self.context.events.record(&owner, note);
                Ok(())
            }
            Action::Delete { name, uid } => {
                let job = ObjectKey::new(key.namespace.clone(), name);
                let deleted =
                    object_writes::delete(&self.jobs(&key.namespace), &self.context.caches.jobs, &job, &uid).await;
                match &deleted {
                    Ok(true) => {
                        self.context.events.normal(&owner, "SuccessfulDelete", format!("Deleted job {}", job.name));
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let message = format!("Deleted job: {}", error.message());
                        self.context.events.warning(&owner, "FailedDelete", message);
                    }
                }
                deleted.map(drop)
            }
            Action::Start { name, at, version, alone } => match self.look_again(key, &version, alone).await? {
                Some(cron) => self.start(&owner, &cron, name, at).await,
                None => Ok(()), // what was found adds us to the queue
            },
        }
    }

    async fn report(&self, key: &ObjectKey, report: Report, _: &Outcomes<()>) -> Result<(), ApiError> {
        let Some(mut cron) = self.context.caches.cron_jobs.get(key).map(|cron| (*cron).clone()) else { return Ok(()) };
        let owner = Owner::new(&self.kind, &cron.metadata);
        cron.metadata.resource_version = Some(report.version);
        cron.status = Some(report.status);
        match self.cron_jobs(&key.namespace).replace_status(&key.name, &PostParams::default(), &cron).await {
            Ok(written) => {
                self.context.caches.cron_jobs.wrote(written);
                report.events.into_iter().for_each(|note| self.context.events.record(&owner, note));
                Ok(())
            }
            Err(error) if error::is_not_found(&error, &key.name) => Ok(()),
            Err(error) => Err(ApiError::new(format!("write the status of cron job {key:?}"), error)),
        }
    }
}
