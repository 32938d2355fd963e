//! A pod's status: its first one, and what may not happen to it later.

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};

use super::{os, qos};
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, list, shown, text},
        names,
    },
};

pub(super) fn initialize(pod: &mut Pod) {
    let Some(spec) = &pod.spec else { return };
    let gated = !list(&spec.scheduling_gates).is_empty();
    pod.status = Some(PodStatus {
        phase: Some("Pending".to_owned()),
        qos_class: Some(qos::qos_class(spec).to_owned()),
        conditions: gated.then(|| vec![waiting_for_gates()]),
        ..PodStatus::default()
    });
}

fn waiting_for_gates() -> PodCondition {
    PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "False".to_owned(),
        reason: Some("SchedulingGated".to_owned()),
        message: Some("Scheduling is blocked due to non-empty scheduling gates".to_owned()),
        ..PodCondition::default()
    }
}

pub(super) fn validate_update(pod: &Pod, old: &Pod, errors: &mut Errors) {
    let (none, no_spec) = (PodStatus::default(), PodSpec::default());
    let (new, before) = (pod.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    let spec = old.spec.as_ref().unwrap_or(&no_spec);
    let path = Path::new("status");

    let conditions_at = Path::new("metadata").child("conditions");
    for (i, condition) in list(&new.conditions).iter().enumerate() {
        if !matches!(condition.type_.as_str(), "PodScheduled" | "Ready" | "Initialized") {
            names::refuse(&condition.type_, &conditions_at.index(i).child("Type"), names::qualified_name, errors);
        }
    }
    let nominated = text(&new.nominated_node_name);
    if nominated != text(&before.nominated_node_name) && !nominated.is_empty() {
        names::refuse(nominated, &path.child("nominatedNodeName"), names::dns1123_subdomain, errors);
    }
    check::immutable(&new.qos_class, &before.qos_class, &path.child("qosClass"), errors);

    let at = path.child("containerStatuses");
    let (now, then) = (list(&new.container_statuses), list(&before.container_statuses));
    validate_transitions(now, then, |name, code| may_restart(spec, &spec.containers, name, code), &at, errors);
    let at = path.child("initContainerStatuses");
    let (now, then) = (list(&new.init_container_statuses), list(&before.init_container_statuses));
    let init = list(&spec.init_containers);
    validate_transitions(now, then, |name, code| may_restart(spec, init, name, code), &at, errors);
    let at = path.child("ephemeralContainerStatuses");
    let (now, then) = (list(&new.ephemeral_container_statuses), list(&before.ephemeral_container_statuses));
    validate_transitions(now, then, |_, _| false, &at, errors);

    validate_addresses(new, &path, errors);
    validate_users(new, spec, &path, errors);
}

/// Whether a container that ended with this code may run again: by its own policy and rules, or those of its pod, or
/// because a rule of some container restarts all of them.
fn may_restart(spec: &PodSpec, containers: &[Container], name: &str, exit_code: i32) -> bool {
    let all = spec.containers.iter().chain(list(&spec.init_containers));
    let mut all_rules = all.flat_map(|container| list(&container.restart_policy_rules));
    if all_rules.any(|rule| rule.action == "RestartAllContainers") {
        return true;
    }
    let container = containers.iter().find(|container| container.name == name);
    let rules = container.map(|container| list(&container.restart_policy_rules)).unwrap_or_default();
    let applies = |rule: &ContainerRestartRule| {
        let codes = rule.exit_codes.as_ref();
        codes.is_some_and(|codes| list(&codes.values).contains(&exit_code) == (codes.operator == "In"))
    };
    let own_policy = container.and_then(|container| container.restart_policy.as_deref());
    match own_policy.unwrap_or_else(|| text(&spec.restart_policy)) {
        _ if rules.iter().any(applies) => true,
        "Always" => true,
        "OnFailure" => exit_code != 0,
        _ => false,
    }
}

/// A container that ended and is not to be restarted stays ended.
fn validate_transitions(
    new: &[ContainerStatus],
    old: &[ContainerStatus],
    may_restart: impl Fn(&str, i32) -> bool,
    path: &Path,
    errors: &mut Errors,
) {
    for (i, before) in old.iter().enumerate() {
        let Some(ended) = before.state.as_ref().and_then(|state| state.terminated.as_ref()) else { continue };
        if may_restart(&before.name, ended.exit_code) {
            continue;
        }
        let revived = |status: &&ContainerStatus| {
            status.name == before.name && status.state.as_ref().is_none_or(|state| state.terminated.is_none())
        };
        for _ in new.iter().filter(revived) {
            let detail = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(&path.index(i).child("state"), detail));
        }
    }
}

fn validate_addresses(status: &PodStatus, path: &Path, errors: &mut Errors) {
    let pod: Vec<_> = list(&status.pod_ips).iter().map(|address| address.ip.as_str()).collect();
    validate_ips(&pod, &path.child("podIPs"), errors);
    let host: Vec<_> = list(&status.host_ips).iter().map(|address| address.ip.as_str()).collect();
    if let Some(first) = host.first().filter(|first| **first != text(&status.host_ip)) {
        let at = path.child("hostIPs").index(0).child("ip");
        errors.push(FieldError::invalid(&at, *first, "must be equal to `hostIP`"));
    }
    validate_ips(&host, &path.child("hostIPs"), errors);
}

/// At most one address of each family.
fn validate_ips(ips: &[&str], path: &Path, errors: &mut Errors) {
    for (i, ip) in ips.iter().enumerate() {
        names::refuse(ip, &path.index(i), names::ip, errors);
        if ips[..i].contains(ip) {
            errors.push(FieldError::duplicate(&path.index(i), *ip));
        }
    }
    let v4 = ips.iter().filter(|ip| names::ipv4(ip).is_empty()).count();
    let v6 = ips.iter().filter(|ip| names::ipv6(ip).is_empty()).count();
    if v4 > 1 || v6 > 1 {
        let detail = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(path, shown(&ips), detail));
    }
}

fn validate_users(status: &PodStatus, spec: &PodSpec, path: &Path, errors: &mut Errors) {
    for (field, statuses) in [
        ("containerStatuses", &status.container_statuses),
        ("initContainerStatuses", &status.init_container_statuses),
        ("ephemeralContainerStatuses", &status.ephemeral_container_statuses),
    ] {
        for (i, status) in list(statuses).iter().enumerate() {
            let Some(user) = status.user.as_ref().and_then(|user| user.linux.as_ref()) else { continue };
            let at = path.child(field).index(i).child("linux");
            if os::is_windows(spec) {
                errors.push(FieldError::forbidden(&at, "cannot be set for a windows pod"));
                continue;
            }
            check::number(user.uid, names::unix_id(user.uid), &at.child("uid"), errors);
            check::number(user.gid, names::unix_id(user.gid), &at.child("gid"), errors);
        }
    }
}
