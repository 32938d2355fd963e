//! Heartbeats of a simulated machine, as `mainstay_agent::node` sends them, and its Node.

use std::{collections::BTreeMap, io, time::Duration};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::MicroTime};
use mainstay_agent::fence::RenewalOutcome;
use mainstay_api::{
    node_loss::{FencePromise, STOPS_WITHIN, WITNESSES},
    wellknown::{mainstay::RENEWED_OFFER, namespace::NODE_LEASES},
};
use mainstay_sim::{
    hollow_node::NodeTemplate,
    requests::{self, CallError, JSON, MERGE},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{agent::Agent, machine::CPU};

impl Agent {
    async fn register(&self) {
        let path = format!("/api/v1/nodes/{}", self.machine.name);
        loop {
            if let Some(node) = self.call(Method::GET, &path, JSON, Vec::new()).await {
                self.state.lock().node = serde_json::from_slice(&node).ok();
                return;
            }
            self.call(Method::POST, "/api/v1/nodes", JSON, self.node_object().to_string().into()).await;
        }
    }

    fn node_object(&self) -> Value {
        let template = NodeTemplate { cpu: CPU, memory: 8 << 30, pods: 20, zones: 0, ..NodeTemplate::default() };
        template.node_object(self.machine.number, &self.machine.name, Timestamp::now())
    }

    pub(super) async fn send_heartbeats(&self) {
        self.register().await;
        let own_node = format!("/api/v1/nodes/{}", self.machine.name);
        let mut is_unanswered = false;
        loop {
            // A server that hears us while we do not hear it must not go on to think that all is well.
            if is_unanswered && self.call(Method::GET, &own_node, JSON, Vec::new()).await.is_none() {
                self.machine.sleep(Duration::from_millis(200)).await;
                continue;
            }
            let promise = self.promise();
            let sent = self.machine.boot_time();
            let renewed = timeout(self.timing.heartbeat, self.renew(promise.as_ref())).await;
            let is_in_time = self.machine.boot_time().saturating_sub(sent) <= self.timing.heartbeat;
            let outcome = match renewed {
                Ok(outcome) if is_in_time => outcome,
                Ok(_) | Err(_) => RenewalOutcome::Unanswered,
            };
            self.record_renewal(sent, promise.as_ref(), outcome);
            if outcome == RenewalOutcome::Accepted {
                is_unanswered = false;
                self.look_at_own_node().await;
                let spent = self.machine.boot_time().saturating_sub(sent);
                self.machine.sleep(self.timing.heartbeat.saturating_sub(spent)).await;
            } else {
                is_unanswered |= outcome == RenewalOutcome::Unanswered;
                self.machine.sleep(Duration::from_millis(200)).await;
            }
        }
    }

    async fn renew(&self, promise: Option<&FencePromise>) -> RenewalOutcome {
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASES}/leases");
        let own = format!("{all}/{}", self.machine.name);
        let offer = self.state.lock().offer.as_ref().map(|(_, version)| version.to_string());
        let mut annotations = BTreeMap::from([
            (RENEWED_OFFER.to_owned(), offer),
            (STOPS_WITHIN.to_owned(), None),
            (WITNESSES.to_owned(), None),
        ]);
        let promised = promise.into_iter().flat_map(FencePromise::to_annotations);
        annotations.extend(promised.map(|(key, value)| (key, Some(value))));
        let spec = json!({ "holderIdentity": self.machine.name, "renewTime": MicroTime(Timestamp::now()) });
        let patch = json!({ "metadata": { "annotations": annotations }, "spec": spec });
        match requests::call(&self.client, Method::PATCH, &own, MERGE, patch.to_string().into()).await {
            Err(error) if error.code() == Some(404) => {}
            renewed => return renewed.map_or_else(|error| outcome(&error), |_| RenewalOutcome::Accepted),
        }
        annotations.retain(|_, value| value.is_some());
        let lease = json!({
            "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": { "name": self.machine.name, "namespace": NODE_LEASES, "annotations": annotations },
            "spec": spec,
        });
        let created = requests::call(&self.client, Method::POST, &all, JSON, lease.to_string().into()).await;
        created.map_or_else(|error| outcome(&error), |_| RenewalOutcome::Accepted)
    }

    /// Reads the Node, and says that it is ready if the API does not.
    async fn look_at_own_node(&self) {
        let is_well = self.state.lock().node.as_ref().is_some_and(mainstay_api::node::is_ready);
        if is_well && self.simulation.chance.per_mille(800) {
            return;
        }
        let path = format!("/api/v1/nodes/{}", self.machine.name);
        let Some(node) = self.call(Method::GET, &path, JSON, Vec::new()).await else { return };
        let Ok(node) = serde_json::from_slice::<Node>(&node) else { return };
        if !mainstay_api::node::is_ready(&node) {
            let body = json!({ "status": { "conditions": self.node_object()["status"]["conditions"] } });
            self.call(Method::PATCH, &format!("{path}/status"), requests::STRATEGIC, body.to_string().into()).await;
        }
        self.state.lock().node = Some(node);
        self.changed.notify_one();
    }
}

/// Whether a heartbeat that failed like this may have been accepted all the same, as agents judge it.
fn outcome(error: &CallError) -> RenewalOutcome {
    let is_refused = match error {
        CallError::Refused { code, .. } => matches!(code, 400..=499 | 503 | 507),
        CallError::Unanswered { source, .. } => {
            let mut chain = std::iter::successors(Some(&**source as &dyn std::error::Error), |error| error.source());
            chain.any(|error| {
                let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
                kind == Some(io::ErrorKind::ConnectionRefused)
            })
        }
    };
    if is_refused { RenewalOutcome::Refused } else { RenewalOutcome::Unanswered }
}
