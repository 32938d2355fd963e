//! Whether this machine can give a pod the protection it asks for. Pure: the one place where the agent says no.
//!
//! Judged before anything is done for a pod. What cannot be given fails the pod, with upstream's reason and message where
//! upstream has one; nothing that was asked for is left out. What depends on a container's image or on a volume is
//! judged when the container is made, and fails that (see the table in this module's tests).

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, PodSpec, SecurityContext};
use mainstay_api::{pod::SAFE_SYSCTLS, wellknown::kubernetes::APPARMOR_PREFIX};
use mainstay_runtime::{builtin::apparmor, spec::AppArmor};

use crate::container_lists::as_container;

/// What the machine can enforce.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub apparmor: apparmor::AppArmorSupport,
    pub selinux: bool,
    /// Containers are made by another program, which labels them and knows its own default profile.
    pub is_cri: bool,
}

impl Host {
    pub fn read(is_cri: bool) -> Self {
        let selinux = std::path::Path::new("/sys/fs/selinux/enforce").exists();
        Self { apparmor: apparmor::AppArmorSupport::read(), selinux, is_cri }
    }
}

/// Why a pod is not run here: it becomes `Failed` with this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

pub fn admit(pod: &Pod, host: &Host) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    verify_os(spec)?;
    verify_sysctls(spec)?;
    verify_apparmor(pod, spec, host)?;
    verify_selinux(spec, host)?;
    verify_users(spec)
}

fn verify_os(spec: &PodSpec) -> Result<(), Refusal> {
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None | Some("linux") => Ok(()),
        Some(_) => Err(Refusal::new("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")),
    }
}

fn verify_sysctls(spec: &PodSpec) -> Result<(), Refusal> {
    let asked = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    for sysctl in asked {
        let name = sysctl.name.replace('/', ".");
        let why = if name.starts_with("net.") && spec.host_network == Some(true) {
            "not allowed with host net enabled"
        } else if name.starts_with("kernel.shm") && spec.host_ipc == Some(true) {
            "not allowed with host ipc enabled"
        } else if !SAFE_SYSCTLS.contains(&name.as_str()) {
            "not allowlisted"
        } else {
            continue;
        };
        return Err(Refusal::new("SysctlForbidden", format!("forbidden sysctl: {name:?} {why}")));
    }
    Ok(())
}

fn verify_apparmor(pod: &Pod, spec: &PodSpec, host: &Host) -> Result<(), Refusal> {
    let refused = |why: String| Err(Refusal::new("AppArmor", format!("Cannot enforce AppArmor: {why}")));
    for container in containers(spec) {
        let name = match apparmor(pod, &container) {
            AppArmor::Unspecified | AppArmor::Unconfined => continue,
            AppArmor::RuntimeDefault => apparmor::DEFAULT_PROFILE.to_owned(),
            AppArmor::Localhost(name) => name,
        };
        let is_default = apparmor(pod, &container) == AppArmor::RuntimeDefault;
        if !host.apparmor.enabled {
            return refused("AppArmor is not enabled on the host".to_owned());
        }
        // A CRI runtime loads its own default.
        let is_loaded = host.apparmor.profiles.contains(&name) || (is_default && host.is_cri);
        if !is_loaded {
            return refused(format!("profile {name:?} is not loaded"));
        }
    }
    Ok(())
}

/// Without SELinux labels mean nothing, as upstream has it: pods that set them run on both kinds of machines.
fn verify_selinux(spec: &PodSpec, host: &Host) -> Result<(), Refusal> {
    let asked = containers(spec)
        .iter()
        .any(|container| security_context(container).is_some_and(|c| c.se_linux_options.is_some()))
        || spec.security_context.as_ref().is_some_and(|context| context.se_linux_options.is_some());
    match asked && host.selinux && !host.is_cri {
        true => Err(Refusal::new(
            "SELinux",
            "Cannot enforce SELinux: the built-in runtime sets no labels; use --runtime cri://",
        )),
        false => Ok(()),
    }
}

/// The API refuses this too; pods from files and machines with `--network host` come past it.
fn verify_users(spec: &PodSpec) -> Result<(), Refusal> {
    if spec.host_users != Some(false) {
        return Ok(());
    }
    let shared = [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
    match shared.iter().find(|(_, shared)| *shared == Some(true)) {
        None => Ok(()),
        Some((field, _)) => Err(Refusal::new(
            "UserNamespacesNotSupported",
            format!("spec.{field} is not possible when spec.hostUsers is false"),
        )),
    }
}

fn security_context(container: &Container) -> Option<&SecurityContext> {
    container.security_context.as_ref()
}

fn containers(spec: &PodSpec) -> Vec<Container> {
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(as_container);
    spec.init_containers.iter().flatten().chain(&spec.containers).cloned().chain(ephemeral).collect()
}

/// The profile of a container: its own, else by the old annotation, else the pod's.
pub fn apparmor(pod: &Pod, container: &Container) -> AppArmor {
    if let Some(profile) = security_context(container).and_then(|context| context.app_armor_profile.as_ref()) {
        return from_profile(profile);
    }
    let annotations = pod.metadata.annotations.as_ref();
    let annotation = annotations.and_then(|all| all.get(&format!("{APPARMOR_PREFIX}{}", container.name)));
    if let Some(text) = annotation {
        return match (text.as_str(), text.strip_prefix("localhost/")) {
            (_, Some(name)) => AppArmor::Localhost(name.to_owned()),
            ("unconfined", None) => AppArmor::Unconfined,
            _ => AppArmor::RuntimeDefault,
        };
    }
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.app_armor_profile.as_ref());
    of_pod.map_or(AppArmor::Unspecified, from_profile)
}

fn from_profile(profile: &AppArmorProfile) -> AppArmor {
    match profile.type_.as_str() {
        "Unconfined" => AppArmor::Unconfined,
        "Localhost" => AppArmor::Localhost(profile.localhost_profile.clone().unwrap_or_default()),
        _ => AppArmor::RuntimeDefault,
    }
}

#[cfg(test)]
mod tests;
