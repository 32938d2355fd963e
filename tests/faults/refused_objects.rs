//! Objects that parse but must not be.

use serde_json::{Value, json};

use super::support::{
    Server,
    objects::{CONFIG_MAPS, DEPLOYMENTS, PODS, config_map, deployment, pod},
};

#[test]
fn names_that_are_none_are_invalid_and_say_where() {
    let mut server = Server::start();
    let mut client = server.client();
    let long = "x".repeat(254);
    for name in ["UPPER", "under_score", "-dash", "dot.", "sp ace", "sl/ash", "..", "é", "a\u{0}b", &long] {
        let answer = client.post(CONFIG_MAPS, &config_map(name));
        assert_eq!(answer.invalid_field(), "metadata.name", "{name}");
        let status = answer.json();
        assert_eq!((&status["details"]["kind"], &status["details"]["name"]), (&json!("ConfigMap"), &json!(name)));
    }
    let unnamed = client.post(CONFIG_MAPS, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}));
    unnamed.refused_saying(422, "Invalid", "name or generateName is required");
    assert_eq!(unnamed.invalid_field(), "metadata.name");
    server.assert_well();
}

#[test]
fn labels_and_annotations_that_are_none_are_invalid() {
    let server = Server::start();
    let mut client = server.client();
    for (field, value) in
        [("labels", json!({"a b": "c"})), ("labels", json!({"a": "b c"})), ("annotations", json!({"/": ""}))]
    {
        let mut object = config_map("labelled");
        object["metadata"][field] = value;
        assert_eq!(client.post(CONFIG_MAPS, &object).invalid_field(), format!("metadata.{field}"));
    }
}

#[test]
fn missing_requirements_are_invalid_and_say_where() {
    let server = Server::start();
    let mut client = server.client();
    let mut without_containers = pod("p");
    without_containers["spec"]["containers"] = json!([]);
    assert_eq!(client.post(PODS, &without_containers).invalid_field(), "spec.containers");
    let mut without_image = pod("p");
    without_image["spec"]["containers"][0] = json!({"name": "main"});
    let answer = client.post(PODS, &without_image);
    assert_eq!(answer.invalid_field(), "spec.containers[0].image");
    answer.refused_saying(422, "Invalid", r#"Pod "p" is invalid: spec.containers[0].image: Required value"#);
    let mut without_selector = deployment("d");
    without_selector["spec"].as_object_mut().expect("a spec").remove("selector");
    assert_eq!(client.post(DEPLOYMENTS, &without_selector).invalid_field(), "spec.selector");
    assert_eq!(client.get(PODS).granted()["items"], json!([]));
    assert_eq!(client.get(DEPLOYMENTS).granted()["items"], json!([]));
}

#[test]
fn what_is_immutable_stays() {
    let server = Server::start();
    let mut client = server.client();
    let mut created = client.post(DEPLOYMENTS, &deployment("d")).granted();
    // Its controller may have changed it meanwhile.
    created["metadata"]["resourceVersion"] = json!(null);
    created["spec"]["selector"]["matchLabels"]["app"] = json!("other");
    created["spec"]["template"]["metadata"]["labels"]["app"] = json!("other");
    let answer = client.put(&format!("{DEPLOYMENTS}/d"), &created);
    assert_eq!(answer.invalid_field(), "spec.selector");
    answer.refused_saying(422, "Invalid", "field is immutable");

    let mut frozen = config_map("frozen");
    frozen["immutable"] = json!(true);
    client.post(CONFIG_MAPS, &frozen).granted();
    frozen["data"]["key"] = json!("other");
    assert_eq!(client.put(&format!("{CONFIG_MAPS}/frozen"), &frozen).invalid_field(), "data");
    let patch = json!({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}});
    client.patch(&format!("{CONFIG_MAPS}/frozen"), "merge-patch+json", &patch).refused(409, "Conflict");
    client
        .patch(&format!("{CONFIG_MAPS}/frozen"), "merge-patch+json", &json!({"metadata": {"name": "thawed"}}))
        .refused(400, "BadRequest");
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/frozen")).granted()["data"]["key"], "value");
}

#[test]
fn writes_based_on_a_stale_version_conflict() {
    let server = Server::start();
    let mut client = server.client();
    let stale = client.post(CONFIG_MAPS, &config_map("c")).granted();
    let mut fresh = stale.clone();
    fresh["data"]["key"] = json!("newer");
    client.put(&format!("{CONFIG_MAPS}/c"), &fresh).granted();
    let words = r#"Operation cannot be fulfilled on configmaps "c": the object has been modified; please apply your changes to the latest version and try again"#;
    let mut late = stale.clone();
    late["data"]["key"] = json!("late");
    let status = client.put(&format!("{CONFIG_MAPS}/c"), &late).refused(409, "Conflict");
    assert_eq!(status["message"], words);
    let patch = json!({"metadata": {"resourceVersion": stale["metadata"]["resourceVersion"]}, "data": {"key": "late"}});
    client.patch(&format!("{CONFIG_MAPS}/c"), "merge-patch+json", &patch).refused(409, "Conflict");
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/c")).granted()["data"]["key"], "newer");
    let mut versioned = config_map("new");
    versioned["metadata"]["resourceVersion"] = json!("1");
    let words = "resourceVersion should not be set on objects to be created";
    client.post(CONFIG_MAPS, &versioned).refused_saying(400, "BadRequest", words);
    client.put(&format!("{CONFIG_MAPS}/gone"), &config_map("gone")).refused(404, "NotFound");
}

#[test]
fn preconditions_that_do_not_hold_conflict() {
    let server = Server::start();
    let mut client = server.client();
    let created = client.post(CONFIG_MAPS, &config_map("c")).granted();
    let path = format!("{CONFIG_MAPS}/c");
    let options = |preconditions: Value| {
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}).to_string()
    };
    let wrong = options(json!({"uid": "11111111-1111-1111-1111-111111111111"}));
    let answer = client.send("DELETE", &path, "application/json", wrong.as_bytes());
    answer.refused_saying(
        409,
        "Conflict",
        "Precondition failed: UID in precondition: 11111111-1111-1111-1111-111111111111",
    );
    let wrong = options(json!({"resourceVersion": "1"}));
    client.send("DELETE", &path, "application/json", wrong.as_bytes()).refused_saying(
        409,
        "Conflict",
        "ResourceVersion",
    );
    let mut other = created.clone();
    other["metadata"]["uid"] = json!("11111111-1111-1111-1111-111111111111");
    client.put(&path, &other).refused_saying(409, "Conflict", "Precondition failed: UID in precondition");
    let right =
        options(json!({"uid": created["metadata"]["uid"], "resourceVersion": created["metadata"]["resourceVersion"]}));
    client.send("DELETE", &path, "application/json", right.as_bytes()).granted();
    client.get(&path).refused(404, "NotFound");
}

#[test]
fn objects_in_a_namespace_that_is_not_there_are_refused() {
    let server = Server::start();
    let mut client = server.client();
    let answer = client.post("/api/v1/namespaces/nowhere/configmaps", &config_map("c"));
    answer.refused_saying(404, "NotFound", r#"namespaces "nowhere" not found"#);
    assert_eq!(client.get("/api/v1/namespaces/nowhere/configmaps").granted()["items"], json!([]));
}

#[test]
fn an_object_too_large_for_the_store_is_refused_whole() {
    let mut server = Server::start();
    let mut client = server.client();
    let mut object = config_map("large");
    object["data"]["key"] = json!("x".repeat(2 << 20));
    assert_eq!(client.post(CONFIG_MAPS, &object).invalid_field(), "");
    client.get(&format!("{CONFIG_MAPS}/large")).refused(404, "NotFound");
    server.assert_well();
}
