//! What a pod may not say once it names its operating system.

use k8s_openapi::api::core::v1::{PodSpec, SecurityContext, WindowsSecurityContextOptions};

use crate::{
    field::{Errors, FieldError, Path},
    validation::check::list,
};

const NOT_WINDOWS: &str = "cannot be set for a windows pod";
const NOT_LINUX: &str = "windows options cannot be set for a linux pod";

pub(super) fn validate(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => errors.push(FieldError::required(&path.child("os").child("name"), "cannot be empty")),
        "linux" => validate_linux(spec, path, errors),
        "windows" => validate_windows(spec, path, errors),
        other => errors.push(FieldError::not_supported(&path.child("os"), other, &["linux", "windows"])),
    }
}

/// The security contexts of all containers, init containers first.
fn contexts<'a>(spec: &'a PodSpec, path: &Path) -> Vec<(Path, Option<&'a SecurityContext>)> {
    let init = list(&spec.init_containers).iter().map(|container| &container.security_context);
    let regular = spec.containers.iter().map(|container| &container.security_context);
    let ephemeral = list(&spec.ephemeral_containers).iter().map(|container| &container.security_context);
    let at = |field: &str, i: usize| path.child(field).index(i).child("securityContext");
    init.enumerate()
        .map(|(i, context)| (at("initContainers", i), context.as_ref()))
        .chain(regular.enumerate().map(|(i, context)| (at("containers", i), context.as_ref())))
        .chain(ephemeral.enumerate().map(|(i, context)| (at("ephemeralContainers", i), context.as_ref())))
        .collect()
}

fn validate_linux(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
        errors.push(FieldError::forbidden(&path.child("securityContext").child("windowsOptions"), NOT_LINUX));
    }
    for (at, context) in contexts(spec, path) {
        if context.is_some_and(|context| context.windows_options.is_some()) {
            errors.push(FieldError::forbidden(&at.child("windowsOptions"), NOT_LINUX));
        }
    }
}

fn validate_windows(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let mut forbid = |at: &Path, fields: &[(&str, bool)]| {
        for (field, _) in fields.iter().filter(|(_, set)| *set) {
            errors.push(FieldError::forbidden(&at.child(field), NOT_WINDOWS));
        }
    };
    forbid(
        path,
        &[
            ("hostUsers", spec.host_users.is_some()),
            ("hostPID", spec.host_pid == Some(true)),
            ("hostIPC", spec.host_ipc == Some(true)),
            ("shareProcessNamespace", spec.share_process_namespace.is_some()),
        ],
    );
    if let Some(c) = &spec.security_context {
        forbid(
            &path.child("securityContext"),
            &[
                ("appArmorProfile", c.app_armor_profile.is_some()),
                ("seLinuxOptions", c.se_linux_options.is_some()),
                ("seccompProfile", c.seccomp_profile.is_some()),
                ("fsGroup", c.fs_group.is_some()),
                ("fsGroupChangePolicy", c.fs_group_change_policy.is_some()),
                ("sysctls", !list(&c.sysctls).is_empty()),
                ("runAsUser", c.run_as_user.is_some()),
                ("runAsGroup", c.run_as_group.is_some()),
                ("supplementalGroups", c.supplemental_groups.is_some()),
                ("supplementalGroupsPolicy", c.supplemental_groups_policy.is_some()),
                ("seLinuxChangePolicy", c.se_linux_change_policy.is_some()),
            ],
        );
    }
    for (at, context) in contexts(spec, path) {
        let Some(c) = context else { continue };
        forbid(
            &at,
            &[
                ("appArmorProfile", c.app_armor_profile.is_some()),
                ("seLinuxOptions", c.se_linux_options.is_some()),
                ("seccompProfile", c.seccomp_profile.is_some()),
                ("capabilities", c.capabilities.is_some()),
                ("readOnlyRootFilesystem", c.read_only_root_filesystem.is_some()),
                ("privileged", c.privileged.is_some()),
                ("allowPrivilegeEscalation", c.allow_privilege_escalation.is_some()),
                ("procMount", c.proc_mount.is_some()),
                ("runAsUser", c.run_as_user.is_some()),
                ("runAsGroup", c.run_as_group.is_some()),
            ],
        );
    }
}

/// Host process containers: all of a pod's or none, and on the host's network.
pub(super) fn validate_host_process(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let wish = |options: &Option<WindowsSecurityContextOptions>| options.as_ref().and_then(|o| o.host_process);
    let whole = spec.security_context.as_ref().and_then(|context| wish(&context.windows_options));
    let contexts = contexts(spec, path);
    let mut count = 0;
    for (at, context) in &contexts {
        let own = context.and_then(|context| wish(&context.windows_options));
        if let (Some(whole), Some(own)) = (whole, own)
            && whole != own
        {
            errors.push(FieldError::invalid(
                &at.child("windowsOptions").child("hostProcess"),
                own,
                format!("pod hostProcess value must be identical if both are specified, was {whole}"),
            ));
        }
        count += usize::from(own.or(whole) == Some(true));
    }
    if count == 0 {
        return;
    }
    if count != contexts.len() {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(path, "", detail));
    }
    if spec.host_network != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&path.child("hostNetwork"), false, detail));
    }
}

/// Whether the pod says that it is for Windows.
pub(super) fn is_windows(spec: &PodSpec) -> bool {
    spec.os.as_ref().is_some_and(|os| os.name == "windows")
}
