//! Migrations of stored versions are run and reported.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::storagemigration::v1::StorageVersionMigration;
use kube::{Api, api::PostParams};
use mainstay_controllers::{MigrationFailure, Settings, StorageMigrator};
use serde_json::json;

use crate::cluster::{Cluster, until};

/// Has nothing to write.
struct IdleMigrator;

impl StorageMigrator for IdleMigrator {
    fn migrate<'a>(&'a self, _: &'a str, resource: &'a str) -> BoxFuture<'a, Result<u64, MigrationFailure>> {
        assert_eq!(resource, "configmaps");
        async { Ok(7) }.boxed()
    }
}

#[tokio::test]
pub async fn a_migration_is_run_and_says_so() {
    let settings = Settings { storage_migrator: Some(Arc::new(IdleMigrator)), ..Settings::default() };
    let cluster = Cluster::start_as(settings).await;
    let migrations: Api<StorageVersionMigration> = Api::all(cluster.client.clone());
    let migration =
        json!({ "metadata": { "name": "m" }, "spec": { "resource": { "group": "", "resource": "configmaps" } } });
    let migration = serde_json::from_value(migration).unwrap();
    migrations.create(&PostParams::default(), &migration).await.expect("create a migration");
    until("it has succeeded", async || {
        let status = migrations.get("m").await.expect("the migration").status.unwrap_or_default();
        status.conditions.into_iter().flatten().any(|own| own.type_ == "Succeeded" && own.status == "True")
    })
    .await;
    cluster.stop().await;
}
