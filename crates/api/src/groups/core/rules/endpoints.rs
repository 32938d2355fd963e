//! Endpoints.

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, Endpoints};

use crate::{
    field::{Errors, FieldError, Path},
    ports::{PROTOCOLS, TCP},
    strategy::Rules,
    validation::{
        check::{self, fill, list, text},
        names,
    },
};

/// The kind `Endpoints`.
pub struct EndpointsRules;

impl Rules for EndpointsRules {
    type Object = Endpoints;

    fn default(endpoints: &mut Endpoints) {
        let ports = endpoints.subsets.iter_mut().flatten().flat_map(|subset| subset.ports.iter_mut().flatten());
        ports.for_each(|port| fill(&mut port.protocol, TCP));
    }

    fn validate(endpoints: &Endpoints, errors: &mut Errors) {
        for (i, subset) in list(&endpoints.subsets).iter().enumerate() {
            let at = Path::new("subsets").index(i);
            let (ready, waiting) = (list(&subset.addresses), list(&subset.not_ready_addresses));
            if ready.is_empty() && waiting.is_empty() {
                errors.push(FieldError::required(&at, "must specify `addresses` or `notReadyAddresses`"));
            }
            for (field, addresses) in [("addresses", ready), ("notReadyAddresses", waiting)] {
                for (j, address) in addresses.iter().enumerate() {
                    validate_address(address, &at.child(field).index(j), errors);
                }
            }
            let ports = list(&subset.ports);
            for (j, port) in ports.iter().enumerate() {
                validate_port(port, ports.len() > 1, &at.child("ports").index(j), errors);
            }
        }
    }
}

fn validate_address(address: &EndpointAddress, path: &Path, errors: &mut Errors) {
    names::refuse(&address.ip, &path.child("ip"), names::ip, errors);
    if !text(&address.hostname).is_empty() {
        names::refuse(text(&address.hostname), &path.child("hostname"), names::dns1123_label, errors);
    }
    if let Some(node) = &address.node_name {
        names::refuse(node, &path.child("nodeName"), names::dns1123_subdomain, errors);
    }
    names::refuse(&address.ip, &path.child("ip"), names::non_special_ip, errors);
}

fn validate_port(port: &EndpointPort, needs_name: bool, path: &Path, errors: &mut Errors) {
    let name = text(&port.name);
    if needs_name || !name.is_empty() {
        names::require(name, &path.child("name"), names::dns1123_label, errors);
    }
    check::number(port.port.into(), names::is_valid_port_num(port.port), &path.child("port"), errors);
    check::required_one_of(text(&port.protocol), PROTOCOLS, &path.child("protocol"), errors);
    if let Some(protocol) = &port.app_protocol {
        names::refuse(protocol, &path.child("appProtocol"), names::qualified_name, errors);
    }
}
