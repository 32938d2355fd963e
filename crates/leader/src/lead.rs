//! Does a work while a lease is held.

use std::{future::Future, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::plan::{self, Seen, Step};

/// Which lease, who we are, and how long it is held without a word.
#[derive(Clone, Debug)]
pub struct Term {
    pub namespace: String,
    pub name: String,
    pub identity: String,
    pub duration: Duration,
}

impl Term {
    /// A lease in `kube-system` of the usual length.
    pub fn new(name: &str, identity: impl Into<String>) -> Self {
        let namespace = "kube-system".to_owned();
        Self { namespace, name: name.to_owned(), identity: identity.into(), duration: Duration::from_secs(6) }
    }

    fn renew_every(&self) -> Duration {
        self.duration / 4
    }
}

/// Does `work` whenever this is the one to do it, until asked to stop. The work is given a token that is
/// cancelled when it has to end; the lease is not given back before it has.
pub async fn lead<F>(client: Client, term: Term, stop: CancellationToken, mut work: impl FnMut(CancellationToken) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut post = Post { leases: Api::namespaced(client, &term.namespace), term, seen: None };
    loop {
        let Some(()) = stop.run_until_cancelled(post.acquire()).await else { return };
        tracing::info!(lease = post.term.name, "leads");
        let ended = stop.child_token();
        let working = tokio::spawn(work(ended.clone()));
        let mut working = std::pin::pin!(working);
        let over = tokio::select! {
            () = post.hold() => {
                tracing::warn!(lease = post.term.name, "leads no more: the lease could not be renewed");
                false
            }
            _ = &mut working => true,
            () = stop.cancelled() => false,
        };
        ended.cancel();
        if !over {
            let _ = working.await;
        }
        post.give_back().await;
        if over || stop.is_cancelled() {
            return;
        }
    }
}

struct Post {
    leases: Api<Lease>,
    term: Term,
    seen: Option<Seen>,
}

impl Post {
    /// Returns when the lease is ours.
    async fn acquire(&mut self) {
        loop {
            self.look().await;
            let now = Instant::now().into_std();
            match plan::step(self.seen.as_ref(), &self.term.identity, now) {
                Step::Create | Step::Take if self.write(&self.term.identity.clone()).await => return,
                Step::Create | Step::Take => sleep(self.term.renew_every()).await,
                Step::Wait(until) => {
                    let until = Instant::from_std(until);
                    sleep_until(until.min(Instant::now() + self.term.renew_every())).await;
                }
            }
        }
    }

    /// Keeps the lease; returns when it can no longer be relied on.
    async fn hold(&mut self) {
        let mut renewed = Instant::now();
        loop {
            sleep(self.term.renew_every()).await;
            let begun = Instant::now();
            let limit = Instant::from_std(plan::give_up(renewed.into_std(), self.term.duration));
            let renewal = async {
                self.look().await;
                let own = self.seen.as_ref().is_some_and(|seen| seen.holder == self.term.identity);
                own && self.write(&self.term.identity.clone()).await
            };
            match tokio::time::timeout_at(limit, renewal).await {
                Ok(true) => renewed = begun,
                Ok(false) if Instant::now() < limit && self.is_ours() => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    fn is_ours(&self) -> bool {
        self.seen.as_ref().is_none_or(|seen| seen.holder == self.term.identity)
    }

    /// The next begins at once, if the lease is still ours.
    async fn give_back(&mut self) {
        let patience = self.term.renew_every();
        let give = async {
            self.look().await;
            if self.seen.as_ref().is_some_and(|seen| seen.holder == self.term.identity) {
                self.write("").await;
            }
        };
        let _ = tokio::time::timeout(patience, give).await;
    }

    /// Reads the lease. What cannot be read is as it was.
    async fn look(&mut self) {
        match self.leases.get_opt(&self.term.name).await {
            Ok(Some(lease)) => self.take_in(lease),
            Ok(None) => self.seen = None,
            Err(error) => tracing::debug!(lease = self.term.name, %error, "cannot read a lease"),
        }
    }

    fn take_in(&mut self, lease: Lease) {
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let read = Seen {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: seconds.map_or(self.term.duration, Duration::from_secs),
            version: lease.metadata.resource_version.unwrap_or_default(),
            since: Instant::now().into_std(),
        };
        self.seen = Some(plan::observe(self.seen.take(), read));
    }

    /// Writes a holder, if the lease is still what was read.
    async fn write(&mut self, holder: &str) -> bool {
        let now = Some(MicroTime(Timestamp::now()));
        let version = self.seen.as_ref().map(|seen| seen.version.clone());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.term.name.clone()),
                namespace: Some(self.term.namespace.clone()),
                resource_version: version.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: (!holder.is_empty()).then(|| holder.to_owned()),
                lease_duration_seconds: i32::try_from(self.term.duration.as_secs().max(1)).ok(),
                acquire_time: now.clone(),
                renew_time: now,
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams::default();
        let written = match version {
            Some(_) => self.leases.replace(&self.term.name, &params, &lease).await,
            None => self.leases.create(&params, &lease).await,
        };
        match written {
            Ok(lease) => {
                self.take_in(lease);
                true
            }
            Err(error) => {
                tracing::debug!(lease = self.term.name, %error, "cannot write a lease");
                false
            }
        }
    }
}
