//! The classes that a cluster with a cloud begins with: StorageClass `cinder-default`, one `cinder-zone-…` for each availability zone of Cinder, and
//! VolumeSnapshotClass `cinder-default`.
//!
//! They are created where nobody has one of the name, once for each start of the controllers; what somebody changed in them stays.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, api::PostParams};
use mainstay_controllers::runtime::{ApiError, error};
use serde_json::json;

use super::{
    DRIVER,
    snapshots::{self, kinds::VolumeSnapshotClass},
};
use crate::context::CloudContext;

const NAME: &str = "cinder-default";
const DEFAULT_STORAGE_CLASS: &str = mainstay_api::wellknown::kubernetes::DEFAULT_STORAGE_CLASS;
/// Before the API or the cloud is asked again, and at most; it doubles.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// Creates the StorageClasses; goes on through failures of the API and of the cloud.
pub async fn ensure_storage_classes(context: Arc<CloudContext>) {
    let mut delay = RETRY;
    while let Err(error) = create_storage_classes(&context).await {
        tracing::warn!(error = error.chain(), retry_in = ?delay, "cannot create the StorageClasses of Cinder yet");
        tokio::time::sleep(delay).await;
        delay = LONGEST_RETRY.min(delay * 2);
    }
}

async fn create_storage_classes(context: &CloudContext) -> Result<(), ApiError> {
    create_storage_class(context, NAME, None).await?;
    let session = context.clouds.own_session();
    let session = session.map_err(|error| ApiError::other("read the configuration of the cloud", error))?;
    let zones = session.block_storage().list_availability_zones().await;
    let zones = zones.map_err(|error| ApiError::other("list the availability zones of Cinder", error))?;
    for (name, zone) in zone_classes(zones) {
        create_storage_class(context, &name, Some(&zone)).await?;
    }
    Ok(())
}

/// Named after the last character of the zone, as Kubernikus names them; of zones that end alike the first has the class.
fn zone_classes(mut zones: Vec<String>) -> Vec<(String, String)> {
    zones.sort();
    let mut classes: Vec<(String, String)> = Vec::new();
    for zone in zones {
        let Some(last) = zone.chars().last().map(|last| last.to_ascii_lowercase()) else { continue };
        let name = format!("cinder-zone-{last}");
        if last.is_ascii_alphanumeric() && classes.iter().all(|(known, _)| *known != name) {
            classes.push((name, zone));
        }
    }
    classes
}

fn storage_class(name: &str, zone: Option<&str>, is_default: bool) -> serde_json::Value {
    let mut class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    });
    if let Some(zone) = zone {
        class["parameters"] = json!({ "availability": zone });
    }
    if is_default {
        class["metadata"]["annotations"] = json!({DEFAULT_STORAGE_CLASS: "true"});
    }
    class
}

async fn create_storage_class(context: &CloudContext, name: &str, zone: Option<&str>) -> Result<(), ApiError> {
    let is_default = zone.is_none() && context.has_default_storage;
    let doing = || format!("create StorageClass {name}");
    let class: StorageClass = serde_json::from_value(storage_class(name, zone, is_default))
        .map_err(|error| ApiError::other(doing(), error))?;
    match Api::all(context.client.clone()).create(&PostParams::default(), &class).await {
        Ok(_) => Ok(()),
        Err(failure) if error::has_code(&failure, 409) => Ok(()),
        Err(failure) => Err(ApiError::new(doing(), failure)),
    }
}

/// Creates the VolumeSnapshotClass, the default of the driver, unless somebody has one of this driver. Its definition has to be there, and the cache of classes filled.
pub async fn ensure_snapshot_class(context: Arc<CloudContext>) {
    let mut delay = RETRY;
    loop {
        if !context.snapshots.classes.select(|class| class.driver == DRIVER).is_empty() {
            return;
        }
        let class = VolumeSnapshotClass::annotated(NAME, DRIVER, snapshots::DEFAULT_CLASS);
        match Api::all(context.client.clone()).create(&PostParams::default(), &class).await {
            Ok(_) => return,
            Err(failure) if error::has_code(&failure, 409) => return,
            Err(failure) => {
                let error = mainstay_errors::error_chain(&failure);
                tracing::warn!(error, retry_in = ?delay, "cannot create the VolumeSnapshotClass of Cinder yet");
            }
        }
        tokio::time::sleep(delay).await;
        delay = LONGEST_RETRY.min(delay * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_has_a_class_named_after_its_last_character() {
        let zones = ["eu-1b", "eu-1A", "eu-2a", "nova-", ""].map(str::to_owned).to_vec();
        let classes = [("cinder-zone-a", "eu-1A"), ("cinder-zone-b", "eu-1b")];
        assert_eq!(zone_classes(zones), classes.map(|(name, zone)| (name.to_owned(), zone.to_owned())));
    }

    #[test]
    fn the_stock_class_is_the_default_only_where_that_was_asked_for() {
        let class = storage_class("cinder-default", None, true);
        assert_eq!(class["metadata"]["annotations"][DEFAULT_STORAGE_CLASS], "true");
        assert_eq!(class["volumeBindingMode"], "WaitForFirstConsumer");
        let zone = storage_class("cinder-zone-a", Some("eu-1a"), false);
        assert_eq!(
            (&zone["metadata"]["annotations"], &zone["parameters"]["availability"]),
            (&json!(null), &json!("eu-1a"))
        );
    }
}
