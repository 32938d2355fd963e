//! Lists sandboxes and containers of the runtime with as few calls as possible.
//!
//! Two lists tell what there is and in which state; details are asked for once per state and kept, as they no
//! longer change: a pod's addresses, when a container began and its pid, how it ended.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    path::PathBuf,
};

use futures::StreamExt;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::{Inner, label, proto};
use crate::{
    error::RuntimeError,
    observed::{ContainerId, ContainerState, ContainerStatus, Observed, PodUid, SandboxId, SandboxStatus},
    port::Result,
};

/// Questions under way at once.
const PARALLEL_CALLS: usize = 8;

#[derive(Default)]
pub struct StatusCache {
    addresses: Mutex<HashMap<String, Vec<IpAddr>>>,
    details: Mutex<HashMap<String, ContainerDetails>>,
}

#[derive(Clone)]
pub struct ContainerDetails {
    pub status: proto::ContainerStatus,
    pub pid: Option<u32>,
}

impl StatusCache {
    fn retain_live(&self, sandboxes: &[proto::PodSandbox], containers: &[proto::Container]) {
        let live: HashSet<&str> =
            sandboxes.iter().map(|s| s.id.as_str()).chain(containers.iter().map(|c| c.id.as_str())).collect();
        self.addresses.lock().retain(|id, _| live.contains(id.as_str()));
        self.details.lock().retain(|id, _| live.contains(id.as_str()));
    }
}

impl Inner {
    pub(super) async fn observe(&self, pod: Option<&PodUid>) -> Result<Observed> {
        let labels = label::selector(&self.settings.instance, pod);
        // Containers first: what a container is in is then in the second list.
        let containers = self.client.containers(labels.clone()).await?;
        let sandboxes = self.client.sandboxes(labels).await?;
        if pod.is_none() {
            self.status_cache.retain_live(&sandboxes, &containers);
        }
        let sandboxes = futures::stream::iter(sandboxes).map(|s| self.sandbox_status(s)).buffered(PARALLEL_CALLS);
        let containers = futures::stream::iter(containers).map(|c| self.container_status(c)).buffered(PARALLEL_CALLS);
        let (sandboxes, containers): (Vec<_>, Vec<_>) = futures::join!(sandboxes.collect(), containers.collect());
        Ok(Observed {
            sandboxes: sandboxes.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?,
            containers: containers.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?,
        })
    }

    /// `None` if it is not ours or went meanwhile.
    async fn sandbox_status(&self, seen: proto::PodSandbox) -> Result<Option<SandboxStatus>> {
        let (Some(spec), Some(pod)) = (label::sandbox_spec(&seen.annotations), label::pod(&seen.labels)) else {
            return Ok(None);
        };
        let ready = seen.state() == proto::PodSandboxState::SandboxReady;
        let addresses = match spec.host_network {
            true => Some(Vec::new()),
            false => ignore_not_found(self.addresses(&seen.id, ready).await)?,
        };
        let Some(addresses) = addresses else { return Ok(None) };
        Ok(Some(SandboxStatus {
            id: SandboxId(seen.id),
            pod,
            attempt: spec.attempt,
            ready,
            created_at: time(seen.created_at),
            host_network: spec.host_network,
            addresses,
            annotations: label::given(seen.annotations),
        }))
    }

    async fn addresses(&self, id: &str, ready: bool) -> Result<Vec<IpAddr>> {
        if let Some(known) = self.status_cache.addresses.lock().get(id) {
            return Ok(known.clone());
        }
        let status = self.client.sandbox_status(id, false).await?.status.unwrap_or_default();
        let network = status.network.unwrap_or_default();
        let texts = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|ip| ip.ip));
        let addresses: Vec<IpAddr> = texts.filter_map(|text| text.parse().ok()).collect();
        if ready && !addresses.is_empty() {
            self.status_cache.addresses.lock().insert(id.to_owned(), addresses.clone());
        }
        Ok(addresses)
    }

    async fn container_status(&self, seen: proto::Container) -> Result<Option<ContainerStatus>> {
        let Some(pod) = label::pod(&seen.labels) else { return Ok(None) };
        let Some(ContainerDetails { status, pid }) = ignore_not_found(self.details(&seen).await)? else {
            return Ok(None);
        };
        let metadata = seen.metadata.unwrap_or_default();
        Ok(Some(ContainerStatus {
            id: ContainerId(seen.id),
            sandbox: SandboxId(seen.pod_sandbox_id),
            pod,
            name: metadata.name,
            attempt: metadata.attempt,
            image: label::image(&seen.annotations).cloned().unwrap_or_else(|| seen.image_ref.clone()),
            image_id: if status.image_ref.is_empty() { seen.image_ref } else { status.image_ref.clone() },
            created_at: time(seen.created_at),
            state: state(&status),
            annotations: label::given(seen.annotations),
            log_path: PathBuf::from(status.log_path),
            pid,
        }))
    }

    pub(super) async fn details(&self, seen: &proto::Container) -> Result<ContainerDetails> {
        if let Some(known) = self.status_cache.details.lock().get(&seen.id).filter(|d| d.status.state == seen.state) {
            return Ok(known.clone());
        }
        let running = seen.state() == proto::ContainerState::ContainerRunning;
        let answer = self.client.container_status(&seen.id, running).await?;
        let pid = pid(&answer);
        let status = answer.status.unwrap_or_default();
        let pid = pid.filter(|_| status.state() == proto::ContainerState::ContainerRunning);
        let details = ContainerDetails { status, pid };
        self.status_cache.details.lock().insert(seen.id.clone(), details.clone());
        Ok(details)
    }
}

fn ignore_not_found<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(RuntimeError::NotFound { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Only the verbose answer has it.
pub(super) fn pid(answer: &proto::ContainerStatusResponse) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Info {
        pid: u32,
    }
    let info: Info = serde_json::from_str(answer.info.get("info")?).ok()?;
    Some(info.pid).filter(|pid| *pid > 0)
}

fn state(status: &proto::ContainerStatus) -> ContainerState {
    match status.state() {
        proto::ContainerState::ContainerCreated => ContainerState::Created,
        proto::ContainerState::ContainerRunning => ContainerState::Running { started_at: time(status.started_at) },
        proto::ContainerState::ContainerUnknown => ContainerState::Unknown,
        proto::ContainerState::ContainerExited => ContainerState::Exited {
            // A short-lived one may be noted to have ended before it was noted to have begun.
            started_at: (status.started_at > 0).then(|| time(status.started_at.min(status.finished_at))),
            finished_at: time(status.finished_at),
            exit_code: status.exit_code,
            // CRI knows codes only: these are what shells and runtimes make of signals.
            signal: (129..=128 + 64).contains(&status.exit_code).then(|| status.exit_code - 128),
            oom: status.reason == "OOMKilled",
            message: status.message.clone(),
        },
    }
}

fn time(nanoseconds: i64) -> Timestamp {
    // What never happened is reported as a time long before computers.
    Timestamp::from_nanosecond(nanoseconds.max(0).into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32, reason: &str) -> ContainerState {
        state(&proto::ContainerStatus {
            state: proto::ContainerState::ContainerExited.into(),
            started_at: 1,
            finished_at: 2,
            exit_code: code,
            reason: reason.to_owned(),
            ..Default::default()
        })
    }

    #[test]
    fn codes_above_128_are_signals_and_others_are_not() {
        let signal = |code| match exited(code, "") {
            ContainerState::Exited { signal, .. } => signal,
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 1, 128, 137, 143, 255].map(signal), [None, None, None, Some(9), Some(15), None]);
    }

    #[test]
    fn want_of_memory_is_the_runtimes_word() {
        assert!(matches!(exited(137, "OOMKilled"), ContainerState::Exited { oom: true, .. }));
        assert!(matches!(exited(137, "Error"), ContainerState::Exited { oom: false, .. }));
    }
}
