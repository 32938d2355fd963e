//! Parses manifests of static pods and validates them by the API's rules. Pure.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, Toleration},
    apimachinery::pkg::apis::meta::v1::Time,
};
use mainstay_api::{
    decode::{self, Decoded},
    field::Errors,
    references,
    registry::Registry,
    schema::Schema,
    validation::meta,
};
use serde::Deserialize;
use serde_json::{Value, json};

pub const SOURCE: &str = mainstay_api::wellknown::kubernetes::POD_SOURCE;
pub const HASH: &str = "kubernetes.io/config.hash";
pub const SEEN: &str = "kubernetes.io/config.seen";

/// Where a manifest comes from, and whose it is.
pub struct Origin<'a> {
    pub node: &'a str,
    /// Its file's name: two files with the same content are two pods.
    pub file: &'a str,
    pub changed: Timestamp,
    /// `terminationGracePeriodSeconds` of pods that do not state it.
    pub termination_grace: Duration,
}

/// What a manifest says.
#[derive(Debug, Default)]
pub struct ParsedManifest {
    pub pods: Vec<Pod>,
    /// Fields that mean nothing, or are given twice.
    pub advice: Vec<String>,
}

/// Why a manifest is of no use. Names the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError(pub String);

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All pods of a manifest, or none: one with a mistake is not half run.
pub fn read(text: &[u8], origin: &Origin<'_>) -> Result<ParsedManifest, ManifestError> {
    let mut read = ParsedManifest::default();
    for document in documents(text) {
        let decoded = if document.trim_ascii_start().first() == Some(&b'{') {
            decode::json(document)
        } else {
            decode::yaml(document)
        };
        let decoded = decoded.map_err(|error| ManifestError(error.to_string()))?;
        if decoded.value.is_null() {
            continue;
        }
        let list = matches!(decoded.value["kind"].as_str(), Some("List" | "PodList"));
        let Decoded { mut value, duplicates } = decoded;
        read.advice.extend(duplicates.iter().map(|path| format!("duplicate field {path:?}")));
        if list {
            for item in value["items"].as_array_mut().map(std::mem::take).into_iter().flatten() {
                parse_document(item, origin, &mut read)?;
            }
        } else {
            parse_document(value, origin, &mut read)?;
        }
    }
    Ok(read)
}

/// YAML separates documents by lines of three dashes.
fn documents(text: &[u8]) -> Vec<&[u8]> {
    let (mut documents, mut start, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if line.trim_ascii_end() == b"---" {
            documents.push(&text[start..at]);
            start = at + line.len();
        }
        at += line.len();
    }
    documents.push(&text[start..]);
    documents
}

fn parse_document(mut value: Value, origin: &Origin<'_>, read: &mut ParsedManifest) -> Result<(), ManifestError> {
    let kind = (value["apiVersion"].as_str().unwrap_or_default(), value["kind"].as_str().unwrap_or_default());
    if kind != ("v1", "Pod") {
        return Err(ManifestError(format!("apiVersion, kind: {:?}, {:?} is not v1, Pod", kind.0, kind.1)));
    }
    let registry = Registry::builtin();
    let Some(d) = registry.find("", "v1", "pods") else { return Err(ManifestError("pods are not known".into())) };
    let unknown = Schema::builtin().conform(&d.schema, &mut value).map_err(|error| ManifestError(error.to_string()))?;
    read.advice.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    let uid = uid(&value, origin);
    let metadata = &mut value["metadata"];
    let name = metadata["name"].as_str().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ManifestError("metadata.name: Required value: name is required".into()))?;
    metadata["name"] = json!(format!("{name}-{}", origin.node.to_lowercase()));
    if metadata["namespace"].as_str().is_none_or(str::is_empty) {
        metadata["namespace"] = json!(mainstay_api::wellknown::namespace::DEFAULT);
    }
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    // It has to run without a server, and the API would not take its mirror pod.
    if let Some(resource) = references::api_reference(&value) {
        return Err(ManifestError(format!("static pods may not reference {resource}")));
    }
    if let Some(spec) = value["spec"].as_object_mut()
        && spec.get("terminationGracePeriodSeconds").is_none_or(Value::is_null)
    {
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(origin.termination_grace.as_secs()));
    }
    let mut errors = Errors::new();
    meta::validate(&value, true, d.name_rule, &mut errors);
    errors.extend(d.strategy.create(&mut value));
    if !errors.is_empty() {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        return Err(ManifestError(all.join("; ")));
    }
    let mut pod = Pod::deserialize(&value).map_err(|error| ManifestError(error.to_string()))?;
    settle(&mut pod, uid, origin);
    read.pods.push(pod);
    Ok(())
}

/// What an API server would have added, and what makes it a static pod of this machine.
fn settle(pod: &mut Pod, uid: String, origin: &Origin<'_>) {
    let meta = &mut pod.metadata;
    meta.creation_timestamp = Some(Time(origin.changed));
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(SOURCE.to_owned(), "file".to_owned());
    annotations.insert(HASH.to_owned(), uid.clone());
    annotations.insert(SEEN.to_owned(), origin.changed.to_string());
    meta.uid = Some(uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(origin.node.to_owned());
    // There may be no server to ask for a token.
    (spec.service_account_name, spec.service_account) = (None, None);
    spec.automount_service_account_token = Some(false);
    // Nothing but its file makes it go.
    spec.tolerations = Some(vec![Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    }]);
}

/// Changes with the content: a changed pod is another pod.
fn uid(value: &Value, origin: &Origin<'_>) -> String {
    let text = json!([origin.node, origin.file, value]).to_string();
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin<'static> = Origin {
        node: "M1",
        file: "web.yaml",
        changed: Timestamp::UNIX_EPOCH,
        termination_grace: Duration::from_secs(45),
    };

    const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - {name: c, image: busybox}
";

    fn pods(text: &str) -> Vec<Pod> {
        read(text.as_bytes(), &ORIGIN).unwrap().pods
    }

    fn refused(text: &str) -> String {
        read(text.as_bytes(), &ORIGIN).unwrap_err().0
    }

    #[test]
    fn a_manifest_becomes_a_complete_pod_of_this_machine() {
        let [pod] = &pods(WEB)[..] else { panic!("one pod") };
        let (meta, spec) = (&pod.metadata, pod.spec.as_ref().unwrap());
        assert_eq!((meta.name.as_deref(), meta.namespace.as_deref()), (Some("web-m1"), Some("default")));
        assert_eq!(meta.annotations.as_ref().unwrap()[SOURCE], "file");
        assert_eq!(meta.annotations.as_ref().unwrap()[HASH], meta.uid.clone().unwrap());
        assert_eq!((spec.node_name.as_deref(), spec.restart_policy.as_deref()), (Some("M1"), Some("Always")));
        assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("Always"), "defaults are applied");
        assert_eq!(spec.service_account_name, None);
        assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
        assert_eq!(spec.tolerations.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn the_grace_is_that_of_the_manifest_or_the_one_that_the_agent_was_started_with() {
        let grace = |text: &str| pods(text)[0].spec.as_ref().unwrap().termination_grace_period_seconds;
        assert_eq!(grace(WEB), Some(45));
        assert_eq!(grace(&format!("{WEB}  terminationGracePeriodSeconds: 5\n")), Some(5));
        assert_eq!(grace(&format!("{WEB}  terminationGracePeriodSeconds: 0\n")), Some(0));
    }

    #[test]
    fn the_uid_is_that_of_the_content() {
        let uid = |text: &str| pods(text)[0].metadata.uid.clone().unwrap();
        assert_eq!(uid(WEB), uid(&format!("# a comment\n{WEB}")));
        assert_ne!(uid(WEB), uid(&WEB.replace("busybox", "nginx")));
        let elsewhere = Origin { file: "copy.yaml", ..ORIGIN };
        assert_ne!(uid(WEB), read(WEB.as_bytes(), &elsewhere).unwrap().pods[0].metadata.uid.clone().unwrap());
    }

    #[test]
    fn json_several_documents_and_lists_are_understood() {
        let two = format!("---\n{WEB}---\n{}\n---\n", WEB.replace("name: web", "name: db"));
        assert_eq!(pods(&two).len(), 2);
        let json = json!({ "apiVersion": "v1", "kind": "PodList", "items": [
            { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" },
              "spec": { "containers": [{ "name": "c", "image": "i" }] } },
        ] });
        assert_eq!(pods(&json.to_string()).len(), 1);
        assert!(pods("").is_empty());
    }

    #[test]
    fn a_mistake_names_its_field() {
        assert!(refused(&WEB.replace("image: busybox", "")).contains("spec.containers[0].image"));
        assert!(refused(&WEB.replace("name: web,", "")).starts_with("metadata.name: Required value"));
        assert!(refused(&WEB.replace("[app", "{").replace("spec:", "spec: [")).contains("yaml"));
        assert!(refused("kind: Service\napiVersion: v1\n").contains("kind"));
        let wrong = refused(&WEB.replace("image: busybox", "image: busybox, stdin: [1]"));
        assert!(wrong.contains("stdin"), "{wrong}");
    }

    #[test]
    fn a_static_pod_that_refers_to_objects_of_the_api_is_refused() {
        for (more, resource) in [
            ("  serviceAccountName: robot", "serviceaccounts"),
            ("  serviceAccount: robot", "serviceaccounts"),
            ("  imagePullSecrets: [{name: s}]", "secrets"),
            ("  volumes: [{name: v, configMap: {name: c}}]", "configmaps"),
            ("  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", "persistentvolumeclaims"),
            ("  volumes: [{name: v, csi: {driver: d, nodePublishSecretRef: {name: s}}}]", "secrets"),
        ] {
            assert_eq!(refused(&format!("{WEB}{more}\n")), format!("static pods may not reference {resource}"));
        }
        assert_eq!(pods(&format!("{WEB}  nodeSelector: {{secretName: s}}\n")).len(), 1, "no reference");
    }

    #[test]
    fn a_field_that_means_nothing_is_pointed_out() {
        let read = read(WEB.replace("image: busybox", "image: busybox, imgae: x").as_bytes(), &ORIGIN).unwrap();
        assert_eq!((read.pods.len(), read.advice.len()), (1, 1));
        assert!(read.advice[0].contains("spec.containers[0].imgae"), "{:?}", read.advice);
    }
}
