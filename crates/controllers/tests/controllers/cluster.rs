//! A whole API with its controllers within the test's process: no sockets, no files.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, PropagationPolicy},
};
use mainstay_api::node_loss::Timing;
use mainstay_controllers::{Clients, Settings};
use mainstay_server::CONTROLLERS_USER;
use mainstay_testing::TestApi;
use mainstay_testing::rights::{self, RightsRecorder};
pub use mainstay_testing::until;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::prelude::*;

pub const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\nnot really\n-----END CERTIFICATE-----\n";
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Cluster {
    pub client: Client,
    api: TestApi,
    stop: CancellationToken,
    controllers: JoinHandle<()>,
}

impl Cluster {
    /// An API with a `default` namespace and running controllers.
    pub async fn start() -> Self {
        Self::start_with(Timing::default()).await
    }

    /// With these timings of node loss.
    pub async fn start_with(timing: Timing) -> Self {
        Self::start_as(Settings { timing, ..Settings::default() }).await
    }

    pub async fn start_as(settings: Settings) -> Self {
        let log = tracing_subscriber::EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| "warn,mainstay_controllers=debug".into());
        let shown = tracing_subscriber::fmt::layer().with_test_writer().with_filter(log);
        let _ = tracing_subscriber::registry().with(shown).with(RightsRecorder).try_init();
        let api = TestApi::start(&["kube-system"]).await.with_roles().await;
        let settings = Settings { root_ca: ROOT_CA.to_owned(), ..settings };
        let clients = Clients::new(api.user_client(CONTROLLERS_USER), api.controller_clients());
        let controllers = tokio::spawn(mainstay_controllers::run(clients, settings, api.stop.clone()));
        let cluster = Self { client: api.client("test"), stop: api.stop.clone(), api, controllers };
        cluster.namespace("default").await;
        cluster
    }

    /// Stops everything; it must end by itself.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.controllers).await.expect("the controllers stop").expect("without panic");
        let lacking = rights::lacking();
        assert!(lacking.is_empty(), "rights that a controller lacks: {lacking:?}");
    }

    /// A client of the agent of this node.
    pub fn node_client(&self, name: &str) -> Client {
        self.api.node_client(name)
    }

    pub fn namespaces(&self) -> Api<Namespace> {
        Api::all(self.client.clone())
    }

    pub fn maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub async fn namespace(&self, name: &str) {
        let namespace = json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": { "name": name }, "spec": { "finalizers": ["kubernetes"] },
        });
        let namespace = serde_json::from_value(namespace).unwrap();
        self.namespaces().create(&PostParams::default(), &namespace).await.expect("create a namespace");
    }

    /// A config map with these owners, and more metadata.
    pub async fn map(&self, name: &str, owners: &[&Value], extra: Value) -> ConfigMap {
        let mut object = json!({
            "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": name, "ownerReferences": owners },
        });
        object["metadata"].as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let object = serde_json::from_value(object).unwrap();
        self.maps("default").create(&PostParams::default(), &object).await.expect("create a config map")
    }

    pub async fn delete_map(&self, name: &str, policy: PropagationPolicy) {
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        self.maps("default").delete(name, &params).await.expect("delete a config map");
    }

    pub async fn map_gone(&self, name: &str) {
        until(&format!("config map {name} is gone"), async || self.get(name).await.is_none()).await;
    }

    pub async fn get(&self, name: &str) -> Option<ConfigMap> {
        self.maps("default").get_opt(name).await.expect("get a config map")
    }

    /// Returns when everything that was to happen to earlier objects has: a new owner and its
    /// dependent come and go through the same queue.
    pub async fn settled(&self) {
        let owner = self.map("settled-owner", &[], json!({})).await;
        self.map("settled-dependent", &[&reference(&owner, false)], json!({})).await;
        self.delete_map("settled-owner", PropagationPolicy::Background).await;
        self.map_gone("settled-dependent").await;
    }
}

pub fn reference(owner: &ConfigMap, block: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name, "uid": owner.metadata.uid,
        "blockOwnerDeletion": block,
    })
}
