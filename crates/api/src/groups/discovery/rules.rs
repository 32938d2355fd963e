//! EndpointSlice.

use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};

use crate::{
    field::{Errors, FieldError, Path},
    ports::{PROTOCOLS, TCP},
    strategy::Rules,
    validation::{
        check::{fill, immutable, list, number, one_of, required_one_of, text},
        names,
    },
};

pub struct EndpointSliceRules;

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;

impl Rules for EndpointSliceRules {
    type Object = EndpointSlice;

    fn default(object: &mut EndpointSlice) {
        object.endpoints.get_or_insert_default();
        for port in object.ports.iter_mut().flatten() {
            port.name.get_or_insert_default();
            fill(&mut port.protocol, TCP);
        }
    }

    fn validate(object: &EndpointSlice, errors: &mut Errors) {
        required_one_of(&object.address_type, &["FQDN", "IPv4", "IPv6"], &Path::new("addressType"), errors);
        let (path, endpoints) = (Path::new("endpoints"), list(&object.endpoints));
        if endpoints.len() > MAX_ENDPOINTS {
            errors.push(FieldError::too_many(&path, endpoints.len(), MAX_ENDPOINTS));
        } else {
            for (i, endpoint) in endpoints.iter().enumerate() {
                validate_endpoint(endpoint, &object.address_type, &path.index(i), errors);
            }
        }
        validate_ports(list(&object.ports), &Path::new("ports"), errors);
    }

    fn validate_update(object: &EndpointSlice, old: &EndpointSlice, errors: &mut Errors) {
        immutable(&object.address_type, &old.address_type, &Path::new("addressType"), errors);
    }
}

fn validate_endpoint(endpoint: &Endpoint, address_type: &str, path: &Path, errors: &mut Errors) {
    let (addresses, at) = (&endpoint.addresses, path.child("addresses"));
    if addresses.is_empty() {
        errors.push(FieldError::required(&at, "must contain at least 1 address"));
    } else if addresses.len() > MAX_ADDRESSES {
        errors.push(FieldError::too_many(&at, addresses.len(), MAX_ADDRESSES));
    }
    for (i, address) in addresses.iter().enumerate() {
        let path = at.index(i);
        match address_type {
            "IPv4" => names::refuse(address, &path, names::ipv4, errors),
            "IPv6" => names::refuse(address, &path, names::ipv6, errors),
            "FQDN" => validate_domain(address, &path, errors),
            _ => {}
        }
        if names::parse_ip(address).is_some() && address_type != "FQDN" {
            names::refuse(address, &path, names::non_special_ip, errors);
        }
    }
    if let Some(node) = &endpoint.node_name {
        names::refuse(node, &path.child("nodeName"), names::dns1123_subdomain, errors);
    }
    if let Some(hostname) = &endpoint.hostname {
        names::refuse(hostname, &path.child("hostname"), names::dns1123_label, errors);
    }
    if let Some(hints) = &endpoint.hints {
        let path = path.child("hints");
        let zones: Vec<&str> = list(&hints.for_zones).iter().map(|zone| zone.name.as_str()).collect();
        validate_hints(&zones, &path.child("forZones"), |_, _, _| {}, errors);
        let nodes: Vec<&str> = list(&hints.for_nodes).iter().map(|node| node.name.as_str()).collect();
        let validate_node = |name: &str, path: &Path, errors: &mut Errors| {
            names::refuse(name, path, names::dns1123_subdomain, errors);
        };
        validate_hints(&nodes, &path.child("forNodes"), validate_node, errors);
    }
}

/// The names that an endpoint is for.
fn validate_hints(hints: &[&str], path: &Path, validate: impl Fn(&str, &Path, &mut Errors), errors: &mut Errors) {
    if hints.len() > MAX_HINTS {
        errors.push(FieldError::too_many(path, hints.len(), MAX_HINTS));
    }
    let mut names = BTreeSet::new();
    for (i, name) in hints.iter().enumerate() {
        let path = path.index(i).child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !names.insert(*name) {
            errors.push(FieldError::duplicate(&path, *name));
        } else {
            validate(name, &path, errors);
        }
    }
}

fn validate_domain(name: &str, path: &Path, errors: &mut Errors) {
    let name = name.strip_suffix('.').unwrap_or(name);
    let complaints = names::dns1123_subdomain(name);
    if !complaints.is_empty() {
        errors.push(FieldError::invalid(path, name, complaints.join(",")));
    } else if !name.contains('.') {
        let words = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(path, name, words));
    }
}

fn validate_ports(ports: &[EndpointPort], path: &Path, errors: &mut Errors) {
    if ports.len() > MAX_PORTS {
        errors.push(FieldError::too_many(path, ports.len(), MAX_PORTS));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = text(&port.name);
        if !name.is_empty() {
            names::refuse(name, &path.child("name"), names::dns1123_label, errors);
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        one_of(text(&port.protocol), PROTOCOLS, &path.child("protocol"), errors);
        if let Some(given) = port.port {
            number(given.into(), names::is_valid_port_num(given), &path.child("port"), errors);
        }
        if let Some(protocol) = &port.app_protocol {
            names::refuse(protocol, &path.child("appProtocol"), names::qualified_name, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    #[test]
    fn a_slice_lists_addresses_of_one_kind() {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-1"},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.5"]}], "ports": [{"port": 80}],
        });
        assert_completes::<EndpointSliceRules>(
            slice.clone(),
            with(&slice, json!({"ports": [{"name": "", "port": 80, "protocol": "TCP"}]})),
        );
        assert_refused::<EndpointSliceRules>(
            with(
                &slice,
                json!({
                    "endpoints": [{"addresses": []}, {"addresses": ["fd00::1", "127.0.0.1"]}],
                    "ports": [{"name": "a"}, {"name": "a", "protocol": "HTTP"}],
                }),
            ),
            &[
                "endpoints[0].addresses: Required value: must contain at least 1 address",
                r#"endpoints[1].addresses[0]: Invalid value: "fd00::1": must be a valid IPv4 address"#,
                r#"endpoints[1].addresses[1]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#,
                r#"ports[1].name: Duplicate value: "a""#,
                r#"ports[1].protocol: Unsupported value: "HTTP": supported values: "SCTP", "TCP", "UDP""#,
            ],
        );
        assert_refused::<EndpointSliceRules>(
            with(&slice, json!({"addressType": "FQDN", "endpoints": [{"addresses": ["web"]}]})),
            &[
                r#"endpoints[0].addresses[0]: Invalid value: "web": should be a domain with at least two segments separated by dots"#,
            ],
        );
        assert_refused::<EndpointSliceRules>(
            with(&slice, json!({"addressType": null})),
            &["addressType: Required value"],
        );
        assert_update::<EndpointSliceRules>(
            &slice,
            json!({"addressType": "IPv6", "endpoints": []}),
            &[r#"addressType: Invalid value: "IPv6": field is immutable"#],
        );
    }
}
