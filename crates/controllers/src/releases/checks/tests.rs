use std::collections::BTreeMap;

use futures::future::BoxFuture;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::Mutex,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{config_templates::notify::PodRequest, runtime::ApiError};

/// Commands of pods, by their first word: what becomes of them. The others hang.
#[derive(Default)]
struct Commands {
    results: BTreeMap<&'static str, CommandResult>,
    ran: Mutex<Vec<PodCommand>>,
}

impl ConsumerNotifier for Arc<Commands> {
    fn run(&self, command: PodCommand) -> BoxFuture<'_, Result<CommandResult, ApiError>> {
        Box::pin(async move {
            let result = self.results.get(command.command[0].as_str()).cloned();
            self.ran.lock().await.push(command);
            Ok(result.unwrap_or(CommandResult::Succeeded))
        })
    }

    fn request(&self, _: PodRequest) -> BoxFuture<'_, Result<CommandResult, ApiError>> {
        unreachable!("a gate sends no requests to pods")
    }
}

fn wave(gates: serde_json::Value) -> ReleaseWave {
    serde_json::from_value(json!({"upTo": 1, "gates": gates})).unwrap()
}

fn client(commands: &Arc<Commands>) -> CheckClient {
    let pods = Cache::new();
    let pod = json!({
        "metadata": {"name": "probe", "namespace": "db", "uid": "1", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "first"}, {"name": "second"}]},
    });
    pods.wrote(serde_json::from_value(pod).unwrap());
    CheckClient { pods: Arc::new(pods), commands: Arc::new(commands.clone()) }
}

async fn ask(gate: serde_json::Value) -> Gate {
    client(&Arc::default()).ask(&wave(json!([gate]))).await
}

fn closed(why: impl Into<String>) -> Gate {
    Gate::Closed { why: why.into() }
}

/// Answers each connection with the next of these texts, byte by byte as they are; after the last one nobody answers.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, answer: &str) {
    let mut request = [0; 4096];
    if stream.read(&mut request).await.is_ok_and(|count| count > 0) {
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

async fn plain_server(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/healthy", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for answer in answers {
            serve(listener.accept().await.unwrap().0, &answer).await;
        }
        // Connections are taken and left without an answer.
        let mut silent = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            silent.push(stream);
        }
    });
    url
}

#[tokio::test]
async fn an_answer_has_to_have_the_expected_status_and_body_and_to_come_in_time() {
    let good = answer("200 OK", r#"{"errors": 0}"#);
    let bad = answer("200 OK", r#"{"errors": 7}"#);
    let large = answer("200 OK", &"x".repeat(LONGEST_BODY + 1));
    let url = plain_server(vec![
        answer("204 No Content", ""),
        answer("503 Service Unavailable", ""),
        answer("302 Found", ""),
        good,
        bad,
        large,
        "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhalf".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
    ])
    .await;
    let expecting = |expect: &str| json!({"http": {"url": url, "expect": expect, "timeoutSeconds": 1}});
    assert_eq!(ask(json!({"http": {"url": url}})).await, Gate::Open);
    assert_eq!(ask(json!({"http": {"url": url}})).await, closed(format!("{url}: answers 503")));
    assert_eq!(ask(json!({"http": {"url": url, "statuses": [302]}})).await, Gate::Open, "not followed");
    assert_eq!(ask(expecting("json.errors < 5")).await, Gate::Open);
    assert_eq!(
        ask(expecting("json.errors < 5")).await,
        closed(format!("{url}: answers 200, but json.errors < 5 is not true"))
    );
    assert_eq!(ask(expecting("body != ''")).await, closed(format!("{url}: answers 200 with more than 64 KiB")));
    let Gate::Closed { why } = ask(expecting("body != ''")).await else { panic!("half an answer is none") };
    assert!(why.contains("breaks off"), "{why}");
    assert!(matches!(ask(json!({"http": {"url": url}})).await, Gate::Closed { .. }));
    assert_eq!(ask(expecting("true")).await, closed(format!("{url}: no answer in 1s")));
    assert!(
        matches!(ask(json!({"http": {"url": "http://127.0.0.1:1/"}})).await, Gate::Closed { .. }),
        "nobody listens"
    );
}

/// An authority, and a server with a certificate of it for a name.
async fn tls_server(name: &str) -> (String, String) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let pem = authority.clone().self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(mainstay_tls::provider()).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/healthy", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream, &answer("200 OK", "fine")).await;
            }
        }
    });
    (url, pem)
}

#[tokio::test]
async fn https_trusts_the_given_authority_and_the_given_name_alone() {
    let (url, pem) = tls_server("metrics.example.com").await;
    let (_, other) = tls_server("metrics.example.com").await;
    let gate = |pem: Option<&str>, name: Option<&str>| json!({"https": {"url": url, "certificateAuthority": pem, "serverName": name, "expect": "body == 'fine'"}});
    assert_eq!(ask(gate(Some(&pem), Some("metrics.example.com"))).await, Gate::Open);
    for (pem, name) in [
        (Some(pem.as_str()), None),
        (Some(&pem), Some("other.example.com")),
        (Some(&other), Some("metrics.example.com")),
        (None, Some("metrics.example.com")),
    ] {
        let Gate::Closed { why } = ask(gate(pem, name)).await else { panic!("{name:?} is not what is trusted") };
        assert!(why.contains("certificate"), "{why}");
    }
}

#[tokio::test]
async fn a_command_runs_in_the_named_pod_and_says_how_it_failed() {
    let failed = CommandResult::Failed {
        how: "check: command terminated with exit code 3".into(),
        output: "a\nlag 7s\n\n".into(),
    };
    let late = CommandResult::Failed { how: "sleep: not finished after 2 s".into(), output: String::new() };
    let results = [("check", failed), ("sleep", late)].into();
    let commands = Arc::new(Commands { results, ran: Mutex::default() });
    let client = client(&commands);
    let gate = |pod: &str, container: Option<&str>, command: &str| {
        let exec = json!({
            "namespace": "db", "pod": pod, "container": container, "command": [command, "--now"], "timeoutSeconds": 2,
        });
        wave(json!([{"exec": exec}]))
    };
    assert_eq!(client.ask(&gate("probe", None, "true")).await, Gate::Open);
    assert_eq!(client.ask(&gate("probe", Some("second"), "true")).await, Gate::Open);
    let words = "pod db/probe: check: command terminated with exit code 3: lag 7s";
    assert_eq!(client.ask(&gate("probe", None, "check")).await, closed(words));
    assert_eq!(client.ask(&gate("probe", None, "sleep")).await, closed("pod db/probe: sleep: not finished after 2 s"));
    assert_eq!(client.ask(&gate("gone", None, "true")).await, closed("pod db/gone: does not exist"));
    let ran = commands.ran.lock().await;
    let containers: Vec<&str> = ran.iter().map(|own| own.container.as_str()).collect();
    assert_eq!(containers, ["first", "second", "first", "first"]);
    assert_eq!((ran[0].namespace.as_str(), ran[0].timeout), ("db", Duration::from_secs(2)));
}
