//! Specs in CRI's words. Pure.

use std::path::Path;

use super::{label, proto};
use crate::{
    error::RuntimeError,
    port::Result,
    spec::{ContainerSpec, PidMode, Propagation, Protocol, Resources, SandboxSpec, Seccomp, Security},
};

/// What upstream hides of `/proc` and `/sys`; a CRI runtime hides what it is told to.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Where the pod's cgroup lies below each hierarchy.
pub fn cgroup(instance: &str, spec: &SandboxSpec) -> String {
    format!("/{instance}/{}", spec.cgroup)
}

pub fn sandbox(instance: &str, spec: &SandboxSpec) -> proto::PodSandboxConfig {
    proto::PodSandboxConfig {
        metadata: Some(proto::PodSandboxMetadata {
            name: spec.pod.name.clone(),
            uid: spec.pod.uid.0.clone(),
            namespace: spec.pod.namespace.clone(),
            attempt: spec.attempt,
        }),
        // The machine's own name is for the runtime to know.
        hostname: if spec.host_network { String::new() } else { spec.hostname.clone() },
        log_directory: text(&spec.log_directory),
        dns_config: Some(proto::DnsConfig {
            servers: spec.dns.servers.clone(),
            searches: spec.dns.searches.clone(),
            options: spec.dns.options.clone(),
        }),
        port_mappings: spec.ports.iter().filter(|_| !spec.host_network).map(port).collect(),
        labels: label::sandbox_labels(instance, spec),
        annotations: label::sandbox_annotations(spec),
        linux: Some(proto::LinuxPodSandboxConfig {
            cgroup_parent: cgroup(instance, spec),
            security_context: Some(proto::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(spec)),
                privileged: false,
                seccomp: Some(seccomp(&Seccomp::RuntimeDefault)),
            }),
            sysctls: spec.sysctls.clone().into_iter().collect(),
        }),
    }
}

fn port(port: &crate::spec::HostPort) -> proto::PortMapping {
    let protocol = match port.protocol {
        Protocol::Tcp => proto::Protocol::Tcp,
        Protocol::Udp => proto::Protocol::Udp,
        Protocol::Sctp => proto::Protocol::Sctp,
    };
    proto::PortMapping {
        protocol: protocol.into(),
        container_port: port.container_port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.clone(),
    }
}

fn namespaces(spec: &SandboxSpec) -> proto::NamespaceOption {
    use proto::NamespaceMode::{Container, Node, Pod};
    let pod_or_node = |host| if host { Node } else { Pod }.into();
    let pid = match spec.pid {
        PidMode::Container => Container,
        PidMode::Pod => Pod,
        PidMode::Host => Node,
    };
    proto::NamespaceOption {
        network: pod_or_node(spec.host_network),
        pid: pid.into(),
        ipc: pod_or_node(spec.host_ipc),
        target_id: String::new(),
    }
}

/// Who runs it when the spec does not say. Runtimes know themselves, but not which groups this user is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub name: String,
}

/// `target` is the container whose pid namespace it joins, if the spec asks for one.
pub fn container(
    instance: &str,
    pod: &SandboxSpec,
    spec: &ContainerSpec,
    user: &ImageUser,
    target: Option<String>,
) -> Result<proto::ContainerConfig> {
    let log_path = spec.log_path.strip_prefix(&pod.log_directory).map_err(|_| RuntimeError::Invalid {
        why: format!("the log {:?} does not lie below {:?}", spec.log_path, pod.log_directory),
    })?;
    let mut namespace_options = namespaces(pod);
    if let Some(target) = target {
        namespace_options.pid = proto::NamespaceMode::Target.into();
        namespace_options.target_id = target;
    }
    Ok(proto::ContainerConfig {
        metadata: Some(proto::ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
        image: Some(proto::ImageSpec { image: image(spec).to_owned() }),
        command: spec.command.clone(),
        args: spec.args.clone(),
        working_dir: spec.working_dir.clone(),
        envs: spec.env.iter().map(|(key, value)| proto::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: spec.mounts.iter().map(mount).collect(),
        devices: spec.devices.iter().map(|path| device(path)).collect(),
        labels: label::container_labels(instance, &pod.pod, spec),
        annotations: label::container_annotations(spec),
        log_path: text(log_path),
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        tty: spec.tty,
        linux: Some(proto::LinuxContainerConfig {
            resources: Some(resources(&spec.resources)),
            security_context: Some(security(&spec.security, user, namespace_options)),
        }),
    })
}

/// What the runtime is asked to make it of.
pub fn image(spec: &ContainerSpec) -> &str {
    if spec.image_id.is_empty() { &spec.image } else { &spec.image_id }
}

fn mount(mount: &crate::spec::Mount) -> proto::Mount {
    let propagation = match mount.propagation {
        Propagation::Private => proto::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => proto::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => proto::MountPropagation::PropagationBidirectional,
    };
    proto::Mount {
        container_path: text(&mount.target),
        host_path: text(&mount.source),
        readonly: mount.read_only,
        propagation: propagation.into(),
    }
}

fn device(path: &Path) -> proto::Device {
    proto::Device { container_path: text(path), host_path: text(path), permissions: "mrw".to_owned() }
}

pub fn resources(resources: &Resources) -> proto::LinuxContainerResources {
    let hugepages = resources
        .hugepages
        .iter()
        .map(|(size, limit)| proto::HugepageLimit { page_size: size.replace('i', "B"), limit: *limit });
    proto::LinuxContainerResources {
        cpu_period: resources.cpu_period.unwrap_or_default().try_into().unwrap_or(i64::MAX),
        cpu_quota: resources.cpu_quota.unwrap_or_default(),
        cpu_shares: resources.cpu_shares.unwrap_or_default().try_into().unwrap_or(i64::MAX),
        memory_limit_in_bytes: resources.memory_limit.unwrap_or_default(),
        oom_score_adj: resources.oom_score_adj.unwrap_or_default().into(),
        hugepage_limits: hugepages.collect(),
        // Of the second version only; with the first, the pod's limit is what holds.
        unified: Default::default(),
    }
}

fn security(
    security: &Security,
    image: &ImageUser,
    namespace_options: proto::NamespaceOption,
) -> proto::LinuxContainerSecurityContext {
    let value = |value| proto::Int64Value { value };
    let hidden = !security.unmasked_proc && !security.privileged;
    let paths = |paths: &[&str]| paths.iter().filter(|_| hidden).map(|path| (*path).to_owned()).collect();
    let user = security.run_as_user.or(image.uid).or(image.name.is_empty().then_some(0));
    proto::LinuxContainerSecurityContext {
        capabilities: Some(proto::Capability {
            add_capabilities: security.add_capabilities.clone(),
            drop_capabilities: security.drop_capabilities.clone(),
        }),
        privileged: security.privileged,
        namespace_options: Some(namespace_options),
        run_as_user: user.map(value),
        run_as_group: security.run_as_group.map(value),
        run_as_username: if user.is_none() { image.name.clone() } else { String::new() },
        readonly_rootfs: security.read_only_root,
        supplemental_groups: security.supplemental_groups.clone(),
        no_new_privs: security.no_new_privileges,
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: Some(seccomp(&security.seccomp)),
        supplemental_groups_policy: i32::from(security.strict_groups),
    }
}

fn seccomp(seccomp: &Seccomp) -> proto::SecurityProfile {
    use proto::security_profile::ProfileType;
    let (kind, path) = match seccomp {
        Seccomp::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        Seccomp::Unconfined => (ProfileType::Unconfined, String::new()),
        Seccomp::Localhost(path) => (ProfileType::Localhost, text(path)),
    };
    proto::SecurityProfile { profile_type: kind.into(), localhost_ref: path }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(security: Security, image: ImageUser) -> proto::LinuxContainerSecurityContext {
        super::security(&security, &image, proto::NamespaceOption::default())
    }

    #[test]
    fn the_user_is_the_specs_or_the_images_or_root() {
        let user = |asked, uid, name: &str| {
            let security = Security { run_as_user: asked, ..Security::default() };
            let context = of(security, ImageUser { uid, name: name.to_owned() });
            (context.run_as_user.map(|v| v.value), context.run_as_username)
        };
        assert_eq!(user(Some(7), Some(5), "worker"), (Some(7), String::new()));
        assert_eq!(user(None, Some(5), ""), (Some(5), String::new()));
        assert_eq!(user(None, None, "worker"), (None, "worker".to_owned()));
        assert_eq!(user(None, None, ""), (Some(0), String::new()));
    }

    #[test]
    fn kernel_files_are_hidden_unless_asked_otherwise() {
        let paths = |security| of(security, ImageUser::default()).masked_paths.len();
        assert_eq!(paths(Security::default()), MASKED.len());
        assert_eq!(paths(Security { unmasked_proc: true, ..Security::default() }), 0);
        assert_eq!(paths(Security { privileged: true, ..Security::default() }), 0);
    }
}
