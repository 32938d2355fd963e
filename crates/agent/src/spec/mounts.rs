//! The mounts of a container: its volumes, and `/etc/hosts`, `/etc/hostname`, `/etc/resolv.conf` and the termination log.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, Pod, VolumeDevice, VolumeMount};
use mainstay_files::create_private_dir;
use mainstay_runtime::spec::{DeviceNode, Mount, Propagation, RecursiveReadOnly};

use super::{ConfigError, ContainerRequest, Specs, dns, env, hostname, hosts, pod_ref};
use crate::volumes::subpath::SubPath;

const HOSTS: &str = "/etc/hosts";
const HOSTNAME: &str = "/etc/hostname";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const TERMINATION_LOG: &str = "/dev/termination-log";

impl Specs {
    pub(super) async fn mounts(
        &self,
        wanted: &ContainerRequest<'_>,
        container: &Container,
        env: &env::Variables,
    ) -> Result<Vec<Mount>, ConfigError> {
        let mut mounts = Vec::new();
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            mounts.push(self.volume(wanted.pod, container, index, mount, env).await?);
        }
        for (path, source) in self.files(wanted, container)? {
            if !mounts.iter().any(|mount| mount.target == Path::new(&path)) {
                let target = PathBuf::from(path);
                mounts.push(Mount {
                    source,
                    target,
                    read_only: false,
                    recursive_read_only: Default::default(),
                    propagation: Propagation::Private,
                });
            }
        }
        Ok(mounts)
    }

    /// The devices of the container's block volumes.
    pub(super) fn block_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<DeviceNode>, ConfigError> {
        let device = |wanted: &VolumeDevice| {
            let host_path = self.volumes.device(pod, &wanted.name);
            let host_path = host_path.map_err(|error| ConfigError::Refused(error.to_string()))?;
            let path = absolute(&wanted.device_path);
            let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            let claim =
                volumes.filter(|volume| volume.name == wanted.name).find_map(|v| v.persistent_volume_claim.as_ref());
            let is_read_only = claim.is_some_and(|claim| claim.read_only == Some(true));
            let permissions = if is_read_only { "r" } else { "rw" }.to_owned();
            Ok(DeviceNode { path, host_path: Some(host_path), permissions, ..DeviceNode::default() })
        };
        container.volume_devices.iter().flatten().map(device).collect()
    }

    async fn volume(
        &self,
        pod: &Pod,
        container: &Container,
        index: usize,
        mount: &VolumeMount,
        env: &env::Variables,
    ) -> Result<Mount, ConfigError> {
        let refused = |why: String| ConfigError::Refused(why);
        let source = self.volumes.source(pod, &mount.name).map_err(|error| refused(error.to_string()))?;
        let read_only = mount.read_only.unwrap_or_default() || source.read_only;
        let recursive = match mount.recursive_read_only.as_deref() {
            Some("Enabled") => RecursiveReadOnly::Enabled,
            Some("IfPossible") => RecursiveReadOnly::IfPossible,
            Some(_) | None => RecursiveReadOnly::Disabled,
        };
        let within = match (mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()) {
            (Some(path), _) if !path.is_empty() => Some(path.to_owned()),
            (_, Some(path)) if !path.is_empty() => Some(expand_strictly(path, env).map_err(refused)?),
            _ => None,
        };
        let path = match within {
            None => source.path,
            Some(within) => {
                let uid = pod_ref(pod).uid;
                let place = SubPath { volume: source.path, within: within.into(), read_only: source.read_only };
                let bound = self.volumes.sub_path(&uid, &container.name, index, place).await;
                bound.map_err(|error| {
                    tracing::warn!(%error, uid = %uid, container = container.name, "cannot prepare a subPath");
                    refused(format!(
                        "failed to prepare subPath for volumeMount {:?} of container {:?}: {error}",
                        mount.name, container.name
                    ))
                })?
            }
        };
        Ok(Mount {
            source: path,
            target: absolute(&mount.mount_path),
            read_only,
            recursive_read_only: if read_only { recursive } else { RecursiveReadOnly::Disabled },
            propagation: match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => Propagation::HostToContainer,
                Some("Bidirectional") => Propagation::Bidirectional,
                _ => Propagation::Private,
            },
        })
    }

    /// Files of the pod's own, written anew for each container, so that they tell of its present address.
    fn files(
        &self,
        wanted: &ContainerRequest<'_>,
        container: &Container,
    ) -> Result<Vec<(String, PathBuf)>, ConfigError> {
        let pod = wanted.pod;
        let uid = pod_ref(pod).uid;
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
        let names = hostname::names(pod, &self.settings.cluster_domain, &self.machine)?;
        let machine = std::fs::read_to_string(HOSTS).unwrap_or_default();
        let mut texts = vec![(RESOLV_CONF, dns::file(&self.dns(pod))), (HOSTNAME, format!("{}\n", names.hostname))];
        if host_network || !wanted.addresses.is_empty() {
            texts.push((HOSTS, hosts::file(pod, &names, wanted.addresses, &machine)));
        }
        let directory = self.layout().etc(&uid);
        let failed = |error: std::io::Error| ConfigError::Refused(format!("cannot write the pod's files: {error}"));
        create_private_dir(&directory).map_err(failed)?;
        let mut files = Vec::new();
        for (target, text) in texts {
            let file = directory.join(Path::new(target).file_name().unwrap_or_default());
            // In place: containers that run already have this very file.
            if !has_text(&file, &text) {
                std::fs::write(&file, text).map_err(failed)?;
            }
            // Every user in the container reads it, whatever our umask; nobody else gets to it on the machine.
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).map_err(failed)?;
            files.push((target.to_owned(), file));
        }
        let last_words = self.termination_log(&uid, wanted.name, wanted.attempt);
        write_anybody(&last_words).map_err(failed)?;
        let path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
        files.push((path.unwrap_or(TERMINATION_LOG).to_owned(), last_words));
        Ok(files)
    }
}

/// Whether the file is this text. Containers may have made it as large as they like: it is read only if it is as long.
fn has_text(file: &Path, text: &str) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.len() == text.len() as u64)
        && std::fs::read(file).is_ok_and(|content| content == text.as_bytes())
}

/// A file that any user in the container can write.
fn write_anybody(file: &Path) -> std::io::Result<()> {
    create_private_dir(file.parent().unwrap_or(file))?;
    let made = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    made.set_permissions(std::fs::Permissions::from_mode(0o666))
}

fn absolute(path: &str) -> PathBuf {
    Path::new("/").join(path)
}

/// In a path every variable must be known.
fn expand_strictly(path: &str, env: &env::Variables) -> Result<String, String> {
    let mut unknown = None;
    let expanded = env::expand(path, |name| {
        let value = env.get(name).map(String::as_str);
        if value.is_none() {
            unknown.get_or_insert_with(|| name.to_owned());
        }
        value
    });
    match unknown {
        Some(name) => Err(format!("missing value for {name:?}")),
        None => Ok(expanded),
    }
}
