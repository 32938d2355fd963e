//! Heartbeats: renews the node's Lease, with the offer that it renews and the promise of the fence.
//!
//! A heartbeat counts from when it was sent, by boot time, and only if its answer came within one heartbeat. After one that nobody
//! answered no other is sent before a server has answered a read: so a server that hears this node without being heard
//! soon hears nothing either, which is what other nodes rely on that have this one as a witness (`docs/node-loss.md`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::{
    node_loss::{FencePromise, STOPS_WITHIN, WITNESSES},
    wellknown::mainstay::{AGENT, RENEWED_OFFER},
};
use mainstay_errors::error_chain;
use mainstay_runtime::fence::boot_time;
use serde_json::json;

use super::{
    reporter::{NodeReporter, has_code, owner},
    sole_agent::agent_identity,
};
use crate::{fence::RenewalOutcome, watch_backoff::api_retries};

/// So often in a row a server may refuse to renew the lease.
const REFUSALS: u32 = 5;
pub(super) const LEASES: &str = mainstay_api::wellknown::namespace::NODE_LEASES;

impl NodeReporter {
    pub(super) async fn heartbeat(self: &Arc<Self>) {
        let mut known = self.node();
        let (mut retries, mut refused, mut is_unanswered) = (api_retries(), 0, false);
        let (period, deadline) = (self.parts.settings.heartbeat_period(), self.parts.settings.timing.heartbeat);
        loop {
            // The Lease belongs to the Node: first there has to be one.
            let Ok(owner) = known.wait_for(Option::is_some).await.map(|node| node.as_ref().and_then(owner)) else {
                return;
            };
            let outcome = if is_unanswered && !self.is_answered(deadline).await {
                RenewalOutcome::Unanswered
            } else {
                // What holds up the promise must not hold up the heartbeat.
                let promised = tokio::time::timeout(deadline / 2, self.parts.fence.promise());
                let promise = promised.await.unwrap_or_default();
                let sent = boot_time();
                let outcome = self.renew(owner, promise.as_ref(), deadline).await;
                // The process may have been frozen meanwhile.
                let outcome = match boot_time().saturating_sub(sent) <= deadline {
                    true => outcome,
                    false => RenewalOutcome::Unanswered,
                };
                self.parts.fence.record_renewal(sent, promise, outcome);
                if outcome == RenewalOutcome::Accepted {
                    (refused, is_unanswered) = (0, false);
                    retries.reset();
                    tokio::time::sleep(period.saturating_sub(boot_time().saturating_sub(sent))).await;
                    continue;
                }
                outcome
            };
            is_unanswered |= outcome == RenewalOutcome::Unanswered;
            refused += 1;
            if outcome == RenewalOutcome::Unanswered || refused == REFUSALS {
                self.parts.servers.leave();
                refused = 0;
            }
            tokio::time::sleep(retries.record_failure().min(period / 2)).await;
        }
    }

    /// Whether a server answers at all.
    async fn is_answered(&self, deadline: Duration) -> bool {
        let leases: Api<Lease> = Api::namespaced(self.parts.client.clone(), LEASES);
        matches!(tokio::time::timeout(deadline, leases.get_opt(self.name())).await, Ok(Ok(_)))
    }

    async fn renew(
        &self,
        owner: Option<OwnerReference>,
        promise: Option<&FencePromise>,
        deadline: Duration,
    ) -> RenewalOutcome {
        match tokio::time::timeout(deadline, self.write_lease(owner, promise)).await {
            Ok(Ok(())) => RenewalOutcome::Accepted,
            Ok(Err(error)) => {
                tracing::debug!(error = error_chain(&error), "cannot renew the node's Lease; will retry");
                outcome(&error)
            }
            Err(_) => {
                tracing::debug!("cannot renew the node's Lease: no answer; will retry");
                RenewalOutcome::Unanswered
            }
        }
    }

    async fn write_lease(&self, owner: Option<OwnerReference>, promise: Option<&FencePromise>) -> kube::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.parts.client.clone(), LEASES);
        let lease_seconds = self.parts.settings.timing.unknown_after.as_secs().max(1);
        let spec = LeaseSpec {
            holder_identity: Some(self.name().to_owned()),
            lease_duration_seconds: Some(i32::try_from(lease_seconds).unwrap_or(i32::MAX)),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        };
        let mut annotations = BTreeMap::from([
            (AGENT.to_owned(), Some(agent_identity(&self.parts.settings))),
            (RENEWED_OFFER.to_owned(), self.renewed_offer().borrow().clone()),
            (STOPS_WITHIN.to_owned(), None),
            (WITNESSES.to_owned(), None),
        ]);
        let promised = promise.into_iter().flat_map(FencePromise::to_annotations);
        annotations.extend(promised.map(|(key, value)| (key, Some(value))));
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations }, "spec": spec }));
        match leases.patch(self.name(), &PatchParams::default(), &patch).await {
            Err(error) if has_code(&error, 404) => {}
            renewed => return renewed.map(drop),
        }
        let metadata = ObjectMeta {
            name: Some(self.name().to_owned()),
            namespace: Some(LEASES.to_owned()),
            owner_references: owner.map(|owner| vec![owner]),
            annotations: Some(annotations.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()),
            ..ObjectMeta::default()
        };
        let lease = Lease { metadata, spec: Some(spec) };
        leases.create(&PostParams::default(), &lease).await.map(drop)
    }
}

/// Whether a heartbeat that failed like this may have been accepted all the same.
fn outcome(error: &kube::Error) -> RenewalOutcome {
    match error {
        // The server judged it, or its store has no room. Not 503: a store that did not answer may have written it all the same.
        kube::Error::Api(status) if matches!(status.code, 400..=499 | 507) => RenewalOutcome::Refused,
        kube::Error::Service(source) => {
            let connect = source.downcast_ref::<hyper_util::client::legacy::Error>();
            let is_unsent = connect.is_some_and(hyper_util::client::legacy::Error::is_connect);
            if is_unsent { RenewalOutcome::Refused } else { RenewalOutcome::Unanswered }
        }
        _ => RenewalOutcome::Unanswered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_judged_is_certainly_not_accepted() {
        let judged = |code: u16| {
            let status = kube::core::Status { code, ..kube::core::Status::failure("no", "No") };
            outcome(&kube::Error::Api(Box::new(status)))
        };
        for code in [400, 403, 409, 422, 429, 507] {
            assert_eq!(judged(code), RenewalOutcome::Refused, "{code}");
        }
        for code in [500, 502, 503, 504] {
            assert_eq!(judged(code), RenewalOutcome::Unanswered, "{code}");
        }
    }
}
