//! What requests leave in the audit log.

use super::*;
use crate::audit::{Audit, Policy, Rotation};

struct AuditedServer {
    server: Server,
    audit: Arc<Audit>,
    dir: tempfile::TempDir,
}

impl AuditedServer {
    /// With the rules of a policy, or the built-in one.
    async fn new(rules: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let policy = match rules {
            Some(rules) => {
                let file = dir.path().join("policy.yaml");
                std::fs::write(&file, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}")).unwrap();
                Policy::load(&file).unwrap()
            }
            None => Policy::built_in(),
        };
        let rotation = Rotation { max_bytes: 1 << 20, max_backups: 1, max_age_days: 0 };
        let file = dir.path().join("audit.log");
        let audit = Audit::open(policy, file, rotation).unwrap();
        let api = Api::new(Registry::builtin(), Arc::new(Memory::new()), Settings::default());
        let handler = Handler::new(api, CancellationToken::new()).with_audit(Some(audit.clone()));
        let server = Server(Arc::new(handler));
        bootstrap(&server.0, "192.0.2.1:6443".parse().unwrap()).await.unwrap();
        Self { server, audit, dir }
    }

    /// Everything that is logged of requests over the network.
    fn events(&self) -> Vec<Value> {
        self.audit.close();
        let text = std::fs::read_to_string(self.dir.path().join("audit.log")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|event| event.get("sourceIPs").is_some()).collect()
    }
}

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

#[tokio::test]
async fn a_request_is_logged_with_who_what_and_how_it_ended() {
    let audited = AuditedServer::new(None).await;
    let (server, admin) = (&audited.server, administrator());
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "hunter2"}});
    assert_eq!(server.send(&admin, Method::POST, SECRETS, &secret).await.0, 201);
    assert_eq!(server.send(&service_account("a"), Method::GET, &format!("{SECRETS}/s"), &Value::Null).await.0, 403);
    let request = Request::get("/api/v1/nodes?limit=1")
        .header("user-agent", "test/1")
        .header("audit-id", "chosen")
        .header("impersonate-user", "jane")
        .header("x-forwarded-for", "198.51.100.1");
    let caller = Caller::Network { user: Some(Arc::new(admin.clone())), source: [127, 0, 0, 1].into() };
    let answer = server.0.clone().handle(request.body(Full::<Bytes>::default()).unwrap(), caller).await;
    assert_eq!(answer.headers()["audit-id"], "chosen");
    let unknown = Caller::Network { user: None, source: [127, 0, 0, 1].into() };
    let request = Request::get(SECRETS).body(Full::<Bytes>::default()).unwrap();
    assert_eq!(server.0.clone().handle(request, unknown).await.status(), 401);

    let events = audited.events();
    let [created, refused, impersonated, unauthorized] = &events[..] else { panic!("{events:#?}") };
    assert_eq!(
        (&created["verb"], &created["stage"], &created["level"]),
        (&json!("create"), &json!("ResponseComplete"), &json!("Metadata"))
    );
    let reference = json!({"resource": "secrets", "namespace": "default", "name": "s", "apiVersion": "v1"});
    assert_eq!(created["objectRef"], reference);
    assert_eq!(created["user"], json!({"username": "admin", "groups": ["system:masters", "system:authenticated"]}));
    assert_eq!(created["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(created["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(created["sourceIPs"], json!(["127.0.0.1"]));
    assert!(
        created["auditID"].as_str().unwrap().len() == 36
            && created["requestReceivedTimestamp"].as_str().unwrap().len() == 27
    );
    assert!(!created.to_string().contains("hunter2"));
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(
        (&refused["responseStatus"]["code"], &refused["responseStatus"]["reason"]),
        (&json!(403), &json!("Forbidden"))
    );
    assert_eq!(impersonated["impersonatedUser"]["username"], "jane");
    assert_eq!((&impersonated["userAgent"], &impersonated["auditID"]), (&json!("test/1"), &json!("chosen")));
    assert_eq!(impersonated["sourceIPs"], json!(["198.51.100.1", "127.0.0.1"]));
    assert_eq!(impersonated["requestURI"], "/api/v1/nodes?limit=1");
    assert_eq!((&unauthorized["responseStatus"]["code"], &unauthorized["user"]), (&json!(401), &json!({})));
}

#[tokio::test]
async fn bodies_are_logged_where_the_policy_asks_for_them() {
    let rules = "- {level: RequestResponse, omitStages: [RequestReceived], resources: [{resources: [configmaps]}]}\n\
                 - {level: Request, verbs: [create], omitStages: [RequestReceived]}\n";
    let audited = AuditedServer::new(Some(rules)).await;
    let (server, admin) = (&audited.server, administrator());
    server.send(&admin, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "c"}, "data": {"k": "v"}})).await;
    let (code, listed) = server.send(&admin, Method::GET, CONFIG_MAPS, &Value::Null).await;
    assert_eq!((code, listed["items"].as_array().map(Vec::len)), (200, Some(1)), "the client still gets its list");
    server.send(&admin, Method::POST, SECRETS, &json!({"metadata": {"name": "s"}})).await;
    server.send(&admin, Method::GET, SECRETS, &Value::Null).await;
    let events = audited.events();
    let [created, list, secret] = &events[..] else { panic!("{events:#?}") };
    assert_eq!(
        (&created["requestObject"]["data"]["k"], &created["responseObject"]["data"]["k"]),
        (&json!("v"), &json!("v"))
    );
    assert_eq!(list["responseObject"]["items"][0]["metadata"]["name"], "c");
    assert_eq!((&secret["level"], secret.get("responseObject")), (&json!("Request"), None));
}

#[tokio::test]
async fn a_watch_is_logged_when_it_begins_and_when_it_ends() {
    let audited = AuditedServer::new(None).await;
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion=0");
    let response = audited.server.start(&administrator(), Method::GET, &path, Full::default()).await;
    drop(response);
    let events = audited.events();
    let stages: Vec<_> = events.iter().map(|event| (event["verb"].as_str(), event["stage"].as_str())).collect();
    assert_eq!(stages, [(Some("watch"), Some("ResponseStarted")), (Some("watch"), Some("ResponseComplete"))]);
    assert_eq!(events[0]["auditID"], events[1]["auditID"]);
}

#[tokio::test]
async fn a_client_that_leaves_is_logged_all_the_same() {
    let audited = AuditedServer::new(None).await;
    let body = half_a_body(b"{\"metadata\":{");
    let mut request = audited.server.start(&administrator(), Method::POST, SECRETS, body);
    assert!(futures::poll!(&mut request).is_pending());
    drop(request);
    let events = audited.events();
    let [left] = &events[..] else { panic!("{events:#?}") };
    assert_eq!((&left["verb"], &left["responseStatus"]["code"]), (&json!("create"), &json!(499)));
    assert_eq!(left["responseStatus"]["message"], "the client left before the response");
}
