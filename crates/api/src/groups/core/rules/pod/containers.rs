//! The three lists of containers: regular, init and ephemeral.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, ContainerResizePolicy, EphemeralContainer, PodSpec};

use super::{Owner, env, mounts, probes, restart_rules, security, spec::Surroundings};
use crate::{
    field::{Errors, FieldError, Path},
    ports::PROTOCOLS,
    validation::{
        check::{self, list, shown, text},
        names, resources,
    },
};

const NOT_INIT: &str = "may not be set for init containers without restartPolicy=Always";
const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

pub(super) fn validate(spec: &PodSpec, around: &Surroundings, path: &Path, errors: &mut Errors) {
    validate_regular(&spec.containers, around, &path.child("containers"), errors);
    validate_init(spec, around, &path.child("initContainers"), errors);
    validate_ephemeral(spec, around, &path.child("ephemeralContainers"), errors);
}

/// Whether an init container keeps running beside the others.
pub(super) fn is_sidecar(container: &Container) -> bool {
    text(&container.restart_policy) == "Always"
}

fn validate_regular(containers: &[Container], around: &Surroundings, path: &Path, errors: &mut Errors) {
    if containers.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let at = path.index(i);
        validate_common(container, around, &at, errors);
        if !seen.insert(&container.name) {
            errors.push(FieldError::duplicate(&at.child("name"), container.name.as_str()));
        }
        probes::validate(container, around.grace, &at, errors);
        restart_rules::validate(container, &at, errors);
    }
    validate_host_ports(containers, path, errors);
}

fn validate_init(spec: &PodSpec, around: &Surroundings, path: &Path, errors: &mut Errors) {
    let mut seen: BTreeSet<_> = spec.containers.iter().map(|container| &container.name).collect();
    for (i, container) in list(&spec.init_containers).iter().enumerate() {
        let at = path.index(i);
        validate_common(container, around, &at, errors);
        restart_rules::validate(container, &at, errors);
        if !container.name.is_empty() && !seen.insert(&container.name) {
            errors.push(FieldError::duplicate(&at.child("name"), container.name.as_str()));
        }
        // They run one by one, so only their own ports can collide.
        validate_host_ports(std::slice::from_ref(container), path, errors);
        if is_sidecar(container) {
            probes::validate(container, around.grace, &at, errors);
            continue;
        }
        let unused = [
            ("lifecycle", container.lifecycle.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
        ];
        for (field, _) in unused.into_iter().filter(|(_, set)| *set) {
            errors.push(FieldError::forbidden(&at.child(field), NOT_INIT));
        }
        if !list(&container.resize_policy).is_empty() {
            errors.push(FieldError::invalid(
                &at.child("resizePolicy"),
                shown(&container.resize_policy),
                "must not be set for init containers",
            ));
        }
    }
}

fn validate_ephemeral(spec: &PodSpec, around: &Surroundings, path: &Path, errors: &mut Errors) {
    let others: BTreeSet<_> =
        spec.containers.iter().chain(list(&spec.init_containers)).map(|container| container.name.as_str()).collect();
    let mut seen = others.clone();
    for (i, ephemeral) in list(&spec.ephemeral_containers).iter().enumerate() {
        let at = path.index(i);
        let container = common_part(ephemeral);
        validate_common(&container, around, &at, errors);
        if !matches!(around.owner, Owner::Pod(_)) {
            validate_image_spaces(&container, &at, errors);
        }
        if !seen.insert(&ephemeral.name) {
            errors.push(FieldError::duplicate(&at.child("name"), ephemeral.name.as_str()));
        }
        let target = text(&ephemeral.target_container_name);
        if !target.is_empty() && !others.contains(target) {
            errors.push(FieldError::not_found(&at.child("targetContainerName"), target));
        }
        // They come to look, not to serve.
        let unused = [
            ("ports", !list(&ephemeral.ports).is_empty()),
            ("resources", ephemeral.resources.as_ref().is_some_and(|resources| *resources != Default::default())),
            ("livenessProbe", ephemeral.liveness_probe.is_some()),
            ("readinessProbe", ephemeral.readiness_probe.is_some()),
            ("startupProbe", ephemeral.startup_probe.is_some()),
            ("lifecycle", ephemeral.lifecycle.is_some()),
            ("restartPolicy", ephemeral.restart_policy.is_some()),
            ("restartPolicyRules", !list(&ephemeral.restart_policy_rules).is_empty()),
            ("resizePolicy", !list(&ephemeral.resize_policy).is_empty()),
        ];
        for (field, _) in unused.into_iter().filter(|(_, set)| *set) {
            errors.push(FieldError::forbidden(&at.child(field), NOT_EPHEMERAL));
        }
        for (j, mount) in list(&ephemeral.volume_mounts).iter().enumerate() {
            for (field, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
                if !text(value).is_empty() {
                    let at = at.child("volumeMounts").index(j).child(field);
                    errors.push(FieldError::forbidden(&at, NOT_EPHEMERAL));
                }
            }
        }
    }
}

/// An ephemeral container without what makes it one.
fn common_part(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}

fn validate_common(container: &Container, around: &Surroundings, path: &Path, errors: &mut Errors) {
    names::require(&container.name, &path.child("name"), names::dns1123_label, errors);
    check::present(text(&container.image), &path.child("image"), errors);
    if matches!(around.owner, Owner::Pod(_)) {
        validate_image_spaces(container, path, errors);
    }
    check::required_one_of(
        text(&container.termination_message_policy),
        &["File", "FallbackToLogsOnError"],
        &path.child("terminationMessagePolicy"),
        errors,
    );
    validate_ports(list(&container.ports), &path.child("ports"), errors);
    env::validate(list(&container.env), &around.volumes, &path.child("env"), errors);
    env::validate_from(list(&container.env_from), &path.child("envFrom"), errors);
    mounts::validate(container, &around.volumes, path, errors);
    validate_pull_policy(text(&container.image_pull_policy), &path.child("imagePullPolicy"), errors);
    if let Some(requirements) = &container.resources {
        resources::validate_container(requirements, &around.claims, &path.child("resources"), errors);
    }
    validate_resize(list(&container.resize_policy), around, &path.child("resizePolicy"), errors);
    if let Some(context) = &container.security_context {
        security::validate_container(context, around.host_users, &path.child("securityContext"), errors);
    }
}

fn validate_image_spaces(container: &Container, path: &Path, errors: &mut Errors) {
    let image = text(&container.image);
    if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(&path.child("image"), image, detail));
    }
}

pub(super) fn validate_pull_policy(policy: &str, path: &Path, errors: &mut Errors) {
    check::required_one_of(policy, &["Always", "IfNotPresent", "Never"], path, errors);
}

fn validate_ports(ports: &[ContainerPort], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = path.index(i);
        let name = text(&port.name);
        if !name.is_empty() {
            let before = errors.len();
            names::refuse(name, &at.child("name"), names::port_name, errors);
            if errors.len() == before && !seen.insert(name) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
        match port.container_port {
            0 => errors.push(FieldError::required(&at.child("containerPort"), "")),
            number => validate_port_number(number, &at.child("containerPort"), errors),
        }
        match port.host_port {
            None | Some(0) => {}
            Some(number) => validate_port_number(number, &at.child("hostPort"), errors),
        }
        check::required_one_of(text(&port.protocol), PROTOCOLS, &at.child("protocol"), errors);
    }
}

fn validate_port_number(port: i32, path: &Path, errors: &mut Errors) {
    check::number(port.into(), names::is_valid_port_num(port), path, errors);
}

/// No two of these containers want the same port of the machine.
fn validate_host_ports(containers: &[Container], path: &Path, errors: &mut Errors) {
    let mut taken = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in list(&container.ports).iter().enumerate() {
            let number = port.host_port.unwrap_or_default();
            let place = format!("{}/{}/{number}", text(&port.protocol), text(&port.host_ip));
            if number != 0 && !taken.insert(place.clone()) {
                let at = path.index(i).child("ports").index(j).child("hostPort");
                errors.push(FieldError::duplicate(&at, place));
            }
        }
    }
}

fn validate_resize(policies: &[ContainerResizePolicy], around: &Surroundings, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, policy) in policies.iter().enumerate() {
        if !seen.insert(&policy.resource_name) {
            errors.push(FieldError::duplicate(&path.index(i), policy.resource_name.as_str()));
        }
        check::required_one_of(&policy.resource_name, &["cpu", "memory"], path, errors);
        check::required_one_of(&policy.restart_policy, &["NotRequired", "RestartContainer"], path, errors);
        if around.restart_policy == "Never" && policy.restart_policy != "NotRequired" {
            errors.push(FieldError::invalid(
                path,
                policy.restart_policy.as_str(),
                "must be 'NotRequired' when `restartPolicy` is 'Never'",
            ));
        }
    }
}
