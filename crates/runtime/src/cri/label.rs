//! Labels and annotations of our sandboxes and containers at the runtime.

use std::collections::{BTreeMap, HashMap};

use crate::{
    observed::{PodRef, PodUid},
    spec::{ContainerSpec, LogLimit, SandboxSpec},
};

/// Upstream's labels, which other programs that look at the runtime know.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Whose it is.
const INSTANCE: &str = "mainstay.dev/instance";
/// A sandbox's whole spec: CRI wants it again for each container.
const SPEC: &str = "mainstay.dev/sandbox";
const IMAGE: &str = "mainstay.dev/image";
const STOP_SIGNAL: &str = "mainstay.dev/stop-signal";
const LOG_LIMIT: &str = "mainstay.dev/log-limit";

type Map = HashMap<String, String>;

/// Selects all of this instance, or those of one pod.
pub fn selector(instance: &str, pod: Option<&PodUid>) -> Map {
    let mut labels = Map::from([(INSTANCE.to_owned(), instance.to_owned())]);
    labels.extend(pod.map(|uid| (POD_UID.to_owned(), uid.0.clone())));
    labels
}

pub fn sandbox_labels(instance: &str, spec: &SandboxSpec) -> Map {
    let mut labels: Map = spec.labels.clone().into_iter().collect();
    labels.extend(of_pod(instance, &spec.pod));
    labels
}

fn of_pod(instance: &str, pod: &PodRef) -> [(String, String); 4] {
    let own = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    [own(INSTANCE, instance), own(POD_NAME, &pod.name), own(POD_NAMESPACE, &pod.namespace), own(POD_UID, &pod.uid.0)]
}

pub fn sandbox_annotations(spec: &SandboxSpec) -> Map {
    let mut annotations: Map = spec.annotations.clone().into_iter().collect();
    // A struct of strings, numbers and maps with string keys can always be written.
    annotations.insert(SPEC.to_owned(), serde_json::to_string(spec).unwrap_or_default());
    annotations
}

/// The spec a sandbox was made of; `None` if it was not made by us.
pub fn sandbox_spec(annotations: &Map) -> Option<SandboxSpec> {
    serde_json::from_str(annotations.get(SPEC)?).ok()
}

pub fn container_labels(instance: &str, pod: &PodRef, spec: &ContainerSpec) -> Map {
    let mut labels: Map = spec.labels.clone().into_iter().collect();
    labels.extend(of_pod(instance, pod));
    labels.insert(CONTAINER_NAME.to_owned(), spec.name.clone());
    labels
}

pub fn container_annotations(spec: &ContainerSpec) -> Map {
    let mut annotations: Map = spec.annotations.clone().into_iter().collect();
    annotations.insert(IMAGE.to_owned(), spec.image.clone());
    annotations.insert(LOG_LIMIT.to_owned(), format!("{}/{}", spec.log_limit.bytes, spec.log_limit.files));
    annotations.extend(spec.stop_signal.clone().map(|signal| (STOP_SIGNAL.to_owned(), signal)));
    annotations
}

pub fn pod(labels: &Map) -> Option<PodRef> {
    let get = |key| labels.get(key).cloned();
    Some(PodRef { namespace: get(POD_NAMESPACE)?, name: get(POD_NAME)?, uid: PodUid(get(POD_UID)?) })
}

pub fn image(annotations: &Map) -> Option<&String> {
    annotations.get(IMAGE)
}

pub fn stop_signal(annotations: &Map) -> Option<&String> {
    annotations.get(STOP_SIGNAL)
}

pub fn log_limit(annotations: &Map) -> Option<LogLimit> {
    let (bytes, files) = annotations.get(LOG_LIMIT)?.split_once('/')?;
    Some(LogLimit { bytes: bytes.parse().ok()?, files: files.parse().ok()? })
}

/// Those that we were given, without our own.
pub fn given(annotations: Map) -> BTreeMap<String, String> {
    let ours = [SPEC, IMAGE, STOP_SIGNAL, LOG_LIMIT];
    annotations.into_iter().filter(|(key, _)| !ours.contains(&key.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_read_back() {
        let spec = ContainerSpec {
            image: "busybox".to_owned(),
            stop_signal: Some("SIGINT".to_owned()),
            log_limit: LogLimit { bytes: 5, files: 2 },
            annotations: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            ..ContainerSpec::default()
        };
        let marked = container_annotations(&spec);
        assert_eq!(image(&marked).map(String::as_str), Some("busybox"));
        assert_eq!(stop_signal(&marked), spec.stop_signal.as_ref());
        assert_eq!(log_limit(&marked), Some(spec.log_limit));
        assert_eq!(given(marked), spec.annotations);
    }

    #[test]
    fn what_is_not_ours_has_no_pod_or_spec() {
        assert_eq!(pod(&Map::from([(POD_NAME.to_owned(), "p".to_owned())])), None);
        assert_eq!(sandbox_spec(&Map::new()), None);
        assert_eq!(sandbox_spec(&Map::from([(SPEC.to_owned(), "{".to_owned())])), None);
    }
}
