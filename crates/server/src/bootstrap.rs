//! What every cluster has from its first moment: four namespaces, the API's own Service, and a class of storage
//! that needs nothing but the machines. The class may be deleted while the server runs, or lose its mark.
//!
//! Made directly in the store's terms, through the same verbs as any client would use, before the
//! listener answers, so that nobody ever sees a cluster without them.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::User,
    handler::{Caller, Handler},
};

const LOOK_AGAIN: Duration = Duration::from_secs(10);
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

#[derive(Debug, thiserror::Error)]
#[error("cannot set up {what}: {why}")]
pub struct BootstrapError {
    what: String,
    why: String,
}

/// Makes what is missing, and says where this server is.
pub async fn bootstrap(handler: &Arc<Handler>, advertise: SocketAddr) -> Result<(), BootstrapError> {
    furnish(handler, advertise).await?;
    Own::new(handler).ensure("/apis/storage.k8s.io/v1/storageclasses", "local-path", &local_path()).await?;
    if advertise.ip().is_loopback() {
        return Ok(()); // an endpoint that every pod would find in itself is none
    }
    Own::new(handler).ensure_endpoints(advertise).await
}

async fn furnish(handler: &Arc<Handler>, advertise: SocketAddr) -> Result<(), BootstrapError> {
    let own = Own::new(handler);
    for name in NAMESPACES {
        let namespace = json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": name } });
        own.ensure("/api/v1/namespaces", name, &namespace).await?;
    }
    let (range, _) = handler.api.settings.service_range;
    let address = std::net::Ipv4Addr::from(u32::from(range) + 1);
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let service = json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": { "name": "kubernetes", "namespace": "default", "labels": labels },
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(), "clusterIPs": [address.to_string()],
            "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": advertise.port() }],
        },
    });
    own.ensure("/api/v1/namespaces/default/services", "kubernetes", &service).await
}

/// Volumes are directories of the machine on which the first pod that uses them is placed.
fn local_path() -> Value {
    json!({
        "kind": "StorageClass", "apiVersion": "storage.k8s.io/v1",
        "metadata": {
            "name": "local-path", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
        },
        "provisioner": "mainstay.dev/local-path",
        "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
    })
}

/// Looks again from time to time, so that what someone deletes comes back. Endpoints are left alone:
/// several servers would contend for them.
pub async fn keep(handler: Arc<Handler>, advertise: SocketAddr, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        if let Err(error) = furnish(&handler, advertise).await {
            tracing::warn!(%error, "will try again");
        }
    }
}

struct Own<'a> {
    handler: &'a Arc<Handler>,
    caller: Caller,
}

impl<'a> Own<'a> {
    fn new(handler: &'a Arc<Handler>) -> Self {
        Self { handler, caller: Caller::Internal(Arc::new(User::internal("bootstrap"))) }
    }

    async fn call(&self, method: Method, path: &str, object: Option<&Value>) -> (StatusCode, Value) {
        let body = Full::new(object.map(Value::to_string).unwrap_or_default().into());
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap_or_default();
        let response = self.handler.clone().handle(request, self.caller.clone()).await;
        let code = response.status();
        let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn ensure(&self, collection: &str, name: &str, object: &Value) -> Result<(), BootstrapError> {
        match self.call(Method::GET, &format!("{collection}/{name}"), None).await {
            (StatusCode::OK, _) => return Ok(()),
            (StatusCode::NOT_FOUND, _) => {}
            (_, status) => return Err(failed(collection, name, &status)),
        }
        match self.call(Method::POST, collection, Some(object)).await {
            (StatusCode::CREATED | StatusCode::CONFLICT, _) => Ok(()), // another server may be faster
            (_, status) => Err(failed(collection, name, &status)),
        }
    }

    /// The endpoints behind the Service: where this server really listens.
    async fn ensure_endpoints(&self, advertise: SocketAddr) -> Result<(), BootstrapError> {
        let collection = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        let slice = json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                "name": "kubernetes", "namespace": "default",
                "labels": { "kubernetes.io/service-name": "kubernetes" },
            },
            "addressType": if advertise.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [{ "addresses": [advertise.ip().to_string()], "conditions": { "ready": true } }],
            "ports": [{ "name": "https", "port": advertise.port(), "protocol": "TCP" }],
        });
        self.put(collection, "kubernetes", &slice).await?;
        let endpoints = json!({
            "kind": "Endpoints", "apiVersion": "v1",
            "metadata": {
                "name": "kubernetes", "namespace": "default",
                "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" },
            },
            "subsets": [{
                "addresses": [{ "ip": advertise.ip().to_string() }],
                "ports": [{ "name": "https", "port": advertise.port(), "protocol": "TCP" }],
            }],
        });
        self.put("/api/v1/namespaces/default/endpoints", "kubernetes", &endpoints).await
    }

    async fn put(&self, collection: &str, name: &str, object: &Value) -> Result<(), BootstrapError> {
        match self.call(Method::PUT, &format!("{collection}/{name}"), Some(object)).await {
            (StatusCode::OK, _) => Ok(()),
            (StatusCode::NOT_FOUND, _) => self.ensure(collection, name, object).await,
            (_, status) => Err(failed(collection, name, &status)),
        }
    }
}

fn failed(collection: &str, name: &str, status: &Value) -> BootstrapError {
    let why = status["message"].as_str().unwrap_or("no answer").to_owned();
    BootstrapError { what: format!("{collection}/{name}"), why }
}
