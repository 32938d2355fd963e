//! Runs a task while this process holds the Lease; cancels it when the Lease is lost.
//!
//! The task has ended before the Lease is released, so that two servers never run it at once. Requests that fail are
//! retried until [`renew_deadline`](crate::lease::renew_deadline); a leader that cannot renew by then stops its task
//! and becomes a candidate again.
//!
//! A leader that was frozen cannot stop in time. So each acquisition begins a [`LeaderTerm`], whose number goes along with
//! every write of the task: the API refuses those of a term that is over. Whoever hears of such a refusal ends the term at
//! once, without waiting for the next renewal.
//!
//! Candidates watch the Lease, so that one which is released is acquired at once.

use std::{future::Future, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{PostParams, WatchParams},
};
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
        Self { namespace, name: name.to_owned(), identity: identity.into(), lease_duration: Duration::from_secs(4) }
    }

    fn retry_period(&self) -> Duration {
        self.lease_duration / 4
    }

    fn acquire_delay(&self) -> Duration {
        let period = self.retry_period();
        Backoff::new(period, period, ACQUIRE_JITTER).delay(1, fastrand::f64())
    }
}

/// One term of leadership: from an acquisition of the Lease to its loss.
#[derive(Clone, Debug)]
pub struct LeaderTerm {
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The `resourceVersion` that the acquisition gave to the Lease: no other term has the same.
    pub version: u64,
    /// Cancelled when the task has to end.
    pub stop: CancellationToken,
    /// To be cancelled by whoever learns that the term is over. The elector then stops the task.
    pub ended: CancellationToken,
}

/// Runs `task` whenever this process is the leader, until `stop` is cancelled or the task ends by itself. The task is
/// given its term, with a token that is cancelled when it has to end; the Lease is released after it has.
pub async fn run_while_leading<F>(
    client: Client,
    config: LeaderElectionConfig,
    stop: CancellationToken,
    mut task: impl FnMut(LeaderTerm) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let leases = Api::namespaced(client, &config.namespace);
    let mut elector = LeaderElector { leases, config, observed: None, transitions: None, acquired: None };
    loop {
        let Some(version) = stop.run_until_cancelled(elector.acquire()).await else { return };
        let LeaderElectionConfig { namespace, name, identity, .. } = elector.config.clone();
        tracing::info!(lease = name, identity, term = version, "became leader");
        let (stop_task, ended) = (stop.child_token(), CancellationToken::new());
        let term = LeaderTerm { namespace, name, version, stop: stop_task.clone(), ended: ended.clone() };
        let running = tokio::spawn(task(term));
        let mut running = std::pin::pin!(running);
        let task_ended = tokio::select! {
            why = elector.renew_until_lost() => {
                tracing::warn!(lease = elector.config.name, term = version, why, "stopped leading");
                ended.cancel(); // nothing more is written, even if nobody else has the Lease yet
                false
            }
            () = ended.cancelled() => {
                let why = "a write was refused because another server has the Lease";
                tracing::warn!(lease = elector.config.name, term = version, why, "stopped leading");
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
    /// `leaseTransitions`, as last read.
    transitions: Option<i32>,
    /// When our term began.
    acquired: Option<MicroTime>,
}

/// News of the Lease: each item says that it is worth while to look again.
type LeaseNews = BoxStream<'static, ()>;

impl LeaderElector {
    /// Returns when the Lease is ours, with the version that it has got.
    async fn acquire(&mut self) -> u64 {
        let mut news: Option<LeaseNews> = None;
        loop {
            self.read_lease().await;
            let now = Instant::now().into_std();
            match lease::next_step(self.observed.as_ref(), &self.config.identity, now) {
                AcquireStep::Create | AcquireStep::Acquire => {
                    if let Some(version) = self.begin_term().await {
                        return version;
                    }
                    sleep(self.config.acquire_delay()).await;
                }
                AcquireStep::Wait(expires) => {
                    let look_again = Instant::from_std(expires).min(Instant::now() + self.config.acquire_delay());
                    tokio::select! {
                        () = self.next_change(&mut news) => {}
                        () = sleep_until(look_again) => {}
                    }
                }
            }
        }
    }

    /// Writes ourselves into the Lease; returns its version if that was done.
    async fn begin_term(&mut self) -> Option<u64> {
        self.acquired = Some(MicroTime(Timestamp::now()));
        // Also if it was ours: the process that had it may be another, under the same name.
        self.transitions = self.observed.as_ref().map(|_| self.transitions.unwrap_or(0).saturating_add(1));
        if !self.write_holder(&self.config.identity.clone()).await {
            return None;
        }
        let version = self.observed.as_ref().and_then(|lease| lease.resource_version.parse().ok());
        if version.is_none() {
            tracing::error!(lease = self.config.name, "the API gave the Lease a version that is no number");
        }
        version
    }

    /// Returns when the Lease has changed since it was read; never, if that cannot be found out.
    async fn next_change(&self, news: &mut Option<LeaseNews>) {
        if news.is_none() {
            let version = self.observed.as_ref().map_or("0", |lease| lease.resource_version.as_str());
            let only = WatchParams::default().fields(&format!("metadata.name={}", self.config.name));
            *news = self
                .leases
                .watch(&only, version)
                .await
                .ok()
                .map(|events| events.take_while(|event| std::future::ready(event.is_ok())).map(drop).boxed());
        }
        let next = match news {
            Some(events) => events.next().await,
            None => None,
        };
        if next.is_none() {
            *news = None;
            std::future::pending::<()>().await;
        }
    }

    /// Renews the Lease; returns when it can no longer be relied on, and why.
    async fn renew_until_lost(&mut self) -> &'static str {
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
                Ok(false) if self.observed.is_none() => return "the Lease was deleted",
                Ok(false) if !self.is_holder() => return "another server has the Lease",
                Ok(false) if Instant::now() < deadline => {}
                Ok(false) | Err(_) => return "the Lease could not be renewed in time",
            }
        }
    }

    /// Whether the Lease, as last read, names us.
    fn is_holder(&self) -> bool {
        self.observed.as_ref().is_some_and(|lease| lease.holder == self.config.identity)
    }

    /// Clears the holder if that is still us, so that another candidate starts at once. What was observed last is nearly always what is there, so
    /// it is read anew only if that was refused: on a busy machine every request counts.
    async fn release(&mut self) {
        let timeout = self.config.lease_duration / 2;
        let release = async {
            while self.is_holder() && !self.write_holder("").await {
                sleep(self.config.retry_period() / 10).await;
                self.read_lease().await;
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
        self.transitions = spec.lease_transitions;
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
                acquire_time: self.acquired.clone(),
                renew_time: Some(MicroTime(Timestamp::now())),
                lease_transitions: Some(self.transitions.unwrap_or(0)),
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
