//! Environment variables with the addresses of Services, such as `WEB_SERVICE_HOST`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use mainstay_api::{
    ports::protocol_or_default,
    wellknown::{API_SERVICE, namespace},
};

use super::Variables;
use crate::{
    objects::{ObjectError, Objects},
    spec::pod_ref,
};

/// Every pod learns where the API is; those that want links, the Services of their namespace as well.
pub async fn visible(objects: &Objects, pod: &Pod) -> Result<Vec<Arc<Service>>, ObjectError> {
    let whose = pod_ref(pod);
    let mut services = Vec::new();
    match objects.service(&whose.uid, namespace::DEFAULT, API_SERVICE).await {
        Ok(api) => services.push(api),
        Err(ObjectError::Missing) => {}
        Err(lack) => return Err(lack),
    }
    if pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true) {
        services.extend(objects.services(&whose.uid, &whose.namespace).await?.into_values());
    }
    Ok(services)
}

/// A later Service of the same name wins: the namespace's own before the API's.
pub fn variables(services: &[Arc<Service>]) -> Variables {
    let mut variables = Variables::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let Some(spec) = &service.spec else { continue };
        let host = spec.cluster_ip.as_deref().unwrap_or_default();
        let ports = spec.ports.as_deref().unwrap_or_default();
        let (Some(first), false) = (ports.first(), host.is_empty() || host == "None") else { continue };
        let prefix = upper(name);
        let mut set = |name: String, value: String| variables.insert(format!("{prefix}_{name}"), value);
        set("SERVICE_HOST".to_owned(), host.to_owned());
        set("SERVICE_PORT".to_owned(), first.port.to_string());
        for port in ports {
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                set(format!("SERVICE_PORT_{}", upper(name)), port.port.to_string());
            }
        }
        for (i, port) in ports.iter().enumerate() {
            let protocol = protocol_or_default(port.protocol.as_deref());
            let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            let url = format!("{}://{bracketed}:{}", protocol.to_lowercase(), port.port);
            let link = format!("PORT_{}_{}", port.port, protocol.to_uppercase());
            if i == 0 {
                set("PORT".to_owned(), url.clone());
            }
            set(link.clone(), url);
            set(format!("{link}_PROTO"), protocol.to_lowercase());
            set(format!("{link}_PORT"), port.port.to_string());
            set(format!("{link}_ADDR"), host.to_owned());
        }
    }
    variables
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}
