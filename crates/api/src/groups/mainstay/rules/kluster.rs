//! Kluster.
//!
//! What is discovered (ids, version) is filled in later by its controller, once: a write that leaves such a field out keeps it, and one that
//! changes it is refused. Everything that needs other objects (overlapping ranges, names that are in use) is an admission plugin.

use std::collections::BTreeMap;

use ipnet::Ipv4Net;

use super::node_pool::{default_pool, validate_pool, validate_pool_update};
use crate::{
    cloud::{
        kluster::{
            ACCOUNT_LABEL, ADVERTISE_ADDRESS, ADVERTISE_PORT, AUDIT_SINKS, AUTHENTICATION_CONFIGURATION_MAX, BACKUPS,
            CLUSTER_CIDR, CLUSTER_PREFIXES, DEORBIT_FINALIZER, DNS_DOMAIN, GROUND_FINALIZER, Kluster, KlusterPhase,
            KlusterSpec, KlusterStatus, LAUNCH_FINALIZER, MOST_POOLS, NAME_MAX, OBJECT_NAME_MAX, OpenStackSpec,
            SERVICE_CIDR, SERVICE_PREFIXES, SSH_KEY_MAX, nth_address, parse_range, ranges_overlap,
        },
        node_pool::PoolSpec,
        version::{is_upgrade, parse_version},
    },
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{immutable, optional_one_of, unique},
        names,
    },
};

const NAME_PATTERN: &str =
    "must be at most 20 lower-case letters, digits and dashes, begin with a letter and not end with a dash";

pub struct KlusterRules;

impl Rules for KlusterRules {
    type Object = Kluster;

    const BARE_FINALIZERS: &'static [&'static str] = &[DEORBIT_FINALIZER, LAUNCH_FINALIZER, GROUND_FINALIZER];

    fn default(object: &mut Kluster) {
        if object.spec.name.is_empty() {
            object.spec.name = stock_name(object).to_owned();
        }
        let spec = &mut object.spec;
        if spec.cluster_cidr.is_none() {
            spec.cluster_cidr = Some(if spec.no_cloud { String::new() } else { CLUSTER_CIDR.to_owned() });
        }
        let fill = |field: &mut String, stock: &str| {
            if field.is_empty() {
                stock.clone_into(field);
            }
        };
        fill(&mut spec.service_cidr, SERVICE_CIDR);
        fill(&mut spec.advertise_address, ADVERTISE_ADDRESS);
        fill(&mut spec.dns_domain, DNS_DOMAIN);
        spec.advertise_port.get_or_insert(ADVERTISE_PORT);
        if let Some(address) = spec.service_range().and_then(|range| nth_address(range, 2)) {
            fill(&mut spec.dns_address, &address.to_string());
        }
        spec.node_pools.iter_mut().for_each(default_pool);
    }

    fn prepare_create(object: &mut Kluster) {
        object.status = Some(KlusterStatus::default());
    }

    fn prepare_update(object: &mut Kluster, old: &Kluster) {
        let keep = |field: &mut String, old: &String| {
            if field.is_empty() {
                field.clone_from(old);
            }
        };
        let (spec, was) = (&mut object.spec, &old.spec);
        keep(&mut spec.version, &was.version);
        for (field, old) in discovered_mut(&mut spec.openstack).into_iter().zip(discovered(&was.openstack)) {
            keep(field, old.1);
        }
        keep(&mut spec.openstack.security_group_name, &was.openstack.security_group_name);
        // A pool that names no zone stays where it is.
        for pool in &mut spec.node_pools {
            if let Some(old) = was.node_pools.iter().find(|old| old.name == pool.name) {
                keep(&mut pool.availability_zone, &old.availability_zone);
            }
        }
    }

    fn validate(object: &Kluster, errors: &mut Errors) {
        let path = Path::new("spec");
        if object.name().len() > OBJECT_NAME_MAX {
            errors.push(FieldError::too_long(&Path::new("metadata").child("name"), OBJECT_NAME_MAX));
        }
        validate_spec(&object.spec, &path, errors);
    }

    fn validate_update(object: &Kluster, old: &Kluster, errors: &mut Errors) {
        let path = Path::new("spec");
        let (new, was) = (&object.spec, &old.spec);
        immutable(&new.name, &was.name, &path.child("name"), errors);
        immutable(&new.cluster_cidr, &was.cluster_cidr, &path.child("clusterCIDR"), errors);
        immutable(&new.service_cidr, &was.service_cidr, &path.child("serviceCIDR"), errors);
        immutable(&new.advertise_address, &was.advertise_address, &path.child("advertiseAddress"), errors);
        immutable(&new.advertise_port, &was.advertise_port, &path.child("advertisePort"), errors);
        immutable(&new.dns_address, &was.dns_address, &path.child("dnsAddress"), errors);
        immutable(&new.dns_domain, &was.dns_domain, &path.child("dnsDomain"), errors);
        immutable(&new.no_cloud, &was.no_cloud, &path.child("noCloud"), errors);
        let openstack = path.child("openstack");
        for ((name, value), (_, old)) in discovered(&new.openstack).into_iter().zip(discovered(&was.openstack)) {
            if !old.is_empty() {
                immutable(value, old, &openstack.child(name), errors);
            }
        }
        validate_version_change(new, old, &path.child("version"), errors);
        validate_pool_changes(object, old, &path.child("nodePools"), errors);
    }
}

/// `berlin` for an object `berlin-<project>` of the project.
fn stock_name(object: &Kluster) -> &str {
    let account = object.metadata.labels.as_ref().and_then(|labels| labels.get(ACCOUNT_LABEL));
    let suffix = account.or(Some(&object.spec.openstack.project_id)).filter(|suffix| !suffix.is_empty());
    let name = suffix.and_then(|suffix| object.name().strip_suffix(suffix.as_str())?.strip_suffix('-'));
    name.unwrap_or_else(|| object.name())
}

/// Fields that are set once, by the author or by discovery.
fn discovered(spec: &OpenStackSpec) -> [(&'static str, &String); 6] {
    [
        ("cloud", &spec.cloud),
        ("lbFloatingNetworkID", &spec.lb_floating_network_id),
        ("lbSubnetID", &spec.lb_subnet_id),
        ("networkID", &spec.network_id),
        ("projectID", &spec.project_id),
        ("routerID", &spec.router_id),
    ]
}

fn discovered_mut(spec: &mut OpenStackSpec) -> [&mut String; 6] {
    [
        &mut spec.cloud,
        &mut spec.lb_floating_network_id,
        &mut spec.lb_subnet_id,
        &mut spec.network_id,
        &mut spec.project_id,
        &mut spec.router_id,
    ]
}

fn validate_spec(spec: &KlusterSpec, path: &Path, errors: &mut Errors) {
    if !is_kluster_name(&spec.name) {
        errors.push(FieldError::invalid(&path.child("name"), spec.name.as_str(), NAME_PATTERN));
    }
    let pods = match spec.cluster_cidr.as_deref().unwrap_or_default() {
        "" if spec.no_cloud => None,
        "" => {
            errors.push(FieldError::required(&path.child("clusterCIDR"), "may be empty with noCloud alone"));
            None
        }
        text => range(text, CLUSTER_PREFIXES, &path.child("clusterCIDR"), errors),
    };
    let services = range(&spec.service_cidr, SERVICE_PREFIXES, &path.child("serviceCIDR"), errors);
    if let (Some(pods), Some(services)) = (pods, services)
        && ranges_overlap(pods, services)
    {
        let why = format!("must not overlap with serviceCIDR {services}");
        errors.push(FieldError::invalid(&path.child("clusterCIDR"), pods.to_string(), why));
    }
    if let Some(services) = services {
        let address = spec.dns_address.parse().ok().filter(|address| services.contains(address));
        if address.is_none_or(|address| address == services.network() || nth_address(services, 1) == Some(address)) {
            let why = format!("must be an address of serviceCIDR {services} that the API does not have");
            errors.push(FieldError::invalid(&path.child("dnsAddress"), spec.dns_address.as_str(), why));
        }
    }
    names::refuse(&spec.advertise_address, &path.child("advertiseAddress"), names::ipv4, errors);
    let port = spec.advertise_port.unwrap_or(ADVERTISE_PORT);
    for why in names::is_valid_port_num(port) {
        errors.push(FieldError::invalid(&path.child("advertisePort"), port, why));
    }
    names::refuse(&spec.dns_domain, &path.child("dnsDomain"), names::dns1123_subdomain, errors);
    optional_one_of(&spec.audit, &AUDIT_SINKS, &path.child("audit"), errors);
    optional_one_of(&spec.backup, &BACKUPS, &path.child("backup"), errors);
    if !spec.version.is_empty() && parse_version(&spec.version).is_none() {
        let why = "must be a version such as 1.36.0";
        errors.push(FieldError::invalid(&path.child("version"), spec.version.as_str(), why));
    }
    validate_texts(spec, path, errors);
    let pools = path.child("nodePools");
    if spec.node_pools.len() > MOST_POOLS {
        return errors.push(FieldError::too_many(&pools, spec.node_pools.len(), MOST_POOLS));
    }
    spec.node_pools.iter().enumerate().for_each(|(i, pool)| validate_pool(pool, &pools.index(i), errors));
    unique(
        spec.node_pools.iter().enumerate().map(|(i, pool)| (pools.index(i).child("name"), pool.name.as_str())),
        errors,
    );
}

/// Texts that end up in files of machines and of the control plane.
fn validate_texts(spec: &KlusterSpec, path: &Path, errors: &mut Errors) {
    if spec.ssh_public_key.len() > SSH_KEY_MAX {
        errors.push(FieldError::too_long(&path.child("sshPublicKey"), SSH_KEY_MAX));
    } else if spec.ssh_public_key.trim_end().contains(|c: char| c.is_control()) {
        let why = "must be one line, without control characters";
        errors.push(FieldError::invalid(&path.child("sshPublicKey"), spec.ssh_public_key.as_str(), why));
    }
    let authentication = spec.authentication_configuration.as_deref().unwrap_or_default();
    if authentication.len() > AUTHENTICATION_CONFIGURATION_MAX {
        errors.push(FieldError::too_long(&path.child("authenticationConfiguration"), AUTHENTICATION_CONFIGURATION_MAX));
    }
    if let Some(oidc) = &spec.oidc {
        let path = path.child("oidc");
        if oidc.client_id.is_empty() {
            errors.push(FieldError::required(&path.child("clientID"), ""));
        }
        if !oidc.issuer_url.starts_with("https://") || oidc.issuer_url.contains(|c: char| !c.is_ascii_graphic()) {
            let why = "must be a URL with the scheme https";
            errors.push(FieldError::invalid(&path.child("issuerURL"), oidc.issuer_url.as_str(), why));
        }
    }
    let openstack = path.child("openstack");
    let group = ("securityGroupName", &spec.openstack.security_group_name);
    for (field, value) in discovered(&spec.openstack).into_iter().chain([group]) {
        if value.len() > 255 || value.contains(|c: char| c.is_control() || c == '/') {
            let why = "must be at most 255 bytes without slashes and control characters";
            errors.push(FieldError::invalid(&openstack.child(field), value.as_str(), why));
        }
    }
}

fn range(text: &str, prefixes: std::ops::RangeInclusive<u8>, path: &Path, errors: &mut Errors) -> Option<Ipv4Net> {
    let found = parse_range(text);
    let (least, most) = (prefixes.start(), prefixes.end());
    let why = match found {
        None => "must be an IPv4 range that begins with its first address, such as 10.9.8.0/24".to_owned(),
        Some(range) if !prefixes.contains(&range.prefix_len()) => {
            format!("must have a prefix of {least} to {most} bits")
        }
        Some(range) => return Some(range),
    };
    errors.push(FieldError::invalid(path, text, why));
    None
}

fn is_kluster_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase();
    let is_inner = |byte: u8| is_letter(byte) || byte.is_ascii_digit() || byte == b'-';
    name.len() <= NAME_MAX
        && name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(is_inner)
        && !name.ends_with('-')
}

fn validate_version_change(new: &KlusterSpec, old: &Kluster, path: &Path, errors: &mut Errors) {
    let (from, to) = (&old.spec.version, &new.version);
    if from == to || from.is_empty() {
        return;
    }
    if old.phase() != KlusterPhase::Running {
        let why = format!("can be changed while the Kluster is Running; it is {}", old.phase());
        return errors.push(FieldError::forbidden(path, why));
    }
    if let (Some(from), Some(to)) = (parse_version(from), parse_version(to))
        && !is_upgrade(&from, &to)
    {
        let why = format!("must be of the minor version of {from} or of the next one");
        errors.push(FieldError::invalid(path, to.to_string(), why));
    }
}

fn validate_pool_changes(object: &Kluster, old: &Kluster, path: &Path, errors: &mut Errors) {
    let pools: BTreeMap<&str, (usize, &PoolSpec)> =
        object.spec.node_pools.iter().enumerate().map(|(i, pool)| (pool.name.as_str(), (i, pool))).collect();
    for was in &old.spec.node_pools {
        if let Some((i, pool)) = pools.get(was.name.as_str()) {
            validate_pool_update(pool, was, &path.index(*i), errors);
            continue;
        }
        let statuses = old.status.iter().flat_map(|status| &status.node_pools);
        let running = statuses.filter(|status| status.name == was.name).map(|status| status.running).max();
        if was.size != 0 || running.unwrap_or(0) > 0 {
            let why = format!(
                "pool {} can be removed once its size is 0 and its machines are gone; its size is {} and {} machines run",
                was.name,
                was.size,
                running.unwrap_or(0)
            );
            errors.push(FieldError::forbidden(path, why));
        }
    }
}

#[cfg(test)]
mod tests;
