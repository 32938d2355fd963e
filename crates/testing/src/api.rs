//! The Kubernetes API over a store in memory, in the test's process: no sockets, no files.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use mainstay_api::registry::Registry;
use mainstay_server::{
    api, bootstrap, client,
    fence::Fence,
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

    /// With the roles and bindings that every cluster has; later changes of them have no effect.
    pub async fn with_roles(self) -> Self {
        bootstrap::bootstrap_roles(&self.handler).await.expect("make the roles");
        self
    }

    /// A client with no rights but those that roles give to the user.
    pub fn user_client(&self, name: &str) -> Client {
        client::user(self.handler.clone(), name, None)
    }

    /// A client of the agent of this node.
    pub fn node_client(&self, name: &str) -> Client {
        client::node(self.handler.clone(), name)
    }

    /// Makes clients with no rights but those that roles give to a service account of `kube-system`.
    pub fn controller_clients(&self) -> impl Fn(&str) -> Client + Send + Sync + use<> {
        let handler = self.handler.clone();
        move |account| client::controller(handler.clone(), account, None)
    }

    /// A client, named for the logs, whose writes hold behind the fence alone.
    pub fn fenced_client(&self, part: &str, fence: Fence) -> Client {
        client::internal_fenced(self.handler.clone(), part, fence)
    }

    /// A client whose requests carry this user agent.
    pub fn client(&self, user_agent: &str) -> Client {
        client::internal(self.handler.clone(), user_agent)
    }
}
