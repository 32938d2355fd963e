//! Fencing: unique pods stop by themselves when this node has no contact with the cluster, before others are started elsewhere.
//!
//! * [`fence_core`]: all decisions, purely, over [`state`]: what may run
//! * [`witnesses`]: which other nodes are asked
//! * [`peers`]: asking them, and answering
//! * [`memory`]: what was promised, on disk
//!
//! Every heartbeat ([`crate::node`]) takes the promise from here and says what became of it. What may run is in the file that the
//! shims of unique pods obey ([`mainstay_runtime::fence`]); a promise is made only if all of them do. With a CRI runtime, or while
//! a unique pod has a shim of an earlier version, nothing is promised, and the server leaves unique pods of this node alone.

mod driver;
pub mod fence_core;
mod memory;
pub mod peers;
pub mod state;
mod timing;
mod witnesses;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use mainstay_api::node_loss::{self, FencePromise, Timing};
use mainstay_runtime::{
    FenceSupport, PodUid, Runtime, SandboxId,
    fence::{FenceLimit, boot_time},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::{
    fence_core::FenceCore,
    memory::{PromiseFile, promise_file},
    peers::Peer,
    state::{FenceCommand, PodList},
};
pub use self::{
    memory::has_promised,
    state::{BootTime, ContactAnswer, RenewalOutcome},
    timing::last_known_timing,
};
use crate::{
    events::Events,
    objects::Objects,
    pods::{DesiredPod, Pods, Source},
    tls::Identity,
    wake::Wake,
};

/// Why a container of a unique pod is not started, as in its status.
pub const CUT_OFF: &str = "NodeCutOff";

pub struct FenceParts {
    pub node_name: String,
    pub timing: Timing,
    /// What shims read: of no meaning once the machine was started anew.
    pub limit_file: PathBuf,
    /// The agent's own, where what was promised is kept.
    pub directory: PathBuf,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub pods: Arc<Pods>,
    pub objects: Arc<Objects>,
    pub events: Events,
    pub wake: Wake,
    /// By which peers are asked. Without one there is no cluster.
    pub identity: Option<Identity>,
}

pub struct Fence {
    parts: FenceParts,
    promises: PromiseFile,
    peers: Mutex<BTreeMap<String, Peer>>,
    core: Mutex<FenceCore>,
    /// Sandboxes whose shims were told to obey the limit, or no longer to, and whether they do.
    sandboxes: tokio::sync::Mutex<BTreeMap<SandboxId, (bool, FenceSupport)>>,
    changed: Notify,
}

#[cfg(test)]
impl FenceParts {
    /// Of a node without peers, with files of its own.
    pub fn testing(client: &Client, runtime: Arc<dyn Runtime>, pods: &Arc<Pods>, events: &Events, wake: &Wake) -> Self {
        let directory = std::env::temp_dir().join(format!("mainstay-fence-{}", uuid::Uuid::new_v4()));
        mainstay_files::create_private_dir(&directory).unwrap();
        Self {
            node_name: "m1".to_owned(),
            timing: Timing::default(),
            limit_file: directory.join("fence.json"),
            directory,
            client: client.clone(),
            runtime,
            pods: pods.clone(),
            objects: Arc::new(Objects::new(client.clone(), wake.clone())),
            events: events.clone(),
            wake: wake.clone(),
            identity: None,
        }
    }
}

impl Fence {
    pub fn new(parts: FenceParts) -> Arc<Self> {
        let now = boot_time();
        let promises = PromiseFile::new(promise_file(&parts.directory));
        let groups = promises.read(&parts.timing);
        let core = FenceCore::new(groups, FenceLimit::read(&parts.limit_file).ok(), &parts.timing, now);
        let fence = Self {
            promises,
            peers: Mutex::default(),
            core: Mutex::new(core),
            sandboxes: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            parts,
        };
        fence.write_limit(&mut fence.core.lock(), now);
        Arc::new(fence)
    }

    /// What the API says of another node.
    pub fn set_peer(&self, name: &str, peer: Option<Peer>) {
        let mut peers = self.peers.lock();
        match peer {
            Some(peer) => drop(peers.insert(name.to_owned(), peer)),
            None => drop(peers.remove(name)),
        }
    }

    /// What this node says when another asks it.
    pub fn answer(&self) -> ContactAnswer {
        self.core.lock().answer(&self.parts.timing, boot_time())
    }

    /// Whether a pod must never run twice. Nobody else would run a static pod.
    pub fn is_unique(&self, pod: &Pod, source: Source) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let known: BTreeMap<String, Vec<String>> = node_loss::claims(pod)
            .filter_map(|claim| Some((claim.clone(), self.parts.objects.access_modes(namespace, &claim)?)))
            .collect();
        source == Source::Api && node_loss::is_unique(pod, |claim| known.get(claim).map(Vec::as_slice))
    }

    /// Whether containers of the pod may be started now, by the time and by what is known of the cluster.
    pub fn permits_start(&self, pod: &Pod, source: Source) -> bool {
        if !self.is_unique(pod, source) {
            return true;
        }
        let meta = &pod.metadata;
        let version = meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0);
        self.core.lock().permits_start(meta.uid.as_deref().unwrap_or_default(), version, boot_time())
    }

    /// Has the shim of a unique pod obey the limit. To be called before a container is started in it.
    pub async fn cover(&self, pod: &Pod, source: Source, sandbox: &SandboxId) -> Result<(), String> {
        let is_unique = self.is_unique(pod, source);
        let support = self.cover_sandbox(sandbox, is_unique).await?;
        let is_bound = self.core.lock().is_bound();
        match is_unique && is_bound && support == FenceSupport::None {
            // The next heartbeat promises nothing any more; then it may start.
            true => Err("the pod must be unique, and nothing on this node would stop it in time".to_owned()),
            false => Ok(()),
        }
    }

    async fn cover_sandbox(&self, sandbox: &SandboxId, is_unique: bool) -> Result<FenceSupport, String> {
        let mut sandboxes = self.sandboxes.lock().await;
        match sandboxes.get(sandbox) {
            Some((was_unique, support)) if *was_unique == is_unique => return Ok(*support),
            None if !is_unique => return Ok(FenceSupport::None),
            Some(_) | None => {}
        }
        let fenced = self.parts.runtime.fence_sandbox(sandbox, is_unique).await;
        let support = fenced.map_err(|error| error.to_string())?;
        if support == FenceSupport::None {
            tracing::warn!(
                %sandbox,
                "nothing would stop this unique pod if the agent ended: the node promises nothing, and unique pods of it are not replaced"
            );
        }
        sandboxes.insert(sandbox.clone(), (is_unique, support));
        Ok(support)
    }

    /// Whether all unique pods here would be stopped in time.
    async fn cover_all(&self) -> bool {
        let Ok(observed) = self.parts.runtime.observe(None).await else { return false };
        let mut all_obey = true;
        for sandbox in &observed.sandboxes {
            let Some(DesiredPod { pod, source }) = self.parts.pods.get(&sandbox.pod.uid) else { continue };
            let runs = || observed.containers.iter().any(|c| c.sandbox == sandbox.id && c.state.is_running());
            if !sandbox.ready && !runs() {
                continue;
            }
            let is_unique = self.is_unique(&pod, source);
            match self.cover_sandbox(&sandbox.id, is_unique).await {
                Ok(support) => all_obey &= !is_unique || support == FenceSupport::Obeyed,
                Err(error) => {
                    tracing::warn!(uid = %sandbox.pod.uid, error, "cannot fence a unique pod; will retry");
                    all_obey &= !is_unique;
                }
            }
        }
        self.sandboxes.lock().await.retain(|id, _| observed.sandboxes.iter().any(|sandbox| sandbox.id == *id));
        all_obey
    }

    /// What the next heartbeat is to promise. From now on it may be in force.
    pub async fn promise(&self) -> Option<FencePromise> {
        self.parts.identity.as_ref()?;
        let is_covered = self.cover_all().await;
        let promise = {
            let mut core = self.core.lock();
            let peers = self.peers.lock();
            let known = peers.iter().map(|(name, peer)| (name.as_str(), peer.is_ready)).collect();
            let mut promise = core.propose(&self.parts.node_name, &self.parts.timing, is_covered, &known)?;
            if let Some(groups) = core.groups_with(&promise) {
                match self.promises.write(&groups) {
                    Ok(()) => core.set_groups(groups),
                    Err(error) => {
                        tracing::warn!(%error, "cannot record what this node promises; it promises nothing new");
                        promise = core.last_promise().cloned()?;
                    }
                }
            }
            core.bind(&self.parts.timing, boot_time());
            self.write_limit(&mut core, boot_time());
            promise
        };
        if self.core.lock().needs_enforcing() {
            let is_written = self.write_limit(&mut self.core.lock(), boot_time());
            if !is_written || !self.enforce().await {
                return None;
            }
            self.core.lock().set_enforced();
        }
        Some(promise)
    }

    /// What became of a heartbeat with this promise.
    pub fn record_renewal(&self, sent: BootTime, promise: Option<FencePromise>, outcome: RenewalOutcome) {
        let now = boot_time();
        let mut core = self.core.lock();
        let groups = core.record_renewal(sent, promise.as_ref(), outcome, &self.parts.timing, now);
        self.write_limit(&mut core, now);
        if let Some(groups) = groups
            && self.promises.write(&groups).is_ok()
        {
            core.set_groups(groups);
        }
        drop(core);
        self.changed.notify_one();
    }

    /// After a heartbeat that was accepted then the node was found untainted, and then pods were listed.
    fn record_list(&self, list: PodList, contact: BootTime) -> Option<FenceCommand> {
        let now = boot_time();
        let mut core = self.core.lock();
        let command = core.record_list(list, contact, &self.parts.timing, now);
        self.write_limit(&mut core, now);
        command
    }

    /// Time has passed.
    fn tick(&self) -> Option<FenceCommand> {
        let now = boot_time();
        let mut core = self.core.lock();
        let was_closed = core.is_closed();
        let command = core.tick(&self.parts.timing, now);
        if !was_closed && core.is_closed() {
            let silent_for = core.silent_for(now);
            tracing::warn!(
                ?silent_for,
                "no contact with the cluster: pods that must be unique are stopped on this node"
            );
        }
        self.write_limit(&mut core, now);
        command
    }

    fn unique_pods(&self) -> impl Iterator<Item = (PodUid, Arc<Pod>)> {
        let all = self.parts.pods.all().into_iter().filter(|wanted| self.is_unique(&wanted.pod, wanted.source));
        all.filter_map(|wanted| Some((PodUid(wanted.pod.metadata.uid.clone()?), wanted.pod)))
    }

    /// Whether the file says what was decided. One that cannot be written leaves shims with less time, never with more; but
    /// where they had no limit at all, they go on without one.
    fn write_limit(&self, core: &mut FenceCore, now: BootTime) -> bool {
        let Some(limit) = core.pending_limit(now) else { return true };
        let file = &self.parts.limit_file;
        match limit.write(file) {
            Ok(()) => {
                core.set_limit(limit);
                true
            }
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "cannot write until when unique pods may run");
                false
            }
        }
    }
}
