//! Runs a task while this process holds the Lease; cancels it when the Lease is lost.
//!
//! The task has ended before the Lease is released, so that two servers never run it at once. Requests that fail are
//! retried until [`renew_deadline`](crate::lease::renew_deadline); a leader that cannot renew by then stops its task
//! and becomes a candidate again.

use std::{future::Future, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use mainstay_backoff::Backoff;
use mainstay_errors::error_chain;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::lease::{self, AcquireStep, ObservedLease};

/// Candidates that lost the same leader must not all write at once.
const ACQUIRE_JITTER: f64 = 0.5;

/// Which Lease, who we are, and how long the Lease is valid without renewal.
#[derive(Clone, Debug)]
pub struct LeaderElectionConfig {
    pub namespace: String,
    pub name: String,
    pub identity: String,
    pub lease_duration: Duration,
}

impl LeaderElectionConfig {
    /// A Lease in `kube-system` with the default duration.
    pub fn new(name: &str, identity: impl Into<String>) -> Self {
        let namespace = mainstay_api::wellknown::namespace::SYSTEM.to_owned();
        Self { namespace, name: name.to_owned(), identity: identity.into(), lease_duration: Duration::from_secs(6) }
    }

    fn retry_period(&self) -> Duration {
        self.lease_duration / 4
    }

    fn acquire_delay(&self) -> Duration {
        let period = self.retry_period();
        Backoff::new(period, period, ACQUIRE_JITTER).delay(1, fastrand::f64())
    }
}

/// Runs `task` whenever this process is the leader, until `stop` is cancelled or the task ends by itself. The task is
/// given a token that is cancelled when it has to end; the Lease is released after it has.
pub async fn run_while_leading<F>(
    client: Client,
    config: LeaderElectionConfig,
    stop: CancellationToken,
    mut task: impl FnMut(CancellationToken) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let leases = Api::namespaced(client, &config.namespace);
    let mut elector = LeaderElector { leases, config, observed: None };
    loop {
        let Some(()) = stop.run_until_cancelled(elector.acquire()).await else { return };
        tracing::info!(lease = elector.config.name, identity = elector.config.identity, "became leader");
        let stop_task = stop.child_token();
        let running = tokio::spawn(task(stop_task.clone()));
        let mut running = std::pin::pin!(running);
        let task_ended = tokio::select! {
            () = elector.renew_until_lost() => {
                tracing::warn!(lease = elector.config.name, "stopped leading: the Lease could not be renewed in time");
                false
            }
            _ = &mut running => true,
            () = stop.cancelled() => false,
        };
        stop_task.cancel();
        if !task_ended {
            let _ = running.await;
        }
        elector.release().await;
        if task_ended || stop.is_cancelled() {
            return;
        }
    }
}

struct LeaderElector {
    leases: Api<Lease>,
    config: LeaderElectionConfig,
    observed: Option<ObservedLease>,
}

impl LeaderElector {
    /// Returns when the Lease is ours.
    async fn acquire(&mut self) {
        loop {
            self.read_lease().await;
            let now = Instant::now().into_std();
            match lease::next_step(self.observed.as_ref(), &self.config.identity, now) {
                AcquireStep::Create | AcquireStep::Acquire
                    if self.write_holder(&self.config.identity.clone()).await =>
                {
                    return;
                }
                AcquireStep::Create | AcquireStep::Acquire => sleep(self.config.acquire_delay()).await,
                AcquireStep::Wait(expires) => {
                    let expires = Instant::from_std(expires);
                    sleep_until(expires.min(Instant::now() + self.config.acquire_delay())).await;
                }
            }
        }
    }

    /// Renews the Lease; returns when it can no longer be relied on.
    async fn renew_until_lost(&mut self) {
        let mut renewed = Instant::now();
        loop {
            sleep(self.config.retry_period()).await;
            let begun = Instant::now();
            let deadline = Instant::from_std(lease::renew_deadline(renewed.into_std(), self.config.lease_duration));
            let renewal = async {
                self.read_lease().await;
                self.is_holder() && self.write_holder(&self.config.identity.clone()).await
            };
            match tokio::time::timeout_at(deadline, renewal).await {
                Ok(true) => renewed = begun,
                Ok(false) if Instant::now() < deadline && (self.observed.is_none() || self.is_holder()) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Whether the Lease, as last read, names us.
    fn is_holder(&self) -> bool {
        self.observed.as_ref().is_some_and(|lease| lease.holder == self.config.identity)
    }

    /// Clears the holder if that is still us, so that another candidate starts at once.
    async fn release(&mut self) {
        let timeout = self.config.retry_period();
        let release = async {
            self.read_lease().await;
            if self.is_holder() {
                self.write_holder("").await;
            }
        };
        let _ = tokio::time::timeout(timeout, release).await;
    }

    /// If it cannot be read, what was observed before still counts.
    async fn read_lease(&mut self) {
        match self.leases.get_opt(&self.config.name).await {
            Ok(Some(lease)) => self.observe(lease),
            Ok(None) => self.observed = None,
            Err(error) => tracing::debug!(
                lease = self.config.name,
                error = error_chain(&error),
                "cannot read the Lease; will retry"
            ),
        }
    }

    fn observe(&mut self, lease: Lease) {
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let read = ObservedLease {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: seconds.map_or(self.config.lease_duration, Duration::from_secs),
            resource_version: lease.metadata.resource_version.unwrap_or_default(),
            unchanged_since: Instant::now().into_std(),
        };
        self.observed = Some(lease::observe_lease(self.observed.take(), read));
    }

    /// Writes the holder, if the Lease still has the observed version. Returns whether it was written.
    async fn write_holder(&mut self, holder: &str) -> bool {
        let now = Some(MicroTime(Timestamp::now()));
        let resource_version = self.observed.as_ref().map(|lease| lease.resource_version.clone());
        let exists = resource_version.is_some();
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.config.name.clone()),
                namespace: Some(self.config.namespace.clone()),
                resource_version,
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: (!holder.is_empty()).then(|| holder.to_owned()),
                lease_duration_seconds: i32::try_from(self.config.lease_duration.as_secs().max(1)).ok(),
                acquire_time: now.clone(),
                renew_time: now,
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams::default();
        let written = match exists {
            true => self.leases.replace(&self.config.name, &params, &lease).await,
            false => self.leases.create(&params, &lease).await,
        };
        match written {
            Ok(lease) => {
                self.observe(lease);
                true
            }
            Err(error) => {
                tracing::debug!(
                    lease = self.config.name,
                    error = error_chain(&error),
                    "cannot write the Lease; will retry"
                );
                false
            }
        }
    }
}
