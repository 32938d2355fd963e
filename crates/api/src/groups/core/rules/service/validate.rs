//! What one service can get wrong by itself.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use serde_json::json;

use super::{
    NONE, addresses, is_externally_accessible, is_headless, is_load_balancer, needs_cluster_ip, needs_health_check_port,
};
use crate::{
    field::{Errors, FieldError, Path},
    ports::PROTOCOLS,
    service as annotations,
    validation::{
        check::{self, list, number, optional_one_of, required_one_of, text},
        labels, names,
    },
};

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const ONLY_LOAD_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";
const NOT_EXTERNAL_NAME: &str = "may not be set for ExternalName services";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MAX_AFFINITY_SECONDS: i32 = 86_400;

pub fn service(service: &Service, errors: &mut Errors) {
    let (path, Some(spec)) = (Path::new("spec"), &service.spec) else { return };
    validate_topology(service, errors);
    validate_annotations(service, errors);
    if list(&spec.ports).is_empty() && !is_headless(spec) && needs_cluster_ip(spec) {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    validate_type(spec, &path, errors);
    let mut port_names = BTreeSet::new();
    for (i, port) in list(&spec.ports).iter().enumerate() {
        let named = list(&spec.ports).len() > 1;
        validate_port(port, named, &mut port_names, &path.child("ports").index(i), errors);
    }
    if let Some(selector) = &spec.selector {
        labels::validate_labels(selector, &path.child("selector"), errors);
    }
    validate_affinity(spec, &path, errors);
    if needs_cluster_ip(spec) {
        addresses::validate(spec, &path, errors);
    }
    for (i, ip) in list(&spec.external_ips).iter().enumerate() {
        let path = path.child("externalIPs").index(i);
        let before = errors.len();
        names::refuse(ip, &path, names::ip, errors);
        if errors.len() == before {
            names::refuse(ip, &path, names::non_special_ip, errors);
        }
    }
    required_one_of(text(&spec.type_), TYPES, &path.child("type"), errors);
    validate_port_numbers(spec, &path.child("ports"), errors);
    validate_load_balancer(service, spec, &path, errors);
    validate_traffic(spec, &path, errors);
}

/// What our own annotations ask for.
fn validate_annotations(service: &Service, errors: &mut Errors) {
    let path = Path::new("metadata").child("annotations");
    type Understood = fn(&str) -> bool;
    let understood: [(&str, Understood, &str); 3] = [
        (annotations::HOLD, |text| annotations::parse_hold(text).is_some(), annotations::HOLD_EXPECTED),
        (annotations::PROXY, |text| annotations::parse_data_path(text).is_some(), annotations::PROXY_EXPECTED),
        (annotations::TAGS, |text| annotations::parse_tags(text).is_some(), annotations::TAGS_EXPECTED),
    ];
    for (key, is_understood, words) in understood {
        let value = service.metadata.annotations.as_ref().and_then(|all| all.get(key));
        if let Some(value) = value.filter(|value| !is_understood(value)) {
            errors.push(FieldError::invalid(&path.key(key), value.as_str(), words));
        }
    }
}

fn validate_topology(service: &Service, errors: &mut Errors) {
    let annotation = |key| service.metadata.annotations.as_ref().and_then(|all| all.get(key));
    if let (Some(mode), Some(hints)) = (annotation(TOPOLOGY_MODE), annotation(TOPOLOGY_HINTS))
        && mode != hints
    {
        let path = Path::new("metadata").child("annotations").key(TOPOLOGY_MODE);
        let words = format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
        errors.push(FieldError::invalid(&path, mode.as_str(), words));
    }
}

fn validate_type(spec: &ServiceSpec, path: &Path, errors: &mut Errors) {
    match text(&spec.type_) {
        kind @ ("LoadBalancer" | "NodePort") if is_headless(spec) => {
            let words = format!("may not be set to 'None' for {kind} services");
            errors.push(FieldError::invalid(&path.child("clusterIPs").index(0), NONE, words));
        }
        "ExternalName" => {
            let given = [
                ("clusterIPs", !list(&spec.cluster_ips).is_empty()),
                ("ipFamilies", !list(&spec.ip_families).is_empty()),
                ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
            ];
            for (name, _) in given.into_iter().filter(|(_, given)| *given) {
                errors.push(FieldError::forbidden(&path.child(name), NOT_EXTERNAL_NAME));
            }
            let name = text(&spec.external_name);
            names::require(
                name.strip_suffix('.').unwrap_or(name),
                &path.child("externalName"),
                names::dns1123_subdomain,
                errors,
            );
        }
        _ => {}
    }
}

fn validate_port<'a>(
    port: &'a ServicePort,
    named: bool,
    taken: &mut BTreeSet<&'a str>,
    path: &Path,
    errors: &mut Errors,
) {
    let (name, name_path) = (text(&port.name), path.child("name"));
    if !name.is_empty() {
        names::refuse(name, &name_path, names::dns1123_label, errors);
        if !taken.insert(name) {
            errors.push(FieldError::duplicate(&name_path, name));
        }
    } else if named {
        errors.push(FieldError::required(&name_path, ""));
    }
    number(port.port.into(), names::is_valid_port_num(port.port), &path.child("port"), errors);
    required_one_of(text(&port.protocol), PROTOCOLS, &path.child("protocol"), errors);
    if let Some(target) = &port.target_port {
        check::port(target, &path.child("targetPort"), errors);
    }
    if let Some(protocol) = &port.app_protocol {
        names::refuse(protocol, &path.child("appProtocol"), names::qualified_name, errors);
    }
}

/// Numbers must differ, per protocol.
fn validate_port_numbers(spec: &ServiceSpec, path: &Path, errors: &mut Errors) {
    let (mut node_ports, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in list(&spec.ports).iter().enumerate() {
        let Some(node_port) = port.node_port.filter(|port| *port != 0) else { continue };
        let path = path.index(i).child("nodePort");
        if text(&spec.type_) == "ClusterIP" {
            errors.push(FieldError::forbidden(&path, "may not be used when `type` is 'ClusterIP'"));
        }
        if !node_ports.insert((text(&port.protocol), node_port)) {
            errors.push(FieldError::duplicate(&path, node_port));
        }
    }
    for (i, port) in list(&spec.ports).iter().enumerate() {
        if !ports.insert((text(&port.protocol), port.port)) {
            let shown = json!({"port": port.port, "protocol": port.protocol});
            errors.push(FieldError::duplicate(&path.index(i), shown));
        }
    }
}

fn validate_affinity(spec: &ServiceSpec, path: &Path, errors: &mut Errors) {
    let affinity = text(&spec.session_affinity);
    required_one_of(affinity, &["ClientIP", NONE], &path.child("sessionAffinity"), errors);
    let config = path.child("sessionAffinityConfig");
    if affinity == NONE && spec.session_affinity_config.is_some() {
        errors.push(FieldError::forbidden(&config, "must not be set when session affinity is None"));
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    if affinity == "ClientIP"
        && let Some(timeout) = client_ip.and_then(|client_ip| client_ip.timeout_seconds)
        && !(1..=MAX_AFFINITY_SECONDS).contains(&timeout)
    {
        let words = format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}");
        errors.push(FieldError::invalid(&config.child("clientIP").child("timeoutSeconds"), timeout, words));
    }
}

fn validate_load_balancer(service: &Service, spec: &ServiceSpec, path: &Path, errors: &mut Errors) {
    let elsewhere = |given: bool| given && !is_load_balancer(spec);
    let ranges_path = path.child("LoadBalancerSourceRanges");
    let annotation = service.metadata.annotations.as_ref().and_then(|all| all.get(SOURCE_RANGES));
    let ranges = list(&spec.load_balancer_source_ranges);
    if !ranges.is_empty() {
        if elsewhere(true) {
            errors.push(FieldError::forbidden(&ranges_path, ONLY_LOAD_BALANCERS));
        }
        for (i, range) in ranges.iter().enumerate() {
            names::refuse(range.trim(), &ranges_path.index(i), names::cidr, errors);
        }
    } else if let Some(ranges) = annotation {
        let path = Path::new("metadata").child("annotations").key(SOURCE_RANGES);
        if elsewhere(true) {
            errors.push(FieldError::forbidden(&path, ONLY_LOAD_BALANCERS));
        }
        for range in ranges.split(',').map(str::trim).filter(|_| !ranges.trim().is_empty()) {
            names::refuse(range, &path, names::cidr, errors);
        }
    }
    if elsewhere(spec.allocate_load_balancer_node_ports.is_some()) {
        errors.push(FieldError::forbidden(&path.child("allocateLoadBalancerNodePorts"), ONLY_LOAD_BALANCERS));
    }
    let class_path = path.child("loadBalancerClass");
    if elsewhere(spec.load_balancer_class.is_some()) {
        errors.push(FieldError::forbidden(&class_path, ONLY_LOAD_BALANCERS));
    } else if let Some(class) = &spec.load_balancer_class {
        names::refuse(class, &class_path, names::qualified_name, errors);
    }
}

fn validate_traffic(spec: &ServiceSpec, path: &Path, errors: &mut Errors) {
    let (policy, at) = (text(&spec.external_traffic_policy), path.child("externalTrafficPolicy"));
    if is_externally_accessible(spec) {
        required_one_of(policy, &["Cluster", "Local"], &at, errors);
    } else if !policy.is_empty() {
        errors.push(FieldError::invalid(&at, policy, "may only be set for externally-accessible services"));
    }
    // Where it is needed and missing, the server is about to allocate it.
    if let Some(port) = spec.health_check_node_port.filter(|port| *port != 0) {
        let at = path.child("healthCheckNodePort");
        if needs_health_check_port(spec) {
            number(port.into(), names::is_valid_port_num(port), &at, errors);
        } else {
            let words = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(FieldError::invalid(&at, port, words));
        }
    }
    optional_one_of(&spec.internal_traffic_policy, &["Cluster", "Local"], &path.child("internalTrafficPolicy"), errors);
    let distributions = ["PreferClose", "PreferSameNode", "PreferSameZone"];
    optional_one_of(&spec.traffic_distribution, &distributions, &path.child("trafficDistribution"), errors);
}

pub fn load_balancer_status(service: &Service, errors: &mut Errors) {
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.map_or(&[][..], |status| list(&status.ingress));
    if !ingress.is_empty() && !service.spec.as_ref().is_some_and(is_load_balancer) {
        errors.push(FieldError::forbidden(&path, "may only be used when `spec.type` is \"LoadBalancer\""));
        return;
    }
    for (i, ingress) in ingress.iter().enumerate() {
        let path = path.index(i);
        let (ip, host) = (text(&ingress.ip), text(&ingress.hostname));
        if !ip.is_empty() {
            names::refuse(ip, &path.child("ip"), names::ip, errors);
            optional_one_of(&ingress.ip_mode, &["Proxy", "VIP"], &path.child("ipMode"), errors);
        } else if ingress.ip_mode.is_some() {
            errors.push(FieldError::forbidden(&path.child("ipMode"), "may not be specified when `ip` is not set"));
        }
        if !host.is_empty() {
            let path = path.child("hostname");
            names::refuse(host, &path, names::dns1123_subdomain, errors);
            if names::parse_ip(host).is_some() {
                errors.push(FieldError::invalid(&path, host, "must be a DNS name, not an IP address"));
            }
        }
    }
}
