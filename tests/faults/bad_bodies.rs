//! Bodies that are not what they should be.

use serde_json::{Value, json};

use super::support::{
    HttpResponse, Server,
    objects::{CONFIG_MAPS, DEPLOYMENTS, config_map, deployment},
};

#[track_caller]
fn posted(server: &Server, path: &str, kind: &str, body: &str) -> HttpResponse {
    server.client().send("POST", path, kind, body.as_bytes())
}

#[test]
fn malformed_json_is_a_bad_request() {
    let mut server = Server::start();
    for body in
        ["", "{", "[]", "null", "\"text\"", "{\"kind\":}", "{} trailing", "\u{0}", "\u{feff}{}", "{\"a\":1e999}"]
    {
        posted(&server, CONFIG_MAPS, "application/json", body).refused(400, "BadRequest");
    }
    let not_utf8 = server.client().send("POST", CONFIG_MAPS, "application/json", b"{\"kind\":\"\xff\xfe\"}");
    not_utf8.refused(400, "BadRequest");
    server.assert_well();
}

#[test]
fn malformed_yaml_is_a_bad_request() {
    let mut server = Server::start();
    for body in ["a: [", "a: b: c", "key: \"unclosed", "- one\n- two", "&a [*a]"] {
        posted(&server, CONFIG_MAPS, "application/yaml", body).refused(400, "BadRequest");
    }
    server.assert_well();
}

#[test]
fn yaml_that_expands_without_end_is_a_bad_request() {
    let mut server = Server::start();
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..30 {
        let below = vec![format!("*a{}", level - 1); 10].join(",");
        bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    posted(&server, CONFIG_MAPS, "application/yaml", &bomb).refused(400, "BadRequest");
    assert!(server.peak_memory() < 300, "{} MiB", server.peak_memory());
    server.assert_well();
}

#[test]
fn nesting_ten_thousand_deep_is_a_bad_request() {
    let mut server = Server::start();
    let depth = 10_000;
    let lists = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    for (kind, body) in [
        ("application/json", lists.clone()),
        ("application/json", objects.clone()),
        ("application/yaml", lists.clone()),
        ("application/yaml", objects.clone()),
        ("application/json", format!("{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"data\":{lists}}}")),
    ] {
        posted(&server, CONFIG_MAPS, kind, &body).refused(400, "BadRequest");
    }
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("deep")).granted();
    for kind in ["merge-patch+json", "strategic-merge-patch+json", "json-patch+json"] {
        let patch = format!("application/{kind}");
        client.send("PATCH", &format!("{CONFIG_MAPS}/deep"), &patch, objects.as_bytes()).refused(400, "BadRequest");
        client.send("PATCH", &format!("{CONFIG_MAPS}/deep"), &patch, lists.as_bytes()).refused(400, "BadRequest");
    }
    client
        .send("DELETE", &format!("{CONFIG_MAPS}/deep"), "application/json", objects.as_bytes())
        .refused(400, "BadRequest");
    server.assert_well();
}

#[test]
fn a_body_of_another_kind_or_place_is_a_bad_request() {
    let server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &deployment("x")).refused(400, "BadRequest");
    let elsewhere = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "other"}});
    let words = "the namespace of the provided object does not match the namespace sent on the request";
    client.post(CONFIG_MAPS, &elsewhere).refused_saying(400, "BadRequest", words);
}

#[test]
fn values_of_the_wrong_type_cannot_be_unmarshalled() {
    let server = Server::start();
    let mut client = server.client();
    let with = |pointer: &str, value: Value| {
        let mut object = deployment("typed");
        *object.pointer_mut(pointer).expect(pointer) = value;
        object
    };
    for (pointer, value, path) in [
        ("/spec/replicas", json!("three"), "spec.replicas"),
        ("/spec/replicas", json!(1.5), "spec.replicas"),
        ("/spec/replicas", json!(5_000_000_000u64), "spec.replicas"),
        ("/metadata/name", json!(7), "metadata.name"),
        ("/spec/template/spec/containers", json!({"name": "x"}), "spec.template.spec.containers"),
        ("/spec/selector/matchLabels", json!({"app": 1}), "spec.selector.matchLabels"),
        ("/spec", json!([]), "spec"),
    ] {
        let status =
            client.post(DEPLOYMENTS, &with(pointer, value)).refused_saying(400, "BadRequest", "cannot unmarshal");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains(path) && message.contains("cannot be handled as a Deployment"), "{message}");
    }
    client.get(DEPLOYMENTS).granted()["items"].as_array().map(|items| assert!(items.is_empty())).expect("a list");
}

#[test]
fn unknown_and_duplicate_fields_are_errors_under_strict_validation() {
    let server = Server::start();
    let body =
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"1","k":"2"},"colour":"red"}"#;
    let path = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let status =
        posted(&server, &path, "application/json", body).refused_saying(400, "BadRequest", "strict decoding error");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.contains(r#"unknown field "colour""#) && message.contains(r#"duplicate field "data.k""#),
        "{message}"
    );
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ncolour: red\n";
    posted(&server, &path, "application/yaml", yaml).refused_saying(400, "BadRequest", r#"unknown field "colour""#);
}

#[test]
fn unknown_and_duplicate_fields_are_warned_of_or_ignored_and_then_dropped() {
    let server = Server::start();
    let body = |name: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"k":"1","k":"2"}},"colour":"red"}}"#
        )
    };
    for (name, query) in [("stock", ""), ("warn", "?fieldValidation=Warn")] {
        let answer = posted(&server, &format!("{CONFIG_MAPS}{query}"), "application/json", &body(name));
        let object = answer.granted();
        assert_eq!((&object["data"]["k"], &object["colour"]), (&json!("2"), &Value::Null));
        let warnings: Vec<_> = answer.headers.iter().filter(|(n, _)| n == "warning").map(|(_, v)| v.as_str()).collect();
        assert_eq!(
            warnings,
            [r#"299 - "duplicate field \"data.k\"""#, r#"299 - "unknown field \"colour\"""#],
            "{name}"
        );
    }
    let answer = posted(&server, &format!("{CONFIG_MAPS}?fieldValidation=Ignore"), "application/json", &body("ignore"));
    assert_eq!(answer.granted()["colour"], Value::Null);
    assert_eq!(answer.header("warning"), None);
}

#[test]
fn malformed_protobuf_is_a_bad_request() {
    let mut server = Server::start();
    let mut client = server.client();
    let mut random = fastrand::Rng::with_seed(7);
    let nested = (0..10_000).fold(Vec::new(), |inner: Vec<u8>, _| {
        let mut outer = vec![0x12, 0xff, 0xff, 0x03];
        outer.extend_from_slice(&inner[..inner.len().min(50_000)]);
        outer
    });
    let mut bodies = vec![b"k8s\0".to_vec(), b"k8s".to_vec(), b"{}".to_vec(), [b"k8s\0", &*nested].concat()];
    bodies.extend((0..300).map(|n| {
        let noise: Vec<u8> = (0..n * 3).map(|_| random.u8(..)).collect();
        [b"k8s\0", &*noise].concat()
    }));
    // An envelope of the right kind around noise.
    let envelope = |raw: &[u8]| {
        let mut body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12".to_vec();
        let mut length = raw.len();
        while length >= 0x80 {
            body.push(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
            length >>= 7;
        }
        body.push(u8::try_from(length).unwrap_or_default());
        body.extend_from_slice(raw);
        body
    };
    bodies.extend((1..300).map(|n| envelope(&(0..n).map(|_| random.u8(..)).collect::<Vec<u8>>())));
    bodies.push(envelope(&nested));
    for body in bodies {
        let answer = client.send("POST", CONFIG_MAPS, "application/vnd.kubernetes.protobuf", &body);
        assert!(matches!(answer.code, 400 | 422), "{}: {} for {body:?}", answer.code, answer.text());
    }
    server.assert_well();
}

#[test]
fn a_content_type_that_is_not_understood_is_unsupported() {
    let server = Server::start();
    for kind in ["text/plain", "application/xml", "application/cbor", "multipart/form-data", "nonsense"] {
        let answer = posted(&server, CONFIG_MAPS, kind, &config_map("x").to_string());
        answer.refused_saying(415, "UnsupportedMediaType", "application/json");
    }
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("x")).granted();
    for kind in ["application/json", "application/apply-patch+cbor", "text/plain", ""] {
        let answer = client.send("PATCH", &format!("{CONFIG_MAPS}/x"), kind, b"{}");
        answer.refused_saying(415, "UnsupportedMediaType", "application/json-patch+json");
    }
}

#[test]
fn an_accept_that_cannot_be_met_is_not_acceptable() {
    let server = Server::start();
    let mut client = server.client();
    for accept in ["text/html", "application/xml", "application/json;as=Wheel;g=meta.k8s.io;v=v1", "nonsense"] {
        client.headers = vec![("Accept".into(), accept.into())];
        for path in [CONFIG_MAPS, "/api/v1/namespaces/default"] {
            client.get(path).refused_saying(406, "NotAcceptable", "application/json");
        }
    }
    client.headers = vec![("Accept".into(), "text/html, application/json;q=0.5".into())];
    client.get(CONFIG_MAPS).granted();
}
