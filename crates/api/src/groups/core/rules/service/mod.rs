//! Service.
//!
//! Addresses and node ports come from pools, so the server allocates them after these rules have
//! run; here they are only defaulted where they are no allocation, carried over from the old object,
//! and judged as far as one object can tell.

mod addresses;
mod transition;
mod validate;

use std::net::IpAddr;

use k8s_openapi::{
    api::core::v1::{Service, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    field::Errors,
    ports::TCP,
    strategy::Rules,
    validation::{
        check::{fill, list, text},
        names,
    },
};

pub struct ServiceRules;

const NONE: &str = "None";
/// How long a client keeps its pod: three hours.
const AFFINITY_SECONDS: i32 = 10_800;

impl Rules for ServiceRules {
    type Object = Service;

    fn default(object: &mut Service) {
        default_spec(object.spec.get_or_insert_default());
        let load_balancer = object.status.as_mut().and_then(|status| status.load_balancer.as_mut());
        for ingress in load_balancer.into_iter().flat_map(|status| status.ingress.iter_mut().flatten()) {
            if !text(&ingress.ip).is_empty() {
                fill(&mut ingress.ip_mode, "VIP");
            }
        }
    }

    fn prepare_create(object: &mut Service) {
        let status = object.status.get_or_insert_default();
        status.load_balancer.get_or_insert_default();
        if let Some(spec) = &mut object.spec {
            mirror_cluster_ip(spec);
            default_families(spec);
        }
    }

    fn prepare_update(object: &mut Service, old: &Service) {
        transition::prepare(object, old);
        if let Some(spec) = &mut object.spec {
            default_families(spec);
        }
    }

    fn validate(object: &Service, errors: &mut Errors) {
        validate::service(object, errors);
    }

    fn validate_update(object: &Service, old: &Service, errors: &mut Errors) {
        if let (Some(new), Some(old)) = (&object.spec, &old.spec) {
            transition::validate(new, old, errors);
        }
    }

    fn validate_status(object: &Service, _: &Service, errors: &mut Errors) {
        validate::load_balancer_status(object, errors);
    }

    fn warnings(object: &Service) -> Vec<String> {
        let Some(spec) = object.spec.as_ref().filter(|spec| is_headless(spec)) else { return Vec::new() };
        let ignored = [
            ("spec.loadBalancerIP", !text(&spec.load_balancer_ip).is_empty()),
            ("spec.externalIPs", !list(&spec.external_ips).is_empty()),
            ("spec.SessionAffinity", text(&spec.session_affinity) == "ClientIP"),
        ];
        let ignored = ignored.into_iter().filter(|(_, given)| *given);
        ignored.map(|(field, _)| format!("{field} is ignored when spec.clusterIP is \"None\"")).collect()
    }
}

fn default_spec(spec: &mut ServiceSpec) {
    fill(&mut spec.type_, "ClusterIP");
    fill(&mut spec.session_affinity, NONE);
    match text(&spec.session_affinity) {
        NONE => spec.session_affinity_config = None,
        "ClientIP" => {
            let config = spec.session_affinity_config.get_or_insert_default();
            config.client_ip.get_or_insert_default().timeout_seconds.get_or_insert(AFFINITY_SECONDS);
        }
        _ => {}
    }
    for port in spec.ports.iter_mut().flatten() {
        fill(&mut port.protocol, TCP);
        match &port.target_port {
            None | Some(IntOrString::Int(0)) => port.target_port = Some(IntOrString::Int(port.port)),
            Some(IntOrString::String(name)) if name.is_empty() => {
                port.target_port = Some(IntOrString::Int(port.port));
            }
            Some(_) => {}
        }
    }
    if is_externally_accessible(spec) {
        fill(&mut spec.external_traffic_policy, "Cluster");
    }
    if needs_cluster_ip(spec) {
        spec.internal_traffic_policy.get_or_insert_with(|| "Cluster".to_owned());
    }
    if is_load_balancer(spec) {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
    }
}

/// `clusterIPs` is the list of which `clusterIP` is the first.
fn mirror_cluster_ip(spec: &mut ServiceSpec) {
    if let (Some(ip), []) = (spec.cluster_ip.as_ref().filter(|ip| !ip.is_empty()), list(&spec.cluster_ips)) {
        spec.cluster_ips = Some(vec![ip.clone()]);
    }
}

/// The families of a service are those of its addresses; it has one unless it asks for both.
fn default_families(spec: &mut ServiceSpec) {
    if !needs_cluster_ip(spec) {
        return;
    }
    let unmanaged = is_headless(spec) && spec.selector.as_ref().is_none_or(|selector| selector.is_empty());
    let given = list(&spec.ip_families).len().max(list(&spec.cluster_ips).len());
    let policy =
        if unmanaged && list(&spec.ip_families).is_empty() || given > 1 { "RequireDualStack" } else { "SingleStack" };
    spec.ip_family_policy.get_or_insert_with(|| policy.to_owned());
    if list(&spec.ip_families).is_empty() {
        let mut of_addresses: Vec<_> =
            list(&spec.cluster_ips).iter().filter_map(|ip| family(ip)).map(str::to_owned).collect();
        of_addresses.dedup();
        spec.ip_families = Some(if of_addresses.is_empty() { vec!["IPv4".to_owned()] } else { of_addresses });
    }
    // Nobody allocates addresses for it, so it has both families where they are welcome.
    if unmanaged && spec.ip_family_policy.as_deref() != Some("SingleStack") {
        let families = spec.ip_families.get_or_insert_default();
        if let [only] = &families[..] {
            let other = if only == "IPv4" { "IPv6" } else { "IPv4" };
            families.push(other.to_owned());
        }
    }
}

fn family(ip: &str) -> Option<&'static str> {
    names::parse_ip(ip).map(|ip| match ip {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    })
}

fn is_headless(spec: &ServiceSpec) -> bool {
    matches!(list(&spec.cluster_ips), [only] if only == NONE)
}

fn is_load_balancer(spec: &ServiceSpec) -> bool {
    text(&spec.type_) == "LoadBalancer"
}

fn needs_cluster_ip(spec: &ServiceSpec) -> bool {
    text(&spec.type_) != "ExternalName"
}

fn needs_node_port(spec: &ServiceSpec) -> bool {
    matches!(text(&spec.type_), "NodePort" | "LoadBalancer")
}

/// Whether load balancers must ask each machine if it has a pod.
fn needs_health_check_port(spec: &ServiceSpec) -> bool {
    is_load_balancer(spec) && text(&spec.external_traffic_policy) == "Local"
}

fn is_externally_accessible(spec: &ServiceSpec) -> bool {
    needs_node_port(spec) || text(&spec.type_) == "ClusterIP" && !list(&spec.external_ips).is_empty()
}

#[cfg(test)]
mod tests;
