//! Selectors and options that make no sense.

use serde_json::json;

use super::support::{
    Server,
    objects::{CONFIG_MAPS, PODS, config_map},
};

#[test]
fn selectors_that_do_not_parse_are_bad_requests() {
    let mut server = Server::start();
    let mut client = server.client();
    for selector in
        ["a==b==c", "!", "a in", "a in (", "a in b", "a%20b", "-x%3D1", "a%3D-", "a,,b", "%00", "a%3D%C3%A9", "=b"]
    {
        client.get(&format!("{CONFIG_MAPS}?labelSelector={}", selector.replace(' ', "%20"))).refused(400, "BadRequest");
    }
    for selector in ["metadata.name", "metadata.name%3Da%2Cb", "%3D", "metadata.name%3Da%5C"] {
        client.get(&format!("{CONFIG_MAPS}?fieldSelector={selector}")).refused(400, "BadRequest");
    }
    let unknown = client.get(&format!("{CONFIG_MAPS}?fieldSelector=data.key%3Dvalue"));
    let words = r#""data.key" is not a known field selector: only "metadata.name", "metadata.namespace""#;
    unknown.refused_saying(400, "BadRequest", words);
    let unknown = client.get(&format!("{PODS}?fieldSelector=spec.colour%3Dred"));
    unknown.refused_saying(400, "BadRequest", "field label not supported: spec.colour");
    client.get(&format!("{CONFIG_MAPS}?watch=1&labelSelector=%21")).refused(400, "BadRequest");
    client.delete(&format!("{CONFIG_MAPS}?labelSelector=%21")).refused(400, "BadRequest");
    server.assert_well();
}

#[test]
fn query_values_that_make_no_sense_are_refused_by_name() {
    let mut server = Server::start();
    let mut client = server.client();
    for (query, word) in [
        ("limit=many", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("watch=maybe", "watch"),
        ("timeoutSeconds=soon", "timeoutSeconds"),
        ("resourceVersion=latest", "resourceVersion"),
        ("resourceVersion=-1", "resourceVersion"),
        ("resourceVersion=99999999999999999999999", "resourceVersion"),
        ("continue=nonsense", "continue"),
        ("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi9zZWNyZXRzIn0", "continue"),
        ("includeObject=Half", "includeObject"),
    ] {
        client.get(&format!("{CONFIG_MAPS}?{query}")).refused_saying(400, "BadRequest", word);
    }
    for (query, field) in [
        ("resourceVersionMatch=Exact", "resourceVersionMatch"),
        ("resourceVersion=1&resourceVersionMatch=Nearly", "resourceVersionMatch"),
        ("resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch"),
        ("sendInitialEvents=true", "sendInitialEvents"),
        ("watch=1&sendInitialEvents=true", "resourceVersionMatch"),
    ] {
        assert_eq!(client.get(&format!("{CONFIG_MAPS}?{query}")).invalid_field(), field, "{query}");
    }
    for (query, field) in [("dryRun=Some", "dryRun"), ("fieldValidation=Loud", "fieldValidation")] {
        let answer = client.post(&format!("{CONFIG_MAPS}?{query}"), &config_map("x"));
        assert_eq!(answer.invalid_field(), field, "{query}");
    }
    client.get(&format!("{CONFIG_MAPS}/x")).refused(404, "NotFound");
    client.post(CONFIG_MAPS, &config_map("x")).granted();
    let policy = client.delete(&format!("{CONFIG_MAPS}/x?propagationPolicy=Sideways"));
    assert_eq!(policy.invalid_field(), "propagationPolicy");
    client.delete(&format!("{CONFIG_MAPS}/x?gracePeriodSeconds=soon")).refused(400, "BadRequest");
    client.get(&format!("{CONFIG_MAPS}/x")).granted();
    server.assert_well();
}

#[test]
fn a_watch_may_ask_for_the_longest_time_there_is() {
    let mut server = Server::start();
    let mut client = server.client();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds={}", u64::MAX));
    client.post(CONFIG_MAPS, &config_map("seen")).granted();
    assert_eq!(events.about("seen")["type"], "ADDED");
    server.assert_well();
}

#[test]
fn a_watch_ends_when_its_time_is_over() {
    let server = Server::start();
    let mut events = server.client().watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1&resourceVersion=0"));
    while let Some(event) = events.next().expect("the watch ends in order") {
        assert_eq!(event["type"], "ADDED");
    }
}

#[test]
fn a_revision_in_the_future_times_out_and_says_why() {
    let server = Server::start();
    let mut client = server.client();
    for path in [
        format!("{CONFIG_MAPS}?resourceVersion=999999999"),
        format!("{CONFIG_MAPS}?resourceVersion=999999999&resourceVersionMatch=Exact"),
        format!("{CONFIG_MAPS}?resourceVersion=999999999&watch=1"),
        "/api/v1/namespaces/default?resourceVersion=999999999".to_owned(),
    ] {
        let answer = client.get(&path);
        let status = answer.refused_saying(504, "Timeout", "Too large resource version: 999999999, current: ");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        assert_eq!(status["details"]["causes"], json!([cause]), "{path}");
        assert_eq!(status["details"]["retryAfterSeconds"], 1);
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
}
