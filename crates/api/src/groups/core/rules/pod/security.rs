//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSpec, SeccompProfile, SecurityContext, Sysctl, WindowsSecurityContextOptions,
};

use super::volumes::validate_descending;
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, list, shown, text},
        names,
    },
};

const SYSCTL_MAX: usize = 253;
const PROFILE_PATH_MAX: usize = 4095;
const PROFILE_TYPES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
const CREDENTIAL_SPEC_MAX_KIB: usize = 64;

pub(super) fn validate_pod(spec: &PodSpec, spec_path: &Path, errors: &mut Errors) {
    let Some(context) = &spec.security_context else { return };
    let path = spec_path.child("securityContext");
    for (field, id) in
        [("fsGroup", context.fs_group), ("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)]
    {
        validate_id(id, &path.child(field), errors);
    }
    for (i, group) in list(&context.supplemental_groups).iter().enumerate() {
        validate_id(Some(*group), &path.child("supplementalGroups").index(i), errors);
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.push(FieldError::invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        ));
    }
    validate_sysctls(list(&context.sysctls), spec, &path.child("sysctls"), errors);
    for (field, value, supported) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, &["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, &["MountOption", "Recursive"]),
    ] {
        check::optional_one_of(value, supported, &path.child(field), errors);
    }
    if let Some(profile) = &context.seccomp_profile {
        validate_seccomp(profile, &path.child("seccompProfile"), errors);
    }
    if let Some(options) = &context.windows_options {
        validate_windows(options, &path.child("windowsOptions"), errors);
    }
    if let Some(profile) = &context.app_armor_profile {
        validate_app_armor(profile, &path.child("appArmorProfile"), errors);
    }
}

pub(super) fn validate_container(context: &SecurityContext, host_users: bool, path: &Path, errors: &mut Errors) {
    validate_id(context.run_as_user, &path.child("runAsUser"), errors);
    validate_id(context.run_as_group, &path.child("runAsGroup"), errors);
    if let Some(kind) = &context.proc_mount {
        let at = path.child("procMount");
        check::one_of(kind, &["Default", "Unmasked"], &at, errors);
        if host_users && kind == "Unmasked" {
            let detail = "`hostUsers` must be false to use `Unmasked`";
            errors.push(FieldError::invalid(&at, kind.as_str(), detail));
        }
    }
    if let Some(profile) = &context.seccomp_profile {
        validate_seccomp(profile, &path.child("seccompProfile"), errors);
    }
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(path, shown(context), detail));
        }
        let added = context.capabilities.as_ref().map_or(&[][..], |capabilities| list(&capabilities.add));
        if added.iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(path, shown(context), detail));
        }
    }
    if let Some(options) = &context.windows_options {
        validate_windows(options, &path.child("windowsOptions"), errors);
    }
    if let Some(profile) = &context.app_armor_profile {
        validate_app_armor(profile, &path.child("appArmorProfile"), errors);
    }
}

/// A pod with users of its own shares none of the machine's other namespaces.
pub(super) fn validate_host_users(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if spec.host_users != Some(false) {
        return;
    }
    for (field, shared) in [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)]
    {
        if shared == Some(true) {
            errors.push(FieldError::forbidden(&path.child(field), "when `pod.Spec.HostUsers` is false"));
        }
    }
}

fn validate_id(id: Option<i64>, path: &Path, errors: &mut Errors) {
    if let Some(id) = id {
        check::number(id, names::unix_id(id), path, errors);
    }
}

fn validate_sysctls(sysctls: &[Sysctl], spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, sysctl) in sysctls.iter().enumerate() {
        let at = path.index(i).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if name.len() > SYSCTL_MAX || !name.split(['.', '/']).all(is_sysctl_segment) {
            errors.push(FieldError::invalid(
                &at,
                name,
                format!(
                    "must have at most {SYSCTL_MAX} characters and match regex \
                     ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
                ),
            ));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(&at, name));
        }
        let normal = name.replace('/', ".");
        if spec.host_network == Some(true) && normal.starts_with("net.") {
            errors.push(FieldError::invalid(&at, name, "may not be specified when 'hostNetwork' is true"));
        } else if spec.host_ipc == Some(true) && is_ipc_sysctl(&normal) {
            errors.push(FieldError::invalid(&at, name, "may not be specified when 'hostIPC' is true"));
        }
    }
}

fn is_sysctl_segment(segment: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = segment.as_bytes();
    bytes.iter().all(|&b| edge(b) || b == b'-' || b == b'_')
        && bytes.first().is_some_and(|&b| edge(b))
        && bytes.last().is_some_and(|&b| edge(b))
}

fn is_ipc_sysctl(name: &str) -> bool {
    name == "kernel.sem" || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix))
}

fn validate_seccomp(profile: &SeccompProfile, path: &Path, errors: &mut Errors) {
    let at = path.child("localhostProfile");
    if profile.type_.is_empty() {
        let detail = "type is required when seccompProfile is set";
        errors.push(FieldError::required(&path.child("type"), detail));
    } else {
        check::one_of(&profile.type_, PROFILE_TYPES, &path.child("type"), errors);
    }
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => {
            errors.push(FieldError::required(&at, "must be set when seccomp type is Localhost"));
        }
        ("Localhost", Some(file)) => validate_descending(file, &at, errors),
        (_, Some(_)) => {
            errors.push(FieldError::invalid(&at, shown(profile), "can only be set when seccomp type is Localhost"));
        }
        (_, None) => {}
    }
}

fn validate_app_armor(profile: &AppArmorProfile, path: &Path, errors: &mut Errors) {
    let at = path.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", name) if text(name).is_empty() => {
            errors.push(FieldError::required(&at, "must be set when AppArmor type is Localhost"));
        }
        ("Localhost", name) => {
            let name = text(name);
            if name.trim() != name {
                errors.push(FieldError::invalid(&at, name, "must not be padded with whitespace"));
            }
            if name.len() > PROFILE_PATH_MAX {
                errors.push(FieldError::too_long(&at, PROFILE_PATH_MAX));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            let detail = "can only be set when AppArmor type is Localhost";
            errors.push(FieldError::invalid(&at, name.as_str(), detail));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => {
            let detail = "type is required when appArmorProfile is set";
            errors.push(FieldError::required(&path.child("type"), detail));
        }
        (other, _) => errors.push(FieldError::not_supported(&path.child("type"), other, PROFILE_TYPES)),
    }
}

fn validate_windows(options: &WindowsSecurityContextOptions, path: &Path, errors: &mut Errors) {
    if let Some(name) = &options.gmsa_credential_spec_name {
        names::refuse(name, &path.child("gmsaCredentialSpecName"), names::dns1123_subdomain, errors);
    }
    if let Some(spec) = &options.gmsa_credential_spec {
        let at = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            errors.push(FieldError::invalid(&at, "", "gmsaCredentialSpec cannot be an empty string"));
        } else if spec.len() > CREDENTIAL_SPEC_MAX_KIB * 1024 {
            let detail = format!("gmsaCredentialSpec size must be under {CREDENTIAL_SPEC_MAX_KIB} KiB");
            errors.push(FieldError::invalid(&at, spec.as_str(), detail));
        }
    }
    if let Some(user) = &options.run_as_user_name {
        let complaint = if user.is_empty() {
            "runAsUserName cannot be an empty string"
        } else if user.chars().any(char::is_control) {
            "runAsUserName cannot contain control characters"
        } else if user.matches('\\').count() > 1 {
            "runAsUserName cannot contain more than one backslash"
        } else {
            return;
        };
        errors.push(FieldError::invalid(&path.child("runAsUserName"), user.as_str(), complaint));
    }
}
