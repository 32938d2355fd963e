//! Chooses the pod and port that serve a Service, for `services/proxy`.

use k8s_openapi::api::core::v1::ServicePort;
use mainstay_api::{
    ports::{DeclaredPort, resolve_target_port},
    selector::Labels,
};
use mainstay_store::List;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::{Api, Target},
    http::status::{ApiError, ApiResult},
    objects::object,
};

/// The number of a pod's port, by number or name; its first if nothing is said, or the usual one.
pub fn pod_port(pod: &Value, wanted: &str) -> ApiResult<u16> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let number = |port: &Value| port["containerPort"].as_u64().and_then(|number| u16::try_from(number).ok());
    if wanted.is_empty() {
        return Ok(ports.find_map(number).unwrap_or(80));
    }
    if let Ok(number) = wanted.parse::<u16>() {
        return Ok(number);
    }
    let found = ports.find(|port| port["name"] == wanted).and_then(number);
    found.ok_or_else(|| ApiError::bad_request(format!("the pod has no port {wanted:?}")))
}

/// The port of a Service that is meant.
fn service_port<'s>(service: &'s Value, wanted: &str) -> Option<&'s Value> {
    let ports = service["spec"]["ports"].as_array()?;
    match wanted {
        "" if ports.len() == 1 => ports.first(),
        "" => ports.iter().find(|port| port["name"].as_str().is_none_or(str::is_empty)),
        wanted => {
            let number = wanted.parse::<u64>().ok();
            ports.iter().find(|p| p["name"] == wanted || (number.is_some() && p["port"].as_u64() == number))
        }
    }
}

/// The port of a pod that a port of a Service stands for.
fn target_port(port: &Value, pod: &Value) -> Option<u16> {
    let port = ServicePort::deserialize(port).ok()?;
    let spec = &pod["spec"];
    let sidecars = spec["initContainers"].as_array().into_iter().flatten().filter(|c| c["restartPolicy"] == "Always");
    let containers = spec["containers"].as_array().into_iter().flatten().chain(sidecars);
    let declared = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten()).map(|port| {
        let text = |field: &str| port[field].as_str().unwrap_or_default();
        let number = |field: &str| port[field].as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(0);
        DeclaredPort {
            name: text("name"),
            protocol: text("protocol"),
            container_port: number("containerPort"),
            host_port: number("hostPort"),
        }
    });
    resolve_target_port(&port, declared).and_then(|number| u16::try_from(number).ok())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    ready && pod["metadata"]["deletionTimestamp"].is_null()
}

/// A pod that is ready to serve for the Service, and the port to serve on.
pub async fn endpoint(api: &Api, service: &Value, wanted: &str) -> ApiResult<(Value, u16)> {
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    let port = service_port(service, wanted)
        .ok_or_else(|| ApiError::not_served(format!("no service port {wanted:?} found for service {name:?}")))?;
    let nobody = || ApiError::not_served(format!("no endpoints available for service {name:?}"));
    let selector = &service["spec"]["selector"];
    if selector.as_object().is_none_or(serde_json::Map::is_empty) {
        return Err(nobody());
    }
    let selector = Labels::from_map(selector);
    let d = api.registry.find("", "v1", "pods").ok_or_else(ApiError::no_such_path)?.clone();
    let namespace = service["metadata"]["namespace"].as_str().map(str::to_owned);
    let prefix = Target { d: d.clone(), namespace, name: String::new() }.prefix();
    let listing = api.store.list(List { prefix: &prefix, start: None, limit: None, at: None }).await?;
    let mut ready = Vec::new();
    for entry in &listing.entries {
        if object::with_selector_fields(&d, entry, |fields| selector.matches(|key| fields.label(key)))? {
            let pod = object::parse(&d, entry)?;
            if let Some(port) = target_port(port, &pod).filter(|_| is_ready(&pod)) {
                ready.push((pod, port));
            }
        }
    }
    if ready.is_empty() {
        return Err(nobody());
    }
    Ok(ready.swap_remove(fastrand::usize(..ready.len())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_found_by_number_and_by_name() {
        let pod = json!({ "spec": { "containers": [
            { "ports": [{ "containerPort": 8080, "name": "http" }] },
            { "ports": [{ "containerPort": 9090, "name": "metrics" }] },
        ] } });
        assert_eq!(pod_port(&pod, "").unwrap(), 8080);
        assert_eq!(pod_port(&pod, "metrics").unwrap(), 9090);
        assert_eq!(pod_port(&pod, "7").unwrap(), 7);
        assert!(pod_port(&pod, "admin").is_err());
        let service = json!({ "spec": { "ports": [
            { "name": "web", "port": 80, "targetPort": "http" },
            { "name": "raw", "port": 81, "targetPort": 4000 },
            { "name": "same", "port": 82 },
        ] } });
        let to = |wanted: &str| service_port(&service, wanted).and_then(|port| target_port(port, &pod));
        assert_eq!((to("web"), to("80"), to("81"), to("same")), (Some(8080), Some(8080), Some(4000), Some(82)));
        assert_eq!((to("83"), to("")), (None, None));
    }
}
