//! The environment variables of a container.
//!
//! In order of precedence: `env` in its own order (each may refer to those before it), `envFrom` (the later
//! source wins), and what the pod is given: host ports that were chosen for it, and the addresses of Services. [`gather`] reads what the container refers to;
//! [`variables`] decides from that alone.

mod expand;
pub mod field;
pub mod file;
mod host_ports;
pub mod resource;
pub mod services;

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, FileKeySelector, Pod, Secret, Service};
use mainstay_api::{
    config_versions::{ConfigKind, ConfigVersions},
    validation::names,
};

pub use self::expand::expand;
use self::file::{EnvFile, EnvFiles};
use super::{ConfigError, container, machine::NodeFacts, pod_ref};
use crate::objects::{ObjectError, Objects};

pub struct About<'a> {
    pub pod: &'a Pod,
    pub addresses: &'a [IpAddr],
    pub machine: &'a NodeFacts,
}

/// What a container's variables come from. `None` is known to be missing.
#[derive(Default)]
pub struct Sources {
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    pub services: Vec<Arc<Service>>,
    pub files: EnvFiles,
}

pub type Variables = BTreeMap<String, String>;

/// Keys that cannot be names of variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedVariables {
    pub keys: Vec<String>,
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for SkippedVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Keys [{}] from the EnvFrom {} {}/{} were skipped since they are considered invalid environment variable \
             names.",
            self.keys.join(", "),
            self.kind,
            self.namespace,
            self.name
        )
    }
}

/// Reads what the container refers to, in the versions that the pod's volumes show.
pub async fn gather(
    objects: &Objects,
    pod: &Pod,
    versions: &ConfigVersions,
    container: &Container,
) -> Result<Sources, ConfigError> {
    let whose = pod_ref(pod);
    let (uid, namespace) = (&whose.uid, whose.namespace.as_str());
    let from = container.env_from.iter().flatten();
    let values = || container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    let mut sources = Sources::default();
    let maps = values().filter_map(|value| value.config_map_key_ref.as_ref()).map(|key| &key.name);
    for name in maps.chain(from.clone().filter_map(|from| from.config_map_ref.as_ref()).map(|map| &map.name)) {
        if !sources.config_maps.contains_key(name) {
            let copy = versions.resolve(ConfigKind::ConfigMap, name);
            let found = known(objects.config_map(uid, namespace, copy).await)?;
            if found.is_none() && copy != name {
                return Err(missing("configmap", copy));
            }
            sources.config_maps.insert(name.clone(), found);
        }
    }
    let secrets = values().filter_map(|value| value.secret_key_ref.as_ref()).map(|key| &key.name);
    for name in secrets.chain(from.filter_map(|from| from.secret_ref.as_ref()).map(|secret| &secret.name)) {
        if !sources.secrets.contains_key(name) {
            let copy = versions.resolve(ConfigKind::Secret, name);
            let found = known(objects.secret(uid, namespace, copy).await)?;
            if found.is_none() && copy != name {
                return Err(missing("secret", copy));
            }
            sources.secrets.insert(name.clone(), found);
        }
    }
    sources.services = match services::visible(objects, pod).await {
        Ok(services) => services,
        // These run with no server at all.
        Err(ObjectError::Unreachable(why)) if is_static(pod) => {
            tracing::debug!(why, "no variables for services");
            Vec::new()
        }
        Err(lack) => return Err(ConfigError::Unreachable(format!("services have not yet been read: {lack}"))),
    };
    Ok(sources)
}

fn known<K>(answer: Result<Arc<K>, ObjectError>) -> Result<Option<Arc<K>>, ConfigError> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(ObjectError::Missing) => Ok(None),
        Err(ObjectError::Unreachable(why) | ObjectError::Forbidden(why)) => Err(ConfigError::Unreachable(why)),
    }
}

fn is_static(pod: &Pod) -> bool {
    let source =
        pod.metadata.annotations.as_ref().and_then(|all| all.get(mainstay_api::wellknown::kubernetes::POD_SOURCE));
    source.is_some_and(|source| source != "api")
}

/// The variables, and what had to be left out.
pub fn variables(
    container: &Container,
    about: &About<'_>,
    sources: &Sources,
) -> Result<(Variables, Vec<SkippedVariables>), ConfigError> {
    let mut given = services::variables(&sources.services);
    given.extend(host_ports::variables(about.pod));
    let (mut variables, skipped) = from(container, about.pod, sources)?;
    for variable in container.env.iter().flatten() {
        let value = match variable.value.as_deref() {
            Some(value) if !value.is_empty() => {
                expand(value, |name| variables.get(name).or_else(|| given.get(name)).map(String::as_str))
            }
            _ => match value_from(variable, container, about, sources)? {
                Some(value) => value,
                None => continue,
            },
        };
        variables.insert(variable.name.clone(), value);
    }
    for (name, value) in given {
        variables.entry(name).or_insert(value);
    }
    Ok((variables, skipped))
}

/// All of `envFrom`.
fn from(
    container: &Container,
    pod: &Pod,
    sources: &Sources,
) -> Result<(Variables, Vec<SkippedVariables>), ConfigError> {
    let namespace = pod_ref(pod).namespace;
    let (mut variables, mut skipped) = (Variables::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let (kind, name, pairs): (_, _, Vec<(String, String)>) = if let Some(reference) = &from.config_map_ref {
            match sources.config_maps.get(&reference.name).and_then(Option::as_ref) {
                Some(map) => {
                    let data = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone()));
                    ("configMap", &reference.name, data.collect())
                }
                None if reference.optional.unwrap_or_default() => continue,
                None => return Err(missing("configmap", &reference.name)),
            }
        } else if let Some(reference) = &from.secret_ref {
            match sources.secrets.get(&reference.name).and_then(Option::as_ref) {
                Some(secret) => {
                    let data = secret.data.iter().flatten().map(|(key, value)| (key.clone(), text(&value.0)));
                    ("secret", &reference.name, data.collect())
                }
                None if reference.optional.unwrap_or_default() => continue,
                None => return Err(missing("secret", &reference.name)),
            }
        } else {
            continue;
        };
        let (good, bad): (Vec<_>, Vec<_>) = pairs
            .into_iter()
            .map(|(key, value)| (format!("{prefix}{key}"), value))
            .partition(|(key, _)| names::env_var_name(key).is_empty());
        variables.extend(good);
        if !bad.is_empty() {
            let keys = bad.into_iter().map(|(key, _)| key).collect();
            skipped.push(SkippedVariables { keys, kind, namespace: namespace.clone(), name: name.clone() });
        }
    }
    Ok((variables, skipped))
}

/// `None` if the variable is to be left out: an optional key that is not there.
fn value_from(
    variable: &EnvVar,
    container: &Container,
    about: &About<'_>,
    sources: &Sources,
) -> Result<Option<String>, ConfigError> {
    let Some(source) = &variable.value_from else { return Ok(Some(String::new())) };
    let namespace = about.pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(reference) = &source.field_ref {
        let value = field::value(about, &reference.field_path);
        value.map(Some).ok_or_else(|| ConfigError::Refused(format!("unsupported fieldPath: {}", reference.field_path)))
    } else if let Some(reference) = &source.resource_field_ref {
        let other = match reference.container_name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => Some(
                container::find(about.pod, name)
                    .ok_or_else(|| ConfigError::Refused(format!("container {name:?} not found")))?,
            ),
            None => None,
        };
        let container = other.as_ref().map_or(container, |other| &*other.container);
        resource::value(reference, container, &about.machine.allocatable).map(Some).map_err(ConfigError::Refused)
    } else if let Some(reference) = &source.config_map_key_ref {
        let optional = reference.optional.unwrap_or_default();
        match sources.config_maps.get(&reference.name).and_then(Option::as_ref) {
            None if optional => Ok(None),
            None => Err(missing("configmap", &reference.name)),
            Some(map) => match map.data.as_ref().and_then(|data| data.get(&reference.key)) {
                Some(value) => Ok(Some(value.clone())),
                None if optional => Ok(None),
                None => Err(no_key(&reference.key, "ConfigMap", namespace, &reference.name)),
            },
        }
    } else if let Some(reference) = &source.secret_key_ref {
        let optional = reference.optional.unwrap_or_default();
        match sources.secrets.get(&reference.name).and_then(Option::as_ref) {
            None if optional => Ok(None),
            None => Err(missing("secret", &reference.name)),
            Some(secret) => match secret.data.as_ref().and_then(|data| data.get(&reference.key)) {
                Some(value) => Ok(Some(text(&value.0))),
                None if optional => Ok(None),
                None => Err(no_key(&reference.key, "Secret", namespace, &reference.name)),
            },
        }
    } else if let Some(reference) = &source.file_key_ref {
        from_file(reference, sources)
    } else {
        Ok(Some(String::new()))
    }
}

/// `None` if the file or the key is not there and need not be.
fn from_file(reference: &FileKeySelector, sources: &Sources) -> Result<Option<String>, ConfigError> {
    let FileKeySelector { key, path, volume_name, optional } = reference;
    let name = EnvFile { volume: volume_name.clone(), path: path.clone() };
    let value = match sources.files.get(&name).and_then(Option::as_ref) {
        Some(text) => file::parse(text, key)
            .map_err(|why| ConfigError::Refused(format!("couldn't parse env file {path:?}: {why}")))?,
        None => None,
    };
    match value {
        None if !optional.unwrap_or_default() => Err(ConfigError::Missing(format!(
            "environment variable key {key:?} not found in file {path:?} of volume {volume_name:?}"
        ))),
        value => Ok(value),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn missing(kind: &str, name: &str) -> ConfigError {
    ConfigError::Missing(format!("{kind} {name:?} not found"))
}

fn no_key(key: &str, kind: &str, namespace: &str, name: &str) -> ConfigError {
    ConfigError::Missing(format!("couldn't find key {key} in {kind} {namespace}/{name}"))
}
