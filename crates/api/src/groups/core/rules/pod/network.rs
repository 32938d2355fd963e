//! Names and ports: what a pod says about its network.

use k8s_openapi::api::core::v1::{HostAlias, PodSpec};

use super::Owner;
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, list, shown, text},
        names,
    },
};

/// The limits of resolvers.
const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_LIST_MAX: usize = 2048;

pub(super) fn validate_dns_policy(policy: &str, path: &Path, errors: &mut Errors) {
    let supported = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    check::required_one_of(policy, supported, path, errors);
}

pub(super) fn validate_dns_config(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let alone = text(&spec.dns_policy) == "None";
    let Some(config) = &spec.dns_config else {
        if alone {
            errors.push(FieldError::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
        }
        return;
    };
    let (servers, searches) = (list(&config.nameservers), list(&config.searches));
    if alone && servers.is_empty() {
        errors.push(FieldError::required(
            &path.child("nameservers"),
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        ));
        return;
    }
    if servers.len() > NAMESERVERS_MAX {
        errors.push(FieldError::invalid(
            &path.child("nameservers"),
            shown(&servers),
            format!("must not have more than {NAMESERVERS_MAX} nameservers"),
        ));
    }
    for (i, server) in servers.iter().enumerate() {
        names::refuse(server, &path.child("nameservers").index(i), names::ip, errors);
    }
    let at = path.child("searches");
    if searches.len() > SEARCHES_MAX {
        let detail = format!("must not have more than {SEARCHES_MAX} search paths");
        errors.push(FieldError::invalid(&at, shown(&searches), detail));
    }
    if searches.join(" ").len() > SEARCH_LIST_MAX {
        let detail =
            format!("must not have more than {SEARCH_LIST_MAX} characters (including spaces) in the search list");
        errors.push(FieldError::invalid(&at, shown(&searches), detail));
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        names::refuse(search, &at.index(i), names::dns1123_subdomain_with_underscore, errors);
    }
    for (i, option) in list(&config.options).iter().enumerate() {
        if text(&option.name).is_empty() {
            errors.push(FieldError::required(&path.child("options").index(i), "must not be empty"));
        }
    }
}

pub(super) fn validate_host_aliases(aliases: &[HostAlias], path: &Path, errors: &mut Errors) {
    for (i, alias) in aliases.iter().enumerate() {
        names::refuse(&alias.ip, &path.index(i).child("ip"), names::ip, errors);
        for (j, name) in list(&alias.hostnames).iter().enumerate() {
            let at = path.index(i).child("hostnames").index(j);
            names::refuse(name, &at, names::dns1123_subdomain, errors);
        }
    }
}

/// On the machine's own network a container port is a host port. A template may leave that to
/// its pods.
pub(super) fn validate_host_ports(spec: &PodSpec, owner: Owner, path: &Path, errors: &mut Errors) {
    if spec.host_network != Some(true) {
        return;
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (j, port) in list(&container.ports).iter().enumerate() {
            let host = port.host_port.unwrap_or_default();
            let unset = matches!(owner, Owner::Template) && host == 0;
            if host != port.container_port && !unset {
                errors.push(FieldError::invalid(
                    &path.child("containers").index(i).child("ports").index(j).child("hostPort"),
                    host,
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
    }
}
