//! From one shape of a service to another: what an update leaves out is kept, what no longer applies
//! is dropped, and what may not change is refused.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};

use super::{
    is_externally_accessible, is_headless, is_load_balancer, needs_cluster_ip, needs_health_check_port, needs_node_port,
};
use crate::{
    field::{Errors, FieldError, Path},
    validation::check::{IMMUTABLE, list, shown, text},
};

const SET_ONCE: &str = "may not change once set";

pub fn prepare(object: &mut Service, old: &Service) {
    let (Some(new), Some(old)) = (&mut object.spec, &old.spec) else { return };
    mirror_cluster_ip(new, old);
    drop_what_no_longer_applies(new, old);
    keep_allocations(new, old);
    if !is_load_balancer(new)
        && let Some(status) = &mut object.status
    {
        status.load_balancer = Some(Default::default());
    }
}

/// Whoever changes only `clusterIP` or only `clusterIPs` means both.
fn mirror_cluster_ip(new: &mut ServiceSpec, old: &ServiceSpec) {
    let (ip, old_ip) = (text(&new.cluster_ip), text(&old.cluster_ip));
    let same_list = list(&new.cluster_ips) == list(&old.cluster_ips);
    if ip != old_ip && same_list {
        new.cluster_ips = Some(ip).filter(|ip| !ip.is_empty()).map(|ip| vec![ip.to_owned()]);
    }
}

/// A field is dropped only if the author did not change it as well; otherwise they shall hear of it.
fn drop_what_no_longer_applies(new: &mut ServiceSpec, old: &ServiceSpec) {
    if needs_cluster_ip(old) && !needs_cluster_ip(new) {
        if text(&new.cluster_ip) == text(&old.cluster_ip) && list(&new.cluster_ips) == list(&old.cluster_ips) {
            new.cluster_ip = None;
            new.cluster_ips = None;
        }
        if new.ip_families == old.ip_families {
            new.ip_families = None;
        }
        if new.ip_family_policy == old.ip_family_policy {
            new.ip_family_policy = None;
        }
    }
    if needs_node_port(old) && !needs_node_port(new) && node_ports(new).is_subset(&node_ports(old)) {
        new.ports.iter_mut().flatten().for_each(|port| port.node_port = None);
    }
    if needs_health_check_port(old)
        && !needs_health_check_port(new)
        && new.health_check_node_port == old.health_check_node_port
    {
        new.health_check_node_port = None;
    }
    if is_load_balancer(old) && !is_load_balancer(new) {
        if new.allocate_load_balancer_node_ports == old.allocate_load_balancer_node_ports {
            new.allocate_load_balancer_node_ports = None;
        }
        if new.load_balancer_class == old.load_balancer_class {
            new.load_balancer_class = None;
        }
    }
    if is_externally_accessible(old)
        && !is_externally_accessible(new)
        && new.external_traffic_policy == old.external_traffic_policy
    {
        new.external_traffic_policy = None;
    }
}

/// A client that replaces a service need not know what the server allocated for it.
fn keep_allocations(new: &mut ServiceSpec, old: &ServiceSpec) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        if text(&new.cluster_ip).is_empty() {
            new.cluster_ip = old.cluster_ip.clone();
        }
        if list(&new.cluster_ips).is_empty() && new.cluster_ip == old.cluster_ip {
            new.cluster_ips = old.cluster_ips.clone();
        }
    }
    if needs_node_port(old) && needs_node_port(new) {
        keep_node_ports(new, old);
    }
    if needs_health_check_port(old) && needs_health_check_port(new) && new.health_check_node_port.unwrap_or(0) == 0 {
        new.health_check_node_port = old.health_check_node_port;
    }
}

/// By name, as far as the author did not give the number to another port.
fn keep_node_ports(new: &mut ServiceSpec, old: &ServiceSpec) {
    let mut used = node_ports(new);
    for port in new.ports.iter_mut().flatten().filter(|port| port.node_port.unwrap_or(0) == 0) {
        let before = list(&old.ports).iter().find(|before| text(&before.name) == text(&port.name));
        if let Some(number) = before.and_then(|before| before.node_port).filter(|number| used.insert(*number)) {
            port.node_port = Some(number);
        }
    }
}

fn node_ports(spec: &ServiceSpec) -> BTreeSet<i32> {
    list(&spec.ports).iter().filter_map(|port| port.node_port).filter(|port| *port != 0).collect()
}

pub fn validate(new: &ServiceSpec, old: &ServiceSpec, errors: &mut Errors) {
    let path = Path::new("spec");
    if needs_cluster_ip(new) && needs_cluster_ip(old) {
        validate_addresses(new, old, &path, errors);
        validate_families(new, old, &path, errors);
    }
    if is_load_balancer(new) && is_load_balancer(old) && new.load_balancer_class != old.load_balancer_class {
        let at = path.child("loadBalancerClass");
        errors.push(FieldError::invalid(&at, shown(&new.load_balancer_class), SET_ONCE));
    }
    if needs_health_check_port(new)
        && needs_health_check_port(old)
        && new.health_check_node_port != old.health_check_node_port
    {
        errors.push(FieldError::forbidden(&path.child("healthCheckNodePort"), IMMUTABLE));
    }
}

/// The first address stays; a second may come and go.
fn validate_addresses(new: &ServiceSpec, old: &ServiceSpec, path: &Path, errors: &mut Errors) {
    if is_headless(new) && is_headless(old) {
        return;
    }
    let at = path.child("clusterIPs");
    let (ips, before) = (list(&new.cluster_ips), list(&old.cluster_ips));
    let mut refuse = |i: usize, words: &str| errors.push(FieldError::invalid(&at.index(i), shown(&ips), words));
    if ips.is_empty() && !before.is_empty() {
        refuse(0, "primary clusterIP can not be unset");
    }
    let compared = if ips.len() == before.len() { ips.len() } else { 1 };
    for (i, (ip, before)) in ips.iter().zip(before).take(compared).enumerate() {
        if ip != before {
            refuse(i, SET_ONCE);
        }
    }
    if ips.len() == 1 && before.len() > 1 {
        single_stack(new, "clusterIP", path, errors);
    }
}

fn validate_families(new: &ServiceSpec, old: &ServiceSpec, path: &Path, errors: &mut Errors) {
    if is_headless(new) || is_headless(old) {
        return;
    }
    let at = path.child("ipFamilies").index(0);
    let (families, before) = (list(&new.ip_families), list(&old.ip_families));
    let compared = if families.len() == before.len() { families.len() } else { 1 };
    if families.iter().zip(before).take(compared).any(|(family, before)| family != before) {
        errors.push(FieldError::invalid(&at, shown(&families), SET_ONCE));
    }
    if families.len() == 1 && before.len() > 1 {
        single_stack(new, "ipFamily", path, errors);
    }
}

fn single_stack(spec: &ServiceSpec, released: &str, path: &Path, errors: &mut Errors) {
    if spec.ip_family_policy.as_deref() != Some("SingleStack") {
        let words = format!("must be set to 'SingleStack' when releasing the secondary {released}");
        errors.push(FieldError::invalid(&path.child("ipFamilyPolicy"), shown(&spec.ip_family_policy), words));
    }
}
