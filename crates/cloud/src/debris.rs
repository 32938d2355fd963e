//! Debris: what exists in the cloud with a tag of this cluster and belongs to nothing here.
//!
//! The cloud is listed before the ledger. Since an entry is written before its resource is created and removed after that is gone, a tag that the later list of
//! entries does not have belongs to nothing, unless a PersistentVolume or a VolumeSnapshotContent names it, as one that somebody retained and took up anew. Resources of other clusters, and everything without a tag, are never listed and never touched.
//!
//! What costs money comes first: servers, load balancers, volumes, floating IPs, snapshots.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use mainstay_api::cloud::cloud_resource::{CloudResource, ResourceOwner, ResourceType};
use mainstay_controllers::runtime::{ApiError, error};
use serde::Serialize;

use crate::{
    ledger::{ClusterId, LedgerEntry, TAG_KEY},
    openstack::{CloudError, Service, Session, compute::ServerFilter, network::PortFilter},
    volumes::{snapshots::kinds::VolumeSnapshotContent, volume_handle},
};

/// Something in the cloud that carries a tag of this cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaggedResource {
    pub resource: ResourceType,
    pub id: String,
    pub name: String,
    pub tag: String,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
}

/// Why something belongs to nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DebrisReason {
    /// The ledger has no entry with its tag.
    NotInLedger,
    /// The entry with its tag stands for another: it was created twice.
    Duplicate,
    /// The object for whose sake it exists is gone.
    OwnerGone,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DebrisItem {
    #[serde(flatten)]
    pub found: TaggedResource,
    pub reason: DebrisReason,
    pub bears_cost: bool,
    /// For whom it was, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<ResourceOwner>,
}

#[derive(Debug, thiserror::Error)]
pub enum DebrisError {
    #[error("list what is in the cloud")]
    Cloud(#[from] CloudError),
    #[error("read the ledger")]
    Api(#[from] ApiError),
}

/// Whether the cloud charges for it by the hour.
pub fn bears_cost(resource: ResourceType) -> bool {
    cost_rank(resource) < 5
}

fn cost_rank(resource: ResourceType) -> u8 {
    match resource {
        ResourceType::Server => 0,
        ResourceType::LoadBalancer => 1,
        ResourceType::Volume => 2,
        ResourceType::FloatingIP => 3,
        ResourceType::Snapshot => 4,
        ResourceType::Port => 5,
        ResourceType::SecurityGroup => 6,
        ResourceType::SecurityGroupRule | ResourceType::ServerGroup => 7,
        ResourceType::Route | ResourceType::AddressPair => 8,
        ResourceType::User => 9,
    }
}

/// Picks what belongs to nothing. `is_owner_there` knows the owners of all entries, by uid; `named` are ids that objects of the cluster name. The dearest and oldest first.
pub fn pick_debris(
    found: Vec<TaggedResource>,
    entries: &[LedgerEntry],
    is_owner_there: &BTreeMap<String, bool>,
    named: &BTreeSet<String>,
) -> Vec<DebrisItem> {
    let judge = |found: TaggedResource| {
        if named.contains(&found.id) {
            return None;
        }
        let bears_cost = bears_cost(found.resource);
        let entry = entries.iter().find(|entry| entry.tag == found.tag && entry.resource == found.resource);
        let item = |reason, owner| Some(DebrisItem { found: found.clone(), reason, bears_cost, owner });
        let Some(entry) = entry else { return item(DebrisReason::NotInLedger, None) };
        let owner = Some(entry.owner.clone());
        match &entry.id {
            Some(id) if *id != found.id => item(DebrisReason::Duplicate, owner),
            // Unknown owners count as there.
            _ if is_owner_there.get(&entry.owner.uid) == Some(&false) => item(DebrisReason::OwnerGone, owner),
            _ => None,
        }
    };
    let mut debris: Vec<_> = found.into_iter().filter_map(judge).collect();
    debris.sort_by(|a, b| {
        let key = |item: &DebrisItem| {
            (cost_rank(item.found.resource), item.found.created.unwrap_or(Timestamp::MAX), item.found.id.clone())
        };
        key(a).cmp(&key(b))
    });
    debris
}

/// Everything in the project that carries a tag of this cluster.
pub async fn list_tagged(session: &Session, cluster: &ClusterId) -> Result<Vec<TaggedResource>, CloudError> {
    let mut all = Vec::new();
    let mut add = |resource, id: String, name: String, tag: &str, status: String, created| {
        if cluster.owns(tag) {
            all.push(TaggedResource { resource, id, name, tag: tag.to_owned(), status, created });
        }
    };
    for server in session.compute().list_servers(&ServerFilter::default()).await? {
        let metadata = server.metadata.get(TAG_KEY);
        if let Some(tag) = server.tags.iter().chain(metadata).find(|tag| cluster.owns(tag)).cloned() {
            add(ResourceType::Server, server.id, server.name, &tag, server.status, server.created);
        }
    }
    for volume in session.block_storage().list_volumes().await? {
        let tag = volume.metadata.get(TAG_KEY).cloned().unwrap_or_default();
        add(ResourceType::Volume, volume.id, volume.name, &tag, volume.status, volume.created_at);
    }
    for snapshot in session.block_storage().list_snapshots().await? {
        let tag = snapshot.metadata.get(TAG_KEY).cloned().unwrap_or_default();
        add(ResourceType::Snapshot, snapshot.id, snapshot.name, &tag, snapshot.status, snapshot.created_at);
    }
    if session.has_service(Service::LoadBalancer).await? {
        for balancer in session.load_balancer().list_load_balancers().await? {
            let created = balancer.created_at.and_then(|time| time.0);
            let (tag, status) = (balancer.description, balancer.provisioning_status);
            add(ResourceType::LoadBalancer, balancer.id, balancer.name, &tag, status, created);
        }
    }
    let network = session.network();
    for address in network.list_floating_ips(None).await? {
        let (name, tag) = (address.floating_ip_address, address.description);
        add(ResourceType::FloatingIP, address.id, name, &tag, address.status, address.created_at);
    }
    for port in network.list_ports(&PortFilter::default()).await? {
        add(ResourceType::Port, port.id, port.name, &port.description, port.status, port.created_at);
    }
    for group in network.list_security_groups(None).await? {
        let created = group.created_at;
        add(ResourceType::SecurityGroup, group.id, group.name, &group.description, String::new(), created);
    }
    Ok(all)
}

/// What exists in the cloud with a tag of this cluster and belongs to nothing here.
pub async fn find_debris(
    client: &Client,
    session: &Session,
    cluster: &ClusterId,
) -> Result<Vec<DebrisItem>, DebrisError> {
    let found = list_tagged(session, cluster).await?;
    let entries = list_entries(client).await?;
    let mut is_owner_there = BTreeMap::new();
    for entry in &entries {
        if !is_owner_there.contains_key(&entry.owner.uid) {
            is_owner_there.insert(entry.owner.uid.clone(), owner_exists(client, entry).await?);
        }
    }
    Ok(pick_debris(found, &entries, &is_owner_there, &list_named(client).await?))
}

/// The ids of volumes and snapshots that PersistentVolumes and VolumeSnapshotContents name, whoever made them.
async fn list_named(client: &Client) -> Result<BTreeSet<String>, ApiError> {
    let everything = ListParams::default();
    let volumes = Api::<PersistentVolume>::all(client.clone()).list(&everything).await;
    let volumes = volumes.map_err(ApiError::when("list PersistentVolumes"))?;
    let mut named: BTreeSet<String> =
        volumes.iter().filter_map(|volume| volume_handle(volume).map(str::to_owned)).collect();
    match Api::<VolumeSnapshotContent>::all(client.clone()).list(&everything).await {
        Ok(contents) => named.extend(contents.items.into_iter().flat_map(|content| {
            [content.spec.source.snapshot_handle, content.status.snapshot_handle].into_iter().flatten()
        })),
        // The kind is not served.
        Err(failure) if error::has_code(&failure, 404) => {}
        Err(failure) => return Err(ApiError::new("list VolumeSnapshotContents", failure)),
    }
    Ok(named)
}

async fn list_entries(client: &Client) -> Result<Vec<LedgerEntry>, ApiError> {
    let entries: Api<CloudResource> = Api::all(client.clone());
    let entries = entries.list(&Default::default()).await.map_err(ApiError::when("list the ledger"))?;
    Ok(entries.items.into_iter().map(LedgerEntry::from).collect())
}

/// Whether the owner is there, or something that took over from it: a claim's volume has a PersistentVolume of its own.
async fn owner_exists(client: &Client, entry: &LedgerEntry) -> Result<bool, ApiError> {
    let owner = &entry.owner;
    if owner.kind == "PersistentVolumeClaim" {
        let name = crate::volumes::claims::persistent_volume_name(&owner.uid);
        if object_uid(client, "v1", "PersistentVolume", "", &name).await?.is_some() {
            return Ok(true);
        }
    }
    let uid = object_uid(client, &owner.api_version, &owner.kind, &owner.namespace, &owner.name).await?;
    Ok(uid.is_some_and(|uid| uid == owner.uid))
}

async fn object_uid(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<Option<String>, ApiError> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let objects: Api<DynamicObject> = match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let doing = format!("look for {kind} {namespace}/{name}");
    let object = objects.get_metadata_opt(name).await.map_err(ApiError::when(doing))?;
    Ok(object.and_then(|object| object.metadata.uid))
}

/// Asks for the removal of one piece; what the cloud does with it shows the next list.
pub async fn delete_debris(session: &Session, item: &TaggedResource) -> Result<(), CloudError> {
    let id = &item.id;
    match item.resource {
        ResourceType::Server => session.compute().delete_server(id).await.map(drop),
        ResourceType::LoadBalancer => session.load_balancer().delete_load_balancer(id).await.map(drop),
        ResourceType::Volume => session.block_storage().delete_volume(id).await.map(drop),
        ResourceType::Snapshot => session.block_storage().delete_snapshot(id).await.map(drop),
        ResourceType::FloatingIP => session.network().delete_floating_ip(id).await.map(drop),
        ResourceType::Port => session.network().delete_port(id).await.map(drop),
        ResourceType::SecurityGroup => session.network().delete_security_group(id).await.map(drop),
        // They are parts of others, and never listed.
        ResourceType::SecurityGroupRule
        | ResourceType::ServerGroup
        | ResourceType::Route
        | ResourceType::AddressPair
        | ResourceType::User => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(resource: ResourceType, id: &str, tag: &str, created: &str) -> TaggedResource {
        let (name, status) = (String::new(), String::new());
        TaggedResource { resource, id: id.into(), name, tag: tag.into(), status, created: created.parse().ok() }
    }

    fn entry(resource: ResourceType, tag: &str, id: Option<&str>, owner: &str) -> LedgerEntry {
        let mut object = CloudResource::new("e", Default::default());
        (object.spec.resource, object.spec.tag, object.spec.owner.uid) = (resource, tag.into(), owner.into());
        LedgerEntry { id: id.map(str::to_owned), ..LedgerEntry::from(object) }
    }

    #[test]
    fn what_the_ledger_knows_and_somebody_owns_is_no_debris() {
        use ResourceType::Volume;
        let there = BTreeMap::from([("here".to_owned(), true), ("gone".to_owned(), false)]);
        let entries = [
            entry(Volume, "known", Some("1"), "here"),
            entry(Volume, "intended", None, "here"),
            entry(Volume, "twice", Some("3"), "here"),
            entry(Volume, "left", Some("5"), "gone"),
            entry(Volume, "odd", Some("6"), "nobody asked"),
        ];
        let volumes = [
            ("1", "known"),
            ("2", "intended"),
            ("3", "twice"),
            ("4", "twice"),
            ("5", "left"),
            ("6", "odd"),
            ("7", "none"),
            ("8", "taken up"),
        ];
        let volumes = volumes.map(|(id, tag)| found(Volume, id, tag, "2026-01-01T00:00:00Z"));
        let debris = pick_debris(volumes.to_vec(), &entries, &there, &BTreeSet::from(["8".to_owned()]));
        let reasons: Vec<_> = debris.iter().map(|item| (item.found.id.as_str(), item.reason)).collect();
        use DebrisReason::*;
        assert_eq!(reasons, [("4", Duplicate), ("5", OwnerGone), ("7", NotInLedger)]);
    }

    #[test]
    fn what_costs_most_and_is_oldest_comes_first() {
        let all = vec![
            found(ResourceType::SecurityGroup, "g", "t", "2020-01-01T00:00:00Z"),
            found(ResourceType::Volume, "young", "t", "2026-02-01T00:00:00Z"),
            found(ResourceType::Volume, "unknown", "t", ""),
            found(ResourceType::Volume, "old", "t", "2026-01-01T00:00:00Z"),
            found(ResourceType::Server, "s", "t", "2026-03-01T00:00:00Z"),
        ];
        let debris = pick_debris(all, &[], &BTreeMap::new(), &BTreeSet::new());
        let order: Vec<_> = debris.iter().map(|item| (item.found.id.as_str(), item.bears_cost)).collect();
        assert_eq!(order, [("s", true), ("old", true), ("young", true), ("unknown", true), ("g", false)]);
    }
}
