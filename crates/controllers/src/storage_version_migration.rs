//! StorageVersionMigration: has the objects of a resource written anew that are not stored as they would be now.
//!
//! The store itself is not reached by the API, so the server passes in who writes ([`StorageMigrator`]). A migration is `Running` from when it
//! is first seen until it `Succeeded` or `Failed`; one that was interrupted begins again, which changes nothing twice. Reasons are upstream's.

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::{
    api::storagemigration::v1::StorageVersionMigration,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{Api, api::PostParams};

use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};

const RUNNING: &str = "Running";
const SUCCEEDED: &str = "Succeeded";
const FAILED: &str = "Failed";

/// Why a migration did not come to its end.
pub enum MigrationFailure {
    /// Another attempt would come to the same.
    Final(String),
    Retry(Box<dyn std::error::Error + Send + Sync>),
}

/// Writes objects anew, directly in the store.
pub trait StorageMigrator: Send + Sync + 'static {
    /// Migrates all objects of a resource; returns the store's revision when it began.
    fn migrate<'a>(&'a self, group: &'a str, resource: &'a str) -> BoxFuture<'a, Result<u64, MigrationFailure>>;
}

pub struct StorageVersionMigrations {
    context: Arc<Context>,
    migrator: Arc<dyn StorageMigrator>,
}

pub fn controller(context: &Arc<Context>, migrator: Arc<dyn StorageMigrator>) -> Runnable {
    let queue = context.queue::<StorageVersionMigrations>();
    context.caches.migrations.on_change({
        let queue = queue.clone();
        move |change| {
            if change.after.is_some_and(|migration| !is_finished(migration)) {
                queue.add(change.key.clone());
            }
        }
    });
    let controller = StorageVersionMigrations { context: context.clone(), migrator };
    context.runnable(Arc::new(controller), queue, Limits::default())
}

fn conditions(migration: &StorageVersionMigration) -> &[Condition] {
    migration.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn is_true(migration: &StorageVersionMigration, kind: &str) -> bool {
    conditions(migration).iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn is_finished(migration: &StorageVersionMigration) -> bool {
    is_true(migration, SUCCEEDED) || is_true(migration, FAILED)
}

/// The same with a condition that holds from now on. What is finished no longer runs.
fn with_condition(
    migration: &StorageVersionMigration,
    kind: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Box<StorageVersionMigration> {
    let mut changed = Box::new(migration.clone());
    let conditions = changed.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != kind);
    for running in conditions.iter_mut().filter(|condition| condition.type_ == RUNNING) {
        running.status = "False".to_owned();
        running.last_transition_time = Time(now);
    }
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    });
    changed
}

#[derive(Debug, PartialEq, Eq)]
pub struct Migrate {
    group: String,
    resource: String,
}

/// How a migration ended.
pub enum Ending {
    Succeeded { revision: u64 },
    Failed(String),
}

/// What to report: the migration as it is from now on, or as it was before it is known how it ended.
pub enum Report {
    Started(Box<StorageVersionMigration>),
    Ended { before: Arc<StorageVersionMigration>, now: Timestamp },
}

fn finish(before: &StorageVersionMigration, ending: &Ending, now: Timestamp) -> Box<StorageVersionMigration> {
    match ending {
        Ending::Succeeded { revision } => {
            let mut changed = with_condition(before, SUCCEEDED, "StorageVersionMigrationSucceeded", "", now);
            changed.status.get_or_insert_default().resource_version = Some(revision.to_string());
            changed
        }
        Ending::Failed(why) => with_condition(before, FAILED, "StorageVersionMigrationFailed", why, now),
    }
}

fn plan(migration: &Arc<StorageVersionMigration>, now: Timestamp) -> Plan<Migrate, Report> {
    if is_finished(migration) {
        return Plan::default();
    }
    if !is_true(migration, RUNNING) {
        let started = with_condition(migration, RUNNING, "StorageVersionMigrationInProgress", "", now);
        return Plan { status: Some(Report::Started(started)), requeue_at: Some(now), ..Plan::default() };
    }
    let resource = migration.spec.as_ref().map(|spec| spec.resource.clone()).unwrap_or_default();
    Plan {
        actions: vec![Migrate { group: resource.group, resource: resource.resource }],
        status: Some(Report::Ended { before: migration.clone(), now }),
        ..Plan::default()
    }
}

impl Controller for StorageVersionMigrations {
    const NAME: &'static str = "storage_version_migrator";
    type Key = ObjectKey;
    type World = Arc<StorageVersionMigration>;
    type Action = Migrate;
    type Outcome = Ending;
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<Arc<StorageVersionMigration>>, ApiError> {
        Ok(self.context.caches.migrations.get(key))
    }

    fn plan(world: &Arc<StorageVersionMigration>, now: Timestamp) -> Plan<Migrate, Report> {
        plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, Migrate { group, resource }: Migrate) -> Result<Ending, ApiError> {
        match self.migrator.migrate(&group, &resource).await {
            Ok(revision) => Ok(Ending::Succeeded { revision }),
            Err(MigrationFailure::Final(why)) => Ok(Ending::Failed(why)),
            Err(MigrationFailure::Retry(error)) => {
                Err(ApiError::new(format!("migrate what {} names", key.name), kube::Error::Service(error)))
            }
        }
    }

    async fn report(&self, key: &ObjectKey, report: Report, outcomes: &Outcomes<Ending>) -> Result<(), ApiError> {
        let changed = match (report, outcomes.first()) {
            (Report::Started(started), _) => started,
            (Report::Ended { before, now }, Some(Ok(ending))) => finish(&before, ending, now),
            (Report::Ended { .. }, Some(Err(_)) | None) => return Ok(()), // tried again
        };
        let migrations: Api<StorageVersionMigration> = Api::all(self.context.client.clone());
        match migrations.replace_status(&key.name, &PostParams::default(), &changed).await {
            Ok(written) => self.context.caches.migrations.wrote(written),
            Err(error) if error::is_not_found(&error, &key.name) => {}
            Err(error) => return Err(ApiError::new(format!("write the status of migration {}", key.name), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn states(migration: &StorageVersionMigration) -> Vec<(&str, &str, &str)> {
        let conditions = conditions(migration).iter();
        conditions.map(|condition| (&*condition.type_, &*condition.status, &*condition.reason)).collect()
    }

    #[test]
    fn a_migration_runs_and_then_ends_once() {
        let now = Timestamp::UNIX_EPOCH;
        let migration: StorageVersionMigration = serde_json::from_value(json!({
            "metadata": { "name": "m" }, "spec": { "resource": { "group": "apps", "resource": "deployments" } },
        }))
        .unwrap();
        let started = plan(&Arc::new(migration), now);
        assert_eq!((started.actions.len(), started.requeue_at), (0, Some(now)));
        let Some(Report::Started(running)) = started.status else { panic!("started") };
        assert_eq!(states(&running), [("Running", "True", "StorageVersionMigrationInProgress")]);
        let running = Arc::new(*running);
        let ended = plan(&running, now);
        assert_eq!(ended.actions, [Migrate { group: "apps".to_owned(), resource: "deployments".to_owned() }]);
        let succeeded = finish(&running, &Ending::Succeeded { revision: 7 }, now);
        let expected = [
            ("Running", "False", "StorageVersionMigrationInProgress"),
            ("Succeeded", "True", "StorageVersionMigrationSucceeded"),
        ];
        assert_eq!(states(&succeeded), expected);
        assert_eq!(succeeded.status.as_ref().unwrap().resource_version.as_deref(), Some("7"));
        let rest = plan(&Arc::new(*succeeded), now);
        assert!(rest.actions.is_empty() && rest.status.is_none());
        let failed = finish(&running, &Ending::Failed("no such resource".to_owned()), now);
        assert_eq!(states(&failed)[1], ("Failed", "True", "StorageVersionMigrationFailed"));
        assert_eq!(conditions(&failed)[1].message, "no such resource");
    }
}
