//! A whole API with its controllers within the test's process: no sockets, no files.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, PropagationPolicy},
};
use mainstay_controllers::Settings;
use mainstay_testing::TestApi;
pub use mainstay_testing::until;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const ROOT_CA: &str = "-----BEGIN CERTIFICATE-----\nnot really\n-----END CERTIFICATE-----\n";
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Cluster {
    pub client: Client,
    stop: CancellationToken,
    controllers: JoinHandle<()>,
}

impl Cluster {
    /// An API with a `default` namespace and running controllers.
    pub async fn start() -> Self {
        let log = tracing_subscriber::EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| "warn,mainstay_controllers=debug".into());
        let _ = tracing_subscriber::fmt().with_env_filter(log).with_test_writer().try_init();
        let api = TestApi::start(&[]).await;
        let settings = Settings { root_ca: ROOT_CA.to_owned(), ..Default::default() };
        let controllers =
            tokio::spawn(mainstay_controllers::run(api.client("controllers"), settings, api.stop.clone()));
        let cluster = Self { client: api.client("test"), stop: api.stop, controllers };
        cluster.namespace("default").await;
        cluster
    }

    /// Stops everything; it must end by itself.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.controllers).await.expect("the controllers stop").expect("without panic");
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
