//! Turns specs of sandboxes and containers into CRI messages. Pure.

use std::path::Path;

use super::{label, proto};
use crate::{
    error::RuntimeError,
    idmap::UserNamespace,
    port::Result,
    spec::{
        AppArmor, ContainerSpec, DeviceNode, MASKED_PATHS, Mount, PidMode, Propagation, Protocol, READ_ONLY_PATHS,
        RecursiveReadOnly, Resources, SandboxSpec, Seccomp, Security, SelinuxOptions,
    },
};

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
                selinux_options: selinux(spec.selinux.as_ref()),
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
        userns_options: spec.users.map(|users| proto::UserNamespace {
            mode: Pod.into(),
            uids: mappings(Some(users)),
            gids: mappings(Some(users)),
        }),
    }
}

fn mappings(users: Option<UserNamespace>) -> Vec<proto::IdMapping> {
    let mapping =
        |users: UserNamespace| proto::IdMapping { host_id: users.host_id, container_id: 0, length: users.length };
    users.map(mapping).into_iter().collect()
}

fn selinux(options: Option<&SelinuxOptions>) -> Option<proto::SeLinuxOption> {
    options.map(|options| proto::SeLinuxOption {
        user: options.user.clone(),
        role: options.role.clone(),
        r#type: options.kind.clone(),
        level: options.level.clone(),
    })
}

/// As a profile, and as runtimes read it before there was one.
fn apparmor(asked: &AppArmor) -> (Option<proto::SecurityProfile>, String) {
    use proto::security_profile::ProfileType;
    let profile = |kind: ProfileType, name: &str| {
        Some(proto::SecurityProfile { profile_type: kind.into(), localhost_ref: name.to_owned() })
    };
    match asked {
        AppArmor::Unspecified => (None, String::new()),
        AppArmor::RuntimeDefault => (profile(ProfileType::RuntimeDefault, ""), "runtime/default".to_owned()),
        AppArmor::Unconfined => (profile(ProfileType::Unconfined, ""), "unconfined".to_owned()),
        AppArmor::Localhost(name) => (profile(ProfileType::Localhost, name), format!("localhost/{name}")),
    }
}

/// Whether a runtime said that it can do what is asked of a sandbox; upstream's words if not.
pub fn verify_sandbox(spec: &SandboxSpec, status: &proto::StatusResponse) -> Result<()> {
    if spec.users.is_none() {
        return Ok(());
    }
    let handler = status.runtime_handlers.iter().find(|handler| handler.name == spec.runtime_handler);
    if handler.and_then(|handler| handler.features.as_ref()).is_some_and(|features| features.user_namespaces) {
        return Ok(());
    }
    let who = match spec.runtime_handler.as_str() {
        "" => "runtime".to_owned(),
        name => format!("RuntimeClass handler {name:?}"),
    };
    Err(RuntimeError::Invalid {
        why: format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces"),
    })
}

/// The same of a container.
pub fn verify_container(pod: &SandboxSpec, spec: &ContainerSpec, status: &proto::StatusResponse) -> Result<()> {
    if spec.security.strict_groups
        && !status.features.as_ref().is_some_and(|features| features.supplemental_groups_policy)
    {
        return Err(RuntimeError::Invalid {
            why: "SupplementalGroupsPolicy=Strict is not supported in this node".to_owned(),
        });
    }
    let handler = status.runtime_handlers.iter().find(|handler| handler.name == pod.runtime_handler);
    let recursive = handler.and_then(|handler| handler.features.as_ref()).is_some_and(|f| f.recursive_read_only_mounts);
    if !recursive && let Some(mount) = spec.mounts.iter().find(|mount| is_recursive(mount)) {
        return Err(RuntimeError::Invalid {
            why: format!("recursiveReadOnly of {:?}: the runtime does not support it", mount.target),
        });
    }
    Ok(())
}

/// `IfPossible` is left out: runtimes differ, and to ask each of them for every mount costs more than it gives.
fn is_recursive(mount: &Mount) -> bool {
    mount.recursive_read_only == RecursiveReadOnly::Enabled
}

/// Whether anything is asked for that older runtimes drop without a word.
pub fn needs_features(spec: &ContainerSpec) -> bool {
    spec.security.strict_groups || spec.mounts.iter().any(is_recursive)
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
        mounts: spec.mounts.iter().map(|each| mount(each, pod.users)).collect(),
        devices: spec
            .devices
            .iter()
            .map(|path| device(path))
            .chain(spec.device_edits.nodes.iter().map(device_node))
            .collect(),
        cdi_devices: cdi_devices(spec),
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

fn mount(mount: &crate::spec::Mount, users: Option<UserNamespace>) -> proto::Mount {
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
        uid_mappings: mappings(users),
        gid_mappings: mappings(users),
        recursive_read_only: is_recursive(mount),
    }
}

/// Devices that the runtime looks up in its own directories of the Container Device Interface.
fn cdi_devices(spec: &ContainerSpec) -> Vec<proto::CdiDevice> {
    spec.device_edits.cdi_devices.iter().map(|name| proto::CdiDevice { name: name.clone() }).collect()
}

/// What the machine has at another path, or with fewer permissions.
fn device_node(node: &DeviceNode) -> proto::Device {
    let permissions = if node.permissions.is_empty() { "mrw".to_owned() } else { node.permissions.clone() };
    let host_path = text(node.host_path.as_deref().unwrap_or(&node.path));
    proto::Device { container_path: text(&node.path), host_path, permissions }
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
    let (apparmor, apparmor_profile) = apparmor(&security.apparmor);
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
        masked_paths: paths(MASKED_PATHS),
        readonly_paths: paths(READ_ONLY_PATHS),
        seccomp: Some(seccomp(&security.seccomp)),
        supplemental_groups_policy: i32::from(security.strict_groups),
        apparmor,
        apparmor_profile,
        selinux_options: selinux(security.selinux.as_ref()),
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

    fn security_context(security: Security, image: ImageUser) -> proto::LinuxContainerSecurityContext {
        super::security(&security, &image, proto::NamespaceOption::default())
    }

    #[test]
    fn the_user_is_the_specs_or_the_images_or_root() {
        let user = |asked, uid, name: &str| {
            let security = Security { run_as_user: asked, ..Security::default() };
            let context = security_context(security, ImageUser { uid, name: name.to_owned() });
            (context.run_as_user.map(|v| v.value), context.run_as_username)
        };
        assert_eq!(user(Some(7), Some(5), "worker"), (Some(7), String::new()));
        assert_eq!(user(None, Some(5), ""), (Some(5), String::new()));
        assert_eq!(user(None, None, "worker"), (None, "worker".to_owned()));
        assert_eq!(user(None, None, ""), (Some(0), String::new()));
    }

    #[test]
    fn profiles_and_labels_are_passed_on_in_both_forms() {
        let security = Security {
            apparmor: AppArmor::Localhost("mine".into()),
            selinux: Some(SelinuxOptions { level: "s0".into(), ..SelinuxOptions::default() }),
            ..Security::default()
        };
        let context = security_context(security, ImageUser::default());
        assert_eq!(
            (context.apparmor_profile.as_str(), context.apparmor.unwrap().localhost_ref.as_str()),
            ("localhost/mine", "mine")
        );
        assert_eq!(context.selinux_options.unwrap().level, "s0");
        assert_eq!(security_context(Security::default(), ImageUser::default()).apparmor, None);
    }

    #[test]
    fn a_runtime_that_does_not_know_what_is_asked_is_not_asked() {
        let old = proto::StatusResponse::default();
        let handler = |name: &str| proto::RuntimeHandler {
            name: name.to_owned(),
            features: Some(proto::RuntimeHandlerFeatures { user_namespaces: true, recursive_read_only_mounts: true }),
        };
        let new = proto::StatusResponse {
            runtime_handlers: vec![handler("")],
            features: Some(proto::RuntimeFeatures { supplemental_groups_policy: true }),
        };
        let mut pod = crate::suite::sandbox_spec();
        verify_sandbox(&pod, &old).unwrap();
        pod.users = Some(UserNamespace { host_id: 65_536, length: 65_536 });
        verify_sandbox(&pod, &new).unwrap();
        let refused = verify_sandbox(&pod, &old).unwrap_err().to_string();
        assert_eq!(refused, "can't set `spec.hostUsers: false`, runtime does not support user namespaces");
        let options = namespaces(&pod).userns_options.unwrap();
        assert_eq!((options.uids.clone(), options.uids[0].host_id, options.gids.len()), (options.gids, 65_536, 1));
        pod.runtime_handler = "runsc".into();
        assert!(verify_sandbox(&pod, &new).unwrap_err().to_string().contains("handler \"runsc\""));
        let mut container = ContainerSpec::default();
        container.security.strict_groups = true;
        assert!(needs_features(&container));
        verify_container(&pod, &container, &new).unwrap();
        assert!(verify_container(&pod, &container, &old).unwrap_err().to_string().contains("Strict is not supported"));
    }

    #[test]
    fn kernel_files_are_hidden_unless_asked_otherwise() {
        let paths = |security| security_context(security, ImageUser::default()).masked_paths.len();
        assert_eq!(paths(Security::default()), MASKED_PATHS.len());
        assert_eq!(paths(Security { unmasked_proc: true, ..Security::default() }), 0);
        assert_eq!(paths(Security { privileged: true, ..Security::default() }), 0);
    }
}
