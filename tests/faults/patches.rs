//! Patches that cannot be applied.

use serde_json::{Value, json};

use super::support::{
    Client, HttpResponse, Server,
    objects::{CONFIG_MAPS, config_map},
};

fn prepared() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("c")).granted();
    (server, client)
}

#[track_caller]
fn patched(client: &mut Client, kind: &str, patch: &str) -> HttpResponse {
    client.send("PATCH", &format!("{CONFIG_MAPS}/c"), &format!("application/{kind}"), patch.as_bytes())
}

#[track_caller]
fn assert_untouched(client: &mut Client) {
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/c")).granted()["data"], json!({"key": "value"}));
}

#[test]
fn malformed_patches_are_bad_requests() {
    let (mut server, mut client) = prepared();
    for kind in ["json-patch+json", "merge-patch+json", "strategic-merge-patch+json"] {
        for patch in ["", "{", "7", "null", "\"text\""] {
            patched(&mut client, kind, patch).refused(400, "BadRequest");
        }
    }
    patched(&mut client, "json-patch+json", "{}").refused(400, "BadRequest");
    patched(&mut client, "merge-patch+json", "[]").refused(400, "BadRequest");
    patched(&mut client, "strategic-merge-patch+json", "[]").refused(400, "BadRequest");
    for operations in [json!([7]), json!([{"op": "fly"}]), json!([{"op": "add", "value": 1}])] {
        let answer = patched(&mut client, "json-patch+json", &operations.to_string());
        assert!(matches!(answer.code, 400 | 422), "{operations}: {} {}", answer.code, answer.text());
    }
    assert_untouched(&mut client);
    server.assert_well();
}

#[test]
fn a_json_patch_that_does_not_apply_is_unprocessable_and_changes_nothing() {
    let (_server, mut client) = prepared();
    for operations in [
        json!([{"op": "test", "path": "/data/key", "value": "other"}, {"op": "remove", "path": "/data/key"}]),
        json!([{"op": "replace", "path": "/data/key", "value": "new"}, {"op": "test", "path": "/data/key", "value": "old"}]),
        json!([{"op": "remove", "path": "/data/nothing"}]),
        json!([{"op": "replace", "path": "/nothing/here", "value": 1}]),
        json!([{"op": "add", "path": "/data/a/b/c", "value": "1"}]),
        json!([{"op": "copy", "from": "/nothing", "path": "/data/x"}]),
    ] {
        patched(&mut client, "json-patch+json", &operations.to_string()).refused(422, "Invalid");
    }
    assert_untouched(&mut client);
}

#[test]
fn a_patch_whose_result_is_none_of_its_kind_is_refused() {
    let (_server, mut client) = prepared();
    for (patch, code) in [
        (json!({"data": "text"}), 400),
        (json!({"kind": "Secret"}), 400),
        (json!({"apiVersion": "v2"}), 400),
        (json!({"metadata": {"name": "other"}}), 400),
        (json!({"metadata": {"namespace": "other"}}), 400),
        (json!({"metadata": {"labels": {"a b": "c"}}}), 422),
        (json!({"data": {"bad/key": "x"}}), 422),
    ] {
        let answer = patched(&mut client, "merge-patch+json", &patch.to_string());
        assert_eq!(answer.code, code, "{patch}: {}", answer.text());
        answer.refused(code, if code == 400 { "BadRequest" } else { "Invalid" });
    }
    assert_untouched(&mut client);
    let patch = json!({"colour": "red"}).to_string();
    let path = format!("{CONFIG_MAPS}/c?fieldValidation=Strict");
    let answer = client.send("PATCH", &path, "application/merge-patch+json", patch.as_bytes());
    answer.refused_saying(400, "BadRequest", r#"unknown field "colour""#);
}

#[test]
fn a_patch_of_what_is_not_there_is_not_found() {
    let (_server, mut client) = prepared();
    for (kind, patch) in [("merge-patch+json", json!({})), ("json-patch+json", json!([]))] {
        client.patch(&format!("{CONFIG_MAPS}/gone"), kind, &patch).refused(404, "NotFound");
    }
}

#[test]
fn a_json_patch_cannot_blow_an_object_up() {
    let (mut server, mut client) = prepared();
    // Each copy doubles what is there.
    let mut operations = vec![json!({"op": "add", "path": "/data/a", "value": "x".repeat(1000)})];
    let doubling = json!({"op": "copy", "from": "/data", "path": "/data/a"});
    operations.extend(vec![doubling; 40]);
    let before = server.peak_memory();
    let answer = patched(&mut client, "json-patch+json", &Value::Array(operations).to_string());
    assert!((400..500).contains(&answer.code), "{} {}", answer.code, &answer.text()[..200]);
    let many = Value::Array(vec![json!({"op": "test", "path": "/data/key", "value": "value"}); 10_001]);
    patched(&mut client, "json-patch+json", &many.to_string()).refused(413, "RequestEntityTooLarge");
    let grown = server.peak_memory() - before;
    assert!(grown < 150, "grew by {grown} MiB");
    assert_untouched(&mut client);
    server.assert_well();
}

#[test]
fn ten_thousand_managers_of_one_object_are_borne_and_a_conflict_names_the_one_it_is_with() {
    let mut server = Server::start();
    let mut client = server.client();
    let entry = |nth: usize| {
        json!({"manager": format!("m{nth}"), "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
               "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:k{nth}"): {}}}})
    };
    let mut object = config_map("crowded");
    let data: serde_json::Map<_, _> = (0..10_000).map(|nth| (format!("k{nth}"), json!("0"))).collect();
    object["data"] = Value::Object(data);
    let mut object = client.post(CONFIG_MAPS, &object).granted();
    object["metadata"]["managedFields"] = (0..10_000).map(entry).collect();
    client.put(&format!("{CONFIG_MAPS}/crowded"), &object).granted();
    let applied =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "crowded"}, "data": {"k5": "1"}});
    let path = format!("{CONFIG_MAPS}/crowded?fieldManager=late");
    let refused = client.patch(&path, "apply-patch+yaml", &applied);
    assert_eq!(refused.code, 409, "{}", refused.text());
    let message = refused.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(r#"conflict with "m5""#) && message.len() < 1_000, "{message}");
    let forced = client.patch(&format!("{path}&force=true"), "apply-patch+yaml", &applied).granted();
    assert_eq!(forced["data"]["k5"], "1");
    let managers: Vec<&Value> =
        forced["metadata"]["managedFields"].as_array().unwrap().iter().map(|own| &own["manager"]).collect();
    assert!(managers.contains(&&json!("late")) && !managers.contains(&&json!("m5")));
    assert_eq!(managers.len(), 10_000, "all others stay");
    server.assert_well();
}
