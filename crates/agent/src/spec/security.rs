//! The security context of a container: the container's fields, else the pod's, else the defaults.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext};
use mainstay_runtime::spec::{Seccomp, Security, SelinuxOptions};

use super::{ConfigError, pod_ref};
use crate::admission;

/// Where relative profiles of `Localhost` lie.
pub fn security(of: &Pod, container: &Container, profiles: &Path) -> Security {
    let (no_pod, no_own) = (PodSecurityContext::default(), SecurityContext::default());
    let pod = of.spec.as_ref().and_then(|spec| spec.security_context.as_ref()).unwrap_or(&no_pod);
    let own = container.security_context.as_ref().unwrap_or(&no_own);
    let privileged = own.privileged.unwrap_or_default();
    let capabilities = own.capabilities.as_ref();
    let list = |names: Option<&Vec<String>>| names.cloned().unwrap_or_default();
    let mut groups = pod.supplemental_groups.clone().unwrap_or_default();
    groups.extend(pod.fs_group.filter(|group| !groups.contains(group)));
    Security {
        privileged,
        run_as_user: own.run_as_user.or(pod.run_as_user),
        run_as_group: own.run_as_group.or(pod.run_as_group),
        supplemental_groups: groups,
        strict_groups: pod.supplemental_groups_policy.as_deref() == Some("Strict"),
        add_capabilities: list(capabilities.and_then(|capabilities| capabilities.add.as_ref())),
        drop_capabilities: list(capabilities.and_then(|capabilities| capabilities.drop.as_ref())),
        no_new_privileges: own.allow_privilege_escalation == Some(false),
        read_only_root: own.read_only_root_filesystem.unwrap_or_default(),
        seccomp: match own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref()) {
            Some(profile) => seccomp(profile, profiles),
            None if privileged => Seccomp::Unconfined,
            None => Seccomp::RuntimeDefault,
        },
        unmasked_proc: own.proc_mount.as_deref() == Some("Unmasked"),
        apparmor: admission::apparmor(of, container),
        selinux: selinux(own.se_linux_options.as_ref().or(pod.se_linux_options.as_ref())),
    }
}

pub fn selinux(asked: Option<&SELinuxOptions>) -> Option<SelinuxOptions> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    asked.map(|asked| SelinuxOptions {
        user: text(&asked.user),
        role: text(&asked.role),
        kind: text(&asked.type_),
        level: text(&asked.level),
    })
}

fn seccomp(profile: &SeccompProfile, profiles: &Path) -> Seccomp {
    match profile.type_.as_str() {
        "Unconfined" => Seccomp::Unconfined,
        "Localhost" => {
            // Joining an absolute path would leave the directory; the API refuses `..`.
            let path = profile.localhost_profile.as_deref().unwrap_or_default();
            Seccomp::Localhost(profiles.join(path.trim_start_matches('/')))
        }
        _ => Seccomp::RuntimeDefault,
    }
}

/// `runAsNonRoot`, judged with the user that the image names.
pub fn verify_non_root(pod: &Pod, container: &Container, image_user: &str) -> Result<(), ConfigError> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let wanted = own.and_then(|own| own.run_as_non_root).or(of_pod.and_then(|pod| pod.run_as_non_root));
    if wanted != Some(true) {
        return Ok(());
    }
    let whose = {
        let pod = pod_ref(pod);
        format!("(pod: \"{}_{}({})\", container: {})", pod.name, pod.namespace, pod.uid, container.name)
    };
    let user = own.and_then(|own| own.run_as_user).or(of_pod.and_then(|pod| pod.run_as_user));
    let image_user = image_user.split(':').next().unwrap_or_default();
    match (user, image_user.parse::<i64>()) {
        (Some(0), _) => Err(format!("container's runAsUser breaks non-root policy {whose}")),
        (Some(_), _) => Ok(()),
        (None, Ok(0)) => Err(format!("container has runAsNonRoot and image will run as root {whose}")),
        (None, Ok(_)) => Ok(()),
        (None, Err(_)) if image_user.is_empty() => {
            Err(format!("container has runAsNonRoot and image will run as root {whose}"))
        }
        (None, Err(_)) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({image_user}), cannot verify user is non-root \
             {whose}"
        )),
    }
    .map_err(ConfigError::Refused)
}
