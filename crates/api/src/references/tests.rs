use serde_json::json;

use super::*;
use crate::schema::{Definition, Schema, Shape, Type};

const PROBE: &str = "probe";

/// A place for text in an object, as a path of the tables; `{}` stands for the values of a map.
struct Leaf {
    path: String,
    /// The definition that has the field, and the field.
    owner: &'static str,
    field: &'static str,
}

/// Every place for text below a definition, by the schema.
fn leaves(definition: &str) -> Vec<Leaf> {
    let schema = Schema::builtin();
    let mut all = Vec::new();
    below(schema, schema.definition(definition).expect("a definition"), "", &mut all);
    all
}

fn below(schema: &'static Schema, definition: &'static Definition, path: &str, all: &mut Vec<Leaf>) {
    for field in &definition.fields {
        let path = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
        add(schema, &field.ty, path, (definition.short_name(), field.name), all);
    }
}

fn add(
    schema: &'static Schema,
    ty: &'static Type,
    path: String,
    (owner, field): (&'static str, &'static str),
    all: &mut Vec<Leaf>,
) {
    match ty {
        Type::Boolean | Type::Int32 | Type::Int64 | Type::Double => {}
        Type::String | Type::Bytes | Type::Any => all.push(Leaf { path, owner, field }),
        Type::List(item) => add(schema, item, format!("{path}[]"), (owner, field), all),
        Type::Map(item) => add(schema, item, format!("{path}{{}}"), (owner, field), all),
        Type::Definition(id) => match schema.get(*id).shape {
            Shape::Object => below(schema, schema.get(*id), &path, all),
            _ => all.push(Leaf { path, owner, field }),
        },
    }
}

/// An object with one text in it. A map has it as key and as value, and also below the keys that references have.
fn value_at(path: &str, text: &str) -> Value {
    let (field, rest) = path.split_once('.').unwrap_or((path, ""));
    let inner = if rest.is_empty() { json!(text) } else { value_at(rest, text) };
    wrap(field, inner, text)
}

fn wrap(field: &str, inner: Value, text: &str) -> Value {
    if let Some(field) = field.strip_suffix("[]") {
        wrap(field, json!([inner]), text)
    } else if let Some(field) = field.strip_suffix("{}") {
        let keys = [text, "name", "secretName", "secretRef", "secret", "configMap", "claimName", "serviceAccountName"];
        wrap(field, keys.into_iter().map(|key| (key.to_owned(), inner.clone())).collect(), text)
    } else {
        json!({ field: inner })
    }
}

fn pod_fields() -> Vec<(String, Referent)> {
    let of_containers = CONTAINERS
        .iter()
        .flat_map(|list| CONTAINER_FIELDS.iter().map(move |(path, to)| (format!("{list}.{path}"), *to)));
    POD_FIELDS.iter().map(|(path, to)| ((*path).to_owned(), *to)).chain(of_containers).collect()
}

#[test]
fn a_typed_field_refers_to_exactly_its_object_and_every_other_text_of_a_pod_to_nothing() {
    let fields = pod_fields();
    let leaves = leaves("io.k8s.api.core.v1.PodSpec");
    assert!(leaves.len() > 400, "the schema has been walked: {}", leaves.len());
    for (path, _) in &fields {
        assert!(leaves.iter().any(|leaf| leaf.path == *path), "the schema has no text at {path}");
    }
    for leaf in &leaves {
        let mut pod = json!({"metadata": {"name": "web"}, "spec": value_at(&leaf.path, PROBE)});
        let expected: Vec<Reference<'_>> = fields
            .iter()
            .filter(|(path, _)| *path == leaf.path)
            .map(|(_, to)| Reference { to: *to, name: PROBE.into() })
            .collect();
        assert_eq!(pod_references(&pod), expected, "spec.{}", leaf.path);
        // And whatever else the pod says of itself.
        pod["metadata"] = json!({
            "name": "web",
            "labels": {"secretName": "other", "secretRef": "other"},
            "annotations": {"secretName": "other", "imagePullSecrets": "other"},
        });
        assert_eq!(pod_references(&pod), expected, "spec.{}", leaf.path);
    }
}

#[test]
fn a_claim_that_was_made_of_a_template_is_named_in_the_status() {
    let statuses = json!([{"name": "gpu", "resourceClaimName": "web-gpu-x"}, {"name": "none"}]);
    let pod = json!({"metadata": {"name": "web"}, "spec": {}, "status": {"resourceClaimStatuses": statuses}});
    assert_eq!(pod_references(&pod), [Reference { to: Referent::ResourceClaim, name: "web-gpu-x".into() }]);
}

#[test]
fn every_field_of_a_pod_that_is_typed_as_a_reference_is_in_the_table() {
    let known: BTreeSet<String> = pod_fields().into_iter().map(|(path, _)| path).collect();
    // The template of an ephemeral volume's claim refers on behalf of the claim, not of the pod.
    let counts = |leaf: &&Leaf| !leaf.path.starts_with("volumes[].ephemeral.");
    for leaf in leaves("io.k8s.api.core.v1.PodSpec").iter().filter(counts) {
        let typed = match (leaf.owner, leaf.field) {
            ("LocalObjectReference" | "SecretReference" | "ObjectReference", "name") => true,
            (_, "secretName" | "claimName" | "serviceAccountName") => true,
            (owner, "name") => owner.starts_with("Secret") || owner.starts_with("ConfigMap"),
            _ => false,
        };
        assert!(!typed || known.contains(&leaf.path), "{} of {} is a reference", leaf.path, leaf.owner);
    }
}

#[test]
fn every_secret_of_a_persistent_volume_is_in_the_table_but_those_of_controllers() {
    let known: BTreeSet<String> = VOLUME_SECRETS.iter().map(|(path, name, _)| format!("{path}.{name}")).collect();
    let controllers = ["csi.controllerExpandSecretRef.name", "csi.controllerPublishSecretRef.name", "claimRef.name"];
    for leaf in leaves("io.k8s.api.core.v1.PersistentVolumeSpec") {
        let typed = matches!(
            (leaf.owner, leaf.field),
            ("LocalObjectReference" | "SecretReference" | "ObjectReference", "name") | (_, "secretName")
        );
        let listed = known.contains(&leaf.path);
        assert_eq!(typed && !controllers.contains(&&*leaf.path), listed, "{}", leaf.path);
        let volume = json!({"spec": value_at(&leaf.path, PROBE)});
        let found = volume_secrets(&volume);
        let expected = SecretReference { namespace: None, name: PROBE };
        assert_eq!(found, if listed { vec![expected] } else { vec![] }, "{}", leaf.path);
    }
    let elsewhere = json!({"spec": {"csi": {"nodeStageSecretRef": {"name": "s", "namespace": "n"}}}});
    assert_eq!(volume_secrets(&elsewhere), [SecretReference { namespace: Some("n"), name: "s" }]);
    let shared = json!({"spec": {"azureFile": {"secretName": "s", "secretNamespace": "n"}}});
    assert_eq!(volume_secrets(&shared), [SecretReference { namespace: Some("n"), name: "s" }]);
}

#[test]
fn the_claim_of_an_ephemeral_volume_is_named_after_pod_and_volume() {
    let pod = json!({"metadata": {"name": "web"}, "spec": {"volumes": [
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}, {"name": "data", "emptyDir": {}},
    ]}});
    assert_eq!(pod_references(&pod), [Reference { to: Referent::PersistentVolumeClaim, name: "web-scratch".into() }]);
    assert!(pod_refers_to(&pod, Referent::PersistentVolumeClaim, "web-scratch"));
    assert!(!pod_refers_to(&pod, Referent::PersistentVolumeClaim, "web-data"));
    assert!(!pod_refers_to(&pod, Referent::Secret, "web-scratch"));
}

#[test]
fn audiences_are_those_of_the_tokens_in_volumes() {
    let pod = json!({"metadata": {"labels": {"audience": "x"}}, "spec": {"volumes": [
        {"name": "a", "projected": {"sources": [
            {"serviceAccountToken": {"path": "t"}}, {"serviceAccountToken": {"path": "u", "audience": "vault"}},
            {"secret": {"name": "s", "audience": "y"}},
        ]}},
    ]}});
    assert_eq!(token_audiences(&pod), ["", "vault"]);
}

#[test]
fn a_pod_that_refers_to_anything_needs_the_api() {
    for (path, to) in pod_fields() {
        let pod = json!({"metadata": {"name": "web"}, "spec": value_at(&path, PROBE)});
        let words = match to {
            Referent::Secret => "secrets",
            Referent::ConfigMap => "configmaps",
            Referent::PersistentVolumeClaim => "persistentvolumeclaims",
            Referent::ResourceClaim => "resourceclaims",
            Referent::ServiceAccount => "serviceaccounts",
        };
        assert_eq!(api_reference(&pod).as_deref(), Some(words), "spec.{path}");
    }
    for (spec, words) in [
        (json!({"serviceAccount": "robot"}), "serviceaccounts"),
        (json!({"imagePullSecrets": [{}]}), "secrets"),
        (json!({"resourceClaims": [{"name": "gpu"}]}), "resourceclaims"),
        (json!({"volumes": [{"name": "v", "secret": {}}]}), "secrets (via secret volumes)"),
        (json!({"volumes": [{"name": "v", "configMap": {}}]}), "configmaps (via configmap volumes)"),
        (json!({"volumes": [{"name": "v", "azureFile": {"shareName": "s"}}]}), "secrets (via azureFile volumes)"),
        (json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}), "csidrivers (via CSI volumes)"),
        (json!({"volumes": [{"name": "v", "ephemeral": {}}]}), "persistentvolumeclaims (via ephemeral volumes)"),
        (json!({"volumes": [{"name": "v", "glusterfs": {}}]}), "endpoints (via glusterFS volumes)"),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
            "serviceaccounts (via projected volumes)",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {}}]}}]}),
            "clustertrustbundles",
        ),
        (json!({"volumes": [{"name": "v", "new": {}}]}), "an object of unknown kind (via new volume \"v\")"),
    ] {
        assert_eq!(api_reference(&json!({"spec": spec})).as_deref(), Some(words), "{spec}");
    }
}

#[test]
fn a_pod_that_refers_to_nothing_does_not_need_the_api() {
    let pod = json!({
        "metadata": {"name": "web", "labels": {"secretName": "x"}},
        "spec": {
            "priorityClassName": "system-node-critical", "runtimeClassName": "r", "nodeSelector": {"secretName": "x"},
            "imagePullSecrets": [],
            "containers": [{"name": "c", "image": "i", "env": [{"name": "secretRef", "value": "x"}]}],
            "volumes": [
                {"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "emptyDir": {}}, {"name": "c"},
                {"name": "d", "projected": {"sources": [{"downwardAPI": {"items": []}}]}},
            ],
        },
    });
    assert_eq!(api_reference(&pod), None);
}

#[test]
fn every_volume_of_the_schema_is_judged() {
    let schema = Schema::builtin();
    for (definition, path) in [("Volume", "volumes[]"), ("VolumeProjection", "volumes[].projected.sources[]")] {
        let fields = &schema.definition(&format!("io.k8s.api.core.v1.{definition}")).expect("a definition").fields;
        for field in fields.iter().filter(|field| field.name != "name") {
            let mut pod = json!({"spec": value_at(path, "")});
            let place = match definition {
                "Volume" => &mut pod["spec"]["volumes"][0],
                _ => &mut pod["spec"]["volumes"][0]["projected"]["sources"][0],
            };
            *place = json!({ field.name: {} });
            let found = api_reference(&pod).unwrap_or_default();
            assert!(!found.contains("unknown"), "{definition}.{}: {found}", field.name);
        }
    }
}

#[test]
fn a_pod_reads_a_copy_only_of_what_it_refers_to() {
    let (copy, other) = ("key-0123456789abcdef", "key-fedcba9876543210");
    let pod = |spec: Value, versions: Value| {
        let annotations = json!({crate::config_versions::ANNOTATION: versions.to_string()});
        json!({"metadata": {"name": "web", "annotations": annotations}, "spec": spec})
    };
    let mounts = json!({"volumes": [{"secret": {"secretName": "key"}}]});
    let reads = pod_copies;
    let reading = pod(mounts.clone(), json!({"secret/key": copy}));
    assert_eq!(reads(&reading, ConfigKind::Secret, copy), ["key"]);
    assert!(reads(&reading, ConfigKind::Secret, other).is_empty());
    assert!(reads(&reading, ConfigKind::ConfigMap, copy).is_empty());
    for (spec, versions) in [
        (json!({"volumes": [{"secret": {"secretName": "other"}}]}), json!({"secret/key": copy})),
        (json!({"volumes": [{"configMap": {"name": "key"}}]}), json!({"secret/key": copy})),
        (json!({"imagePullSecrets": [{"name": "key"}]}), json!({"secret/key": copy})),
        (mounts.clone(), json!({"configmap/key": copy})),
        (mounts.clone(), json!({})),
        // What cannot be read says nothing.
        (mounts, json!({"secret/key": "admin"})),
    ] {
        assert!(reads(&pod(spec.clone(), versions.clone()), ConfigKind::Secret, copy).is_empty(), "{spec} {versions}");
    }
}

#[test]
fn versions_are_of_what_is_shown_in_volumes_and_in_the_environment() {
    let all: BTreeSet<&str> = POD_FIELDS.iter().map(|(path, _)| *path).collect();
    assert!(CONFIG_VOLUMES.iter().all(|path| all.contains(path)));
    let spec = json!({
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [
            {"configMap": {"name": "a"}}, {"secret": {"secretName": "b"}},
            {"projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "d"}}]}},
            {"rbd": {"secretRef": {"name": "ceph"}}},
        ],
        "initContainers": [{"envFrom": [{"configMapRef": {"name": "e"}}, {"secretRef": {"name": "f"}}]}],
        "containers": [{"env": [
            {"valueFrom": {"configMapKeyRef": {"name": "g", "key": "k"}}}, {"valueFrom": {"secretKeyRef": {"name": "h", "key": "k"}}},
            {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}},
        ]}],
    });
    let found: Vec<String> = config_sources(&spec).iter().map(ToString::to_string).collect();
    let expected =
        ["configmap/a", "configmap/c", "configmap/e", "configmap/g", "secret/b", "secret/d", "secret/f", "secret/h"];
    assert_eq!(found, expected);
    assert!(config_sources(&Value::Null).is_empty());
}
