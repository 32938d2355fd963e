//! What every cluster has from its first moment: four namespaces, the API's own Service and that of DNS, the ServiceCIDR
//! that Services get their addresses from, the priority classes of critical pods, and a class of storage that needs nothing but the machines.
//! The class of storage may be deleted while the server runs, or lose its mark.
//!
//! Made directly in the store's terms, through the same verbs as any client would use, before the
//! listener answers, so that nobody ever sees a cluster without them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use mainstay_api::wellknown::{API_SERVICE, kubernetes, mainstay, namespace};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    aggregator::{availability, registration, trust},
    auth::User,
    background::{
        bootstrap_flowcontrol, bootstrap_rbac,
        servers::{self, ServerHeartbeats},
    },
    custom_resources::follow,
    flowcontrol::conditions,
    handler::{Caller, Handler},
};

const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Flow control is looked at once in so many rounds: each minute.
const FLOW_CONTROL_ROUNDS: u64 = 6;
const NAMESPACES: [&str; 4] = [namespace::DEFAULT, namespace::SYSTEM, namespace::PUBLIC, namespace::NODE_LEASES];

#[derive(Debug, thiserror::Error)]
#[error("cannot set up {what}: {why}")]
pub struct BootstrapError {
    what: String,
    why: String,
}

impl BootstrapError {
    pub(crate) fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into() }
    }
}

/// Makes what is missing, and says where this server is.
pub async fn bootstrap(handler: &Arc<Handler>, advertise: SocketAddr) -> Result<(), BootstrapError> {
    create_missing(handler, advertise).await?;
    bootstrap_roles(handler).await?;
    let client = BootstrapClient::new(handler);
    // An older upstream server on the same etcd stores these kinds in versions that are not read here.
    if let Err(error) = bootstrap_flowcontrol::reconcile(&client).await {
        tracing::warn!(%error, "flow control is not set up; will try again");
    }
    let api = &handler.api;
    api.served.attach(handler);
    let loaded = follow::load(api).await;
    loaded.map_err(|error| BootstrapError::new("the custom kinds", error.to_string()))?;
    client.ensure("/apis/storage.k8s.io/v1/storageclasses", "local-path", &local_path()).await?;
    let loaded = api.aggregator.objects.load(&*api.store).await;
    loaded.map_err(|error| BootstrapError::new("the cache of APIServices", error.to_string()))?;
    publish_trust(handler).await?;
    let loaded = api.flow_control.objects.load(&*api.store).await;
    loaded.map_err(|error| BootstrapError::new("the cache of FlowSchemas", error.to_string()))?;
    servers::renew(handler, advertise, &mut ServerHeartbeats::default()).await?;
    // Last: no webhook that is down, and no quota, keeps a server from starting.
    let loaded = api.admission_cache.load(&*api.store).await;
    loaded.map(drop).map_err(|error| BootstrapError::new("the cache of objects for admission", error.to_string()))
}

/// Says whom other API servers may trust, where this one calls any.
async fn publish_trust(handler: &Arc<Handler>) -> Result<(), BootstrapError> {
    match (handler.ca.as_deref(), handler.api.aggregator.front_proxy()) {
        (Some(ca), Some(front_proxy)) => trust::publish(&BootstrapClient::new(handler), ca, front_proxy).await,
        _ => Ok(()),
    }
}

/// Makes the roles and bindings that every cluster has, and loads the cache of all of them.
pub async fn bootstrap_roles(handler: &Arc<Handler>) -> Result<(), BootstrapError> {
    bootstrap_rbac::reconcile(&BootstrapClient::new(handler)).await?;
    let api = &handler.api;
    let loaded = api.rbac.load(&api.registry, &*api.store).await;
    loaded.map(drop).map_err(|error| BootstrapError::new("the cache of roles and bindings", error.to_string()))
}

async fn create_missing(handler: &Arc<Handler>, advertise: SocketAddr) -> Result<(), BootstrapError> {
    let own = BootstrapClient::new(handler);
    for name in NAMESPACES {
        let namespace = json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": name } });
        own.ensure("/api/v1/namespaces", name, &namespace).await?;
    }
    let (range, _) = handler.api.settings.service_range;
    let address = Ipv4Addr::from(u32::from(range) + 1);
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let service = json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": { "name": API_SERVICE, "namespace": namespace::DEFAULT, "labels": labels },
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(), "clusterIPs": [address.to_string()],
            "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": advertise.port() }],
        },
    });
    own.ensure(&services(namespace::DEFAULT), API_SERVICE, &service).await?;
    own.ensure_service_cidr(handler.api.settings.service_range).await?;
    for (name, value, description) in kubernetes::SYSTEM_PRIORITY_CLASSES {
        let class = json!({
            "kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": { "name": name },
            "value": value, "description": description,
        });
        // Pods are given these priorities with or without the object: a full disk keeps no server from starting.
        if let Err(error) = own.ensure("/apis/scheduling.k8s.io/v1/priorityclasses", name, &class).await {
            tracing::warn!(%error, "a PriorityClass of the system is not listed; will retry");
        }
    }
    // Somebody may hold its address since before there was one.
    if let Err(error) = own.ensure(&services(namespace::SYSTEM), "kube-dns", &dns(range)).await {
        tracing::warn!(%error, "names of Services do not resolve");
    }
    Ok(())
}

fn services(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services")
}

/// Every machine answers there by itself: it selects nobody.
fn dns(range: Ipv4Addr) -> Value {
    let address = Ipv4Addr::from(u32::from(range) + 10).to_string();
    let labels = json!({
        "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
    });
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": { "name": "kube-dns", "namespace": namespace::SYSTEM, "labels": labels },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ports": [
                { "name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53 },
                { "name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53 },
            ],
        },
    })
}

/// Volumes are directories of the machine on which the first pod that uses them is placed.
fn local_path() -> Value {
    json!({
        "kind": "StorageClass", "apiVersion": "storage.k8s.io/v1",
        "metadata": {
            "name": "local-path", "annotations": { (kubernetes::DEFAULT_STORAGE_CLASS): "true" },
        },
        "provisioner": mainstay::LOCAL_PATH,
        "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
    })
}

/// Looks again from time to time, so that what someone deletes comes back, and keeps the list of servers.
pub async fn keep(handler: Arc<Handler>, advertise: SocketAddr, stop: CancellationToken) {
    let api = &handler.api;
    tokio::join!(
        restore_bootstrap_objects(&handler, advertise, &stop),
        servers::keep(handler.clone(), advertise, stop.clone()),
        api.rbac.follow(&api.registry, &*api.store, stop.clone()),
        follow::follow(handler.clone(), stop.clone()),
        api.admission_cache.follow(&*api.store, stop.clone()),
        api.aggregator.objects.follow(&*api.store, stop.clone()),
        api.flow_control.objects.follow(&*api.store, stop.clone()),
        conditions::follow(handler.clone(), stop.clone()),
        registration::follow(handler.clone(), stop.clone()),
        availability::follow(handler.clone(), stop.clone()),
    );
}

async fn restore_bootstrap_objects(handler: &Arc<Handler>, advertise: SocketAddr, stop: &CancellationToken) {
    for round in 1_u64.. {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        for made in [create_missing(handler, advertise).await, publish_trust(handler).await] {
            if let Err(error) = made {
                tracing::warn!(%error, "cannot restore the objects that every cluster has; will retry");
            }
        }
        if round.is_multiple_of(FLOW_CONTROL_ROUNDS)
            && let Err(error) = bootstrap_flowcontrol::reconcile(&BootstrapClient::new(handler)).await
        {
            tracing::warn!(%error, "cannot restore the objects that every cluster has; will retry");
        }
    }
}

/// The condition that a ServiceCIDR lacks; nothing if it has it.
fn service_cidr_condition(found: &Value, configured: &Value, now: Timestamp) -> Option<Value> {
    let (status, reason, message) = match &found["spec"]["cidrs"] {
        cidrs if cidrs == configured => ("True", "", "Kubernetes default Service CIDR is ready".to_owned()),
        cidrs => (
            "False",
            "KubernetesDefaultServiceCIDRInconsistent",
            format!("this server is configured with --service-range {configured}; the ServiceCIDR has {cidrs}"),
        ),
    };
    let known = found["status"]["conditions"].as_array().into_iter().flatten();
    let same = |known: &Value| {
        (known["type"].as_str(), known["status"].as_str()) == (Some("Ready"), Some(status))
            && known["message"] == message
    };
    if known.into_iter().any(same) {
        return None;
    }
    let since = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    Some(json!({
        "type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }))
}

pub(crate) struct BootstrapClient<'a> {
    handler: &'a Arc<Handler>,
    caller: Caller,
}

impl<'a> BootstrapClient<'a> {
    pub(crate) fn new(handler: &'a Arc<Handler>) -> Self {
        Self { handler, caller: Caller::Internal(Arc::new(User::internal("bootstrap"))) }
    }

    pub(crate) async fn call(&self, method: Method, path: &str, object: Option<&Value>) -> (StatusCode, Value) {
        let body = Full::new(object.map(Value::to_string).unwrap_or_default().into());
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap_or_default();
        let response = self.handler.clone().handle(request, self.caller.clone()).await;
        let code = response.status();
        let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// The ServiceCIDR `kubernetes`, with the range that this server gives out, or saying that it has another.
    async fn ensure_service_cidr(&self, (range, prefix): (Ipv4Addr, u8)) -> Result<(), BootstrapError> {
        let collection = "/apis/networking.k8s.io/v1/servicecidrs";
        let configured = json!([format!("{range}/{prefix}")]);
        let object = json!({
            "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
            "metadata": { "name": "kubernetes" }, "spec": { "cidrs": configured },
        });
        self.ensure(collection, "kubernetes", &object).await?;
        let path = format!("{collection}/kubernetes");
        let (_, mut found) = self.call(Method::GET, &path, None).await;
        let Some(condition) = service_cidr_condition(&found, &configured, Timestamp::now()) else { return Ok(()) };
        found["status"] = json!({ "conditions": [condition] });
        match self.call(Method::PUT, &format!("{path}/status"), Some(&found)).await {
            (StatusCode::OK | StatusCode::CONFLICT | StatusCode::NOT_FOUND, _) => Ok(()), // looked at again
            (_, status) => Err(failed(collection, "kubernetes", &status)),
        }
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
}

pub(crate) fn failed(collection: &str, name: &str, status: &Value) -> BootstrapError {
    let why = status["message"].as_str().unwrap_or("no answer").to_owned();
    BootstrapError { what: format!("{collection}/{name}"), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_service_cidr_is_ready_with_the_configured_range_only() {
        let configured = json!(["10.96.0.0/16"]);
        let mut found = json!({ "spec": { "cidrs": ["10.96.0.0/16"] } });
        let ready = service_cidr_condition(&found, &configured, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("True")));
        found["status"]["conditions"] = json!([ready]);
        assert_eq!(service_cidr_condition(&found, &configured, Timestamp::UNIX_EPOCH), None, "said once");
        let other = service_cidr_condition(&found, &json!(["10.0.0.0/8"]), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(other["status"], "False");
        assert!(other["message"].as_str().unwrap().contains("10.96.0.0/16"));
    }
}
