//! Which port of a pod a Service's port means.

use k8s_openapi::{api::core::v1::ServicePort, apimachinery::pkg::util::intstr::IntOrString};

use super::{DeclaredPort, protocol_or_default};

/// The pod's port that connections to a Service's port reach. A number is taken as it is, declared or not; a name has to be
/// that of a declared port of the same protocol.
pub fn resolve_target_port<'a>(
    service_port: &ServicePort,
    mut declared: impl Iterator<Item = DeclaredPort<'a>>,
) -> Option<i32> {
    match &service_port.target_port {
        None | Some(IntOrString::Int(0)) => Some(service_port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) if name.is_empty() => Some(service_port.port),
        Some(IntOrString::String(name)) => {
            let protocol = protocol_or_default(service_port.protocol.as_deref());
            declared.find(|port| port.name == name && port.protocol() == protocol).map(|port| port.container_port)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const fn declared(name: &'static str, protocol: &'static str, container_port: i32) -> DeclaredPort<'static> {
        DeclaredPort { name, protocol, container_port, host_port: 0 }
    }

    #[test]
    fn names_are_looked_up_by_protocol_and_numbers_are_taken_as_they_are() {
        let pod = [declared("web", "", 80), declared("dns", "UDP", 53), declared("dns", "TCP", 5353)];
        let resolve = |target: Value, protocol: Value| {
            let port = json!({ "port": 7, "targetPort": target, "protocol": protocol });
            resolve_target_port(&serde_json::from_value(port).unwrap(), pod.into_iter())
        };
        for (target, protocol, expected) in [
            (json!("web"), json!("TCP"), Some(80)),
            (json!("web"), json!(null), Some(80)),
            (json!("web"), json!("UDP"), None),
            (json!("dns"), json!("UDP"), Some(53)),
            (json!("dns"), json!(null), Some(5353)),
            (json!("www"), json!("TCP"), None),
            (json!(12_345), json!("TCP"), Some(12_345)),
            (json!(0), json!("TCP"), Some(7)),
            (json!(""), json!("TCP"), Some(7)),
            (json!(null), json!("TCP"), Some(7)),
        ] {
            assert_eq!(resolve(target.clone(), protocol.clone()), expected, "{target} {protocol}");
        }
    }
}
