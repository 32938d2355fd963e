//! Finds a container of a pod by name among ordinary, init and ephemeral containers.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Deserialize;

use super::pod_ref;

pub struct ContainerEntry<'a> {
    pub container: Cow<'a, Container>,
    /// The container whose processes an ephemeral one is to see.
    pub target: Option<String>,
}

/// The container of this name. An ephemeral one has all fields of a container, and is read as one.
pub fn find<'a>(pod: &'a Pod, name: &str) -> Option<ContainerEntry<'a>> {
    let spec = pod.spec.as_ref()?;
    if let Some(container) =
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|container| container.name == name)
    {
        return Some(ContainerEntry { container: Cow::Borrowed(container), target: None });
    }
    let ephemeral = spec.ephemeral_containers.iter().flatten().find(|container| container.name == name)?;
    let container = Container::deserialize(&serde_json::to_value(ephemeral).ok()?).ok()?;
    let target = ephemeral.target_container_name.clone().filter(|target| !target.is_empty());
    Some(ContainerEntry { container: Cow::Owned(container), target })
}

/// Under which tools that look at the runtime find a pod's containers.
pub fn labels(pod: &Pod, container: &str) -> BTreeMap<String, String> {
    let mut labels = pod_labels(pod);
    labels.insert("io.kubernetes.container.name".to_owned(), container.to_owned());
    labels
}

pub(super) fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    let pod = pod_ref(pod);
    [
        ("io.kubernetes.pod.namespace".to_owned(), pod.namespace),
        ("io.kubernetes.pod.name".to_owned(), pod.name),
        ("io.kubernetes.pod.uid".to_owned(), pod.uid.0),
    ]
    .into()
}
