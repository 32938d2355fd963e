//! Machines that join with a token, and those that should not.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    core::v1::{Node, Secret},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mainstay_agent::{
    join::{JoinError, Token, join},
    servers::Servers,
    tls::Identity,
};
use serde_json::json;

use crate::harness::{Cluster, eventually};

const HERE: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)];

fn servers(url: &str) -> Servers {
    Servers::named(&[url]).expect("a URL")
}

fn token(cluster: &Cluster) -> Token {
    cluster.mainstay("token", "create").ok().trim().parse().expect("a token")
}

async fn joined(cluster: &Cluster, token: Option<&Token>, name: &str, machine: &str) -> Result<Identity, JoinError> {
    join(&servers(cluster.url()), token, name, &HERE, &cluster.home().join(machine)).await
}

async fn register(client: &kube::Client, name: &str) -> Result<Node, kube::Error> {
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node");
    Api::all(client.clone()).create(&PostParams::default(), &node).await
}

#[tokio::test]
async fn a_machine_joins_once_and_needs_the_token_no_more() {
    let cluster = Cluster::start();
    let token = token(&cluster);
    let identity = joined(&cluster, Some(&token), "a", "m1").await.expect("it joins");
    let client = identity.client(&servers(cluster.url())).expect("a client");
    register(&client, "a").await.expect("it may register itself");
    let refused = register(&client, "b").await.expect_err("it may not register others");
    assert!(refused.to_string().contains("is not allowed to modify node \"b\""), "{refused}");
    // A second start uses what it has.
    let again = joined(&cluster, None, "a", "m1").await.expect("it is a member");
    assert_eq!(again.client.validity(), identity.client.validity());
    let client = again.client(&servers(cluster.url())).expect("a client");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let nodes: Api<Node> = Api::all(client);
    nodes.patch_status("a", &PatchParams::default(), &Patch::Merge(&ready)).await.expect("it reports");
    // What it was given names it, and is for what it asked.
    let admin = cluster.client().await;
    let requests = Api::<CertificateSigningRequest>::all(admin).list(&ListParams::default()).await.expect("a list");
    let mut signers: Vec<_> = requests.items.iter().map(|request| request.spec.signer_name.as_str()).collect();
    signers.sort_unstable();
    assert_eq!(signers, ["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"]);
}

#[tokio::test]
async fn a_second_machine_with_a_name_that_is_taken_is_refused_with_advice() {
    let cluster = Cluster::start();
    let token = token(&cluster);
    let first = joined(&cluster, Some(&token), "a", "m1").await.expect("it joins");
    let rival = joined(&cluster, Some(&token), "a", "m2").await.expect_err("two at once");
    assert!(rival.to_string().contains("another machine is just joining as node \"a\""), "{rival}");
    register(&first.client(&servers(cluster.url())).expect("a client"), "a").await.expect("it registers");
    let second = joined(&cluster, Some(&token), "a", "m2").await.expect_err("the name is taken");
    let output = second.to_string();
    assert!(output.contains("kubectl delete node a") && output.contains("--node-name"), "{output}");
    assert!(!second.may_pass());
    joined(&cluster, Some(&token), "b", "m2").await.expect("under another name it joins");
    let strangers = joined(&cluster, None, "c", "m1").await.expect_err("the certificate is another's");
    assert!(matches!(strangers, JoinError::NoToken), "{strangers}");
}

#[tokio::test]
async fn a_token_that_is_over_or_for_another_cluster_does_not_let_anyone_in() {
    let cluster = Cluster::start();
    let token = token(&cluster);
    let other = Cluster::start();
    let wrong = joined(&other, Some(&token), "a", "m1").await.expect_err("another cluster");
    assert!(matches!(wrong, JoinError::WrongServer { .. }), "{wrong}");
    let secrets: Api<Secret> = Api::namespaced(cluster.client().await, "kube-system");
    let id = token.bearer().split('.').next().expect("an id").to_owned();
    let name = format!("bootstrap-token-{id}");
    let past = json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}});
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(&past)).await.expect("the token ends");
    let late = joined(&cluster, Some(&token), "a", "m1").await.expect_err("the token is over");
    assert!(matches!(late, JoinError::TokenRefused), "{late}");
    assert!(late.to_string().contains("mainstay token create"), "{late}");
    let nobody = joined(&cluster, None, "a", "m1").await.expect_err("no token");
    assert!(matches!(nobody, JoinError::NoToken), "{nobody}");
    let unreachable = join(&servers("https://127.0.0.1:1"), Some(&token), "a", &HERE, &cluster.home().join("m3")).await;
    assert!(unreachable.expect_err("nobody is there").may_pass());
}

#[tokio::test]
async fn expired_tokens_are_cleared_away_and_tokens_can_be_listed_and_deleted() {
    let cluster = Cluster::start_with(&["--event-ttl", "1"]);
    let (retained, over) = (token(&cluster), token(&cluster));
    let id = |token: &Token| token.bearer().split('.').next().expect("an id").to_owned();
    let listed = cluster.mainstay("token", "list").ok();
    assert!(listed.contains(&id(&retained)) && listed.contains(&id(&over)), "{listed}");
    let secret = retained.bearer().split('.').nth(1).expect("a secret").to_owned();
    assert!(!listed.contains(&secret), "secrets are not shown");
    let secrets: Api<Secret> = Api::namespaced(cluster.client().await, "kube-system");
    let past = json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}});
    let name = format!("bootstrap-token-{}", id(&over));
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(&past)).await.expect("the token ends");
    eventually("the expired token is gone", || {
        let listed = cluster.mainstay("token", "list").ok();
        (!listed.contains(&id(&over)) && listed.contains(&id(&retained))).then_some(())
    });
}

#[tokio::test]
async fn a_token_for_one_machine_lets_one_join() {
    let cluster = Cluster::start();
    let made = cluster.mainstay_with(&["token", "create", "--uses", "1"]).ok();
    let token: Token = made.trim().parse().expect("a token");
    joined(&cluster, Some(&token), "a", "m1").await.expect("it joins");
    let refused = joined(&cluster, Some(&token), "b", "m2").await.expect_err("the token is used up");
    assert!(!refused.may_pass(), "{refused}");
    let why = mainstay_errors::error_chain(&refused);
    assert!(why.contains("is used up: make another one with `mainstay token create`"), "{why}");
    let listed = cluster.mainstay("token", "list").ok();
    assert!(listed.lines().any(|line| line.ends_with(" 0")), "{listed}");
    joined(&cluster, Some(&token), "a", "m1").await.expect("a member needs no token");
}

#[tokio::test]
async fn certificates_are_renewed_while_in_use() {
    let cluster = Cluster::start();
    let token = token(&cluster);
    let directory = cluster.home().join("m1");
    let identity = joined(&cluster, Some(&token), "a", "m1").await.expect("it joins");
    let before = identity.client.validity().expect("a certificate");
    let client = identity.client(&servers(cluster.url())).expect("a client");
    register(&client, "a").await.expect("it registers");
    tokio::time::sleep(Duration::from_millis(1100)).await; // certificates count in seconds
    mainstay_agent::join::renew_now(&identity, &client, "a", &HERE, &directory).await.expect("it renews");
    assert!(identity.client.validity().expect("a certificate") > before);
    register(&client, "b").await.expect_err("it is the same machine still");
    let nodes: Api<Node> = Api::all(identity.client(&servers(cluster.url())).expect("a client"));
    nodes.get("a").await.expect("the new certificate is taken");
    assert_eq!(joined(&cluster, None, "a", "m1").await.expect("kept").client.validity(), identity.client.validity());
}
