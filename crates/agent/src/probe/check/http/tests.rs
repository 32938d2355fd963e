use k8s_openapi::{api::core::v1::HTTPHeader, apimachinery::pkg::util::intstr::IntOrString};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// Answers each connection with the next of these, and keeps what was asked.
struct Server {
    port: u16,
    asked: JoinHandle<Vec<String>>,
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap_or(0) == 0 {
            break;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

async fn serve(answers: Vec<String>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            asked.push(read_head(&mut stream).await);
            stream.write_all(answer.replace("PORT", &port.to_string()).as_bytes()).await.unwrap();
        }
        asked
    });
    Server { port, asked }
}

fn action(port: u16, path: &str) -> HTTPGetAction {
    HTTPGetAction { port: IntOrString::Int(port.into()), path: Some(path.into()), ..Default::default() }
}

async fn probe(get: &HTTPGetAction) -> Outcome {
    let address = Some(IpAddr::from([127, 0, 0, 1]));
    let request = Request::new(get, &Container::default(), address, "kube-probe/1.37").unwrap();
    attempt(request, PATIENCE).await
}

fn answer(status: &str, more: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n{more}\r\nok")
}

#[tokio::test]
async fn codes_from_200_to_399_are_good() {
    for (status, good) in [("200 OK", true), ("204 No Content", true), ("400 Bad Request", false), ("503 Busy", false)]
    {
        let server = serve(vec![answer(status, "")]).await;
        let code = &status[..3];
        let wanted = if good {
            Outcome::Success
        } else {
            Outcome::Failure(format!("HTTP probe failed with statuscode: {code}"))
        };
        assert_eq!(probe(&action(server.port, "/healthz")).await, wanted);
    }
    let server = serve(vec![answer("304 Not Modified", "")]).await;
    assert!(matches!(probe(&action(server.port, "/")).await, Outcome::Warning(_)));
}

#[tokio::test]
async fn the_request_is_what_upstream_sends() {
    let server = serve(vec![answer("200 OK", "")]).await;
    assert_eq!(probe(&action(server.port, "a b?q=1#f")).await, Outcome::Success);
    let asked = &server.asked.await.unwrap()[0].to_lowercase();
    assert!(asked.starts_with("get /a%20b?q=1 http/1.1\r\n"), "{asked}");
    assert!(asked.contains(&format!("host: 127.0.0.1:{}\r\n", server.port)), "{asked}");
    assert!(asked.contains("user-agent: kube-probe/1.37\r\n") && asked.contains("accept: */*\r\n"), "{asked}");
    assert!(asked.contains("connection: close\r\n"), "{asked}");
}

#[tokio::test]
async fn headers_can_be_added_replaced_and_left_out() {
    let server = serve(vec![answer("200 OK", "")]).await;
    let header = |name: &str, value: &str| HTTPHeader { name: name.into(), value: value.into() };
    let headers = vec![
        header("Host", "shop.example"),
        header("User-Agent", "me"),
        header("Accept", ""),
        header("X-A", "1"),
        header("X-A", "2"),
    ];
    let get = HTTPGetAction { http_headers: Some(headers), ..action(server.port, "/") };
    assert_eq!(probe(&get).await, Outcome::Success);
    let asked = &server.asked.await.unwrap()[0].to_lowercase();
    assert!(asked.contains("host: shop.example\r\n") && asked.contains("user-agent: me\r\n"), "{asked}");
    assert!(!asked.contains("accept:") && asked.contains("x-a: 1\r\n") && asked.contains("x-a: 2\r\n"), "{asked}");
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let moved = |to: &str| answer("302 Found", &format!("Location: {to}\r\n"));
    let server = serve(vec![moved("/b"), moved("http://127.0.0.1:PORT/c?x=y"), moved("d"), answer("500 No", "")]).await;
    let bad = Outcome::Failure("HTTP probe failed with statuscode: 500".into());
    assert_eq!(probe(&action(server.port, "/a")).await, bad);
    let asked: Vec<String> = server.asked.await.unwrap().iter().map(|a| a.lines().next().unwrap().to_owned()).collect();
    assert_eq!(asked, ["GET /a HTTP/1.1", "GET /b HTTP/1.1", "GET /c?x=y HTTP/1.1", "GET /d HTTP/1.1"]);

    let server = serve(vec![moved("http://elsewhere.example/")]).await;
    let warned = Outcome::Warning("Probe terminated redirects, Response body: ok".into());
    assert_eq!(probe(&action(server.port, "/a")).await, warned);

    let server = serve(vec![moved("/a"); 10]).await;
    let Outcome::Failure(why) = probe(&action(server.port, "/a")).await else { panic!("went round and round") };
    assert!(why.ends_with("stopped after 10 redirects"), "{why}");
}

#[tokio::test]
async fn https_is_spoken_to_whoever_answers() {
    let own = rcgen::generate_simple_self_signed(vec!["other.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(answer("200 OK", "").as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    });
    let get = HTTPGetAction { scheme: Some("HTTPS".into()), ..action(port, "/") };
    assert_eq!(probe(&get).await, Outcome::Success);
    server.await.unwrap();
}

#[tokio::test]
async fn whoever_refuses_hangs_or_breaks_off_has_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let request = Request::new(&action(port, "/x"), &Container::default(), Some([127, 0, 0, 1].into()), "u").unwrap();
    let late = format!(
        "Get \"http://127.0.0.1:{port}/x\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    );
    assert_eq!(attempt(request, Duration::from_millis(200)).await, Outcome::Failure(late));
    drop(listener);
    let refused = format!("Get \"http://127.0.0.1:{port}/x\": dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(probe(&action(port, "/x")).await, Outcome::Failure(refused));
    let server = serve(vec![String::new()]).await;
    assert_eq!(
        probe(&action(server.port, "/")).await,
        Outcome::Failure(format!("Get \"http://127.0.0.1:{}/\": EOF", server.port))
    );
}

#[tokio::test]
async fn an_endless_body_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    assert_eq!(probe(&action(port, "/")).await, Outcome::Success);
    server.await.unwrap();
}
