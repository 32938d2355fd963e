//! A whole API with its scheduler, no sockets, no files, and nodes that exist by what they say.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Event, Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::{
    offer::Offer,
    wellknown::{mainstay::RENEWED_OFFER, namespace::NODE_LEASES},
};
use mainstay_scheduler::{DebugReply, Handle, Metrics, Settings, metrics::Registry};
use mainstay_server::SCHEDULER_USER;
use mainstay_testing::TestApi;
use mainstay_testing::rights::{self, RightsRecorder};
pub use mainstay_testing::until;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::prelude::*;

pub const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Cluster {
    pub client: Client,
    pub handle: Handle,
    pub registry: Arc<Registry>,
    stop: CancellationToken,
    scheduler: JoinHandle<()>,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::with(Settings::default()).await
    }

    pub async fn with(settings: Settings) -> Self {
        let log = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
        let shown = tracing_subscriber::fmt::layer().with_test_writer().with_filter(log);
        let _ = tracing_subscriber::registry().with(shown).with(RightsRecorder).try_init();
        let api = TestApi::start(&["default", "kube-system", NODE_LEASES]).await.with_roles().await;
        let mut registry = Registry::default();
        let (metrics, handle) = (Metrics::register(&mut registry), Handle::default());
        let (own, stop) = (api.user_client(SCHEDULER_USER), api.stop.clone());
        let scheduler = tokio::spawn(mainstay_scheduler::run(own, settings, metrics, handle.clone(), stop));
        Self { client: api.client("test"), handle, registry: Arc::new(registry), stop: api.stop, scheduler }
    }

    /// Stops everything; it must end by itself.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(TIMEOUT, self.scheduler).await.expect("the scheduler stops").expect("without panic");
        let lacking = rights::lacking();
        assert!(lacking.is_empty(), "rights that the scheduler lacks: {lacking:?}");
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub fn offers(&self) -> Api<Offer> {
        Api::all(self.client.clone())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// A node that is ready and offers all it has for a long time.
    pub async fn node(&self, name: &str, cpu: &str) {
        self.labelled(name, cpu, json!({})).await;
    }

    pub async fn labelled(&self, name: &str, cpu: &str, labels: Value) {
        let node = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.expect("create a node");
        let has = json!({ "cpu": cpu, "memory": "8Gi", "pods": "110" });
        let status = json!({ "status": {
            "allocatable": has, "capacity": has, "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        let patched = self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
        patched.expect("patch a node's status");
        self.offer(name, cpu, 600).await;
    }

    /// The node says what it has, knowing of no pod.
    pub async fn offer(&self, name: &str, cpu: &str, ttl: i32) {
        let offer: Offer = serde_json::from_value(json!({
            "apiVersion": "mainstay.dev/v1", "kind": "Offer", "metadata": { "name": name },
            "spec": {
                "free": { "cpu": cpu, "memory": "8Gi", "pods": "110" }, "automaticPorts": ["31000-31001"],
                "explicitPorts": ["1-65535"], "ttlSeconds": ttl, "seen": "0",
            },
        }))
        .unwrap();
        match self.offers().create(&PostParams::default(), &offer).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let mut current = self.offers().get(name).await.expect("the offer there is");
                current.spec = offer.spec;
                self.offers().replace(name, &PostParams::default(), &current).await.expect("replace an offer");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The node renews this version of its offer.
    pub async fn heartbeat(&self, node: &str, offer: &str) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NODE_LEASES);
        let renew_time = MicroTime(Timestamp::now());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": node, "annotations": { RENEWED_OFFER: offer } },
            "spec": { "holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renew_time },
        });
        match leases.patch(node, &PatchParams::default(), &Patch::Merge(&lease)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let lease = serde_json::from_value(lease).unwrap();
                leases.create(&PostParams::default(), &lease).await.expect("create a Lease");
            }
            renewed => drop(renewed.expect("renew a Lease")),
        }
    }

    pub async fn pod(&self, name: &str, spec: Value) {
        self.pod_with(name, json!({}), spec).await;
    }

    pub async fn pod_with(&self, name: &str, metadata: Value, spec: Value) {
        let mut object = json!({
            "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "100m" } } }] },
        });
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let object = serde_json::from_value(object).unwrap();
        self.pods().create(&PostParams::default(), &object).await.expect("create a pod");
    }

    pub async fn delete(&self, pod: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.pods().delete(pod, &now).await.expect("delete a pod");
    }

    pub async fn where_is(&self, name: &str) -> Option<String> {
        self.pods().get(name).await.unwrap().spec.unwrap().node_name
    }

    pub async fn placed(&self, name: &str) -> String {
        until(&format!("{name} is placed"), async || self.where_is(name).await.is_some()).await;
        self.where_is(name).await.unwrap()
    }

    /// Reason and message of the condition that says why a pod is not placed.
    pub async fn unscheduled_condition(&self, name: &str) -> Option<(String, String)> {
        let pod = self.pods().get(name).await.unwrap();
        let conditions = pod.status?.conditions?;
        let condition = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        Some((condition.reason?, condition.message?))
    }

    pub async fn wait_until_unschedulable(&self, name: &str, of: &str) -> String {
        let unscheduled_condition =
            async || self.unscheduled_condition(name).await.map(|(_, message)| message).unwrap_or_default();
        until(&format!("{name} complains of {of:?}"), async || unscheduled_condition().await.contains(of)).await;
        unscheduled_condition().await
    }

    pub async fn events(&self, reason: &str) -> Vec<Event> {
        let events = Api::<Event>::namespaced(self.client.clone(), "default");
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
    }

    pub async fn debug(&self, path: &str) -> String {
        match self.handle.debug(path).await {
            DebugReply::Text(text) => text,
            other => panic!("{path}: {other:?}"),
        }
    }

    pub fn metric(&self, line: &str) -> bool {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text.lines().any(|own| own == line)
    }
}

pub fn cpu(amount: &str) -> Value {
    json!({ "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": amount } } }] })
}
