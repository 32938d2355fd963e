//! The Kubernetes API over a store in memory, in the test's process: no sockets, no files.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use mainstay_api::registry::Registry;
use mainstay_server::{
    api, client,
    handler::Handler,
    settings::{PodSecurityLevel, PodSecuritySettings, Settings},
};
use mainstay_store::{Memory, Store};
use tokio_util::sync::CancellationToken;

/// An API with stock settings, which serves until `stop` is cancelled.
pub struct TestApi {
    handler: Arc<Handler>,
    pub stop: CancellationToken,
}

impl TestApi {
    /// With these namespaces.
    pub async fn start(namespaces: &[&str]) -> Self {
        let api = Self::over(Arc::new(Memory::new()));
        let all = Api::all(api.client("test"));
        for name in namespaces {
            let metadata = ObjectMeta { name: Some((*name).to_owned()), ..ObjectMeta::default() };
            let namespace = Namespace { metadata, ..Namespace::default() };
            all.create(&PostParams::default(), &namespace).await.expect("create a namespace");
        }
        api
    }

    /// Over a store of the test's own, which may already hold objects.
    pub fn over(store: Arc<dyn Store>) -> Self {
        let stop = CancellationToken::new();
        let any_pod = PodSecurityLevel::Privileged;
        let pod_security = PodSecuritySettings { enforce: any_pod, warn: any_pod, audit: any_pod };
        let settings = Settings { pod_security, ..Settings::default() };
        let api = api::Api::new(Registry::builtin(), store, settings);
        Self { handler: Arc::new(Handler::new(api, stop.clone())), stop }
    }

    /// A client whose requests carry this user agent.
    pub fn client(&self, user_agent: &str) -> Client {
        client::internal(self.handler.clone(), user_agent)
    }
}
