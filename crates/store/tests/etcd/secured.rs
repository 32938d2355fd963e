//! TLS with client certificates, and users with passwords.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use mainstay_store::{Etcd, EtcdConfig, EtcdConnectError, List, Revision, Store, StoreError};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};

use crate::{
    changes, claims, client, put,
    server::{Server, Version, tool},
    within, write,
};

claims! {
    a_client_certificate_opens_an_etcd_that_wants_one,
    a_user_logs_in_and_does_so_again_when_the_token_is_lost,
    a_user_may_do_no_more_than_etcd_allows,
}

struct Papers {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

/// A CA and a certificate for both ends of a connection to 127.0.0.1.
fn papers(dir: &Path) -> Papers {
    let ca_key = KeyPair::generate().expect("key");
    let mut ca = CertificateParams::new(vec![]).expect("params");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).expect("ca");
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("key");
    let mut leaf = CertificateParams::new(vec!["localhost".into()]).expect("params");
    leaf.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let cert = leaf.signed_by(&key, &issuer).expect("leaf");
    let file = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).expect("written");
        path
    };
    Papers {
        ca: file("ca.pem", ca_cert.pem()),
        cert: file("cert.pem", cert.pem()),
        key: file("key.pem", key.serialize_pem()),
    }
}

async fn a_client_certificate_opens_an_etcd_that_wants_one(version: Version) {
    let dir = tempfile::tempdir().expect("a folder");
    let papers = papers(dir.path());
    let path = |path: &PathBuf| path.display().to_string();
    let args = [
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={}", path(&papers.ca)),
        format!("--cert-file={}", path(&papers.cert)),
        format!("--key-file={}", path(&papers.key)),
    ];
    let server = Server::start_with(version, "https", &args);
    let config = EtcdConfig {
        ca_file: Some(papers.ca.clone()),
        cert_file: Some(papers.cert.clone()),
        key_file: Some(papers.key.clone()),
        ..EtcdConfig::new(server.url())
    };
    let store = Etcd::connect(&config).await.expect("connect");
    let start = store.revision().await.expect("revision");
    let mut watch = store.watch("/r/", start).await.expect("watch");
    write(&store, vec![put("/r/a", "1")]).await;
    assert_eq!(changes(&mut *watch, 1).await, ["2 /r/a ->1"]);

    let short = |config| EtcdConfig { connect_deadline: std::time::Duration::from_secs(3), ..config };
    let anonymous = short(EtcdConfig { cert_file: None, key_file: None, ..config.clone() });
    assert!(matches!(Etcd::connect(&anonymous).await, Err(EtcdConnectError::Store(_))));
    let stranger = tempfile::tempdir().expect("a folder");
    let distrustful = short(EtcdConfig { ca_file: Some(self::papers(stranger.path()).ca), ..config });
    match Etcd::connect(&distrustful).await {
        Err(EtcdConnectError::Store(error)) => {
            assert!(error.to_string().contains("certificate"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

fn etcdctl(server: &Server, args: &[&str]) {
    let endpoint = format!("--endpoints=127.0.0.1:{}", server.client_port);
    let done = Command::new(tool("etcdctl-3.4")).env("ETCDCTL_API", "3").arg(endpoint).args(args).output();
    let done = done.expect("etcdctl runs");
    assert!(done.status.success(), "etcdctl {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Switches authentication on, with a user `app` that may use `/r/` only.
async fn lock_up(server: &Server) {
    client(server).await;
    etcdctl(server, &["user", "add", "root:secret"]);
    etcdctl(server, &["user", "grant-role", "root", "root"]);
    etcdctl(server, &["role", "add", "app"]);
    etcdctl(server, &["role", "grant-permission", "app", "readwrite", "/r/", "--prefix"]);
    etcdctl(server, &["user", "add", "app:password"]);
    etcdctl(server, &["user", "grant-role", "app", "app"]);
    etcdctl(server, &["auth", "enable"]);
}

fn as_app(server: &Server) -> EtcdConfig {
    EtcdConfig {
        user: Some("app".into()),
        password: Some("password".into()),
        probe_key: "/r/health".into(),
        ..EtcdConfig::new(server.url())
    }
}

async fn a_user_logs_in_and_does_so_again_when_the_token_is_lost(version: Version) {
    let mut server = Server::start(version);
    lock_up(&server).await;
    let store = Etcd::connect(&as_app(&server)).await.expect("connect");
    let start = write(&store, vec![put("/r/a", "1")]).await;
    let mut watch = store.watch("/r/", start).await.expect("watch");
    write(&store, vec![put("/r/a", "2")]).await;
    assert_eq!(changes(&mut *watch, 1).await.len(), 1);
    // etcd keeps its simple tokens in memory, so a restart takes them away.
    server.kill();
    server.launch();
    within("the return", async { while store.revision().await.is_err() {} }).await;
    let at = write(&store, vec![put("/r/a", "3")]).await;
    assert_eq!(changes(&mut *watch, 1).await, [format!("{at} /r/a 2>3")]);
    // Any change of users or roles makes tokens old.
    etcdctl(&server, &["--user=root:secret", "role", "add", "another"]);
    write(&store, vec![put("/r/a", "4")]).await;
    assert_eq!(changes(&mut *watch, 1).await.len(), 1);
}

async fn a_user_may_do_no_more_than_etcd_allows(version: Version) {
    let server = Server::start(version);
    lock_up(&server).await;
    let store = Etcd::connect(&as_app(&server)).await.expect("connect");
    let refused = |error: Option<StoreError>| match error {
        Some(StoreError::Failed { why }) => assert!(why.contains("permission denied"), "{why}"),
        other => panic!("{other:?}"),
    };
    refused(store.list(List { prefix: "/s/", ..List::default() }).await.err());
    refused(store.watch("/s/", Revision(1)).await.err());
    let wrong = EtcdConfig { password: Some("guess".into()), ..as_app(&server) };
    match Etcd::connect(&wrong).await {
        Err(EtcdConnectError::Store(StoreError::Failed { why })) => {
            assert!(why.contains("authentication failed"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    let nobody = EtcdConfig { user: None, password: None, ..as_app(&server) };
    match Etcd::connect(&nobody).await {
        Err(EtcdConnectError::Store(StoreError::Failed { why })) => {
            assert!(why.contains("user name is empty"), "{why}")
        }
        other => panic!("{other:?}"),
    }
}
