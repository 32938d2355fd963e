use mainstay_testing::TestApi;

use super::*;
use crate::openstack::identity::{Domain, Role, TokenProject, TokenUser};

/// Tokens are `<role>@<project>`.
struct FakeKeystone;

impl TokenValidator for FakeKeystone {
    async fn validate(&self, token: &SecretText) -> Result<Option<TokenInfo>, CloudError> {
        let Some((role, project)) = token.expose().split_once('@') else { return Ok(None) };
        let domain = Domain { id: "d".to_owned(), name: "eng".to_owned() };
        let project = TokenProject { id: project.to_owned(), name: project.to_owned(), domain: domain.clone() };
        Ok(Some(TokenInfo {
            user: TokenUser { id: "u".to_owned(), name: "ann".to_owned(), domain },
            project: Some(project).filter(|project| !project.id.is_empty()),
            roles: vec![Role { id: role.to_owned(), name: role.to_owned() }],
            expires_at: None,
        }))
    }
}

struct Bench {
    _api: TestApi,
    facade: Arc<Facade<FakeKeystone>>,
}

impl Bench {
    async fn new() -> Self {
        let api = TestApi::start(&["default"]).await;
        let settings = FacadeSettings { namespace: "default".to_owned(), version: "v1".to_owned() };
        let facade = Facade::new(api.client("facade"), FakeKeystone, None, settings);
        Self { _api: api, facade }
    }

    async fn send(&self, token: &str, method: Method, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        match self.facade.answer(&method, path, Some(token), &body).await {
            Ok((code, value)) => (code.as_u16(), value),
            Err(error) => (error.code.as_u16(), json!(error.message)),
        }
    }
}

const CLUSTERS: &str = "/api/v1/clusters";
const ADMIN: &str = "kubernetes_admin@p1";
const MEMBER: &str = "kubernetes_member@p1";

#[tokio::test]
async fn a_member_lists_and_does_not_create_and_other_projects_see_nothing() {
    let bench = Bench::new().await;
    let body = json!({"name": "berlin", "spec": {"nodePools": [{"name": "a", "flavor": "m1", "labels": ["x=y"]}]}});
    assert_eq!(bench.send(MEMBER, Method::POST, CLUSTERS, body.clone()).await.0, 403);
    let (code, created) = bench.send(ADMIN, Method::POST, CLUSTERS, body).await;
    assert_eq!((code, &created["name"]), (201, &json!("berlin")), "{created}");
    assert_eq!(created["spec"]["nodePools"][0]["labels"], json!(["x=y"]));
    assert_eq!(created["status"]["phase"], "Pending");
    let (code, listed) = bench.send(MEMBER, Method::GET, CLUSTERS, Value::Null).await;
    assert_eq!((code, listed.as_array().map(Vec::len)), (200, Some(1)), "{listed}");
    let other = "kubernetes_admin@p2";
    let (code, listed) = bench.send(other, Method::GET, CLUSTERS, Value::Null).await;
    assert_eq!((code, listed), (200, json!([])));
    let own = format!("{CLUSTERS}/berlin");
    for (method, path) in [
        (Method::GET, own.clone()),
        (Method::PUT, own.clone()),
        (Method::DELETE, own.clone()),
        (Method::GET, format!("{own}/credentials")),
        (Method::GET, format!("{own}/events")),
    ] {
        let body = if method == Method::PUT { json!({"spec": {}}) } else { Value::Null };
        assert_eq!(bench.send(other, method.clone(), &path, body).await.0, 404, "{method} {path}");
    }
    assert_eq!(bench.send(MEMBER, Method::DELETE, &own, Value::Null).await.0, 403);
    let (code, changed) = bench.send(ADMIN, Method::PUT, &own, json!({"spec": {"sshPublicKey": "ssh-rsa A"}})).await;
    assert_eq!((code, &changed["spec"]["sshPublicKey"]), (200, &json!("ssh-rsa A")), "{changed}");
    assert_eq!(bench.send(ADMIN, Method::GET, &format!("{own}/events"), Value::Null).await, (200, json!([])));
    assert_eq!(bench.send(ADMIN, Method::GET, &format!("{own}/credentials"), Value::Null).await.0, 409);
    assert_eq!(bench.send(ADMIN, Method::DELETE, &own, Value::Null).await.0, 202);
    assert_eq!(bench.send(ADMIN, Method::GET, &own, Value::Null).await.0, 404);
}

#[tokio::test]
async fn bad_requests_are_named_and_tokens_are_asked_for() {
    let bench = Bench::new().await;
    for token in ["", "nonsense", "kubernetes_admin@"] {
        assert_eq!(bench.send(token, Method::GET, CLUSTERS, Value::Null).await.0, 401, "{token}");
    }
    assert_eq!(bench.send("admin@p1", Method::GET, CLUSTERS, Value::Null).await.0, 403, "no role of Klusters");
    for (body, words) in [
        (json!({"name": "Not a name", "spec": {}}), "spec.name"),
        (json!({"name": "a", "spec": {"clusterCIDR": ""}}), "spec.clusterCIDR"),
        (
            json!({"name": "a", "spec": {"nodePools": [{"name": "x", "flavor": "f", "size": 500}]}}),
            "spec.nodePools[0].size",
        ),
        (json!({"spec": {}}), "name: Required"),
        (json!([]), "not a JSON object"),
        (json!({"name": "a", "spec": {"nonsense": 1}}), ""),
    ] {
        let (code, message) = bench.send(ADMIN, Method::POST, CLUSTERS, body.clone()).await;
        if words.is_empty() {
            assert!(code == 201 || code == 400, "{body}: {code} {message}");
        } else {
            assert_eq!(code, 400, "{body}: {message}");
            assert!(message.as_str().is_some_and(|text| text.contains(words)), "{body}: {message}");
        }
    }
    for path in ["/api/v1/clusters/..%2f..", "/api/v1/clusters/a/b/c/d", "/api/v2/clusters", "/"] {
        assert_eq!(bench.send(ADMIN, Method::GET, path, Value::Null).await.0, 404, "{path}");
    }
    assert_eq!(bench.send(ADMIN, Method::PATCH, CLUSTERS, Value::Null).await.0, 405);
    let (code, info) = bench.send("", Method::GET, "/api", Value::Null).await;
    assert_eq!((code, info), (200, json!({"versions": ["v1"]})));
}
