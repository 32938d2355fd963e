//! The REST API of Kubernikus with real tokens: who shows one of another project, or without a role, sees or may nothing.

use mainstay_cloud::{
    facade::{Facade, FacadeServer, FacadeSettings},
    openstack::Session,
};
use mainstay_testing::TestApi;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;

use crate::harness::{TestProject, config, openstack};

/// A token of the project's user, who has one more role from now on.
async fn token_with_role(admin: &Session, project: &TestProject, role: &str) -> String {
    let identity = admin.identity();
    let _ = identity.create_role(role).await; // another test may be faster
    let roles = identity.list_roles().await.expect("list roles");
    let role = roles.iter().find(|known| known.name == role).expect("the role");
    let user = project.session.user_id().await.expect("the user");
    identity.assign_role(&project.id, &user, &role.id).await.expect("assign the role");
    // A token has the roles that there are when it is issued.
    let session = Session::new(config(&project.yaml)).unwrap();
    session.token().await.expect("a token").expose().to_owned()
}

async fn send(address: std::net::SocketAddr, token: &str, request: &str, body: &Value) -> (u16, Value) {
    let mut connection = TcpStream::connect(address).await.expect("connect");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-auth-token: {token}\r\n");
    let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    connection.write_all(text.as_bytes()).await.expect("send");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (code, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_keystone_say_whose_klusters_are_seen_and_what_may_be_done() {
    let admin = Session::new(openstack().cloud(Some("admin")).unwrap()).unwrap();
    let (project, other) = (TestProject::create("facade").await, TestProject::create("facade-other").await);
    let member = token_with_role(&admin, &project, "kubernetes_member").await;
    let stranger = token_with_role(&admin, &other, "kubernetes_admin").await;
    let without_role = TestProject::create("facade-nobody").await.session.token().await.expect("a token");
    let api = TestApi::start(&["default"]).await;
    let settings = FacadeSettings { namespace: "default".to_owned(), version: "v1".to_owned() };
    let facade = Facade::new(api.client("facade"), admin.clone(), Some(admin.clone()), settings);
    let server = FacadeServer::bind("127.0.0.1:0".parse().unwrap(), facade).await.expect("bind");
    let (address, stop) = (server.address().unwrap(), CancellationToken::new());
    let running = tokio::spawn(server.run(stop.clone()));
    let (clusters, own) = ("/api/v1/clusters", "/api/v1/clusters/berlin");
    let berlin = json!({"name": "berlin", "spec": {"nodePools": []}});

    assert_eq!(send(address, "gAAAAAnonsense", &format!("GET {clusters}"), &Value::Null).await.0, 401);
    assert_eq!(send(address, without_role.expose(), &format!("GET {clusters}"), &Value::Null).await.0, 403);
    assert_eq!(send(address, &member, &format!("GET {clusters}"), &Value::Null).await, (200, json!([])));
    assert_eq!(send(address, &member, &format!("POST {clusters}"), &berlin).await.0, 403);
    let owner = token_with_role(&admin, &project, "kubernetes_admin").await;
    let (code, created) = send(address, &owner, &format!("POST {clusters}"), &berlin).await;
    assert_eq!((code, &created["spec"]["openstack"]["projectID"]), (201, &json!(project.id)), "{created}");
    assert_eq!(send(address, &member, &format!("GET {own}"), &Value::Null).await.0, 200);
    for request in ["GET", "DELETE"] {
        assert_eq!(send(address, &stranger, &format!("{request} {own}"), &Value::Null).await.0, 404, "{request}");
    }
    let (code, metadata) = send(address, &member, "GET /api/v1/openstack/metadata", &Value::Null).await;
    assert_eq!((code, &metadata["routers"][0]["id"]), (200, &json!(project.router)), "{metadata}");
    assert_eq!(metadata["routers"].as_array().map(Vec::len), Some(1), "of its own project alone: {metadata}");
    assert_eq!(send(address, &owner, &format!("DELETE {own}"), &Value::Null).await.0, 202);
    stop.cancel();
    running.await.unwrap();
}
