//! Paths and methods that lead nowhere.

use super::support::{
    Server,
    objects::{CONFIG_MAPS, config_map},
};

#[test]
fn what_is_not_served_is_not_found() {
    let server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("here")).granted();
    for path in [
        "/nothing",
        "/api/v2",
        "/api/v2/pods",
        "/apis/none.example/v1/things",
        "/apis/apps/v9/deployments",
        "/apis/apps/v1/namespaces/default/things",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/configmaps/here",
        "/api/v1/namespaces/default/configmaps/here/status",
        "/api/v1/namespaces/default/configmaps/here/anything",
        "/api/v1/namespaces/default/configmaps/here/status/more",
    ] {
        client.get(path).refused_saying(404, "NotFound", "the server could not find the requested resource");
    }
    let status =
        client.get(&format!("{CONFIG_MAPS}/gone")).refused_saying(404, "NotFound", r#"configmaps "gone" not found"#);
    assert_eq!(status["details"]["kind"], "configmaps");
    assert_eq!(status["details"]["name"], "gone");
}

#[test]
fn methods_that_make_no_sense_are_not_allowed() {
    let server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("here")).granted();
    let one = format!("{CONFIG_MAPS}/here");
    for (method, path) in [
        ("BREW", CONFIG_MAPS),
        ("BREW", &*one),
        ("TRACE", &*one),
        ("OPTIONS", CONFIG_MAPS),
        ("POST", &*one),
        ("PUT", CONFIG_MAPS),
        ("PATCH", CONFIG_MAPS),
        ("POST", "/api/v1/configmaps"),
        ("DELETE", "/api/v1/namespaces"),
        ("POST", "/api"),
        ("DELETE", "/version"),
        ("POST", "/livez"),
    ] {
        let answer = client.send(method, path, "application/json", b"{}");
        answer.refused_saying(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
    }
    assert_eq!(client.send("HEAD", CONFIG_MAPS, "", b"").code, 405);
    assert_eq!(client.send("HEAD", "/readyz", "", b"").code, 200);
    client.get(&one).granted();
}

#[test]
fn paths_do_not_climb_out_of_their_place() {
    let mut server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("here")).granted();
    for path in [
        "/api/v1/namespaces/default/configmaps/..",
        "/api/v1/namespaces/default/configmaps/.",
        "/api/v1/namespaces/default/configmaps/%2e%2e",
        "/api/v1/namespaces/default/configmaps/%2E%2E%2Fsecrets",
        "/api/v1/namespaces/default/configmaps/..%2f..%2fsecrets%2fdefault",
        "/api/v1/namespaces/../configmaps/here",
        "/api/v1/namespaces/%2e%2e/configmaps",
        "/api/v1/namespaces/default%2Fconfigmaps/here",
        "/api/v1/namespaces/default%2F/configmaps/here",
        "/api/v1/namespaces/default/configmaps/here%00",
        "/api/v1/namespaces/default/configmaps/%00",
        "/api/v1/namespaces/default/../default/configmaps/here",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ] {
        client.get(path).refused(404, "NotFound");
        let written = client.send("PUT", path, "application/json", config_map("here").to_string().as_bytes());
        assert!(matches!(written.code, 400 | 404 | 405), "{path}: {} {}", written.code, written.text());
        let deleted = client.delete(path);
        assert!(matches!(deleted.code, 404 | 405), "{path}: {} {}", deleted.code, deleted.text());
    }
    client.get("/api/v1/namespaces/default/configmaps/%ff%fe").refused(400, "BadRequest");
    client.get(&format!("{CONFIG_MAPS}/here")).granted();
    server.assert_well();
}

#[test]
fn doubled_slashes_mean_one() {
    let server = Server::start();
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("here")).granted();
    client.get("//api//v1/namespaces//default/configmaps//here/").granted();
}
