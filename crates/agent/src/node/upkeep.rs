//! Reclaims resources under pressure: removes unused images, then evicts one pod at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use mainstay_files::disk_usage;
use mainstay_runtime::{ContainerState, PodUid, observed::ContainerStats};

use super::{
    eviction::{self, Candidate},
    images::{Uses, to_free},
    pressure::{NodeMeasurement, Shortage, Signal},
    reporter::NodeReporter,
    termination_log,
};
use crate::{
    events::EventType,
    pods::{DesiredPod, Source},
    settings,
};

/// Limits of pods are looked after this often.
const LOOK: Duration = Duration::from_secs(10);
/// The machine is measured this often: a disk can be filled within seconds.
const MEASURE: Duration = Duration::from_secs(1);
/// What was done about a shortage takes this long to show.
const EFFECT: Duration = Duration::from_secs(3);
/// A pressure is reported until it has been gone for this long, so that pods do not come back at once.
const CALM: SignedDuration = SignedDuration::from_mins(5);
/// Longest wait for an evicted pod to be removed before another one goes.
const CLEANED_UP: SignedDuration = SignedDuration::from_secs(30);
/// How often images are looked at while the disk is fine, in looks.
const IMAGES_EVERY: u64 = 30;

#[derive(Default)]
pub struct Upkeep {
    /// When each condition of pressure was last true.
    pressed: BTreeMap<&'static str, Timestamp>,
    /// When a pod was last evicted.
    evicted_at: Option<Timestamp>,
    uses: Uses,
}

impl Upkeep {
    /// The conditions of pressure that hold: now, or not long enough ago.
    pub fn pressures(
        &mut self,
        measured: &NodeMeasurement,
        limits: &settings::Eviction,
        now: Timestamp,
    ) -> BTreeSet<&'static str> {
        for shortage in measured.shortages(limits) {
            self.pressed.insert(shortage.signal.condition(), now);
        }
        self.pressed.retain(|_, last| now.duration_since(*last) < CALM);
        self.pressed.keys().copied().collect()
    }
}

impl NodeReporter {
    pub(super) async fn run_upkeep(&self) {
        let mut looks = 0u64;
        loop {
            self.keep_up_once(looks.is_multiple_of(IMAGES_EVERY)).await;
            looks += 1;
            self.wait_for_shortage().await;
        }
    }

    /// Until the next look is due, or something has become short.
    async fn wait_for_shortage(&self) {
        let is_short = || !(self.measure)().shortages(&self.parts.settings.eviction).is_empty();
        if is_short() {
            return tokio::time::sleep(EFFECT).await;
        }
        let due = tokio::time::Instant::now() + LOOK;
        while tokio::time::Instant::now() < due && !is_short() {
            tokio::time::sleep(MEASURE).await;
        }
    }

    pub(super) async fn keep_up_once(&self, images_too: bool) {
        let parts = &self.parts;
        let pods = parts.pods.all();
        let there: BTreeSet<PodUid> =
            pods.iter().filter_map(|wanted| wanted.pod.metadata.uid.clone().map(PodUid)).collect();
        self.evictions.retain(|uid| there.contains(uid));
        let directory = parts.settings.directory.join("pods");
        let _ = tokio::task::spawn_blocking(move || termination_log::trim_all(&directory)).await;
        let limits = &parts.settings.eviction;
        let mut shortages = (self.measure)().shortages(limits);
        let disk = |found: &[Shortage]| found.iter().any(|s| matches!(s.signal, Signal::Disk | Signal::Inodes));
        if disk(&shortages) || images_too {
            self.remove_images(disk(&shortages)).await;
            shortages = (self.measure)().shortages(limits);
        }
        if !shortages.is_empty() {
            self.look_again();
        }
        let live: Vec<&DesiredPod> = pods.iter().filter(|wanted| self.is_live(wanted)).collect();
        let limited = live.iter().any(|wanted| has_disk_limit(&wanted.pod));
        if shortages.is_empty() && !limited {
            return;
        }
        let candidates = self.candidates(&live).await;
        for candidate in &candidates {
            if let Some(message) = eviction::exceeds_own_limit(candidate) {
                self.evict(&live, candidate, message);
            }
        }
        // One at a time: the next look shows what it brought. One that is on its way out already is waited for.
        let leaving = pods.iter().any(|wanted| self.is_leaving(wanted)) || self.holds_evicted().await;
        if let Some(shortage) = shortages.first().filter(|_| !leaving) {
            self.warn(shortage);
            if let Some(victim) = eviction::first(shortage.signal, &candidates) {
                self.evict(&live, victim, eviction::message(shortage, victim));
            }
        }
    }

    fn uid(wanted: &DesiredPod) -> PodUid {
        PodUid(wanted.pod.metadata.uid.clone().unwrap_or_default())
    }

    fn ended(pod: &Pod) -> bool {
        mainstay_api::pod::is_finished(pod)
    }

    fn is_live(&self, wanted: &DesiredPod) -> bool {
        !Self::ended(&wanted.pod) && self.evictions.evicted(&Self::uid(wanted)).is_none()
    }

    fn is_leaving(&self, wanted: &DesiredPod) -> bool {
        !Self::ended(&wanted.pod) && self.evictions.evicted(&Self::uid(wanted)).is_some()
    }

    /// Whether a pod that was evicted lately still has something on this machine. Then what it used is not free yet.
    async fn holds_evicted(&self) -> bool {
        let lately = |at: Timestamp| Timestamp::now().duration_since(at) < CLEANED_UP;
        if !self.upkeep.lock().evicted_at.is_some_and(lately) {
            return false;
        }
        let observed = self.parts.runtime.observe(None).await.unwrap_or_default();
        observed.sandboxes.iter().any(|sandbox| self.evictions.evicted(&sandbox.pod.uid).is_some())
    }

    fn evict(&self, live: &[&DesiredPod], candidate: &Candidate, message: String) {
        let Some(wanted) = live.iter().find(|wanted| Self::uid(wanted) == candidate.uid) else { return };
        if self.evictions.evict(&candidate.uid, message.clone()) {
            self.upkeep.lock().evicted_at = Some(Timestamp::now());
            self.parts.events.pod(&wanted.pod, EventType::Warning, "Evicted", message);
        }
    }

    fn warn(&self, shortage: &Shortage) {
        if let Some(node) = self.node().borrow().as_ref() {
            let message = format!("Attempting to reclaim {}", shortage.signal.resource());
            self.parts.events.node(node, EventType::Warning, "EvictionThresholdMet", message);
        }
    }

    async fn candidates(&self, live: &[&DesiredPod]) -> Vec<Candidate> {
        let stats = self.parts.runtime.stats().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the runtime does not tell what containers use");
            Vec::new()
        });
        let pods: Vec<(std::sync::Arc<Pod>, Source)> = live.iter().map(|w| (w.pod.clone(), w.source)).collect();
        let directory = self.parts.settings.directory.join("pods");
        let made = tokio::task::spawn_blocking(move || {
            let candidate = |(pod, source): &(std::sync::Arc<Pod>, Source)| {
                let mut candidate = Candidate::new(pod, *source)?;
                fill_in(&mut candidate, &stats);
                let own = directory.join(&candidate.uid.0);
                for share in &mut candidate.containers {
                    share.disk += usage(own.join("containers").join(&share.name));
                }
                candidate.volumes = volumes(pod, &own.join("volumes"));
                candidate.etc_files = usage(own.join("etc"));
                Some(candidate)
            };
            pods.iter().filter_map(candidate).collect()
        });
        made.await.unwrap_or_default()
    }

    async fn remove_images(&self, urgent: bool) {
        let (runtime, now) = (&self.parts.runtime, Timestamp::now());
        let (Ok(images), Ok(observed)) = (runtime.images().list().await, runtime.observe(None).await) else { return };
        let made = observed.containers.iter().filter(|container| container.state != ContainerState::Unknown);
        let used: BTreeSet<String> = made.flat_map(|c| [c.image.clone(), c.image_id.clone()]).collect();
        let bytes = match to_free((self.measure)().disk, &self.parts.settings.eviction) {
            0 if urgent => u64::MAX,
            bytes => bytes,
        };
        let victims = {
            let mut upkeep = self.upkeep.lock();
            upkeep.uses.note(&images, &used, now);
            upkeep.uses.victims(&images, &used, bytes, now)
        };
        for id in victims {
            match runtime.images().remove(&id).await {
                Ok(()) => tracing::info!(image = id, "removed an unused image to free disk space"),
                Err(error) => tracing::warn!(image = id, %error, "cannot remove an unused image"),
            }
        }
    }
}

fn has_disk_limit(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let volumes = spec.volumes.iter().flatten().filter_map(|volume| volume.empty_dir.as_ref());
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref());
    volumes.into_iter().any(|volume| volume.size_limit.is_some())
        || limits.any(|limits| limits.contains_key("ephemeral-storage"))
}

fn fill_in(candidate: &mut Candidate, stats: &[ContainerStats]) {
    for share in &mut candidate.containers {
        let own = stats.iter().filter(|s| s.pod.as_ref().is_some_and(|pod| pod.uid == candidate.uid));
        for stat in own.filter(|s| s.name == share.name) {
            share.memory += stat.working_set;
            share.disk += stat.rootfs_bytes;
            share.pids += stat.pids;
        }
    }
}

/// The pod's directories on disk: name, bytes, limit. Those in memory count as memory.
fn volumes(pod: &Pod, directory: &Path) -> Vec<(String, u64, Option<u64>)> {
    let all = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let own = all.filter_map(|volume| {
        let empty = volume.empty_dir.as_ref()?;
        let limit = empty.size_limit.as_ref().and_then(|limit| eviction::bytes(&limit.0));
        let in_memory = empty.medium.as_deref() == Some("Memory");
        if in_memory && limit.is_none() {
            return None;
        }
        Some((volume.name.clone(), usage(directory.join(&volume.name)), limit))
    });
    own.collect()
}

/// Bytes taken by a directory, on its own filesystem; nothing if it is not there.
fn usage(directory: PathBuf) -> u64 {
    match disk_usage(&directory) {
        Ok(usage) => usage.bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "cannot measure what a pod takes of the disk");
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_limit_of_disk_counts_in_whichever_container_or_volume_it_is() {
        let limited = json!({"name": "c", "resources": {"limits": {"ephemeral-storage": "1Gi"}}});
        let free = json!({"name": "c"});
        for (spec, expected) in [
            (json!({"containers": [free]}), false),
            (json!({"containers": [limited]}), true),
            (json!({"initContainers": [limited], "containers": [free]}), true),
            (json!({"containers": [free], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]}), true),
        ] {
            let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert_eq!(has_disk_limit(&pod), expected, "{spec}");
        }
    }
}
