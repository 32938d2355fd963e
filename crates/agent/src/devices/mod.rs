//! Devices of ResourceClaims on this node: drivers that register here prepare them before a pod's containers are made, and
//! are told when the last pod that used them has ended.
//!
//! * [`registry`]: drivers that are registered, found by their sockets in the directory of kubelet plugins
//! * [`plugin_api`]: the gRPC calls to drivers (`pluginregistration`, `dra/v1`)
//! * [`record`]: what was prepared, on disk, so that an agent that has just started knows what to undo
//! * [`health`]: how drivers say their devices are
//! * [`cdi`]: specs of the Container Device Interface, by which drivers say what a device is to a container
//!
//! A claim is recorded before its driver is called for the first time, and forgotten after the driver was told that it
//! is over: a crash in between repeats a call, which drivers have to stand by their own contract. What was prepared
//! before the machine was started anew is prepared again. One call per claim and driver is under way at a time; a driver that hangs
//! holds up the pods that need it and no others.

pub mod cdi;
mod health;
mod plugin_api;
pub mod record;
mod registry;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus},
    resource::v1::ResourceClaim,
};
use kube::{Api, Client};
use mainstay_errors::error_chain;
use mainstay_runtime::{ContainerSpec, PodUid};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::{
    cdi::CdiDirectories,
    plugin_api::ClaimRef,
    record::{ClaimRecord, PreparedDevice, Records},
    registry::DriverRegistry,
};
use crate::{pods::Pods, settings::Settings, wake::Wake};

/// How often claims are looked for whose pods are gone.
const RECONCILE: Duration = Duration::from_secs(60);

/// Why the devices of a pod are not ready.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("pod claim {0:?}: ResourceClaim not created yet")]
    NotCreated(String),
    #[error("fetch ResourceClaim {claim}")]
    Fetch {
        claim: String,
        #[source]
        source: kube::Error,
    },
    #[error("ResourceClaim {claim} {why}")]
    Unusable { claim: String, why: String },
    #[error("DRA driver {driver} is not registered on this node")]
    NoDriver { driver: String },
    #[error("DRA driver {driver} cannot {doing} ResourceClaim {claim}: {why}")]
    Driver { driver: String, doing: &'static str, claim: String, why: String },
    #[error("record ResourceClaim {claim}")]
    Record {
        claim: String,
        #[source]
        source: std::io::Error,
    },
}

pub struct DeviceManager {
    client: Client,
    pods: Arc<Pods>,
    drivers: Arc<DriverRegistry>,
    records: Records,
    cdi: CdiDirectories,
    /// A CRI runtime looks up devices by itself.
    is_cri: bool,
    /// Held while drivers are called for a claim, by its uid.
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl DeviceManager {
    pub fn new(settings: &Settings, client: Client, pods: Arc<Pods>, wake: Wake, is_cri: bool) -> Arc<Self> {
        Arc::new(Self {
            drivers: DriverRegistry::new(settings, client.clone(), pods.clone(), wake),
            records: Records::load(record::directory(settings)),
            cdi: CdiDirectories::of_machine(),
            client,
            pods,
            is_cri,
            locks: Mutex::default(),
        })
    }

    /// Follows drivers, and ends claims whose pods are gone, until asked to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let reconcile = async {
            loop {
                self.reconcile().await;
                tokio::time::sleep(RECONCILE).await;
            }
        };
        tokio::join!(self.drivers.clone().run(stop.clone()), stop.run_until_cancelled(reconcile));
    }

    /// Pods that ended while nobody watched leave claims behind.
    async fn reconcile(&self) {
        let mut synced = self.pods.synced_sources();
        if synced.wait_for(|sources| sources.api && sources.file).await.is_err() {
            return;
        }
        let held: BTreeSet<String> = self.pods.held_uids();
        for uid in self.records.pods().difference(&held) {
            if let Err(error) = self.unprepare(&PodUid(uid.clone())).await {
                tracing::warn!(
                    uid,
                    error = error_chain(&error),
                    "cannot unprepare devices of a pod that is gone; will retry"
                );
            }
        }
    }

    /// Has the devices of all claims of a pod prepared; nothing is done for those that are.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), DeviceError> {
        for own in pod_claims(pod)? {
            self.prepare_claim(pod, &own).await?;
        }
        Ok(())
    }

    async fn prepare_claim(&self, pod: &Pod, own: &PodClaim) -> Result<(), DeviceError> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let known = self.records.find(&namespace, &own.claim, &uid);
        if known.is_some_and(|record| record.is_prepared(&self.records.boot)) {
            return Ok(());
        }
        let claim = format!("{namespace}/{}", own.claim);
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &namespace);
        let object = api.get(&own.claim).await;
        let object = object.map_err(|source| DeviceError::Fetch { claim: claim.clone(), source })?;
        let usable = judge_claim(&object, own, pod);
        let wanted = usable.map_err(|why| DeviceError::Unusable { claim: claim.clone(), why })?;
        let claim_uid = object.metadata.uid.clone().unwrap_or_default();
        let lock = self.lock_of(&claim_uid);
        let _held = lock.lock().await;
        let store = |record: &ClaimRecord| {
            self.records.store(record).map_err(|source| DeviceError::Record { claim: claim.clone(), source })
        };
        let mut record = self.records.get(&claim_uid).unwrap_or_else(|| ClaimRecord {
            namespace: namespace.clone(),
            name: own.claim.clone(),
            uid: claim_uid.clone(),
            ..ClaimRecord::default()
        });
        record.pods.insert(uid);
        record.begin(&self.records.boot, wanted);
        store(&record)?;
        for driver in record.unprepared() {
            let devices = self.prepare_by(&driver, &record, &claim).await?;
            record.drivers.insert(driver, Some(devices));
            store(&record)?;
        }
        Ok(())
    }

    async fn prepare_by(
        &self,
        driver: &str,
        record: &ClaimRecord,
        claim: &str,
    ) -> Result<Vec<PreparedDevice>, DeviceError> {
        let Some(endpoint) = self.drivers.find(driver) else {
            return Err(DeviceError::NoDriver { driver: driver.to_owned() });
        };
        let failed = |why: String| {
            let (driver, claim) = (driver.to_owned(), claim.to_owned());
            DeviceError::Driver { driver, doing: "prepare", claim, why }
        };
        endpoint.prepare(&claim_ref(record)).await.map_err(failed)
    }

    /// The pod has ended: claims that no other pod here uses are unprepared.
    pub async fn unprepare(&self, pod: &PodUid) -> Result<(), DeviceError> {
        for claim_uid in self.records.used_by(&pod.0) {
            let lock = self.lock_of(&claim_uid);
            let _held = lock.lock().await;
            let Some(mut record) = self.records.get(&claim_uid).filter(|record| record.pods.contains(&pod.0)) else {
                continue;
            };
            let claim = format!("{}/{}", record.namespace, record.name);
            let recorded = |source| DeviceError::Record { claim: claim.clone(), source };
            if record.pods.len() > 1 {
                record.pods.remove(&pod.0);
                self.records.store(&record).map_err(recorded)?;
                continue;
            }
            for driver in record.drivers.keys() {
                let Some(endpoint) = self.drivers.find(driver) else {
                    return Err(DeviceError::NoDriver { driver: driver.clone() });
                };
                endpoint.unprepare(&claim_ref(&record)).await.map_err(|why| DeviceError::Driver {
                    driver: driver.clone(),
                    doing: "unprepare",
                    claim: claim.clone(),
                    why,
                })?;
            }
            self.records.remove(&claim_uid).map_err(recorded)?;
            self.locks.lock().remove(&claim_uid);
        }
        Ok(())
    }

    fn lock_of(&self, claim_uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.locks.lock().entry(claim_uid.to_owned()).or_default().clone()
    }

    /// Gives a container the devices of the claims that it names.
    pub fn apply(&self, pod: &Pod, container: &Container, spec: &mut ContainerSpec) -> Result<(), String> {
        let mut ids: Vec<String> = Vec::new();
        for own in container_claims(pod, container).map_err(|error| error.to_string())? {
            let Some(record) = self.record_of(pod, &own.claim) else {
                return Err(format!("the devices of claim {:?} are not prepared", own.name));
            };
            for id in record.cdi_devices(own.request.as_deref()) {
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        if self.is_cri {
            spec.device_edits.cdi_devices = ids;
            return Ok(());
        }
        let edits = self.cdi.edits(&ids).map_err(|error| error_chain(&error))?;
        edits.apply(spec)
    }

    fn record_of(&self, pod: &Pod, claim: &str) -> Option<ClaimRecord> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        self.records.find(namespace, claim, pod.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Adds the health of devices to the containers that have them. What was said of devices that are not prepared any more stays.
    pub fn report_health(&self, pod: &Pod, previous: &PodStatus, status: &mut PodStatus) {
        let Some(spec) = &pod.spec else { return };
        for own in status.container_statuses.iter_mut().flatten() {
            let Some(container) = spec.containers.iter().find(|container| container.name == own.name) else { continue };
            let claims = container_claims(pod, container).unwrap_or_default();
            if claims.is_empty() {
                continue;
            }
            let mut reported: Vec<ResourceStatus> = Vec::new();
            for claim in claims {
                let Some(record) = self.record_of(pod, &claim.claim) else { continue };
                let resources = self.device_health(&record, claim.request.as_deref());
                let name = match &claim.request {
                    Some(request) => format!("claim:{}/{request}", claim.name),
                    None => format!("claim:{}", claim.name),
                };
                if !resources.is_empty() && !reported.iter().any(|known| known.name == name) {
                    reported.push(ResourceStatus { name, resources: Some(resources) });
                }
            }
            let before = previous.container_statuses.iter().flatten().find(|before| before.name == own.name);
            own.allocated_resources_status = match reported.is_empty() {
                true => before.and_then(|before| before.allocated_resources_status.clone()),
                false => Some(reported),
            };
        }
    }

    fn device_health(&self, record: &ClaimRecord, request: Option<&str>) -> Vec<ResourceHealth> {
        let now = Instant::now();
        let health = record.devices(request).map(|(driver, device)| {
            let (health, message) = self.drivers.health.get(driver, &device.pool, &device.device, now);
            let id = || format!("{driver}/{}/{}", device.pool, device.device);
            ResourceHealth {
                resource_id: device.cdi_devices.first().cloned().unwrap_or_else(id),
                health: Some(health.as_str().to_owned()),
                message: Some(message).filter(|message| !message.is_empty()),
            }
        });
        health.collect()
    }
}

fn claim_ref(record: &ClaimRecord) -> ClaimRef {
    ClaimRef { namespace: record.namespace.clone(), uid: record.uid.clone(), name: record.name.clone() }
}

/// A claim of a pod.
#[derive(Debug, PartialEq, Eq)]
struct PodClaim {
    /// By which its containers call it.
    name: String,
    /// The ResourceClaim.
    claim: String,
    of_template: bool,
}

/// A claim that a container names, or that stands for extended resources that it requests.
#[derive(Debug, PartialEq, Eq)]
struct ContainerClaim {
    /// By which the container calls it; the claim's own name if that is in no field of the pod.
    name: String,
    /// The ResourceClaim.
    claim: String,
    request: Option<String>,
}

fn container_claims(pod: &Pod, container: &Container) -> Result<Vec<ContainerClaim>, DeviceError> {
    let mut found = Vec::new();
    let wanted = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
    for own in wanted {
        // A claim of a template of which nothing was needed has no devices.
        let claims = pod_claims(pod)?;
        if let Some(claim) = claims.iter().find(|claim| claim.name == own.name) {
            let (name, claim) = (own.name.clone(), claim.claim.clone());
            found.push(ContainerClaim { name, claim, request: own.request.clone() });
        }
    }
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    for mapping in extended.iter().flat_map(|own| &own.request_mappings) {
        if let (true, Some(own)) = (mapping.container_name == container.name, extended) {
            let (name, claim) = (own.resource_claim_name.clone(), own.resource_claim_name.clone());
            found.push(ContainerClaim { name, claim, request: Some(mapping.request_name.clone()) });
        }
    }
    Ok(found)
}

fn pod_claims(pod: &Pod) -> Result<Vec<PodClaim>, DeviceError> {
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let mut claims = Vec::new();
    for own in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        let name = own.name.clone();
        if let Some(claim) = &own.resource_claim_name {
            claims.push(PodClaim { name, claim: claim.clone(), of_template: false });
            continue;
        }
        match statuses.clone().find(|status| status.name == own.name) {
            Some(status) => {
                let made = status.resource_claim_name.clone();
                claims.extend(made.map(|claim| PodClaim { name, claim, of_template: true }));
            }
            None => return Err(DeviceError::NotCreated(name)),
        }
    }
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    // No container can call it by a name that is empty.
    claims.extend(extended.map(|own| PodClaim {
        name: String::new(),
        claim: own.resource_claim_name.clone(),
        of_template: true,
    }));
    Ok(claims)
}

/// The drivers that have to prepare the claim for this pod, or why the pod may not use it.
fn judge_claim(claim: &ResourceClaim, own: &PodClaim, pod: &Pod) -> Result<BTreeSet<String>, String> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let owners = claim.metadata.owner_references.iter().flatten();
    if own.of_template && !owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid) {
        return Err("was not created for this pod".to_owned());
    }
    let status = claim.status.as_ref();
    let Some(allocation) = status.and_then(|status| status.allocation.as_ref()) else {
        return Err("is not allocated".to_owned());
    };
    let mut users = status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !users.any(|user| user.uid == uid) {
        return Err("is not reserved for this pod".to_owned());
    }
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let mut drivers = BTreeSet::new();
    for result in results {
        let skips = result.skip_node_operations.iter().flatten();
        if !skips.into_iter().any(|operation| operation == "*" || operation == "NodePrepareResources") {
            drivers.insert(result.driver.clone());
        }
    }
    Ok(drivers)
}

/// Where drivers have the sockets by which they register: kubelet's own directory, or the data directory of another instance.
pub fn plugin_directory(settings: &Settings) -> PathBuf {
    let data_dir = settings.directory.parent().unwrap_or(&settings.directory);
    match settings.instance.as_str() {
        "mainstay" => PathBuf::from("/var/lib/kubelet/plugins_registry"),
        _ => data_dir.join("plugins_registry"),
    }
}

#[cfg(test)]
mod tests;
