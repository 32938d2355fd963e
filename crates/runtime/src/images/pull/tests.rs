use std::{
    collections::HashMap,
    convert::Infallible,
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base64::Engine;
use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;

use super::*;
use crate::images::{
    store::Options,
    testing::{Tar, TestStore, config, gzip, zstd},
};

type Body = BoxBody<Bytes, std::io::Error>;

/// A registry of one repository, `some/thing`, as small as the specification lets it be.
#[derive(Default)]
struct Server {
    address: String,
    manifests: Mutex<HashMap<String, Vec<u8>>>,
    blobs: Mutex<HashMap<String, Vec<u8>>>,
    /// `user:password`; anyone may pull without.
    login: Option<&'static str>,
    faults: Mutex<HashMap<String, Fault>>,
    asked: Mutex<Vec<String>>,
    sent: AtomicUsize,
}

#[derive(Clone, Copy)]
enum Fault {
    /// Breaks off after so many bytes, the first time.
    CutOnce(usize),
    /// Sends so many bytes and then nothing.
    Stall(usize),
    Status(u16),
    /// Answers with this code and blanks without end.
    Endless(u16),
    Wrong,
}

impl Server {
    async fn start(login: Option<&'static str>) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Arc::new(Self { address, login, ..Self::default() });
        let serving = Arc::downgrade(&server);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let Some(server) = serving.upgrade() else { return };
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let server = server.clone();
                        async move { Ok::<_, Infallible>(server.answer(&request)) }
                    });
                    let io = TokioIo::new(connection);
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service)
                        .await;
                });
            }
        });
        server
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if path == "/token" {
            let expected =
                self.login.map(|login| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(login)));
            if expected.is_some() && authorization != expected.as_deref() {
                return status(401, r#"{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}"#);
            }
            return status(200, r#"{"token":"sesame"}"#);
        }
        if self.login.is_some() && authorization != Some("Bearer sesame") {
            let mut refused = status(401, r#"{"errors":[{"code":"UNAUTHORIZED","message":"no"}]}"#);
            let challenge = format!(r#"Bearer realm="http://{}/token",service="test""#, self.address);
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.parse().unwrap());
            return refused;
        }
        if path == "/v2/" {
            return status(200, "{}");
        }
        let Some(rest) = path.strip_prefix("/v2/some/thing/") else {
            return status(404, r#"{"errors":[{"code":"NAME_UNKNOWN","message":"no such repository"}]}"#);
        };
        self.asked.lock().push(rest.to_owned());
        let (kind, key) = rest.split_once('/').unwrap();
        let content = match kind {
            "manifests" => self.manifests.lock().get(key).cloned(),
            _ => self.blobs.lock().get(key).cloned(),
        };
        let Some(content) = content else {
            return status(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no such thing"}]}"#);
        };
        let range = request.headers().get(header::RANGE).and_then(|value| value.to_str().ok()?.strip_prefix("bytes="));
        let start = range.and_then(|range| range.split('-').next()?.parse::<usize>().ok());
        self.send(key, content, start)
    }

    fn send(&self, key: &str, content: Vec<u8>, start: Option<usize>) -> Response<Body> {
        let fault = self.faults.lock().get(key).copied();
        let rest = content[start.unwrap_or(0)..].to_vec();
        let length = rest.len();
        let code = if start.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let part = |bytes: &[u8]| Ok(Frame::data(Bytes::copy_from_slice(bytes)));
        let body: Body = match fault {
            Some(Fault::Status(code)) => return status(code, "out of order"),
            Some(Fault::Endless(code)) => {
                let blanks = stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[b' '; 64 << 10]))));
                let body = BodyExt::boxed(StreamBody::new(Box::pin(blanks) as SyncStream));
                return Response::builder().status(code).body(body).unwrap();
            }
            Some(Fault::CutOnce(bytes)) => {
                self.faults.lock().remove(key);
                self.sent.fetch_add(bytes, Ordering::Relaxed);
                let cut = Err(std::io::Error::other("cut"));
                // A pause, so that what was sent arrives before the connection breaks.
                let pause = async { tokio::time::sleep(Duration::from_millis(200)).await };
                let parts = stream::iter([part(&rest[..bytes])]).chain(stream::once(async move {
                    pause.await;
                    cut
                }));
                BodyExt::boxed(StreamBody::new(Box::pin(parts) as SyncStream))
            }
            Some(Fault::Stall(bytes)) => {
                let parts = stream::iter([part(&rest[..bytes])]).chain(stream::pending());
                BodyExt::boxed(StreamBody::new(Box::pin(parts) as SyncStream))
            }
            Some(Fault::Wrong) => full(vec![b'x'; length]),
            None => {
                self.sent.fetch_add(length, Ordering::Relaxed);
                full(rest)
            }
        };
        Response::builder().status(code).header(header::CONTENT_LENGTH, length).body(body).unwrap()
    }

    /// Adds an image and answers its manifest's digest.
    fn image(&self, tag: &str, layers: &[Vec<u8>]) -> String {
        let mut blobs = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            blobs.push(self.blob(if number % 2 == 0 { gzip(layer) } else { zstd(layer) }));
        }
        let config = self.blob(config(layers, tag));
        let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": blobs });
        self.manifest(tag, manifest)
    }

    fn blob(&self, content: Vec<u8>) -> serde_json::Value {
        let digest = layers::digest(&content);
        let descriptor = serde_json::json!({ "digest": digest, "size": content.len() });
        self.blobs.lock().insert(digest, content);
        descriptor
    }

    fn manifest(&self, tag: &str, manifest: serde_json::Value) -> String {
        let bytes = manifest.to_string().into_bytes();
        let digest = layers::digest(&bytes);
        self.manifests.lock().insert(digest.clone(), bytes.clone());
        self.manifests.lock().insert(tag.to_owned(), bytes);
        digest
    }

    fn fault(&self, key: &str, fault: Fault) {
        self.faults.lock().insert(key.to_owned(), fault);
    }

    fn name(&self, tag: &str) -> String {
        format!("{}/some/thing:{tag}", self.address)
    }

    fn times_asked(&self, key: &str) -> usize {
        self.asked.lock().iter().filter(|asked| asked.ends_with(key)).count()
    }
}

type SyncStream = std::pin::Pin<Box<dyn futures::Stream<Item = std::io::Result<Frame<Bytes>>> + Send + Sync>>;

fn full(content: impl Into<Bytes>) -> Body {
    BodyExt::boxed(Full::new(content.into()).map_err(|never| match never {}))
}

fn status(code: u16, body: &'static str) -> Response<Body> {
    Response::builder().status(code).body(full(body)).unwrap()
}

fn impatient(test: &TestStore) -> ImageStore {
    let options = Options { stall: Duration::from_secs(2), ..Options::default() };
    ImageStore::open_with(&test.path().join("runtime/images"), options).unwrap()
}

fn layer(name: &str) -> Vec<u8> {
    Tar::default().file(name, &format!("{name} {}", "content ".repeat(20_000))).end()
}

/// Does not compress to nothing.
fn noise(name: &str) -> Vec<u8> {
    let mut state = 1u64;
    let content: String = (0..200_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'a' + (state >> 59) as u8 % 26)
        })
        .collect();
    Tar::default().file(name, &content).end()
}

fn login(username: &str, password: &str) -> Auth {
    Auth { username: username.into(), password: password.into(), token: String::new() }
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_by_digest() {
    let server = Server::start(None).await;
    let digest = server.image("v1", &[layer("a"), layer("b")]);
    let test = TestStore::new();
    let image = test.store.pull(&server.name("v1"), None).await.unwrap();
    assert_eq!(image.tags, [server.name("v1")]);
    assert_eq!(image.digests, [format!("{}/some/thing@{digest}", server.address)]);
    let path = test.store.prepare_rootfs(&image.id, "c").unwrap().path;
    assert!(fs::read_to_string(path.join("b")).unwrap().starts_with("b content"));
    assert_eq!(fs::read_dir(test.store.inner.files.root().join("ingest")).unwrap().count(), 0);

    let again = test.store.pull(&image.digests[0], None).await.unwrap();
    assert_eq!(again.id, image.id);
    assert_eq!(again.tags, image.tags, "a pull by digest takes no name away");
}

#[tokio::test]
async fn of_several_platforms_this_machine_s_is_pulled() {
    let server = Server::start(None).await;
    let ours = server.image("ours", &[layer("ours")]);
    let other = server.image("other", &[layer("other")]);
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [
        { "digest": other, "platform": { "os": "linux", "architecture": "vax" } },
        { "digest": ours, "platform": { "os": "linux", "architecture": document::architecture() } },
    ]});
    let digest = server.manifest("both", index);
    server.manifest(
        "vax",
        serde_json::json!({ "schemaVersion": 2, "manifests": [
        { "digest": other, "platform": { "os": "linux", "architecture": "vax" } } ]}),
    );
    let test = TestStore::new();
    let image = test.store.pull(&server.name("both"), None).await.unwrap();
    assert!(image.digests[0].ends_with(&digest), "the index is what was named");
    assert!(test.store.prepare_rootfs(&image.id, "c").unwrap().path.join("ours").exists());
    let error = test.store.pull(&server.name("vax"), None).await.unwrap_err();
    assert!(error.to_string().contains("linux/vax"), "{error}");
}

#[tokio::test]
async fn who_may_not_is_refused_and_who_may_is_served() {
    let server = Server::start(Some("me:secret")).await;
    server.image("v1", &[layer("a")]);
    let test = TestStore::new();
    for auth in [None, Some(login("me", "wrong"))] {
        let refused = test.store.pull(&server.name("v1"), auth.as_ref()).await;
        assert!(matches!(refused, Err(PullError::Refused { .. })), "{refused:?}");
    }
    let wrong = Auth { token: "open".into(), ..login("", "") };
    let refused = test.store.pull(&server.name("v1"), Some(&wrong)).await;
    assert!(matches!(refused, Err(PullError::Refused { .. })), "{refused:?}");
    assert_eq!(test.store.list().await.unwrap().len(), 1);
    test.store.pull(&server.name("v1"), Some(&login("me", "secret"))).await.unwrap();
    let token = Auth { token: "sesame".into(), ..login("", "") };
    test.store.pull(&server.name("v1"), Some(&token)).await.unwrap();
}

#[tokio::test]
async fn what_does_not_exist_is_not_found() {
    let server = Server::start(None).await;
    let test = TestStore::new();
    for name in [server.name("v1"), format!("{}/other/thing:v1", server.address)] {
        let missing = test.store.pull(&name, None).await;
        assert!(matches!(missing, Err(PullError::NotFound { .. })), "{missing:?}");
    }
    let invalid = test.store.pull("Not A Name", None).await;
    assert!(matches!(invalid, Err(PullError::InvalidName { .. })), "{invalid:?}");
    let nobody = test.store.pull("127.0.0.1:1/some/thing:v1", None).await;
    assert!(matches!(nobody, Err(PullError::Failed { .. })), "{nobody:?}");
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_broke() {
    let server = Server::start(None).await;
    let layers = [noise("a")];
    server.image("v1", &layers);
    let blob = gzip(&layers[0]);
    server.fault(&layers::digest(&blob), Fault::CutOnce(blob.len() / 2));
    let test = TestStore::new();
    test.store.pull(&server.name("v1"), None).await.unwrap();
    assert_eq!(server.times_asked(&layers::digest(&blob)), 2);
    let config = config(&layers, "v1").len();
    assert_eq!(server.sent.load(Ordering::Relaxed) - config, blob.len() + server.manifests.lock()["v1"].len());
}

#[tokio::test]
async fn a_stalled_registry_is_an_error_and_what_it_sent_is_kept() {
    let server = Server::start(None).await;
    let layers = [noise("a")];
    server.image("v1", &layers);
    let blob = gzip(&layers[0]);
    let digest = layers::digest(&blob);
    server.fault(&digest, Fault::Stall(1000));
    let test = TestStore::new();
    let store = impatient(&test);
    let stalled = tokio::time::timeout(Duration::from_secs(60), store.pull(&server.name("v1"), None)).await.unwrap();
    assert!(matches!(stalled, Err(PullError::Failed { .. })), "{stalled:?}");
    assert!(fs::metadata(store.inner.files.ingest(&digest[7..])).unwrap().len() >= 1000);
    assert_eq!(store.list().await.unwrap().len(), 1, "half an image counts");
    server.faults.lock().clear();
    store.pull(&server.name("v1"), None).await.unwrap();

    server.image("v2", &[layer("b")]);
    server.fault("v2", Fault::Stall(0));
    let stalled = tokio::time::timeout(Duration::from_secs(60), store.pull(&server.name("v2"), None)).await.unwrap();
    assert!(matches!(stalled, Err(PullError::Failed { .. })), "{stalled:?}");
}

#[tokio::test]
async fn wrong_content_is_never_taken() {
    let server = Server::start(None).await;
    let layers = [layer("a")];
    let manifest = server.image("v1", &layers);
    let blob = layers::digest(&gzip(&layers[0]));
    let config = layers::digest(&config(&layers, "v1"));
    let test = TestStore::new();
    for victim in [&blob, &config] {
        server.fault(victim, Fault::Wrong);
        let wrong = test.store.pull(&server.name("v1"), None).await;
        assert!(matches!(wrong, Err(PullError::Failed { .. })), "{wrong:?}");
        server.faults.lock().clear();
    }
    server.fault(&manifest, Fault::Wrong);
    let named = format!("{}/some/thing@{manifest}", server.address);
    let wrong = test.store.pull(&named, None).await;
    assert!(matches!(wrong, Err(PullError::Failed { .. })), "{wrong:?}");
    assert_eq!(test.store.list().await.unwrap().len(), 1);
    server.faults.lock().clear();
    test.store.pull(&server.name("v1"), None).await.unwrap();
}

#[tokio::test]
async fn a_registry_out_of_order_fails_and_says_how() {
    let server = Server::start(None).await;
    server.image("v1", &[layer("a")]);
    server.fault("v1", Fault::Status(503));
    let test = TestStore::new();
    let failed = test.store.pull(&server.name("v1"), None).await.unwrap_err();
    assert!(matches!(&failed, PullError::Failed { why, .. } if why.contains("503")), "{failed:?}");
    server.fault("v1", Fault::Status(403));
    let refused = test.store.pull(&server.name("v1"), None).await.unwrap_err();
    assert!(matches!(refused, PullError::Refused { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_registry_whose_answers_never_end_takes_no_memory() {
    let server = Server::start(None).await;
    server.image("v1", &[layer("a")]);
    let config = layers::digest(&config(&[layer("a")], "v1"));
    let test = TestStore::new();
    for (victim, code, expected) in [
        ("v1", 200, "its manifest is larger than any may be"),
        ("v1", 503, "the registry answered 503 Service Unavailable"),
        (config.as_str(), 200, "its configuration is too large"),
    ] {
        server.fault(victim, Fault::Endless(code));
        let failed = test.store.pull(&server.name("v1"), None).await.unwrap_err();
        assert!(matches!(&failed, PullError::Failed { why, .. } if why == expected), "{failed:?}");
        server.faults.lock().clear();
    }
    test.store.pull(&server.name("v1"), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_at_the_same_time_share_the_work() {
    let server = Server::start(None).await;
    let shared = [layer("a"), layer("b"), layer("c")];
    server.image("v1", &shared);
    server.image("v2", &[shared[0].clone(), shared[1].clone(), layer("d")]);
    let test = TestStore::new();
    let pulls = (0..6).map(|n| {
        let (store, name) = (test.store.clone(), server.name(if n % 2 == 0 { "v1" } else { "v2" }));
        tokio::spawn(async move { store.pull(&name, None).await.unwrap().id })
    });
    let ids: std::collections::BTreeSet<String> =
        futures::future::join_all(pulls).await.into_iter().map(|id| id.unwrap()).collect();
    assert_eq!(ids.len(), 2);
    for (number, layer) in shared.iter().enumerate() {
        let blob = if number % 2 == 0 { gzip(layer) } else { zstd(layer) };
        assert_eq!(server.times_asked(&layers::digest(&blob)), 1, "layer {number}");
    }
}

#[tokio::test]
async fn a_tag_that_moved_is_pulled_anew_and_the_old_image_stays() {
    let server = Server::start(None).await;
    server.image("v1", &[layer("a")]);
    let test = TestStore::new();
    let old = test.store.pull(&server.name("v1"), None).await.unwrap();
    server.image("v1", &[layer("a"), layer("b")]);
    let new = test.store.pull(&server.name("v1"), None).await.unwrap();
    assert_ne!(old.id, new.id);
    assert_eq!(test.store.find(&server.name("v1")).await.unwrap().unwrap().id, new.id);
    assert!(test.store.find(&old.id).await.unwrap().unwrap().tags.is_empty());
}

#[tokio::test]
async fn a_pull_that_is_given_up_leaves_nothing_that_counts() {
    let server = Server::start(None).await;
    let layers = [layer("a"), noise("b")];
    server.image("v1", &layers);
    server.fault(&layers::digest(&zstd(&layers[1])), Fault::Stall(5000));
    let test = TestStore::new();
    let name = server.name("v1");
    let pull = test.store.pull(&name, None);
    assert!(tokio::time::timeout(Duration::from_millis(1500), pull).await.is_err());
    assert_eq!(test.store.list().await.unwrap().len(), 1);
    server.faults.lock().clear();
    test.store.pull(&server.name("v1"), None).await.unwrap();
}

#[tokio::test]
async fn a_registry_that_cannot_be_reached_is_reported_plainly() {
    let test = TestStore::new();
    let failure = async |reference: &str| test.store.pull(reference, None).await.unwrap_err();
    let unknown = failure("registry.invalid/x").await;
    let prefix = "failed to pull image \"registry.invalid/x\": cannot resolve registry.invalid: ";
    assert!(unknown.to_string().starts_with(prefix), "{unknown}");
    assert!(!unknown.to_string().contains("https://"), "{unknown}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = failure(&format!("{free}/x")).await;
    let expected =
        format!("failed to pull image \"{free}/x\": cannot connect to {free}: Connection refused (os error 111)");
    assert_eq!(closed.to_string(), expected);
    assert_eq!(closed.cause(), format!("cannot connect to {free}: Connection refused (os error 111)"));

    // The same server at an address that is not a loopback one, where TLS is expected.
    let server = Server::start(None).await;
    let port = server.address.rsplit_once(':').unwrap().1;
    let plain = failure(&format!("0.0.0.0:{port}/x")).await.to_string();
    assert!(plain.contains(&format!("0.0.0.0:{port} does not speak TLS")), "{plain}");
    let missing = failure(&server.name("none")).await;
    assert_eq!(missing.to_string(), format!("failed to pull image \"{}\": not found", server.name("none")));
}

#[tokio::test]
async fn wrong_credentials_are_reported_plainly() {
    let server = Server::start(Some("user:secret")).await;
    server.image("v1", &[layer("a")]);
    let auth = Auth { username: "user".into(), password: "wrong".into(), token: String::new() };
    let refused = TestStore::new().store.pull(&server.name("v1"), Some(&auth)).await.unwrap_err();
    assert!(matches!(refused, PullError::Refused { .. }), "{refused}");
    assert_eq!(refused.cause(), "the registry refuses access: who are you");
}
