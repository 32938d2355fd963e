//! Who may not.

use super::support::{
    Authority, Identity, Server,
    objects::{CONFIG_MAPS, PODS, config_map},
};

const MASTERS: &[&str] = &["system:masters"];

#[track_caller]
fn is_nobody(server: &Server, who: Option<&Identity>, token: Option<&str>) {
    let mut client = who.map_or_else(|| server.stranger(), |who| server.client_as(who));
    client.headers.extend(token.map(|token| ("Authorization".to_owned(), token.to_owned())));
    for path in ["/api", "/apis", "/openapi/v2", "/backup", "/nothing", CONFIG_MAPS] {
        client.get(path).refused_saying(401, "Unauthorized", "Unauthorized");
    }
    client.post(CONFIG_MAPS, &config_map("x")).refused(401, "Unauthorized");
    client.delete("/api/v1/namespaces/default").refused(401, "Unauthorized");
}

#[test]
fn without_credentials_nothing_but_health_and_version_is_served() {
    let mut server = Server::start();
    is_nobody(&server, None, None);
    assert_eq!(server.stranger().get("/version").granted()["major"], "1");
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(server.stranger().get(path).text(), "ok", "{path}");
    }
    server.assert_well();
}

#[test]
fn a_certificate_of_another_authority_counts_for_nothing() {
    let mut server = Server::start();
    is_nobody(&server, Some(&Authority::unknown("somebody").client("admin", MASTERS)), None);
    is_nobody(&server, Some(&Authority::unknown("mainstay-ca").client("mainstay-admin", MASTERS)), None);
    server.assert_well();
}

#[test]
fn an_expired_certificate_counts_for_nothing() {
    let mut server = Server::start();
    let expired = server.authority().expired_client("mainstay-admin", MASTERS);
    is_nobody(&server, Some(&expired), None);
    server.assert_well();
}

#[test]
fn a_certificate_for_serving_is_none_for_asking() {
    let server = Server::start();
    let serving = server.authority().server("mainstay-admin", MASTERS);
    is_nobody(&server, Some(&serving), None);
}

#[test]
fn a_garbage_token_counts_for_nothing() {
    let mut server = Server::start();
    for token in ["Bearer garbage", "Bearer ", "Basic YWRtaW46YWRtaW4=", "Bearer a.b.c", "nonsense"] {
        is_nobody(&server, None, Some(token));
    }
    server.assert_well();
}

#[test]
fn whoever_is_no_master_is_forbidden_in_upstreams_words() {
    let server = Server::start();
    let jane = server.authority().client("jane", &["developers"]);
    let mut client = server.client_as(&jane);
    let list = client.get(PODS);
    let status = list.refused(403, "Forbidden");
    assert_eq!(
        status["message"],
        r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#
    );
    assert_eq!(status["details"]["kind"], "pods");
    for (method, path, words) in [
        (
            "GET",
            format!("{CONFIG_MAPS}/x"),
            r#"configmaps "x" is forbidden: User "jane" cannot get resource "configmaps" in API group "" in the namespace "default""#,
        ),
        (
            "POST",
            CONFIG_MAPS.to_owned(),
            r#"configmaps is forbidden: User "jane" cannot create resource "configmaps" in API group "" in the namespace "default""#,
        ),
        (
            "DELETE",
            "/api/v1/nodes/n".to_owned(),
            r#"nodes "n" is forbidden: User "jane" cannot delete resource "nodes" in API group "" at the cluster scope"#,
        ),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/shop/deployments/web/scale".to_owned(),
            r#"deployments.apps "web" is forbidden: User "jane" cannot patch resource "deployments/scale" in API group "apps" in the namespace "shop""#,
        ),
        (
            "GET",
            "/api/v1/pods?watch=1".to_owned(),
            r#"pods is forbidden: User "jane" cannot watch resource "pods" in API group "" at the cluster scope"#,
        ),
        ("GET", "/metrics".to_owned(), r#"forbidden: User "jane" cannot get path "/metrics""#),
        ("GET", "/backup".to_owned(), r#"forbidden: User "jane" cannot get path "/backup""#),
    ] {
        let status = client.send(method, &path, "application/json", b"").refused(403, "Forbidden");
        assert_eq!(status["message"], words);
    }
    // What kinds there are is for everyone to know, as upstream.
    for path in ["/version", "/api", "/apis/apps/v1", "/openapi/v3"] {
        client.get(path).granted();
    }
}

#[test]
fn impersonation_is_not_a_way_in() {
    let server = Server::start();
    let jane = server.authority().client("jane", &[]);
    let mut client = server.client_as(&jane);
    client.headers = vec![
        ("Impersonate-User".into(), "mainstay-admin".into()),
        ("Impersonate-Group".into(), "system:masters".into()),
        ("X-Remote-User".into(), "mainstay-admin".into()),
        ("X-Remote-Group".into(), "system:masters".into()),
    ];
    client.get(PODS).refused(403, "Forbidden");
}
