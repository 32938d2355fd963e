//! Versions of ConfigMaps and Secrets: immutable copies, and the pod's annotation that says which of them it reads.
//!
//! The annotation `mainstay.dev/config-versions` is a JSON object, from what the pod refers to to the copy that it gets instead:
//! `{"configmap/zones": "zones-5f3a09c2d81b7e46", "secret/key": "key-91c04d7702e5ab38"}`. Every reference of the pod to such
//! an object (volumes, projected volumes, `env`, `envFrom`) reads the copy, so that all of them show the same version. What is not in the map is read
//! under its own name, as ever.
//!
//! A copy is named after the original and a hash of kind, name and content; the label [`COPY_OF_LABEL`] says what it is a copy of.
//! Both are needed for a node to be allowed to read it, together with a pod on that node that refers to the original: the annotation alone
//! opens nothing.

use std::{collections::BTreeMap, fmt, str::FromStr};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::{Digest, Sha256};

use crate::{needs::AnnotationMap, references::Referent, validation::names::dns1123_subdomain};

/// On a pod, or on a template of pods: which version of ConfigMaps and Secrets it reads.
pub const ANNOTATION: &str = "mainstay.dev/config-versions";
/// The pod's condition in which its node says of which versions its files are: True, and the message is written as [`ANNOTATION`] is.
pub const FILES_CONDITION: &str = "mainstay.dev/ConfigVersions";
/// The pod's condition in which its node says with which versions all of its containers were made, and so which their environment has; written likewise.
pub const CONTAINERS_CONDITION: &str = "mainstay.dev/ContainerConfigVersions";
/// On a copy: the name of the original, as [`label_value`] writes it.
pub const COPY_OF_LABEL: &str = "mainstay.dev/copy-of";
/// On a workload: how changed ConfigMaps and Secrets reach its pods.
pub const ROLLOUT_ANNOTATION: &str = "mainstay.dev/rollout";
/// The value of [`ROLLOUT_ANNOTATION`]: by a rolling update of the workload.
pub const BUDGETED: &str = "budgeted";
/// On a workload with such rollouts: the versions that were last rolled out, written as [`ANNOTATION`]. A template that names others was taken back to them
/// (`kubectl rollout undo`), and stays there until the content changes.
pub const ROLLED_OUT_ANNOTATION: &str = "mainstay.dev/config-rolled-out";
/// On such a workload: the versions with which all of its pods were last up to date and available.
pub const LAST_GOOD_ANNOTATION: &str = "mainstay.dev/config-last-good";

/// On such a workload without a progress deadline of its own: when the rollout of the last change began.
pub const BEGAN_ANNOTATION: &str = "mainstay.dev/config-rollout-began";
/// On such a workload without a progress deadline of its own, a StatefulSet or DaemonSet: after how many seconds without progress a rollout of configuration
/// is taken back; [`PROGRESS_DEADLINE_SECONDS`] if left out.
pub const PROGRESS_DEADLINE_ANNOTATION: &str = "mainstay.dev/progress-deadline-seconds";
/// As of a Deployment.
pub const PROGRESS_DEADLINE_SECONDS: i32 = 600;
const LONGEST_PROGRESS_DEADLINE: i32 = 7 * 24 * 3600;

/// The value of [`PROGRESS_DEADLINE_ANNOTATION`].
pub fn parse_progress_deadline(text: &str) -> Result<i32, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=LONGEST_PROGRESS_DEADLINE).contains(seconds));
    seconds.ok_or_else(|| format!("must be a number of seconds from 1 to {LONGEST_PROGRESS_DEADLINE}"))
}

/// More of them are a mistake: a pod has a volume or a variable for each.
pub const MOST_VERSIONS: usize = 256;
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;
/// Hexadecimal digits of a hash.
const HASH_DIGITS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigKind {
    ConfigMap,
    Secret,
}

/// A ConfigMap or Secret of the pod's own namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigSource {
    pub kind: ConfigKind,
    pub name: String,
}

/// Which copy stands for which original.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigVersions {
    pub copies: BTreeMap<ConfigSource, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigVersionsError {
    #[error("must be a JSON object such as {{\"configmap/zones\": \"zones-5f3a09c2d81b7e46\"}}: {0}")]
    Json(String),
    #[error("has {0} entries, and at most {MOST_VERSIONS} are allowed")]
    TooMany(usize),
    #[error("{0:?} must be configmap/NAME or secret/NAME")]
    Source(String),
    #[error(
        "{copy:?} is no copy of {original:?}, whose copies are named {original:?} (shortened if need be), a hyphen and {HASH_DIGITS} hexadecimal digits"
    )]
    Copy { original: String, copy: String },
}

impl ConfigKind {
    pub const ALL: [Self; 2] = [Self::ConfigMap, Self::Secret];

    /// As it is written before the slash.
    pub fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    pub fn kind(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// The kind of a reference, where it is one of these.
    pub fn from_referent(to: Referent) -> Option<Self> {
        match to {
            Referent::ConfigMap => Some(Self::ConfigMap),
            Referent::Secret => Some(Self::Secret),
            Referent::PersistentVolumeClaim | Referent::ResourceClaim | Referent::ServiceAccount => None,
        }
    }
}

impl ConfigSource {
    pub fn config_map(name: impl Into<String>) -> Self {
        Self { kind: ConfigKind::ConfigMap, name: name.into() }
    }

    pub fn secret(name: impl Into<String>) -> Self {
        Self { kind: ConfigKind::Secret, name: name.into() }
    }
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), self.name)
    }
}

impl FromStr for ConfigSource {
    type Err = ConfigVersionsError;

    fn from_str(text: &str) -> Result<Self, ConfigVersionsError> {
        let wrong = || ConfigVersionsError::Source(text.to_owned());
        let (word, name) = text.split_once('/').ok_or_else(wrong)?;
        let kind = ConfigKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(wrong)?;
        if !dns1123_subdomain(name).is_empty() {
            return Err(wrong());
        }
        Ok(Self { kind, name: name.to_owned() })
    }
}

impl ConfigVersions {
    /// As the annotations of a pod or of a template say; nothing if they say nothing, or nothing that can be read.
    pub fn from_annotations<M: AnnotationMap + ?Sized>(annotations: &M) -> Self {
        annotations.annotation(ANNOTATION).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// The name under which an object is to be read: that of its copy, or its own.
    pub fn resolve<'a>(&'a self, kind: ConfigKind, name: &'a str) -> &'a str {
        self.copies.get(&ConfigSource { kind, name: name.to_owned() }).map_or(name, String::as_str)
    }
}

impl FromStr for ConfigVersions {
    type Err = ConfigVersionsError;

    fn from_str(text: &str) -> Result<Self, ConfigVersionsError> {
        let entries: BTreeMap<String, String> =
            serde_json::from_str(text).map_err(|error| ConfigVersionsError::Json(error.to_string()))?;
        if entries.len() > MOST_VERSIONS {
            return Err(ConfigVersionsError::TooMany(entries.len()));
        }
        let mut copies = BTreeMap::new();
        for (source, copy) in entries {
            let source: ConfigSource = source.parse()?;
            if !is_copy_name(&source.name, &copy) {
                return Err(ConfigVersionsError::Copy { original: source.name, copy });
            }
            copies.insert(source, copy);
        }
        Ok(Self { copies })
    }
}

/// As the annotation has it.
impl fmt::Display for ConfigVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: serde_json::Map<String, serde_json::Value> =
            self.copies.iter().map(|(source, copy)| (source.to_string(), copy.as_str().into())).collect();
        write!(f, "{}", serde_json::Value::Object(entries))
    }
}

/// An immutable copy of a ConfigMap, without an owner.
pub fn copy_config_map(original: &ConfigMap) -> ConfigMap {
    let name = original.metadata.name.as_deref().unwrap_or_default();
    let texts = original.data.iter().flatten().map(|(key, text)| (key, text.as_bytes()));
    let hash = content_hash(ConfigKind::ConfigMap, name, texts, &original.binary_data);
    ConfigMap {
        metadata: copy_metadata(&original.metadata, &hash),
        data: original.data.clone(),
        binary_data: original.binary_data.clone(),
        immutable: Some(true),
    }
}

/// An immutable copy of a Secret, without an owner. Its type is `Opaque` whatever the original's is: a copy is for pods to read, and controllers
/// that act on Secrets of some type have to leave it alone.
pub fn copy_secret(original: &Secret) -> Secret {
    let name = original.metadata.name.as_deref().unwrap_or_default();
    let hash = content_hash(ConfigKind::Secret, name, std::iter::empty(), &original.data);
    Secret {
        metadata: copy_metadata(&original.metadata, &hash),
        data: original.data.clone(),
        immutable: Some(true),
        string_data: None,
        type_: Some("Opaque".to_owned()),
    }
}

/// Whether labels say that their object is a copy of this original.
pub fn is_labelled_copy<M: AnnotationMap + ?Sized>(labels: &M, original: &str) -> bool {
    labels.annotation(COPY_OF_LABEL).is_some_and(|value| value == label_value(original))
}

/// The value of [`COPY_OF_LABEL`] on copies of an original: its name, or if that is too long for a label, its beginning and a hash of it.
pub fn label_value(original: &str) -> String {
    if original.len() <= LONGEST_LABEL {
        return original.to_owned();
    }
    format!("{}-{}", shorten(original, LONGEST_LABEL), hex(&Sha256::digest(original.as_bytes())))
}

fn copy_metadata(original: &ObjectMeta, hash: &str) -> ObjectMeta {
    let name = original.name.as_deref().unwrap_or_default();
    ObjectMeta {
        name: Some(format!("{}-{hash}", shorten(name, LONGEST_NAME))),
        namespace: original.namespace.clone(),
        labels: Some([(COPY_OF_LABEL.to_owned(), label_value(name))].into()),
        ..ObjectMeta::default()
    }
}

/// Whether a copy of this original can have this name.
fn is_copy_name(original: &str, copy: &str) -> bool {
    let hash = copy.strip_prefix(shorten(original, LONGEST_NAME)).and_then(|rest| rest.strip_prefix('-'));
    hash.is_some_and(|hash| {
        hash.len() == HASH_DIGITS && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// The beginning of a name that leaves room for a hyphen and a hash, and that may stand before a hyphen.
fn shorten(name: &str, longest: usize) -> &str {
    let room = longest - 1 - HASH_DIGITS;
    let end = name.char_indices().map(|(index, c)| index + c.len_utf8()).take_while(|end| *end <= room).last();
    name[..end.unwrap_or_default()].trim_end_matches(['-', '.'])
}

/// A hash of kind, name and content. Lengths are part of it, so that no two contents are written alike.
fn content_hash<'a>(
    kind: ConfigKind,
    name: &str,
    texts: impl Iterator<Item = (&'a String, &'a [u8])>,
    bytes: &'a Option<BTreeMap<String, ByteString>>,
) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(kind.word().as_bytes());
    add(name.as_bytes());
    let bytes = bytes.iter().flatten().map(|(key, data)| ("bytes", key, data.0.as_slice()));
    for (form, key, data) in texts.map(|(key, data)| ("text", key, data)).chain(bytes) {
        add(form.as_bytes());
        add(key.as_bytes());
        add(data);
    }
    hex(&hash.finalize())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().take(HASH_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config_map(name: &str, data: Value) -> ConfigMap {
        let object =
            json!({"metadata": {"name": name, "namespace": "shop", "uid": "u", "resourceVersion": "7"}, "data": data});
        serde_json::from_value(object).unwrap()
    }

    fn name(meta: &ObjectMeta) -> &str {
        meta.name.as_deref().unwrap()
    }

    #[test]
    fn a_map_is_written_as_it_is_read() {
        let text = r#"{"configmap/zones":"zones-5f3a09c2d81b7e46","secret/a.b":"a.b-0123456789abcdef"}"#;
        let versions: ConfigVersions = text.parse().unwrap();
        assert_eq!(versions.resolve(ConfigKind::ConfigMap, "zones"), "zones-5f3a09c2d81b7e46");
        assert_eq!(versions.resolve(ConfigKind::Secret, "zones"), "zones");
        assert_eq!(versions.resolve(ConfigKind::ConfigMap, "other"), "other");
        assert_eq!(versions.to_string(), text);
        let annotations: BTreeMap<_, _> = [(ANNOTATION.to_owned(), text.to_owned())].into();
        assert_eq!(ConfigVersions::from_annotations(&annotations), versions);
    }

    #[test]
    fn what_names_no_copy_of_its_original_is_refused() {
        for bad in [
            "zones",
            "[]",
            r#"{"configmap/zones": 7}"#,
            r#"{"zones": "zones-5f3a09c2d81b7e46"}"#,
            r#"{"ConfigMap/zones": "zones-5f3a09c2d81b7e46"}"#,
            r#"{"pod/zones": "zones-5f3a09c2d81b7e46"}"#,
            r#"{"configmap/": "-5f3a09c2d81b7e46"}"#,
            r#"{"configmap/../x": "../x-5f3a09c2d81b7e46"}"#,
            r#"{"configmap/zones": "other-5f3a09c2d81b7e46"}"#,
            r#"{"configmap/zones": "zones"}"#,
            r#"{"configmap/zones": ""}"#,
            r#"{"configmap/zones": "zones-5f3a"}"#,
            r#"{"configmap/zones": "zones-5F3A09C2D81B7E46"}"#,
            r#"{"configmap/zones": "zones-x-5f3a09c2d81b7e46"}"#,
        ] {
            assert!(bad.parse::<ConfigVersions>().is_err(), "{bad}");
        }
        let many: BTreeMap<String, String> =
            (0..=MOST_VERSIONS).map(|n| (format!("secret/s{n}"), format!("s{n}-5f3a09c2d81b7e46"))).collect();
        let error = serde_json::to_string(&many).unwrap().parse::<ConfigVersions>().unwrap_err();
        assert_eq!(error, ConfigVersionsError::TooMany(MOST_VERSIONS + 1));
    }

    #[test]
    fn the_same_content_has_the_same_copy_and_other_content_another() {
        let copy = copy_config_map(&config_map("zones", json!({"a": "1", "b": "2"})));
        assert_eq!(copy.immutable, Some(true));
        assert_eq!((copy.metadata.uid.as_ref(), copy.metadata.resource_version.as_ref()), (None, None));
        assert_eq!(copy.metadata.namespace.as_deref(), Some("shop"));
        assert!(is_labelled_copy(&copy.metadata.labels, "zones"));
        assert!(!is_labelled_copy(&copy.metadata.labels, "other"));
        assert_eq!(copy, copy_config_map(&config_map("zones", json!({"b": "2", "a": "1"}))));
        let mut binary = config_map("zones", json!({"a": "1"}));
        binary.binary_data = Some([("b".to_owned(), ByteString(b"2".to_vec()))].into());
        let others = [
            copy_config_map(&config_map("zones", json!({"a": "1", "b": "3"}))),
            copy_config_map(&config_map("zones", json!({"a": "1b", "": "2"}))),
            copy_config_map(&config_map("zones", json!({}))),
            copy_config_map(&binary),
        ];
        for other in others {
            assert_ne!(name(&copy.metadata), name(&other.metadata));
        }
    }

    #[test]
    fn a_copy_of_a_secret_is_opaque_and_has_another_name_than_that_of_a_config_map() {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "key", "namespace": "shop"}, "type": "kubernetes.io/service-account-token", "data": {"token": "eA=="},
        }))
        .unwrap();
        let copy = copy_secret(&secret);
        assert_eq!((copy.type_.as_deref(), copy.immutable), (Some("Opaque"), Some(true)));
        assert_eq!(copy.data, secret.data);
        let mut map = config_map("key", json!({}));
        map.binary_data = secret.data;
        assert_ne!(name(&copy.metadata), name(&copy_config_map(&map).metadata));
    }

    #[test]
    fn names_and_labels_stay_within_their_bounds() {
        for length in [1usize, 46, 47, 62, 63, 64, 235, 236, 237, 253] {
            for last in ["a", ".", "-"] {
                // A separator just where the name is cut.
                let original = format!("{}{last}{}", "a".repeat(length.saturating_sub(20)), "b".repeat(19));
                let original: String = original.chars().take(length).collect();
                let original = original.trim_matches(['.', '-']);
                if original.is_empty() {
                    continue;
                }
                let copy = copy_config_map(&config_map(original, json!({"k": "v"})));
                let copy_name = name(&copy.metadata);
                assert!(dns1123_subdomain(copy_name).is_empty(), "{copy_name}");
                assert!(is_copy_name(original, copy_name), "{copy_name}");
                let label = label_value(original);
                assert!(crate::validation::names::label_value(&label).is_empty(), "{label}");
            }
        }
        let long = |end: &str| format!("{}{end}", "a".repeat(240));
        assert_ne!(label_value(&long("b")), label_value(&long("c")));
        let copy = |end: &str| copy_config_map(&config_map(&long(end), json!({})));
        assert_ne!(name(&copy("b").metadata), name(&copy("c").metadata));
    }
}
