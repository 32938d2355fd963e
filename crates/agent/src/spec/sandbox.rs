//! Converts a pod into a sandbox spec: namespaces, sysctls, ports, cgroup.

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use mainstay_api::{
    pod::lasting_containers,
    ports::{SCTP, UDP, assigned_host_ports},
};
use mainstay_runtime::{
    SandboxSpec,
    spec::{Dns, HostPort, PidMode, Protocol},
};

use super::{ConfigError, container, hostname, machine::NodeFacts, pod_ref, resources, security};

pub struct About<'a> {
    pub cluster_domain: &'a str,
    pub machine: &'a NodeFacts,
    pub log_directory: PathBuf,
    pub dns: Dns,
}

pub fn sandbox(pod: &Pod, attempt: u32, about: About<'_>) -> Result<SandboxSpec, ConfigError> {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    Ok(SandboxSpec {
        pod: pod_ref(pod),
        attempt,
        hostname: hostname::names(pod, about.cluster_domain, about.machine)?.hostname,
        log_directory: about.log_directory,
        host_network: spec.host_network.unwrap_or_default(),
        host_ipc: spec.host_ipc.unwrap_or_default(),
        pid: match (spec.host_pid, spec.share_process_namespace) {
            (Some(true), _) => PidMode::Host,
            (_, Some(true)) => PidMode::Pod,
            _ => PidMode::Container,
        },
        cgroup: resources::cgroup(pod),
        resources: resources::pod(pod),
        users: None,
        runtime_handler: String::new(),
        selinux: security::selinux(
            spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref()),
        ),
        sysctls: sysctls(spec),
        ports: ports(pod, spec),
        dns: about.dns,
        labels: {
            let mut labels = pod.metadata.labels.clone().unwrap_or_default();
            labels.extend(container::pod_labels(pod));
            labels
        },
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
    })
}

/// As asked: those that are not allowed were refused when the pod came.
fn sysctls(spec: &PodSpec) -> BTreeMap<String, String> {
    let asked = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    asked.map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.clone())).collect()
}

/// Ports of the machine that lead into the pod; on its own network every port is one already.
fn ports(pod: &Pod, spec: &PodSpec) -> Vec<HostPort> {
    if spec.host_network.unwrap_or_default() {
        return Vec::new();
    }
    let protocol = |name: Option<&str>| match name {
        Some(UDP) => Protocol::Udp,
        Some(SCTP) => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    let ports = lasting_containers(spec).flat_map(|container| container.ports.iter().flatten());
    let requested = ports.filter_map(|port| {
        Some(HostPort {
            protocol: protocol(port.protocol.as_deref()),
            container_port: number(port.container_port)?,
            host_port: number(port.host_port?)?,
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
    });
    let assigned = assigned_host_ports(pod).into_iter().map(|port| HostPort {
        protocol: protocol(Some(&port.protocol)),
        container_port: port.container_port,
        host_port: port.host_port,
        host_ip: String::new(),
    });
    requested.chain(assigned).collect()
}
