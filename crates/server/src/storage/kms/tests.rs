//! A KMS plugin of our own, and how a server gets on with it.

use std::{convert::Infallible, path::PathBuf, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay_api::registry::Registry;
use mainstay_store::{List, Memory, Op, Store, Txn};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::UnixListener;

use super::{messages::*, provider::*};
use crate::storage::{Writers, encryption::Encryption};

/// XORs with its key id: enough to see who encrypted what.
struct Plugin {
    socket: PathBuf,
    key_id: Arc<Mutex<String>>,
    calls: Arc<Mutex<Vec<String>>>,
    serving: tokio::task::JoinHandle<()>,
}

fn scramble(bytes: &[u8], key_id: &str) -> Vec<u8> {
    bytes.iter().zip(key_id.bytes().cycle()).map(|(byte, key)| byte ^ key).collect()
}

impl Plugin {
    fn start(socket: PathBuf, key_id: Arc<Mutex<String>>) -> Self {
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let (own_key, own_calls) = (key_id.clone(), calls.clone());
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (key_id, calls) = (own_key.clone(), own_calls.clone());
                let serve = service_fn(move |request: Request<Incoming>| {
                    let (key_id, calls) = (key_id.lock().clone(), calls.clone());
                    async move { Ok::<_, Infallible>(answer(request, &key_id, &calls).await) }
                });
                let connection =
                    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), serve);
                tokio::spawn(connection);
            }
        });
        Self { socket, key_id, calls, serving }
    }

    fn stop(&self) {
        self.serving.abort();
        std::fs::remove_file(&self.socket).unwrap();
    }

    fn count(&self, method: &str) -> usize {
        self.calls.lock().iter().filter(|call| *call == method).count()
    }
}

type Frames = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn answer(request: Request<Incoming>, key_id: &str, calls: &Mutex<Vec<String>>) -> Response<Frames> {
    let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes().slice(5..);
    calls.lock().push(method.clone());
    let message = match method.as_str() {
        "Status" => {
            StatusResponse { version: "v2".into(), healthz: "ok".into(), key_id: key_id.into() }.encode_to_vec()
        }
        "Encrypt" => {
            let asked = EncryptRequest::decode(body).unwrap();
            let annotations = [("local.example.com".to_owned(), b"x".to_vec())].into();
            let ciphertext = scramble(&asked.plaintext, key_id);
            EncryptResponse { ciphertext, key_id: key_id.into(), annotations }.encode_to_vec()
        }
        _ => {
            let asked = DecryptRequest::decode(body).unwrap();
            assert_eq!(asked.annotations["local.example.com"], b"x");
            DecryptResponse { plaintext: scramble(&asked.ciphertext, &asked.key_id) }.encode_to_vec()
        }
    };
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(&message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = vec![Ok(Frame::data(frame.freeze())), Ok(Frame::trailers(trailers))];
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(StreamBody::new(stream::iter(frames))).unwrap()
}

const SECRET: &str = "/registry/secrets/default/a";

async fn open(store: &Arc<dyn Store>, dir: &std::path::Path) -> Arc<Encryption> {
    let file = dir.join("encryption.yaml");
    let socket = dir.join("kms.sock");
    let config = format!(
        "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets]\n  providers:\n  \
         - kms: {{apiVersion: v2, name: mine, endpoint: \"unix://{}\", timeout: 1s}}\n  - identity: {{}}\n",
        socket.display()
    );
    std::fs::write(&file, config).unwrap();
    Arc::new(Encryption::open(store.clone(), file, Registry::builtin(), Writers::AnyServer).await.unwrap())
}

fn put_secret(value: &'static str) -> Txn {
    Txn { compares: Vec::new(), ops: vec![Op::Put { key: SECRET.into(), value: Bytes::from_static(value.as_bytes()) }] }
}

async fn read(store: &Arc<dyn Store>) -> Bytes {
    store.get(SECRET).await.unwrap().0.unwrap().value.clone()
}

#[tokio::test]
async fn secrets_are_sealed_by_a_seed_that_the_plugin_protects() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(dir.path().join("kms.sock"), Arc::new(Mutex::new("key-1".into())));
    let below: Arc<dyn Store> = Arc::new(Memory::new());
    let encryption = open(&below, dir.path()).await;
    let above = encryption.store();
    for _ in 0..20 {
        above.commit(put_secret(r#"{"data":"hunter2"}"#)).await.unwrap();
    }
    assert_eq!(plugin.count("Encrypt"), 1, "one seed for all values");
    let raw = read(&below).await;
    assert!(raw.starts_with(b"k8s:enc:kms:v2:mine:") && !raw.windows(7).any(|window| window == b"hunter2"));
    assert_eq!(read(&above).await, r#"{"data":"hunter2"}"#);

    // Another server, or this one after a restart, asks the plugin for the seed: once for all values.
    let restarted = open(&below, dir.path()).await.store();
    let listing = restarted.list(List { prefix: "/registry/secrets/", ..List::default() }).await.unwrap();
    assert_eq!(listing.entries[0].value, r#"{"data":"hunter2"}"#);
    assert_eq!(read(&restarted).await, r#"{"data":"hunter2"}"#);
    assert!(plugin.count("Decrypt") <= 2, "{:?}", plugin.calls.lock()); // the record of the cluster, and the Secret
}

#[tokio::test]
async fn a_new_key_id_seals_from_the_next_look_on_and_the_old_one_still_opens() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(dir.path().join("kms.sock"), Arc::new(Mutex::new("key-1".into())));
    let below: Arc<dyn Store> = Arc::new(Memory::new());
    let encryption = open(&below, dir.path()).await;
    let above = encryption.store();
    above.commit(put_secret("{}")).await.unwrap();
    let provider = encryption.plugins().remove(0);
    let old = read(&below).await;
    assert_eq!(provider.key_id_of(&old).as_deref(), Some("key-1"));
    *plugin.key_id.lock() = "key-2".into();
    provider.refresh().await;
    above.commit(put_secret(r#"{"a":1}"#)).await.unwrap();
    let new = read(&below).await;
    assert_eq!(provider.key_id_of(&new).as_deref(), Some("key-2"));
    assert_eq!(provider.open(SECRET, &old).as_deref(), Some(&b"{}"[..]));
    assert!(encryption.rotate().await.unwrap_err().to_string().contains("rotated there"));
}

#[tokio::test]
async fn an_outage_fails_by_name_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let key_id = Arc::new(Mutex::new("key-1".to_owned()));
    let plugin = Plugin::start(dir.path().join("kms.sock"), key_id.clone());
    let below: Arc<dyn Store> = Arc::new(Memory::new());
    open(&below, dir.path()).await.store().commit(put_secret("{}")).await.unwrap();
    plugin.stop();

    // A server that starts meanwhile is there, without Secrets.
    let encryption = open(&below, dir.path()).await;
    let provider = encryption.plugins().remove(0);
    assert!(provider.problem().unwrap().contains("kms.sock"), "{:?}", provider.problem());
    let above = encryption.store();
    let refused = above.commit(put_secret("{}")).await.unwrap_err().to_string();
    assert!(refused.contains("KMS plugin \"mine\" has not encrypted a key yet"), "{refused}");
    assert!(read(&above).await.starts_with(b"k8s:enc:kms:"), "not read, and not lost");

    let _again = Plugin::start(dir.path().join("kms.sock"), key_id);
    provider.refresh().await;
    assert_eq!(provider.problem(), None);
    assert_eq!(read(&above).await, "{}");
    above.commit(put_secret(r#"{"b":2}"#)).await.unwrap();
    assert_eq!(read(&above).await, r#"{"b":2}"#);
}

#[test]
fn a_wrong_configuration_is_named() {
    for (change, expected) in [
        (("v2", "v1"), "apiVersion must be v2"),
        (("unix:///", "tcp://"), "endpoint must be unix://"),
        (("name: a", "name: \"a:b\""), "nor contain a colon"),
        (("3s", "soon"), "timeout \"soon\""),
    ] {
        let text =
            "{apiVersion: v2, name: a, endpoint: \"unix:///run/kms.sock\", timeout: 3s}".replace(change.0, change.1);
        let config: KmsConfiguration =
            serde_json::from_value(mainstay_api::decode::yaml(text.as_bytes()).unwrap().value).unwrap();
        let error = KmsProvider::new(&config).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
