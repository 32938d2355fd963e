//! Drivers of devices that are registered on this node.
//!
//! A driver puts a socket into the directory of kubelet plugins; it is asked for its name and told whether it is accepted.
//! A driver whose socket is gone is not called any more. If it does not come back within some time, its ResourceSlices of this
//! node are deleted, so that nothing more is allocated from it. The kernel tells when the directory changes; it is read as a whole,
//! and slowly in any case.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use k8s_openapi::api::{core::v1::PodSpec, resource::v1::ResourceSlice};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use mainstay_files::create_private_dir;
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    health::HealthCache,
    plugin_api::{self, DriverEndpoint, DriverVersion, HealthStream, HealthVersion, PluginInfo},
    plugin_directory,
};
use crate::{pods::Pods, settings::Settings, wake::Wake};

const SLOWLY: Duration = Duration::from_secs(5);
/// A socket is there a moment before somebody listens on it.
const SETTLE: Duration = Duration::from_millis(50);
/// As upstream's: a driver that is being updated is away for less.
const SLICES_STAY: Duration = Duration::from_secs(30);
const PLUGIN_TYPE: &str = "DRAPlugin";

/// Tells a socket from another one of the same name.
type SocketIdentity = (u64, i64, i64);

#[derive(Debug)]
struct Registration {
    identity: SocketIdentity,
    /// Nothing for a plugin that is none of ours, or was refused.
    driver: Option<(String, DriverEndpoint)>,
    /// In the order of registrations: of two with one name, the later counts.
    number: u64,
    /// Follows the health of its devices.
    _health: Option<AbortOnDropHandle<()>>,
}

pub struct DriverRegistry {
    directory: PathBuf,
    node: String,
    client: Client,
    pods: Arc<Pods>,
    wake: Wake,
    /// By registration socket.
    registrations: Mutex<BTreeMap<PathBuf, Registration>>,
    pub health: HealthCache,
}

impl DriverRegistry {
    pub fn new(settings: &Settings, client: Client, pods: Arc<Pods>, wake: Wake) -> Arc<Self> {
        Arc::new(Self {
            directory: plugin_directory(settings),
            node: settings.node_name.clone(),
            client,
            pods,
            wake,
            registrations: Mutex::default(),
            health: HealthCache::default(),
        })
    }

    /// Where a driver is called.
    pub fn find(&self, driver: &str) -> Option<DriverEndpoint> {
        let registrations = self.registrations.lock();
        let own = registrations.values().filter(|own| own.driver.as_ref().is_some_and(|(name, _)| name == driver));
        let newest = own.max_by_key(|own| own.number)?;
        newest.driver.as_ref().map(|(_, endpoint)| endpoint.clone())
    }

    fn names(&self) -> BTreeSet<String> {
        self.registrations.lock().values().filter_map(|own| Some(own.driver.as_ref()?.0.clone())).collect()
    }

    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(self: &Arc<Self>) {
        if let Err(error) = create_private_dir(&self.directory) {
            tracing::warn!(directory = ?self.directory, %error, "cannot make the directory of plugins; no driver of devices can register");
        }
        let mut absent: BTreeMap<String, Instant> = BTreeMap::new();
        let (mut count, mut known) = (0, BTreeSet::new());
        loop {
            // Watched before it is read: nothing falls between.
            let changes = watch(&self.directory);
            self.register_plugins(&mut count).await;
            let names = self.names();
            for driver in known.difference(&names) {
                tracing::warn!(driver, "a driver of devices is gone");
                absent.insert(String::clone(driver), Instant::now());
            }
            absent.retain(|driver, _| !names.contains(driver));
            let due = absent.extract_if(.., |_, since| since.elapsed() >= SLICES_STAY);
            for driver in due.map(|(driver, _)| driver).collect::<Vec<_>>() {
                self.delete_slices(&driver).await;
            }
            known = names;
            match changes {
                Some(mut changes) => {
                    let _ = tokio::time::timeout(SLOWLY, changes.next()).await;
                    tokio::time::sleep(SETTLE).await;
                }
                None => tokio::time::sleep(SLOWLY).await,
            }
        }
    }

    /// Registers what is new in the directory, and forgets what is gone.
    async fn register_plugins(self: &Arc<Self>, count: &mut u64) {
        let found = sockets(&self.directory);
        let gone: Vec<Registration> = self
            .registrations
            .lock()
            .extract_if(.., |socket, own| found.get(socket) != Some(&own.identity))
            .map(|(_, own)| own)
            .collect();
        for (driver, _) in gone.into_iter().filter_map(|own| own.driver) {
            self.forget_health(&driver);
        }
        for (socket, identity) in found {
            if self.registrations.lock().contains_key(&socket) {
                continue;
            }
            let info = match plugin_api::plugin_info(&socket).await {
                Ok(info) => info,
                // Whoever made it may not listen yet, or no longer: looked at again.
                Err(error) => {
                    tracing::debug!(?socket, error, "cannot ask a plugin for its name; will retry");
                    continue;
                }
            };
            let judged = judge_plugin(&info, &socket);
            let told = plugin_api::notify(&socket, judged.as_ref().map(drop).map_err(Clone::clone)).await;
            if let Err(error) = told {
                tracing::warn!(
                    ?socket,
                    plugin = info.name,
                    error,
                    "cannot tell a plugin whether it is registered; will retry"
                );
                continue;
            }
            *count += 1;
            let number = *count;
            match judged {
                Ok(endpoint) => {
                    tracing::info!(driver = info.name, ?socket, "a driver of devices has registered");
                    let health = endpoint.health.map(|version| {
                        let (registry, driver, socket) = (self.clone(), info.name.clone(), endpoint.socket.clone());
                        AbortOnDropHandle::new(tokio::spawn(async move {
                            registry.follow_health(&driver, &socket, version).await;
                        }))
                    });
                    let driver = Some((info.name, endpoint));
                    let registration = Registration { identity, driver, number, _health: health };
                    self.registrations.lock().insert(socket, registration);
                    self.wake_pods();
                }
                Err(why) => {
                    tracing::warn!(plugin = info.name, ?socket, why, "a plugin was refused");
                    self.registrations
                        .lock()
                        .insert(socket, Registration { identity, driver: None, number, _health: None });
                }
            }
        }
    }

    /// Pods with claims may wait for a driver, or report the health of its devices.
    fn wake_pods(&self) {
        for (uid, pod) in self.pods.active_pods() {
            let is_extended = pod.status.as_ref().is_some_and(|own| own.extended_resource_claim_status.is_some());
            let has_claims = |spec: &PodSpec| spec.resource_claims.as_ref().is_some_and(|all| !all.is_empty());
            if is_extended || pod.spec.as_ref().is_some_and(has_claims) {
                self.wake.pod(&uid);
            }
        }
    }

    /// Until it is dropped. What was known is forgotten when the stream ends.
    async fn follow_health(&self, driver: &str, socket: &Path, version: HealthVersion) {
        loop {
            match plugin_api::watch_health(socket, version).await {
                Ok(mut stream) => self.receive_health(driver, &mut stream).await,
                Err(error) => {
                    tracing::debug!(driver, error, "a driver does not tell of its devices' health; will retry")
                }
            }
            // Another process of the driver may have taken over.
            if self.find(driver).is_none_or(|newest| newest.socket == *socket) {
                self.forget_health(driver);
            }
            tokio::time::sleep(SLOWLY).await;
        }
    }

    fn forget_health(&self, driver: &str) {
        if self.health.clear(driver) {
            tracing::warn!(driver, "a driver stopped telling of the health of its devices");
            self.wake_pods();
        }
    }

    async fn receive_health(&self, driver: &str, stream: &mut HealthStream) {
        loop {
            let expiry = self.health.next_expiry(driver);
            let expired = async {
                match expiry {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let changed = tokio::select! {
                message = stream.reports.message() => match message {
                    Ok(Some(response)) => self.health.update(driver, response, Instant::now()),
                    Ok(None) => return,
                    Err(status) => {
                        tracing::debug!(driver, %status, "the stream of a driver's health reports broke");
                        return;
                    }
                },
                () = expired => self.health.expire(driver, Instant::now()),
            };
            if changed {
                self.wake_pods();
            }
        }
    }

    async fn delete_slices(&self, driver: &str) {
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let own = ListParams::default().fields(&format!("spec.nodeName={},spec.driver={driver}", self.node));
        match slices.delete_collection(&DeleteParams::default(), &own).await {
            Ok(_) => tracing::info!(driver, "deleted the ResourceSlices of a driver that did not come back"),
            Err(error) => {
                tracing::warn!(driver, %error, "cannot delete the ResourceSlices of a driver that did not come back")
            }
        }
    }
}

fn judge_plugin(info: &PluginInfo, socket: &Path) -> Result<DriverEndpoint, String> {
    if info.plugin_type != PLUGIN_TYPE {
        return Err(format!("plugin type {:?} is not supported on this node", info.plugin_type));
    }
    if info.name.is_empty() {
        return Err("DRA plugin name is empty".to_owned());
    }
    let Some(version) = DriverVersion::select(&info.supported_versions) else {
        let supported = info.supported_versions.join(", ");
        return Err(format!(
            "DRA plugin {} supports none of v1.DRAPlugin, v1beta1.DRAPlugin, but {supported:?}",
            info.name
        ));
    };
    let socket = if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
    if !socket.is_absolute() {
        return Err(format!("DRA plugin {}: endpoint {:?} is not an absolute path", info.name, info.endpoint));
    }
    Ok(DriverEndpoint { socket, version, health: HealthVersion::select(&info.supported_versions) })
}

/// Sockets in the directory; hidden ones are being made.
fn sockets(directory: &Path) -> BTreeMap<PathBuf, SocketIdentity> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let Ok(about) = std::fs::metadata(entry.path()) else { continue };
        if about.file_type().is_socket() {
            found.insert(entry.path(), (about.ino(), about.ctime(), about.ctime_nsec()));
        }
    }
    found
}

fn watch(path: &Path) -> Option<inotify::EventStream<Vec<u8>>> {
    let inotify = Inotify::init().ok()?;
    let mask = WatchMask::CREATE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
    inotify.watches().add(path, mask).ok()?;
    inotify.into_event_stream(vec![0; 4096]).ok()
}
