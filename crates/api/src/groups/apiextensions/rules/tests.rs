use serde_json::json;

use super::*;

fn definition() -> Value {
    json!({
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced", "names": {"plural": "crontabs", "kind": "CronTab"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "color": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}},
                }}},
            }}}],
        },
    })
}

/// The errors of a definition with a value at a JSON pointer changed.
fn refused(pointer: &str, value: Value) -> Vec<String> {
    let mut definition = definition();
    set(&mut definition, pointer, value);
    CustomResourceDefinitions.create(&mut definition).iter().map(FieldError::to_string).collect()
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[name] = value;
}

#[test]
fn a_definition_is_completed() {
    let mut given = definition();
    assert!(CustomResourceDefinitions.create(&mut given).is_empty());
    assert_eq!(
        given["spec"]["names"],
        json!({"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "listKind": "CronTabList"})
    );
    assert_eq!(given["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(given["status"], json!({"storedVersions": ["v1"]}));
}

#[test]
fn what_is_wrong_is_named_in_upstreams_words() {
    let label = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                 character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
                 is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    let webhook = json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "http://x"}, "conversionReviewVersions": ["v9"]}});
    let selectable = |path: &str| json!([{"jsonPath": path}]);
    let cases: Vec<(&str, Value, Vec<String>)> = vec![
        ("/metadata/name", json!("x"), vec![r#"metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group"#.into()]),
        ("/spec/scope", json!("Galaxy"), vec![r#"spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced""#.into()]),
        ("/spec/versions/0/schema", json!(null), vec!["spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required".into()]),
        ("/spec/versions/0/storage", json!(false), vec![
            r#"spec.versions: Invalid value: ["v1"]: must have exactly one version marked as storage version"#.into(),
            "status.storedVersions: Invalid value: []: must have at least one stored version".into(),
        ]),
        ("/spec/versions/0/name", json!("V1"), vec![format!("spec.versions[0].name: Invalid value: \"V1\": {label}")]),
        ("/spec/names/kind", json!("../../x"), vec![
            format!("spec.names.singular: Invalid value: \"../../x\": {label}"),
            format!("spec.names.kind: Invalid value: \"../../x\": may have mixed case, but should otherwise match: {label}"),
            format!("spec.names.listKind: Invalid value: \"../../xList\": may have mixed case, but should otherwise match: {label}"),
        ]),
        ("/spec/names/listKind", json!("CronTab"), vec![r#"spec.names.listKind: Invalid value: "CronTab": kind and listKind may not be the same"#.into()]),
        ("/spec/preserveUnknownFields", json!(true), vec!["spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead".into()]),
        ("/spec/versions/0/subresources", json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": "x"}}), vec![
            r#"spec.versions[0].subresources.scale.specReplicasPath: Invalid value: ".status.x": should be a json path under .spec"#.into(),
            r#"spec.versions[0].subresources.scale.statusReplicasPath: Invalid value: "x": must be a simple json path starting with ."#.into(),
        ]),
        ("/spec/versions/0/additionalPrinterColumns", json!([{"name": "a", "type": "text", "jsonPath": ".a"}]), vec![
            r#"spec.versions[0].additionalPrinterColumns[0].type: Invalid value: "text": must be one of boolean,date,integer,number,string"#.into(),
        ]),
        ("/spec/versions/0/selectableFields", selectable(".spec.color"), vec![]),
        ("/spec/versions/0/selectableFields", selectable(".spec.none"), vec![r#"spec.versions[0].selectableFields[0].jsonPath: Invalid value: ".spec.none": does not refer to a valid field"#.into()]),
        ("/spec/versions/0/selectableFields", selectable(".spec.list"), vec![r#"spec.versions[0].selectableFields[0].jsonPath: Invalid value: ".spec.list": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."#.into()]),
        ("/spec/versions/0/deprecationWarning", json!("old"), vec![r#"spec.versions[0].deprecationWarning: Invalid value: "old": can only be set for deprecated versions"#.into()]),
        ("/spec/conversion", webhook, vec![
            r#"spec.conversion.webhook.clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]"#.into(),
            r#"spec.conversion.webhook.conversionReviewVersions: Invalid value: ["v9"]: must include at least one of v1, v1beta1"#.into(),
        ]),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(refused(pointer, value.clone()), expected, "{pointer} {value}");
    }
}

#[test]
fn groups_of_the_project_need_approval() {
    let mut protected = definition();
    protected["metadata"]["name"] = json!("crontabs.batch.k8s.io");
    protected["spec"]["group"] = json!("batch.k8s.io");
    let errors = CustomResourceDefinitions.create(&mut protected.clone());
    let expected = "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \
                    \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
    assert_eq!(errors.iter().map(FieldError::to_string).collect::<Vec<_>>(), [expected]);
    protected["metadata"]["annotations"] =
        json!({"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"});
    assert!(CustomResourceDefinitions.create(&mut protected).is_empty());
}

#[test]
fn what_decides_where_objects_lie_does_not_change() {
    let mut old = definition();
    CustomResourceDefinitions.create(&mut old);
    old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let update = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        let errors = CustomResourceDefinitions.update(&mut new, &old);
        (errors.iter().map(FieldError::to_string).collect::<Vec<_>>(), new)
    };
    assert_eq!(
        update(|new| new["spec"]["scope"] = json!("Cluster")).0,
        [r#"spec.scope: Invalid value: "Cluster": field is immutable"#]
    );
    assert_eq!(
        update(|new| new["spec"]["names"]["kind"] = json!("Other")).0,
        [r#"spec.names.kind: Invalid value: "Other": field is immutable"#]
    );
    let (errors, new) = update(|new| {
        new["spec"]["versions"][0]["storage"] = json!(false);
        let mut next = new["spec"]["versions"][0].clone();
        next["name"] = json!("v2");
        next["storage"] = json!(true);
        new["spec"]["versions"].as_array_mut().unwrap().push(next);
    });
    assert_eq!((errors.len(), &new["status"]["storedVersions"]), (0, &json!(["v1", "v2"])));
    let (errors, _) = update(|new| new["spec"]["versions"][0]["name"] = json!("v3"));
    assert_eq!(errors, [r#"status.storedVersions[0]: Invalid value: "v1": must appear in spec.versions"#]);
}
