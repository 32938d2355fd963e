//! Publishes this node's Offer and lets heartbeats renew it.
//!
//! An offer is written soon after it changes; a burst of changes is one. While it stays the same nothing is written: the
//! node's Lease names the version of the offer that the heartbeat renews. Heartbeats name no offer that is not what would be
//! offered now, so that one which cannot be written anew runs out. Once per renewal period the offer is looked up, since the
//! server keeps it in memory and the scheduler deletes those that have expired.
//!
//! A machine that is not ready, that evicts its pods to change its version, or whose agent does not yet know what it holds, offers nothing, and one that stops takes
//! its offer back: it gets nothing new. If the agent dies the offer runs out by itself.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{Api, Client, api::DeleteParams};
use mainstay_api::{
    node::is_ready,
    offer::{Offer, OfferSpec},
};
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::PodDemand;
use crate::{pods::Pods, publish_own::publish_own, settings::Offering, watch_backoff::api_retries};

/// Changes within this are one.
const BURST: Duration = Duration::from_millis(50);
/// How often is looked whether there is something to offer yet.
const IDLE: Duration = Duration::from_secs(2);
/// How often a server that knows no offers is asked again.
const FOREIGN: Duration = Duration::from_secs(60);
/// No call may hold up the next one longer.
const DEADLINE: Duration = Duration::from_secs(2);

pub struct OfferPublisher {
    offers: Api<Offer>,
    node_name: String,
    pods: Arc<Pods>,
    node: watch::Receiver<Option<Node>>,
    /// The version of the offer that heartbeats renew.
    renewed: watch::Sender<Option<String>>,
    offering: Offering,
    /// Whether the machine takes no new pods for now.
    closed: watch::Receiver<bool>,
}

/// An offer, and the pods it takes into account.
#[derive(PartialEq)]
struct PreparedOffer {
    spec: OfferSpec,
    pods: Vec<PodUid>,
}

/// An offer as it was last found in the API.
struct PublishedOffer {
    offer: PreparedOffer,
    version: Option<String>,
    confirmed: Instant,
}

enum PublishError {
    /// The server knows no offers.
    NotServed,
    Other(String),
}

impl OfferPublisher {
    pub fn new(
        client: Client,
        node_name: String,
        pods: Arc<Pods>,
        node: watch::Receiver<Option<Node>>,
        renewed: watch::Sender<Option<String>>,
        offering: &Offering,
        closed: watch::Receiver<bool>,
    ) -> Self {
        Self { offers: Api::all(client), node_name, pods, node, renewed, offering: offering.clone(), closed }
    }

    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.offer()).await;
        self.renewed.send_replace(None);
        let taken_back = tokio::time::timeout(DEADLINE, self.withdraw()).await;
        if !matches!(taken_back, Ok(Ok(()))) {
            tracing::warn!("cannot withdraw this node's offer; it expires by itself");
        }
    }

    async fn offer(&self) {
        let (mut node, mut changed, mut synced) = (self.node.clone(), self.pods.changed(), self.pods.synced_sources());
        let (renewal, mut closed) = (Offering::renewal_period(self.offering.ttl), self.closed.clone());
        let mut published: Option<PublishedOffer> = None;
        let mut retries = api_retries();
        loop {
            node.mark_unchanged();
            changed.mark_unchanged();
            synced.mark_unchanged();
            closed.mark_unchanged();
            let due =
                published.as_ref().map_or(Duration::ZERO, |last| renewal.saturating_sub(last.confirmed.elapsed()));
            let mut wait = due;
            match (self.prepare_offer(), &mut published) {
                (None, None) => wait = IDLE,
                (None, Some(_)) => {
                    self.renewed.send_replace(None);
                    match self.withdraw().await {
                        Ok(()) => published = None,
                        Err(_) => wait = retries.record_failure(),
                    }
                }
                (Some(known), Some(last)) if !due.is_zero() && known.offers_the_same_as(&last.offer) => {}
                (Some(known), Some(last)) if known == last.offer && self.is_unchanged(last).await => {
                    wait = renewal;
                    last.confirmed = Instant::now();
                    self.renewed.send_replace(last.version.clone());
                }
                (Some(known), _) => match self.publish(&known).await {
                    Ok(version) => {
                        retries.reset();
                        wait = renewal;
                        self.renewed.send_replace(version.clone());
                        published = Some(PublishedOffer { offer: known, version, confirmed: Instant::now() });
                    }
                    Err(PublishError::NotServed) => {
                        tracing::debug!("the server has no offers; its scheduler has to look at nodes");
                        wait = FOREIGN;
                    }
                    Err(PublishError::Other(error)) => {
                        wait = retries.record_failure();
                        tracing::debug!(%error, retry_in = ?wait, "cannot publish this node's offer; will retry");
                    }
                },
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => continue,
                Ok(()) = node.changed() => {}
                Ok(()) = changed.changed() => {}
                Ok(()) = synced.changed() => {}
                Ok(()) = closed.changed() => {}
            }
            tokio::time::sleep(BURST).await;
        }
    }

    /// What is offered now, if anything is.
    fn prepare_offer(&self) -> Option<PreparedOffer> {
        let synced = *self.pods.synced_sources().borrow();
        let node = self.node.borrow().clone().filter(is_ready)?;
        if *self.closed.borrow() || !(synced.api && synced.file) {
            return None;
        }
        // First up to where was looked, then at what is there: so that nothing counts as seen that is not.
        let seen = self.pods.observed_version();
        let held = self.pods.active_pods();
        let claims: Vec<PodDemand> = held.iter().map(|(_, pod)| PodDemand::from_pod(pod)).collect();
        let room = self.offering.capacity(&node);
        let ttl_seconds = i32::try_from(self.offering.ttl.as_secs()).unwrap_or(i32::MAX).max(1);
        let spec = OfferSpec { ttl_seconds, seen: seen.to_string(), ..room.offered(&claims) };
        Some(PreparedOffer { spec, pods: held.into_iter().map(|(uid, _)| uid).collect() })
    }

    /// Whether the API still has the offer as it was published. A server that does not answer has not lost it.
    async fn is_unchanged(&self, last: &PublishedOffer) -> bool {
        match tokio::time::timeout(DEADLINE, self.offers.get_opt(&self.node_name)).await {
            Ok(Ok(found)) => found.is_some_and(|found| found.metadata.resource_version == last.version),
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Returns the version of the offer. Until then no heartbeat renews the last one.
    async fn publish(&self, offer: &PreparedOffer) -> Result<Option<String>, PublishError> {
        self.renewed.send_replace(None);
        let spec = OfferSpec { renew_time: Some(MicroTime(Timestamp::now())), ..offer.spec.clone() };
        let offer = Offer::new(&self.node_name, spec);
        match tokio::time::timeout(DEADLINE, publish_own(&self.offers, &offer)).await {
            Ok(Ok(offer)) => Ok(offer.metadata.resource_version),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(PublishError::NotServed),
            Ok(Err(error)) => Err(PublishError::Other(error_chain(&error))),
            Err(_) => Err(PublishError::Other("the API does not answer".to_owned())),
        }
    }

    async fn withdraw(&self) -> Result<(), kube::Error> {
        match self.offers.delete(&self.node_name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => answer.map(drop),
        }
    }
}

impl PreparedOffer {
    /// Only how far was looked differs: that can wait until the next renewal.
    fn offers_the_same_as(&self, other: &Self) -> bool {
        let rest = |spec: &OfferSpec| OfferSpec { seen: String::new(), ..spec.clone() };
        self.pods == other.pods && rest(&self.spec) == rest(&other.spec)
    }
}
