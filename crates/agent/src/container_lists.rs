//! The three lists of containers in a pod, read alike: ordinary, init and ephemeral containers.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

/// The container of this name, of whatever kind.
pub fn find_container(pod: &Pod, name: &str) -> Option<Container> {
    let spec = pod.spec.as_ref()?;
    let mut plain_ones = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let found = plain_ones.find(|c| c.name == name).cloned();
    found.or_else(|| spec.ephemeral_containers.iter().flatten().find(|c| c.name == name).map(as_container))
}

/// An ephemeral container as an ordinary one.
pub fn as_container(c: &EphemeralContainer) -> Container {
    Container {
        name: c.name.clone(),
        image: c.image.clone(),
        command: c.command.clone(),
        args: c.args.clone(),
        working_dir: c.working_dir.clone(),
        env: c.env.clone(),
        env_from: c.env_from.clone(),
        volume_mounts: c.volume_mounts.clone(),
        volume_devices: c.volume_devices.clone(),
        image_pull_policy: c.image_pull_policy.clone(),
        security_context: c.security_context.clone(),
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
        termination_message_path: c.termination_message_path.clone(),
        termination_message_policy: c.termination_message_policy.clone(),
        ..Container::default()
    }
}
