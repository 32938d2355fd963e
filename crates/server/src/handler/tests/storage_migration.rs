//! Objects are written anew in the form in which they are stored now, and no others.

use super::*;
use crate::background::storage_migration::migrate;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(stored: &str) -> Value {
    let version = |name: &str| {
        json!({
            "name": name, "served": true, "storage": name == stored,
            "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
        })
    };
    json!({
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [version("v1"), version("v2")],
        },
    })
}

#[tokio::test]
async fn custom_objects_of_an_older_version_are_rewritten_once() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let (code, made) = server.send(&admin, Method::POST, DEFINITIONS, &definition("v1")).await;
    assert_eq!(code, 201, "{made}");
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    for name in ["a", "b"] {
        let widget = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": name }, "spec": { "n": 1 } });
        let (code, made) = server.send(&admin, Method::POST, widgets, &widget).await;
        assert_eq!(code, 201, "{made}");
    }
    assert_eq!(migrate(&server.0, "example.com", "widgets", None).await.unwrap().rewritten, 0, "stored as they are");
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let (_, mut changed) = server.send(&admin, Method::GET, &path, &Value::Null).await;
    changed["spec"]["versions"] = definition("v2")["spec"]["versions"].clone();
    let (code, changed) = server.send(&admin, Method::PUT, &path, &changed).await;
    assert_eq!(code, 200, "{changed}");
    let migrated = migrate(&server.0, "example.com", "widgets", None).await.unwrap();
    assert_eq!(migrated.rewritten, 2);
    let (entry, _) = server.0.store().get("/registry/example.com/widgets/default/a").await.unwrap();
    let stored: Value = serde_json::from_slice(&entry.unwrap().value).unwrap();
    assert_eq!((&stored["apiVersion"], &stored["spec"]["n"]), (&json!("example.com/v2"), &json!(1)));
    assert_eq!(migrate(&server.0, "example.com", "widgets", None).await.unwrap().rewritten, 0);
    let error = migrate(&server.0, "example.com", "gadgets", None).await.unwrap_err();
    assert!(error.is_final());
    assert_eq!(error.to_string(), "resource \"gadgets\" of group \"example.com\" is not served here");
}
