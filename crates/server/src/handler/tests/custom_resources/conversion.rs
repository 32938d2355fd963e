//! Conversion by a webhook, over TLS.

use std::sync::atomic::{AtomicUsize, Ordering};

use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A webhook that moves `spec.cronSpec` to `spec.schedule` and back.
struct Webhook {
    client_config: Value,
    calls: Arc<AtomicUsize>,
    broken: Arc<std::sync::atomic::AtomicBool>,
    /// Who wants it to hang takes this lock.
    answers: Arc<tokio::sync::RwLock<()>>,
}

fn converted(object: &Value, version: &str) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!(version);
    let (from, to) = if version.ends_with("v2") { ("cronSpec", "schedule") } else { ("schedule", "cronSpec") };
    let spec = object["spec"].as_object_mut().unwrap();
    if let Some(value) = spec.remove(from) {
        spec.insert(to.to_owned(), value);
    }
    object
}

impl Webhook {
    async fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let tls = rustls::ServerConfig::builder_with_provider(mainstay_tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://127.0.0.1:{}/convert", listener.local_addr().unwrap().port());
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let (calls, broken): (Arc<AtomicUsize>, Arc<std::sync::atomic::AtomicBool>) = Default::default();
        let (counted, breaks) = (calls.clone(), broken.clone());
        let answers = Arc::<tokio::sync::RwLock<()>>::default();
        let may_answer = answers.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, counted, breaks) = (acceptor.clone(), counted.clone(), breaks.clone());
                let may_answer = may_answer.clone();
                tokio::spawn(async move {
                    let Ok(io) = acceptor.accept(tcp).await else { return };
                    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                        counted.fetch_add(1, Ordering::SeqCst);
                        let is_broken = breaks.load(Ordering::SeqCst);
                        let may_answer = may_answer.clone();
                        async move {
                            let _answers = may_answer.read().await;
                            let body = request.into_body().collect().await?.to_bytes();
                            let review: Value = serde_json::from_slice(&body).unwrap();
                            let wanted = review["request"]["desiredAPIVersion"].as_str().unwrap();
                            let objects = review["request"]["objects"].as_array().unwrap();
                            let objects: Vec<Value> = objects.iter().map(|object| converted(object, wanted)).collect();
                            let result = match is_broken {
                                true => json!({"status": "Failed", "message": "cannot do it"}),
                                false => json!({"status": "Success"}),
                            };
                            let answer = json!({
                                "kind": "ConversionReview", "apiVersion": review["apiVersion"],
                                "response": {"uid": review["request"]["uid"], "result": result, "convertedObjects": objects},
                            });
                            Ok::<_, hyper::Error>(http::Response::new(Full::<Bytes>::from(answer.to_string())))
                        }
                    });
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
                });
            }
        });
        let client_config = json!({"url": url, "caBundle": BASE64_STANDARD.encode(made.cert.pem())});
        Self { client_config, calls, broken, answers }
    }
}

fn two_versions(webhook: &Webhook) -> Value {
    let version = |name: &str, storage: bool, field: &str| {
        json!({
            "name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {field: {"type": "string"}}},
            }}},
        })
    };
    let mut crd = crontabs();
    crd["spec"]["versions"] = json!([version("v1", false, "cronSpec"), version("v2", true, "schedule")]);
    crd["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": {"clientConfig": webhook.client_config, "conversionReviewVersions": ["v1"]},
    });
    crd
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_converts_what_is_written_and_read() {
    let webhook = Webhook::start().await;
    let server = Server::new(Settings::default()).await;
    server.expect(201, Method::POST, CRDS, &two_versions(&webhook)).await;
    for n in 0..20 {
        let made = server.expect(201, Method::POST, CRONTABS, &crontab(&format!("c{n}"))).await;
        assert_eq!(made["spec"], json!({"cronSpec": "* * * * */5"}));
    }
    let stored = server.0.store().get("/registry/stable.example.com/crontabs/default/c0").await.unwrap().0.unwrap();
    let stored: Value = serde_json::from_slice(&stored.value).unwrap();
    assert_eq!(
        (&stored["apiVersion"], &stored["spec"]["schedule"]),
        (&json!("stable.example.com/v2"), &json!("* * * * */5"))
    );
    let v2 = server.get("/apis/stable.example.com/v2/namespaces/default/crontabs/c0").await.into_body();
    assert_eq!(v2["spec"], json!({"schedule": "* * * * */5"}));
    webhook.calls.store(0, Ordering::SeqCst);
    let list = server.get(CRONTABS).await.into_body();
    assert!(list["items"].as_array().unwrap().iter().all(|item| item["spec"]["cronSpec"] == "* * * * */5"), "{list}");
    assert_eq!(webhook.calls.load(Ordering::SeqCst), 1, "a list asks once for all");
    server.get(CRONTABS).await;
    assert_eq!(webhook.calls.load(Ordering::SeqCst), 1, "what was converted is known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_fails_fails_the_request() {
    let webhook = Webhook::start().await;
    let server = Server::new(Settings::default()).await;
    server.expect(201, Method::POST, CRDS, &two_versions(&webhook)).await;
    server.expect(201, Method::POST, CRONTABS, &crontab("a")).await;
    webhook.broken.store(true, Ordering::SeqCst);
    let status = server.expect(500, Method::GET, &format!("{CRONTABS}/a"), &Value::Null).await;
    let message = status["message"].as_str().unwrap();
    let words = "conversion webhook for stable.example.com/v2, Kind=CronTab failed: cannot do it";
    assert!(message.ends_with(words), "{message}");
    server.expect(500, Method::POST, CRONTABS, &crontab("b")).await;
    server.expect(200, Method::GET, "/apis/stable.example.com/v2/namespaces/default/crontabs/a", &Value::Null).await;
}

/// The runtime has few threads, so that those that wait for a webhook would be noticed.
#[test]
fn a_webhook_that_hangs_holds_up_its_own_readers_alone() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let webhook = Webhook::start().await;
        let server = Server::new(Settings::default()).await;
        server.expect(201, Method::POST, CRDS, &two_versions(&webhook)).await;
        let v2 = "/apis/stable.example.com/v2/namespaces/default/crontabs";
        for name in ["a", "b"] {
            let object = json!({"metadata": {"name": name, "labels": {"l": "v"}}, "spec": {"schedule": "*"}});
            server.expect(201, Method::POST, v2, &object).await;
        }
        let silence = webhook.answers.write().await;
        let (gets, lists) = (format!("{CRONTABS}/a"), format!("{CRONTABS}?labelSelector=l"));
        let watches = format!("{CRONTABS}?watch=1&timeoutSeconds=1&labelSelector=l");
        let reads: Vec<_> = [gets, lists, watches]
            .iter()
            .flat_map(|path| std::iter::repeat_n(path, 20))
            .map(|path| {
                let response = server.start(&administrator(), Method::GET, path, Full::from(""));
                tokio::spawn(async move {
                    let (head, body) = response.await.into_parts();
                    let text = body.collect().await.unwrap().to_bytes();
                    (head.status.as_u16(), String::from_utf8_lossy(&text).into_owned())
                })
            })
            .collect();
        while webhook.calls.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        tokio::spawn({
            let other = server.start(&administrator(), Method::GET, "/api/v1/namespaces/default", Full::from(""));
            async move { assert_eq!(other.await.status(), 200) }
        })
        .await
        .unwrap();
        drop(silence);
        for read in reads {
            let (code, text) = read.await.unwrap();
            // Who waited on a thread of the runtime would have run into the timeout of the webhook.
            assert_eq!(code, 200, "{text}");
            assert!(text.contains(r#""cronSpec":"*""#) && !text.contains("ERROR"), "{text}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selectors_ask_the_webhook_once_for_all() {
    let webhook = Webhook::start().await;
    let server = Server::new(Settings::default()).await;
    server.expect(201, Method::POST, CRDS, &two_versions(&webhook)).await;
    for n in 0..20 {
        let object = json!({"metadata": {"name": format!("c{n}"), "labels": {"l": "v"}}, "spec": {"schedule": "*"}});
        server.expect(201, Method::POST, "/apis/stable.example.com/v2/namespaces/default/crontabs", &object).await;
    }
    webhook.calls.store(0, Ordering::SeqCst);
    let list = server.get(&format!("{CRONTABS}?labelSelector=l")).await.into_body();
    assert_eq!(list["items"].as_array().unwrap().len(), 20);
    assert_eq!(webhook.calls.load(Ordering::SeqCst), 1);
}
