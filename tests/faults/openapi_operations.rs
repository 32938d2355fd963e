//! What the OpenAPI documents list is served: clients believe them.

use serde_json::Value;

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, config_map},
};

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// All paths of `/openapi/v2` and of every document of `/openapi/v3`.
fn documents(client: &mut Client) -> Vec<Value> {
    let index = client.get("/openapi/v3").granted();
    let urls = index["paths"].as_object().expect("an index").values();
    let urls: Vec<String> = urls.map(|entry| entry["serverRelativeURL"].as_str().expect("a URL").to_owned()).collect();
    let mut documents = vec![client.get("/openapi/v2").granted()];
    documents.extend(urls.iter().map(|url| client.get(url).granted()));
    documents
}

fn content_types(operation: &Value) -> Vec<String> {
    let v2 = operation["consumes"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let v3 = operation["requestBody"]["content"].as_object().into_iter().flatten().map(|(kind, _)| kind.clone());
    v2.chain(v3).collect()
}

#[test]
fn every_operation_of_the_openapi_documents_is_served() {
    let mut server = Server::start();
    let mut client = server.client();
    let (mut tried, mut unserved) = (0, Vec::new());
    for document in documents(&mut client) {
        for (path, item) in document["paths"].as_object().expect("paths") {
            let url = path.replace("{namespace}", "default").replace("{name}", "absent") + "?dryRun=All";
            for method in METHODS.into_iter().filter(|method| item.get(method).is_some()) {
                let kind = match method {
                    "get" | "delete" => "",
                    "patch" => "application/merge-patch+json",
                    _ => "application/json",
                };
                let body: &[u8] = if kind.is_empty() { b"" } else { b"{}" };
                let answer = client.send(&method.to_uppercase(), &url, kind, body);
                // An object that is not there is named; a path that is not there is not.
                let unknown_path = answer.code == 404 && answer.json()["details"]["name"] != "absent";
                if unknown_path || [405, 415, 501].contains(&answer.code) {
                    unserved.push(format!("{method} {path}: {} {}", answer.code, answer.text()));
                }
                tried += 1;
            }
        }
    }
    assert!(unserved.is_empty(), "{} of {tried} are not served:\n{}", unserved.len(), unserved.join("\n"));
    assert!(tried > 500, "{tried}");
    server.assert_well();
}

#[test]
fn every_content_type_of_a_patch_is_taken() {
    let mut server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("x")).granted();
    for document in documents(&mut client) {
        for item in document["paths"].as_object().expect("paths").values().filter(|item| item.get("patch").is_some()) {
            let kinds = content_types(&item["patch"]);
            assert!(!kinds.is_empty(), "{item}");
            for kind in kinds {
                let (query, body) = match &*kind {
                    "application/json-patch+json" => ("", "[]".to_owned()),
                    kind if kind.contains("apply-patch") => ("?fieldManager=test", config_map("x").to_string()),
                    _ => ("", "{}".to_owned()),
                };
                let answer = client.send("PATCH", &format!("{CONFIG_MAPS}/x{query}"), &kind, body.as_bytes());
                assert_eq!(answer.code, 200, "{kind}: {}", answer.text());
            }
        }
    }
    server.assert_well();
}
