use serde_json::Value;

use super::*;
use crate::{descriptor::Descriptor, registry::Registry};

fn v2() -> Value {
    serde_json::from_slice(&v2_json(&Registry::builtin(), &[])).unwrap()
}

fn v3_of(group: &str, version: &str) -> Value {
    serde_json::from_slice(&v3(&Registry::builtin(), group, version).unwrap()).unwrap()
}

/// Every `$ref` in a document, as the JSON pointer it is.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(target) if name == "$ref" => found.push(target[1..].to_owned()),
                    value => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

fn has_parameter(operation: &Value, name: &str) -> bool {
    operation["parameters"].as_array().unwrap().iter().any(|p| p["name"] == name && p["in"] == "query")
}

#[test]
fn every_reference_leads_somewhere() {
    for document in
        [v2(), v3_of("", "v1"), v3_of("apps", "v1"), v3_of("batch", "v1"), v3_of("authorization.k8s.io", "v1")]
    {
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 10);
        for target in found {
            assert!(document.pointer(&target).is_some(), "{target}");
        }
    }
}

#[test]
fn definitions_say_what_explain_and_patches_need() {
    let document = v2();
    let deployment = &document["definitions"]["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(
        deployment["x-kubernetes-group-version-kind"],
        json!([{"group": "apps", "version": "v1", "kind": "Deployment"}])
    );
    assert!(deployment["description"].as_str().unwrap().starts_with("Deployment enables"));
    let containers = &document["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert!(containers["description"].as_str().unwrap().contains("containers"));
    let quantity = &document["definitions"]["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(quantity["type"], "string");
    let pods = document["definitions"]["io.k8s.api.core.v1.PodList"]["required"].clone();
    assert_eq!(pods, json!(["items"]));
}

#[test]
fn almost_every_field_is_described() {
    let document = v2();
    let (mut described, mut all) = (0, 0);
    for definition in document["definitions"].as_object().unwrap().values() {
        for field in definition["properties"].as_object().into_iter().flatten().map(|(_, field)| field) {
            all += 1;
            described += usize::from(field.get("description").is_some());
        }
    }
    assert!(all > 1500 && described * 100 / all > 80, "{described} of {all}");
}

#[test]
fn patch_operations_offer_dry_run_and_field_validation() {
    let old = v2();
    let new = v3_of("apps", "v1");
    for document in [&old, &new] {
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert!(has_parameter(patch, "dryRun") && has_parameter(patch, "fieldValidation"));
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "apps", "version": "v1", "kind": "Deployment"})
        );
        assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
        assert_eq!(patch["x-kubernetes-action"], "patch");
    }
    let scale = &new["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["get"];
    assert_eq!(scale["x-kubernetes-group-version-kind"]["kind"], "Scale");
    let nodes = &old["paths"]["/api/v1/nodes/{name}/status"]["put"];
    assert_eq!(nodes["operationId"], "replaceCoreV1NodeStatus");
    assert_eq!(old["paths"]["/api/v1/pods"]["get"]["operationId"], "listCoreV1PodForAllNamespaces");
}

#[test]
fn the_index_leads_to_every_document() {
    let registry = Registry::builtin();
    let index = v3_index(&registry);
    let paths = index["paths"].as_object().unwrap();
    assert!(paths.contains_key("api/v1") && paths.contains_key("apis/apps/v1"));
    for (path, entry) in paths {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        assert!(url.starts_with(&format!("/openapi/v3/{path}?hash=")), "{url}");
        let mut parts = path.split('/').skip(1);
        let (group, version) = match path.starts_with("api/") {
            true => ("", parts.next().unwrap()),
            false => (parts.next().unwrap(), parts.next().unwrap()),
        };
        assert!(v3(&registry, group, version).is_some(), "{path}");
    }
    assert_eq!(v3(&registry, "nothing", "v1"), None);
    assert_eq!(index, v3_index(&Registry::builtin()), "the hashes are stable");
}

#[test]
fn protobuf_says_what_the_json_says() {
    let registry = Registry::builtin();
    let json = v2();
    let decoded = protobuf::summary(&v2_protobuf(&registry, &[])).unwrap();
    assert_eq!(decoded.definitions, json["definitions"].as_object().unwrap().len());
    assert_eq!(decoded.paths, json["paths"].as_object().unwrap().len());
    assert!(decoded.patch_parameters.contains(&"fieldValidation".to_owned()));
    let kind: Value = serde_json::from_str(&decoded.patch_kind).unwrap();
    assert_eq!(kind, json!({"group": "apps", "version": "v1", "kind": "Deployment"}));
}

#[test]
fn kinds_without_a_known_type_are_served_all_the_same() {
    let mut descriptor: Descriptor = crate::groups::all().into_iter().find(|d| d.kind == "ConfigMap").unwrap();
    descriptor.group = "mainstay.dev".into();
    descriptor.kind = "Machine".into();
    descriptor.plural = "machines".into();
    descriptor.schema = "dev.mainstay.v1.Machine".into();
    let registry = Registry::new([descriptor]);
    let document: Value = serde_json::from_slice(&v3(&registry, "mainstay.dev", "v1").unwrap()).unwrap();
    let machine = &document["components"]["schemas"]["dev.mainstay.v1.Machine"];
    assert_eq!(machine["x-kubernetes-group-version-kind"][0]["kind"], "Machine");
    assert!(document["paths"]["/apis/mainstay.dev/v1/namespaces/{namespace}/machines"]["post"].is_object());
}
