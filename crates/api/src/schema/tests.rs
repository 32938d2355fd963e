use serde_json::json;

use super::*;

const POD: &str = "io.k8s.api.core.v1.Pod";
const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";

fn conformed(definition: &str, mut object: Value) -> (Value, Vec<String>) {
    let unknown = Schema::builtin().conform(definition, &mut object).unwrap();
    (object, unknown)
}

fn refusal(definition: &str, mut object: Value) -> String {
    Schema::builtin().conform(definition, &mut object).unwrap_err().to_string()
}

#[test]
fn an_object_with_more_items_than_any_could_store_is_refused() {
    let container = json!({"ports": vec![json!({}); 9_999]});
    let (fits, _) = conformed(POD, json!({"spec": {"containers": [container, container]}}));
    assert_eq!(fits["spec"]["containers"][1]["ports"].as_array().map(Vec::len), Some(9_999));
    assert_eq!(
        refusal(POD, json!({"spec": {"containers": [container, container, container]}})),
        "spec.containers[1].ports: Too many: 20001: must have at most 20000 items"
    );
    let (strings, _) = conformed(POD, json!({"metadata": {"finalizers": vec!["a"; 100_000]}}));
    assert_eq!(strings["metadata"]["finalizers"].as_array().map(Vec::len), Some(100_000));
}

#[test]
fn a_condition_without_a_transition_time_has_gos_zero_time() {
    for given in [json!({"type": "Ready"}), json!({"type": "Ready", "lastTransitionTime": null})] {
        let (service, unknown) = conformed("io.k8s.api.core.v1.Service", json!({"status": {"conditions": [given]}}));
        let expected = json!({"type": "Ready", "lastTransitionTime": "0001-01-01T00:00:00Z"});
        assert_eq!((&service["status"]["conditions"][0], unknown.len()), (&expected, 0));
    }
    let (pod, _) = conformed(POD, json!({"status": {"conditions": [{"type": "Ready", "lastTransitionTime": null}]}}));
    assert_eq!(pod["status"]["conditions"][0], json!({"type": "Ready"}), "elsewhere it is optional");
}

#[test]
fn of_very_many_unknown_fields_the_first_are_reported() {
    let fields: serde_json::Map<_, _> = (0..10_000).map(|n| (format!("u{n}"), json!(1))).collect();
    let (object, unknown) = conformed(POD, Value::Object(fields));
    assert_eq!((object, unknown.len()), (json!({}), 100));
}

#[test]
fn the_table_knows_the_kinds_and_their_patch_strategies() {
    let schema = Schema::builtin();
    assert!(schema.definitions().count() > 400);
    let pod_spec = schema.definition("io.k8s.api.core.v1.PodSpec").unwrap();
    let containers = pod_spec.field("containers").unwrap();
    assert_eq!((containers.merge_key, containers.list_type), (Some("name"), Some(ListType::Map)));
    assert!(containers.required && containers.merges());
    let ports = schema.definition("io.k8s.api.core.v1.Container").unwrap().field("ports").unwrap();
    assert_eq!((ports.merge_key, &*ports.keys), (Some("containerPort"), &["containerPort", "protocol"][..]));
    let deployment = schema.of_kind("apps", "v1", "Deployment").unwrap();
    assert_eq!(deployment.name, DEPLOYMENT);
    let port = schema.definition("io.k8s.api.core.v1.ContainerPort").unwrap();
    assert_eq!(port.field("protocol").unwrap().default, Some("\"TCP\""));
    assert!(schema.definition("io.k8s.api.core.v1.ObjectReference").unwrap().atomic);
}

#[test]
fn every_registered_kind_has_its_definition() {
    for descriptor in crate::registry::Registry::builtin().iter() {
        assert!(Schema::builtin().definition(&descriptor.schema).is_some(), "{}", descriptor.schema);
    }
}

#[test]
fn broken_tables_are_refused_with_the_line() {
    for (table, message) in [
        (" a string", "schema table, line 1: a field before any definition"),
        ("x object\n a strong", "schema table, line 2: unknown type \"strong\""),
        ("x thing", "schema table, line 1: unknown shape \"thing\""),
        ("x object\n a string maybe", "schema table, line 2: unknown word \"maybe\""),
    ] {
        assert_eq!(Schema::parse(table).err().map(|e| e.to_string()).as_deref(), Some(message));
    }
}

#[test]
fn unknown_fields_are_removed_and_named_by_path() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "labels": {"any": "thing"}, "nmae": "b"},
        "spec": {"containers": [{"name": "c", "image": "i", "foo": {"bar": 1}}, {"name": "d", "Image": "i"}], "extra": 1},
        "top": [],
    });
    let (pod, mut unknown) = conformed(POD, pod);
    unknown.sort();
    assert_eq!(unknown, ["metadata.nmae", "spec.containers[0].foo", "spec.containers[1].Image", "spec.extra", "top"]);
    assert_eq!(
        pod,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"any": "thing"}},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d"}]},
        })
    );
}

#[test]
fn nulls_and_empty_optional_lists_are_absent_but_empty_objects_stay() {
    let pod = json!({
        "metadata": {"name": "a", "annotations": {}, "labels": {"a": null}, "finalizers": [], "creationTimestamp": null},
        "spec": {
            "containers": [], "nodeName": null, "tolerations": [], "securityContext": {}, "nodeSelector": {},
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
        "status": {},
    });
    let (pod, unknown) = conformed(POD, pod);
    assert!(unknown.is_empty());
    assert_eq!(
        pod,
        json!({
            "metadata": {"name": "a", "labels": {"a": ""}},
            "spec": {"containers": [], "securityContext": {}, "volumes": [{"name": "v", "emptyDir": {}}]},
            "status": {},
        })
    );
}

#[test]
fn wrong_types_are_refused_with_the_apis_messages() {
    for (definition, object, message) in [
        (
            DEPLOYMENT,
            json!({"spec": {"replicas": "3"}}),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            DEPLOYMENT,
            json!({"spec": {"replicas": 3_000_000_000_u64}}),
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            DEPLOYMENT,
            json!({"spec": {"replicas": 1.5}}),
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            DEPLOYMENT,
            json!({"metadata": {"annotations": {"a": true}}}),
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.annotations of type string",
        ),
        (
            "io.k8s.api.core.v1.ConfigMap",
            json!({"data": {"a": 1}}),
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            DEPLOYMENT,
            json!({"spec": {"template": {"spec": {"containers": [{"name": 1}]}}}}),
            "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.name of type string",
        ),
        (
            POD,
            json!({"spec": {"containers": {"name": "a"}}}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (POD, json!({"spec": []}), "json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec"),
        (POD, json!([]), "json: cannot unmarshal array into Go value of type v1.Pod"),
        (
            POD,
            json!({"spec": {"containers": [{"resources": {"limits": "1"}}]}}),
            "json: cannot unmarshal string into Go struct field ResourceRequirements.spec.containers.resources.limits \
             of type v1.ResourceList",
        ),
        (
            POD,
            json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "one"}}}]}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "io.k8s.api.core.v1.Service",
            json!({"spec": {"ports": [{"targetPort": true}]}}),
            "json: cannot unmarshal bool into Go value of type int32",
        ),
        ("io.k8s.api.core.v1.Secret", json!({"data": {"a": "Zm9v!"}}), "illegal base64 data at input byte 4"),
        (
            "io.k8s.api.core.v1.Secret",
            json!({"data": {"a": 5}}),
            "json: cannot unmarshal number into Go struct field Secret.data of type []uint8",
        ),
        (
            POD,
            json!({"metadata": {"creationTimestamp": "yesterday"}}),
            "parsing time \"yesterday\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"yesterday\" as \"2006\"",
        ),
    ] {
        assert_eq!(refusal(definition, object), message);
    }
}

#[test]
fn quantities_and_ports_take_their_canonical_form() {
    let pod = json!({"spec": {"containers": [{
        "name": "c",
        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi", "x/y": 0.5, "n": 2, "z": null}},
        "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"httpGet": {"port": 80}},
    }]}});
    let (pod, _) = conformed(POD, pod);
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["limits"],
        json!({"cpu": "1", "memory": "1Gi", "x/y": "500m", "n": "2", "z": "0"})
    );
    assert_eq!(pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"], "http");
}

#[test]
fn times_are_written_in_utc() {
    for (written, seconds, micros) in [
        ("2024-02-29T12:00:00Z", "2024-02-29T12:00:00Z", "2024-02-29T12:00:00.000000Z"),
        ("2024-05-30T12:00:00+02:00", "2024-05-30T10:00:00Z", "2024-05-30T10:00:00.000000Z"),
        ("2024-05-30T23:30:00.1234567-01:00", "2024-05-31T00:30:00Z", "2024-05-31T00:30:00.123456Z"),
        ("1960-01-01T00:00:00.25Z", "1960-01-01T00:00:00Z", "1960-01-01T00:00:00.250000Z"),
    ] {
        let (pod, _) = conformed(POD, json!({"metadata": {"creationTimestamp": written}}));
        assert_eq!(pod["metadata"]["creationTimestamp"], seconds);
        let (lease, _) = conformed("io.k8s.api.coordination.v1.Lease", json!({"spec": {"renewTime": written}}));
        assert_eq!(lease["spec"]["renewTime"], micros);
    }
    for (broken, problem) in [
        ("2024-02-30T12:00:00Z", ": day out of range"),
        ("2024-13-01T12:00:00Z", ": month out of range"),
        ("2024-01-01T24:00:00Z", ": hour out of range"),
        ("2024-01-01 00:00:00Z", "cannot parse \" 00:00:00Z\" as \"T\""),
        ("2024-01-01T00:00:00", "cannot parse \"\" as \"Z07:00\""),
        ("2024-01-01T00:00:00Zx", "extra text: \"x\""),
        ("2024-01-01T00:00é", "as \"04\""),
    ] {
        let message = refusal(POD, json!({"metadata": {"creationTimestamp": broken}}));
        assert!(message.starts_with(&format!("parsing time {broken:?}")), "{message}");
        assert!(message.contains(problem) || broken.contains('é'), "{message}");
    }
}

#[test]
fn bytes_lose_their_line_breaks() {
    let (secret, _) =
        conformed("io.k8s.api.core.v1.Secret", json!({"data": {"a": "Zm9v\nYmFy\r\n", "b": "Zg==", "c": ""}}));
    assert_eq!(secret["data"], json!({"a": "Zm9vYmFy", "b": "Zg==", "c": ""}));
    for (text, at) in [("Zm9", 0), ("Zm9vY", 4), ("Zg=", 3), ("Zg==Zg==", 4), ("Z===", 1), ("Zg=a", 3)] {
        let message = refusal("io.k8s.api.core.v1.Secret", json!({"data": {"a": text}}));
        assert_eq!(message, format!("illegal base64 data at input byte {at}"), "{text}");
    }
}

#[test]
fn free_form_parts_are_left_alone() {
    let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:a": null}}});
    let (pod, unknown) = conformed(POD, json!({"metadata": {"managedFields": [{"manager": "m", "fieldsV1": fields}]}}));
    assert!(unknown.is_empty());
    assert_eq!(pod["metadata"]["managedFields"][0]["fieldsV1"], fields);

    let schema = json!({"openAPIV3Schema": {
        "type": "object", "default": {"x": [null]},
        "properties": {"a": {"type": "array", "items": {"type": "string", "bogus": 1}}, "b": {"additionalProperties": true}},
        "additionalProperties": {"type": "string"},
    }});
    let definition = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
    let (crd, unknown) = conformed(definition, json!({"spec": {"versions": [{"name": "v1", "schema": schema}]}}));
    assert_eq!(unknown, ["spec.versions[0].schema.openAPIV3Schema.properties.a.items.bogus"]);
    assert_eq!(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["default"], json!({"x": [null]}));
}

#[test]
fn conforming_twice_changes_nothing_more() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "creationTimestamp": null},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "strategy": {}, "x": 1,
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": "0.1"}}, "ports": [{"containerPort": 80}]},
            ]}}},
        "status": {},
    });
    let (once, _) = conformed(DEPLOYMENT, deployment);
    let (twice, unknown) = conformed(DEPLOYMENT, once.clone());
    assert_eq!(once, twice);
    assert!(unknown.is_empty());
}
