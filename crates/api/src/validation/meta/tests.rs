use serde_json::json;

use super::*;

fn created(metadata: Value) -> Vec<String> {
    let mut errors = Errors::new();
    validate(&json!({ "metadata": metadata }), true, NameRule::Subdomain, &mut errors);
    errors.iter().map(FieldError::to_string).collect()
}

fn updated(metadata: Value, old: Value) -> Vec<String> {
    let mut errors = Errors::new();
    validate_update(&json!({ "metadata": metadata }), &json!({ "metadata": old }), &mut errors);
    errors.iter().map(FieldError::to_string).collect()
}

#[test]
fn new_metadata_is_refused_with_upstreams_messages() {
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "1", "controller": true});
    let cases = [
        (json!({"name": "a", "namespace": "b", "labels": {"a": "b"}, "finalizers": ["x.io/y"]}), vec![]),
        (
            json!({}),
            vec![
                "metadata.name: Required value: name or generateName is required".to_owned(),
                "metadata.namespace: Required value".to_owned(),
            ],
        ),
        (
            json!({"name": "a", "namespace": "b", "ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}]}),
            vec![
                r#"metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty"#.to_owned(),
                r#"metadata.ownerReferences.kind: Invalid value: "": must not be empty"#.to_owned(),
                r#"metadata.ownerReferences.name: Invalid value: "": must not be empty"#.to_owned(),
                r#"metadata.ownerReferences.uid: Invalid value: "": must not be empty"#.to_owned(),
            ],
        ),
        (
            json!({"name": "a", "namespace": "b", "ownerReferences": [owner("x"), owner("y")]}),
            vec![format!(
                "metadata.ownerReferences: Invalid value: {}: Only one reference can have Controller set to true. \
                 Found \"true\" in references for Pod/x and Pod/y",
                json!([owner("x"), owner("y")])
            )],
        ),
        (
            json!({"name": "a", "namespace": "b", "finalizers": ["orphan", "foregroundDeletion"]}),
            vec![
                r#"metadata.finalizers: Invalid value: ["orphan","foregroundDeletion"]: finalizer orphan and foregroundDeletion cannot be both set"#.to_owned(),
            ],
        ),
        (
            json!({"name": "a", "namespace": "b", "managedFields": [{"operation": "Guess", "fieldsType": "V2"}]}),
            vec![
                r#"metadata.managedFields[0].operation: Invalid value: "Guess": must be `Apply` or `Update`"#.to_owned(),
                r#"metadata.managedFields[0].fieldsType: Invalid value: "V2": must be `FieldsV1`"#.to_owned(),
            ],
        ),
    ];
    for (metadata, expected) in cases {
        assert_eq!(created(metadata.clone()), expected, "{metadata}");
    }
}

#[test]
fn a_namespace_is_forbidden_where_there_is_none() {
    let mut errors = Errors::new();
    validate(&json!({"metadata": {"name": "a", "namespace": "b"}}), false, NameRule::Subdomain, &mut errors);
    assert_eq!(errors.iter().next().unwrap().to_string(), "metadata.namespace: Forbidden: not allowed on this type");
}

#[test]
fn an_update_keeps_identity() {
    let old = json!({"name": "a", "namespace": "b", "uid": "1", "generation": 2});
    assert_eq!(updated(old.clone(), old.clone()), [""; 0]);
    let mut new = old.clone();
    new["uid"] = json!("2");
    new["name"] = json!("c");
    new["generation"] = json!(1);
    assert_eq!(
        updated(new, old),
        [
            "metadata.generation: Invalid value: 1: must not be decremented",
            r#"metadata.name: Invalid value: "c": field is immutable"#,
            r#"metadata.uid: Invalid value: "2": field is immutable"#,
        ]
    );
}

#[test]
fn a_dying_object_takes_no_new_finalizers() {
    let old = json!({"deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["x.io/a"]});
    let mut new = old.clone();
    new["finalizers"] = json!(["x.io/b"]);
    assert_eq!(
        updated(new, old.clone()),
        ["metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new \
          finalizers []string{\"x.io/b\"}"]
    );
    let mut fewer = old.clone();
    fewer["finalizers"] = json!([]);
    assert_eq!(updated(fewer, old), [""; 0]);
}

#[test]
fn finalizers_of_built_in_kinds_carry_a_domain() {
    let mut errors = Errors::new();
    validate_finalizer_domains(&json!({"metadata": {"finalizers": ["orphan", "x.io/y", "mine"]}}), &[], &mut errors);
    assert_eq!(
        errors.iter().map(FieldError::to_string).collect::<Vec<_>>(),
        [
            r#"metadata.finalizers[2]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified"#
        ]
    );
}
