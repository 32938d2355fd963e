//! Variables that tell a container which host ports were assigned to its pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::ports::assigned_host_ports;

/// `HOST_PORT_TCP_80`, and `HOST_PORT_WEB` for a port with a name.
pub fn variables(pod: &Pod) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for port in assigned_host_ports(pod) {
        let number = port.host_port.to_string();
        if !port.name.is_empty() {
            variables.insert(format!("HOST_PORT_{}", port.name.to_uppercase().replace('-', "_")), number.clone());
        }
        variables.insert(format!("HOST_PORT_{}_{}", port.protocol, port.container_port), number);
    }
    variables
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn assigned_ports_become_variables_by_number_and_by_name() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "annotations": {
                "k8s.mesosphere.io/port_TCP_80": "31000", "k8s.mesosphere.io/port_UDP_53": "31002",
            }},
            "spec": { "hostNetwork": true, "containers": [{ "name": "a", "ports": [
                { "containerPort": 80, "name": "web-ui" }, { "containerPort": 53, "protocol": "UDP" },
            ]}]},
        }))
        .unwrap();
        let variables: Vec<(String, String)> = variables(&pod).into_iter().collect();
        let expected = [("HOST_PORT_TCP_80", "31000"), ("HOST_PORT_UDP_53", "31002"), ("HOST_PORT_WEB_UI", "31000")];
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
