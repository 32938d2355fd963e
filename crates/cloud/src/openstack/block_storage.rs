//! Cinder: volumes and snapshots.

use std::collections::BTreeMap;

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{
    CloudError, Service, Session,
    compute::{QuotaUse, null_as_default},
    session::Request,
};

const SERVICE: Service = Service::BlockStorage;

#[derive(Clone, Debug)]
pub struct BlockStorage(Session);

impl Session {
    pub fn block_storage(&self) -> BlockStorage {
        BlockStorage(self.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// `creating`, `available`, `attaching`, `in-use`, `detaching`, `deleting`, `error`, `error_deleting`, `extending`, `error_extending`…
    pub status: String,
    /// GiB.
    pub size: u64,
    #[serde(deserialize_with = "null_as_default")]
    pub availability_zone: String,
    #[serde(deserialize_with = "null_as_default")]
    pub volume_type: String,
    pub metadata: BTreeMap<String, String>,
    pub attachments: Vec<Attachment>,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    /// The volume that it is a clone of.
    #[serde(rename = "source_volid", deserialize_with = "null_as_default")]
    pub source_volume: String,
    /// The snapshot that it was made of.
    #[serde(deserialize_with = "null_as_default")]
    pub snapshot_id: String,
    #[serde(deserialize_with = "time_in_utc")]
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Attachment {
    pub server_id: String,
    pub attachment_id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub device: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewVolume {
    pub name: String,
    pub size: u64,
    pub metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    #[serde(rename = "source_volid", skip_serializing_if = "Option::is_none")]
    pub source_volume: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    pub id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    pub status: String,
    pub size: u64,
    pub volume_id: String,
    pub metadata: BTreeMap<String, String>,
    #[serde(deserialize_with = "time_in_utc")]
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StorageQuota {
    pub volumes: QuotaUse,
    pub gigabytes: QuotaUse,
    pub snapshots: QuotaUse,
}

/// Cinder writes times without a zone: they are UTC.
fn time_in_utc<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.and_then(|text| {
        let with_zone = text.parse().ok();
        with_zone.or_else(|| text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp()))
    }))
}

#[derive(Deserialize)]
struct OneVolume {
    volume: Volume,
}

#[derive(Deserialize)]
struct OneSnapshot {
    snapshot: Snapshot,
}

/// A filter of lists by one item of metadata, as Cinder wants it: a dictionary in Python's notation.
fn metadata_filter(name: &str, value: &str) -> String {
    format!("{{'{name}': '{value}'}}")
}

impl BlockStorage {
    pub async fn list_volumes(&self) -> Result<Vec<Volume>, CloudError> {
        self.0.list(Request::get(SERVICE, "list volumes", "/volumes/detail"), "volumes").await
    }

    /// The same, so many at a time: for clouds that refuse larger answers.
    pub async fn list_volumes_in_pages(&self, size: u32) -> Result<Vec<Volume>, CloudError> {
        let request = Request::get(SERVICE, "list volumes in pages", "/volumes/detail");
        self.0.list(request.query("limit", size.to_string()), "volumes").await
    }

    /// Volumes with this item of metadata.
    pub async fn list_volumes_by_metadata(&self, name: &str, value: &str) -> Result<Vec<Volume>, CloudError> {
        let request = Request::get(SERVICE, "find volumes by metadata", "/volumes/detail")
            .query("metadata", metadata_filter(name, value));
        let volumes: Vec<Volume> = self.0.list(request, "volumes").await?;
        // A service that does not know the filter answers with all.
        Ok(volumes.into_iter().filter(|volume| volume.metadata.get(name).is_some_and(|found| found == value)).collect())
    }

    pub async fn show_volume(&self, id: &str) -> Result<Option<Volume>, CloudError> {
        let request = Request::get(SERVICE, "show volume", format!("/volumes/{id}"));
        Ok(self.0.call_optional::<OneVolume>(request).await?.map(|found| found.volume))
    }

    pub async fn create_volume(&self, volume: &NewVolume) -> Result<Volume, CloudError> {
        let request = Request::post(SERVICE, "create volume", "/volumes", json!({"volume": volume}));
        Ok(self.0.call::<OneVolume>(request).await?.volume)
    }

    /// Asks for the removal of a volume; says whether there was one.
    pub async fn delete_volume(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete volume", format!("/volumes/{id}"))).await
    }

    /// Makes a volume larger, to this size in GiB. Cinder refuses a size that it has already.
    pub async fn extend_volume(&self, id: &str, size: u64) -> Result<(), CloudError> {
        self.act_on_volume(id, "extend volume", json!({"os-extend": {"new_size": size}})).await
    }

    /// Sets the status that Cinder shows; administrators alone may.
    pub async fn reset_volume_status(&self, id: &str, status: &str) -> Result<(), CloudError> {
        self.act_on_volume(id, "reset volume status", json!({"os-reset_status": {"status": status}})).await
    }

    async fn act_on_volume(&self, id: &str, operation: &'static str, body: Value) -> Result<(), CloudError> {
        self.0.call_without_answer(Request::post(SERVICE, operation, format!("/volumes/{id}/action"), body)).await
    }

    pub async fn list_snapshots(&self) -> Result<Vec<Snapshot>, CloudError> {
        self.0.list(Request::get(SERVICE, "list snapshots", "/snapshots/detail"), "snapshots").await
    }

    pub async fn list_snapshots_by_metadata(&self, name: &str, value: &str) -> Result<Vec<Snapshot>, CloudError> {
        let request = Request::get(SERVICE, "find snapshots by metadata", "/snapshots/detail")
            .query("metadata", metadata_filter(name, value));
        let snapshots: Vec<Snapshot> = self.0.list(request, "snapshots").await?;
        let has = |snapshot: &Snapshot| snapshot.metadata.get(name).is_some_and(|found| found == value);
        Ok(snapshots.into_iter().filter(has).collect())
    }

    pub async fn show_snapshot(&self, id: &str) -> Result<Option<Snapshot>, CloudError> {
        let request = Request::get(SERVICE, "show snapshot", format!("/snapshots/{id}"));
        Ok(self.0.call_optional::<OneSnapshot>(request).await?.map(|found| found.snapshot))
    }

    /// Snapshots a volume, also one that is attached.
    pub async fn create_snapshot(
        &self,
        volume: &str,
        name: &str,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Snapshot, CloudError> {
        let body = json!({"snapshot": {"volume_id": volume, "name": name, "metadata": metadata, "force": true}});
        let request = Request::post(SERVICE, "create snapshot", "/snapshots", body);
        Ok(self.0.call::<OneSnapshot>(request).await?.snapshot)
    }

    pub async fn delete_snapshot(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete snapshot", format!("/snapshots/{id}"))).await
    }

    /// The names of zones that take volumes.
    pub async fn list_availability_zones(&self) -> Result<Vec<String>, CloudError> {
        #[derive(Deserialize)]
        struct Zone {
            #[serde(rename = "zoneName")]
            name: String,
            #[serde(rename = "zoneState")]
            state: ZoneState,
        }
        #[derive(Deserialize)]
        struct ZoneState {
            available: bool,
        }
        let request = Request::get(SERVICE, "list availability zones", "/os-availability-zone");
        let zones: Vec<Zone> = self.0.list(request, "availabilityZoneInfo").await?;
        Ok(zones.into_iter().filter(|zone| zone.state.available).map(|zone| zone.name).collect())
    }

    pub async fn show_quota(&self, project: &str) -> Result<StorageQuota, CloudError> {
        #[derive(Deserialize)]
        struct Quota {
            quota_set: StorageQuota,
        }
        let request = Request::get(SERVICE, "show storage quota", format!("/os-quota-sets/{project}"));
        let quota: Quota = self.0.call(request.query("usage", "True")).await?;
        Ok(quota.quota_set)
    }

    /// Sets limits of a project; administrators alone may.
    pub async fn set_quota(&self, project: &str, limits: &Value) -> Result<(), CloudError> {
        let body = json!({"quota_set": limits});
        let request = Request::put(SERVICE, "set storage quota", format!("/os-quota-sets/{project}"), body);
        self.0.call_without_answer(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_a_zone_are_utc() {
        let volume: Volume =
            serde_json::from_value(json!({"created_at": "2026-11-17T10:00:00.000000", "name": null})).unwrap();
        assert_eq!(volume.created_at.unwrap().to_string(), "2026-11-17T10:00:00Z");
        let volume: Volume = serde_json::from_value(json!({"created_at": null})).unwrap();
        assert_eq!(volume.created_at, None);
    }

    #[test]
    fn quotas_say_how_much_is_missing() {
        let quota = QuotaUse { limit: 10, in_use: 8, reserved: 1 };
        assert_eq!(quota.missing_for(1), None);
        assert_eq!(quota.missing_for(3), Some(2));
        assert_eq!(QuotaUse { limit: -1, in_use: 8, reserved: 1 }.missing_for(1000), None);
    }
}
