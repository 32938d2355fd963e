//! Converts pods and containers of the API into specs for the runtime.
//!
//! * [`env`]: variables from everywhere, and `$(NAME)` within them
//! * [`security`], [`resources`]: contexts and limits, of the pod and of its containers
//! * [`hostname`], [`dns`], [`hosts`]: names, and the files that make them known inside
//! * [`mounts`]: volumes and files of the machine inside a container
//! * [`identity`]: whether a running container is still the one that is asked for
//!
//! All of these decide from values; only this file and [`mounts`] read the API's objects or the disk.

pub mod container;
pub mod dns;
pub mod env;
pub mod hostname;
pub mod hosts;
pub mod identity;
pub mod machine;
pub mod mounts;
pub mod resources;
pub mod sandbox;
pub mod security;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Container, Pod};
use mainstay_api::config_versions::ConfigVersions;
use mainstay_runtime::{
    ContainerSpec, PodUid, SandboxSpec,
    images::Image,
    observed::PodRef,
    spec::{DeviceEdits, Dns, LogLimit, Resources},
};

use self::{
    env::file::{EnvFile, EnvFiles},
    machine::NodeFacts,
};
pub use self::{
    identity::{SPEC_HASH, identity},
    resources::PIDS,
};
use crate::{
    events::{EventType, Events},
    logs::path,
    objects::Objects,
    settings::Settings,
    volumes::{Volumes, layout::Layout},
};

/// The annotation in which a container remembers which versions of ConfigMaps and Secrets its environment has.
pub const MADE_WITH: &str = mainstay_api::config_versions::ANNOTATION;

/// Makes specs. Reads the API's objects and the pod's volumes; writes nothing but files of the pod's own.
pub struct Specs {
    settings: Arc<Settings>,
    objects: Arc<Objects>,
    volumes: Arc<Volumes>,
    events: Events,
    machine: NodeFacts,
}

/// The container to be made.
pub struct ContainerRequest<'a> {
    pub pod: &'a Pod,
    /// Of a container, init container or ephemeral container.
    pub name: &'a str,
    pub attempt: u32,
    pub image: &'a Image,
    /// The pod's, as far as it has any by now.
    pub addresses: &'a [IpAddr],
}

/// A container cannot be made as the pod asks; `CreateContainerConfigError` for users.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// `configmap "x" not found`, `couldn't find key k in Secret ns/x`.
    #[error("{0}")]
    Missing(String),
    /// The API cannot be asked; whatever was known before is not enough.
    #[error("{0}")]
    Unreachable(String),
    /// `container has runAsNonRoot and image will run as root`.
    #[error("{0}")]
    Refused(String),
}

impl Specs {
    pub fn new(settings: Arc<Settings>, objects: Arc<Objects>, volumes: Arc<Volumes>, events: Events) -> Self {
        let machine = NodeFacts::this(&settings);
        Self { settings, objects, volumes, events, machine }
    }

    pub fn sandbox(&self, pod: &Pod, attempt: u32) -> Result<SandboxSpec, ConfigError> {
        let about = sandbox::About {
            cluster_domain: &self.settings.cluster_domain,
            machine: &self.machine,
            log_directory: self.log_directory(pod),
            dns: self.dns(pod),
        };
        sandbox::sandbox(pod, attempt, about)
    }

    pub async fn container(&self, wanted: &ContainerRequest<'_>) -> Result<ContainerSpec, ConfigError> {
        let ContainerRequest { pod, name, attempt, image, addresses } = *wanted;
        let Some(asked) = container::find(pod, name) else {
            return Err(ConfigError::Refused(format!("the pod has no container {name:?}")));
        };
        let container = &*asked.container;
        security::verify_non_root(pod, container, &image.user)?;
        let versions = self.volumes.config_versions(pod);
        let mut sources = env::gather(&self.objects, pod, &versions, container).await?;
        sources.files = self.env_files(pod, container)?;
        let about = env::About { pod, addresses, machine: &self.machine };
        let (env, skipped) = env::variables(container, &about, &sources)?;
        for skipped in skipped {
            self.events.pod(pod, EventType::Warning, "InvalidEnvironmentVariableNames", skipped.to_string());
        }
        let mounts = self.mounts(wanted, container, &env).await?;
        let expanded = |texts: &Option<Vec<String>>| {
            texts.iter().flatten().map(|text| env::expand(text, |name| env.get(name).map(String::as_str))).collect()
        };
        Ok(ContainerSpec {
            name: name.to_owned(),
            attempt,
            image: container.image.clone().unwrap_or_default(),
            image_id: image.id.clone(),
            command: expanded(&container.command),
            args: expanded(&container.args),
            working_dir: container.working_dir.clone().unwrap_or_default(),
            mounts,
            devices: Vec::new(),
            resources: resources::container(pod, container, &self.machine),
            security: security::security(pod, container, &self.seccomp_directory()),
            stdin: container.stdin.unwrap_or_default(),
            stdin_once: container.stdin_once.unwrap_or_default(),
            tty: container.tty.unwrap_or_default(),
            stop_signal: container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.clone()),
            log_path: path::container_log(&self.log_directory(pod), name, attempt),
            log_limit: LogLimit::default(),
            labels: container::labels(pod, name),
            annotations: made_from(container, &versions),
            pid_of: asked.target,
            device_edits: DeviceEdits { nodes: self.block_devices(pod, container)?, ..DeviceEdits::default() },
            env: env.into_iter().collect(),
        })
    }

    /// The files that the container's variables come from.
    fn env_files(&self, pod: &Pod, container: &Container) -> Result<EnvFiles, ConfigError> {
        let references = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
        let mut files = EnvFiles::new();
        for reference in references {
            let file = EnvFile { volume: reference.volume_name.clone(), path: reference.path.clone() };
            if files.contains_key(&file) {
                continue;
            }
            let volume =
                self.volumes.source(pod, &file.volume).map_err(|error| ConfigError::Missing(error.to_string()));
            let text = env::file::read(&volume?.path, Path::new(&file.path)).map_err(|why| {
                let EnvFile { volume, path } = &file;
                ConfigError::Refused(format!("couldn't read env file {path:?} of volume {volume:?}: {why}"))
            })?;
            files.insert(file, text);
        }
        Ok(files)
    }

    /// The limits of one container.
    pub fn resources(&self, pod: &Pod, container: &Container) -> Resources {
        resources::container(pod, container, &self.machine)
    }

    /// The limits of the pod as a whole.
    pub fn pod_resources(&self, pod: &Pod) -> Resources {
        resources::pod(pod)
    }

    /// Where a container leaves its last words.
    pub fn termination_log(&self, pod: &PodUid, container: &str, attempt: u32) -> PathBuf {
        self.layout().termination_log(pod, container, attempt)
    }

    fn layout(&self) -> &Layout {
        self.volumes.layout()
    }

    fn log_directory(&self, pod: &Pod) -> PathBuf {
        let PodRef { namespace, name, uid } = pod_ref(pod);
        path::pod_directory(&self.settings.log_directory, &namespace, &name, &uid.0)
    }

    fn seccomp_directory(&self) -> PathBuf {
        self.settings.directory.join("seccomp")
    }

    fn dns(&self, pod: &Pod) -> Dns {
        let host = dns::of_machine();
        dns::resolve(pod, &host, &self.settings.cluster_dns, &self.settings.cluster_domain)
    }
}

pub fn pod_ref(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: PodUid(pod.metadata.uid.clone().unwrap_or_default()),
    }
}

/// What a container remembers of what it was made from.
fn made_from(container: &Container, versions: &ConfigVersions) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([(SPEC_HASH.to_owned(), identity(container))]);
    if !versions.is_empty() {
        annotations.insert(MADE_WITH.to_owned(), versions.to_string());
    }
    annotations
}
