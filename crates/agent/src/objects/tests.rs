use std::{collections::BTreeSet, time::Duration};

use serde_json::json;

use super::{fake::FakeApi, *};
use crate::testing::until;

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const PATIENCE: Duration = Duration::from_secs(30);

fn pod(name: &str) -> PodUid {
    PodUid(name.to_owned())
}

async fn woken(wake: &Wake) -> BTreeSet<PodUid> {
    tokio::time::timeout(PATIENCE, wake.due()).await.expect("someone is woken")
}

#[tokio::test]
async fn who_asked_for_a_missing_object_is_woken_when_it_appears_changes_and_goes() {
    let (api, wake) = (FakeApi::default(), Wake::default());
    let objects = Objects::new(api.client(), wake.clone());
    assert_eq!(objects.config_map(&pod("a"), "ns", "web").await.unwrap_err(), ObjectError::Missing);
    until("the watch is open", async || api.watches() == 1).await;
    api.set_object(MAPS, "other", json!({}));
    api.set_object(MAPS, "web", json!({"data": {"k": "1"}}));
    assert_eq!(woken(&wake).await, [pod("a")].into());
    let value = |map: ObjectResult<ConfigMap>| map.unwrap().data.clone().unwrap()["k"].clone();
    assert_eq!(value(objects.config_map(&pod("a"), "ns", "web").await), "1");
    // A second pod shares the watch, and is woken by the next change as well.
    assert_eq!(value(objects.config_map(&pod("b"), "ns", "web").await), "1");
    assert_eq!(api.watches(), 1);
    api.set_object(MAPS, "web", json!({"data": {"k": "2"}}));
    assert_eq!(woken(&wake).await, [pod("a"), pod("b")].into());
    assert_eq!(value(objects.config_map(&pod("a"), "ns", "web").await), "2");
    api.delete(MAPS, "web");
    woken(&wake).await;
    assert_eq!(objects.config_map(&pod("a"), "ns", "web").await.unwrap_err(), ObjectError::Missing);
}

#[tokio::test]
async fn what_nobody_refers_to_is_not_followed() {
    let (api, wake) = (FakeApi::default(), Wake::default());
    let objects = Objects::new(api.client(), wake);
    _ = objects.config_map(&pod("a"), "ns", "web").await;
    _ = objects.config_map(&pod("b"), "ns", "web").await;
    until("the watch is open", async || api.watches() == 1).await;
    objects.forget(&pod("a"));
    tokio::task::yield_now().await;
    assert_eq!(api.watches(), 1);
    objects.forget(&pod("b"));
    until("the watch is closed", async || api.watches() == 0).await;
}

#[tokio::test]
async fn unreachable_is_not_missing_and_what_was_known_stays_known() {
    let (api, wake) = (FakeApi::default(), Wake::default());
    api.set_object(MAPS, "web", json!({"data": {"k": "1"}}));
    let objects = Objects::new(api.client(), wake.clone());
    objects.config_map(&pod("a"), "ns", "web").await.unwrap();
    api.set_down(true);
    let unknown = objects.config_map(&pod("a"), "ns", "other").await.unwrap_err();
    assert!(matches!(unknown, ObjectError::Unreachable(_)), "{unknown}");
    assert_eq!(objects.config_map(&pod("a"), "ns", "web").await.unwrap().data.as_ref().unwrap()["k"], "1");
    api.set_object(MAPS, "web", json!({"data": {"k": "2"}}));
    api.set_down(false);
    until("the change is heard after all", async || {
        let now = objects.config_map(&pod("a"), "ns", "web").await;
        now.unwrap().data.as_ref().unwrap()["k"] == "2"
    })
    .await;
    assert!(woken(&wake).await.contains(&pod("a")));
}

#[tokio::test]
async fn a_token_is_kept_until_it_is_due_and_then_renewed() {
    let (api, wake) = (FakeApi::default(), Wake::default());
    let objects = Objects::new(api.client(), wake.clone());
    let asking: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "a"}, "spec": {"containers": []},
    }))
    .unwrap();
    let first = objects.token(&asking, "", 3600).await.unwrap();
    assert_eq!(objects.token(&asking, "", 3600).await.unwrap(), first);
    assert_ne!(objects.token(&asking, "vault", 3600).await.unwrap(), first);
    // One that lives for a second is due at once.
    api.set_token_life(1);
    let short = objects.token(&asking, "short", 600).await.unwrap();
    assert_eq!(woken(&wake).await, [pod("a")].into());
    api.set_down(true);
    let renewed = objects.token(&asking, "short", 600).await;
    assert!(renewed.is_err() || renewed.is_ok_and(|renewed| renewed == short), "an old token serves while it lasts");
    api.set_down(false);
    until("a new one", async || objects.token(&asking, "short", 600).await.unwrap() != short).await;
}

#[tokio::test]
async fn an_agent_that_starts_while_the_api_is_away_knows_what_the_last_one_knew() {
    let (api, wake) = (FakeApi::default(), Wake::default());
    let directory = tempfile::tempdir().unwrap();
    api.set_object(MAPS, "web", json!({"data": {"k": "1"}}));
    let first = Objects::new(api.client(), wake.clone()).with_checkpoints(directory.path());
    first.config_map(&pod("a"), "ns", "web").await.unwrap();
    assert_eq!(first.config_map(&pod("a"), "ns", "none").await.unwrap_err(), ObjectError::Missing);
    drop(first);
    api.set_down(true);
    let second = Objects::new(api.client(), wake.clone()).with_checkpoints(directory.path());
    assert_eq!(second.config_map(&pod("a"), "ns", "web").await.unwrap().data.as_ref().unwrap()["k"], "1");
    assert_eq!(second.config_map(&pod("a"), "ns", "none").await.unwrap_err(), ObjectError::Missing);
    let unknown = second.config_map(&pod("a"), "ns", "other").await.unwrap_err();
    assert!(matches!(unknown, ObjectError::Unreachable(_)));
    // The API returns with something newer.
    api.set_object(MAPS, "web", json!({"data": {"k": "2"}}));
    api.set_down(false);
    until("the change is heard", async || {
        second.config_map(&pod("a"), "ns", "web").await.unwrap().data.as_ref().unwrap()["k"] == "2"
    })
    .await;
    second.forget(&pod("a"));
    assert_eq!(std::fs::read_dir(directory.path().join("configmaps")).unwrap().count(), 0);
}

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/namespaces/ns/podcertificaterequests";

fn certified_pod() -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
        "spec": {"nodeName": "n", "serviceAccountName": "robot", "containers": []},
    });
    serde_json::from_value(pod).unwrap()
}

fn projection(key_type: &str) -> PodCertificateProjection {
    let projection = json!({
        "signerName": "example.com/s", "keyType": key_type, "maxExpirationSeconds": 7200,
        "userAnnotations": {"example.com/role": "web"},
    });
    serde_json::from_value(projection).unwrap()
}

fn api_with_identities() -> FakeApi {
    let api = FakeApi::default();
    api.set_object("/api/v1/nodes", "n", json!({"metadata": {"uid": "node-uid"}}));
    api.set_object("/api/v1/namespaces/ns/serviceaccounts", "robot", json!({"metadata": {"uid": "account-uid"}}));
    api
}

/// Answers a request as a signer does.
fn answer_request(api: &FakeApi, name: &str, kind: &str, status: serde_json::Value) {
    let mut request = api.get(REQUESTS, name).unwrap();
    let condition = json!({
        "type": kind, "status": "True", "reason": "Because", "message": "so it is", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    request["status"] = status;
    request["status"]["conditions"] = json!([condition]);
    api.set_object(REQUESTS, name, request);
}

async fn requested(api: &FakeApi, count: usize) -> Vec<String> {
    until("the certificate is requested", async || api.names(REQUESTS).len() == count).await;
    api.names(REQUESTS)
}

#[tokio::test]
async fn a_certificate_is_requested_with_the_identities_of_its_pod_and_renewed_with_a_new_key() {
    let (api, wake) = (api_with_identities(), Wake::default());
    let objects = Objects::new(api.client(), wake.clone());
    let (own, wanted) = (certified_pod(), projection("ECDSAP256"));
    let certificate = || objects.certificate(&own, "v", 0, &wanted);
    assert!(matches!(certificate(), Err(CertificateError::Pending(_))));
    let name = requested(&api, 1).await.remove(0);
    let request = api.get(REQUESTS, &name).unwrap();
    assert!(name.starts_with("req-web-"));
    assert_eq!(request["metadata"]["ownerReferences"][0]["uid"], "u");
    for (field, expected) in [
        ("signerName", json!("example.com/s")),
        ("podName", json!("web")),
        ("podUID", json!("u")),
        ("nodeName", json!("n")),
        ("nodeUID", json!("node-uid")),
        ("serviceAccountName", json!("robot")),
        ("serviceAccountUID", json!("account-uid")),
        ("maxExpirationSeconds", json!(7200)),
        ("unverifiedUserAnnotations", json!({"example.com/role": "web"})),
    ] {
        assert_eq!(request["spec"][field], expected, "{field}");
    }
    let pem = |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    let soon = jiff::Timestamp::now() + Duration::from_millis(500);
    let chain = format!("written by hand\n{}between\n{}", pem("AAAA"), pem("BBBB"));
    answer_request(&api, &name, "Issued", json!({"certificateChain": chain, "beginRefreshAt": soon.to_string()}));
    assert_eq!(woken(&wake).await, [pod("u")].into());
    let first = certificate().unwrap();
    assert_eq!(first.chain, format!("{}{}", pem("AAAA"), pem("BBBB")), "certificates and nothing else");
    assert!(first.key.starts_with("-----BEGIN PRIVATE KEY-----"));
    let second = requested(&api, 2).await.into_iter().find(|other| *other != name).unwrap();
    assert_eq!(certificate().unwrap().key, first.key, "the old one is used until there is a new one");
    answer_request(&api, &second, "Denied", json!({}));
    assert_eq!(certificate().unwrap().key, first.key, "also when renewal is denied");
    objects.forget(&pod("u"));
    assert!(matches!(certificate(), Err(CertificateError::Pending(_))), "nothing is remembered of a pod that is gone");
}

#[tokio::test]
async fn a_certificate_that_is_refused_says_by_whom_and_why() {
    let (api, wake) = (api_with_identities(), Wake::default());
    let objects = Objects::new(api.client(), wake.clone());
    let own = certified_pod();
    let certificate =
        |source, key_type: &str| objects.certificate(&own, "v", source, &projection(key_type)).err().unwrap();
    certificate(0, "ED25519");
    let name = requested(&api, 1).await.remove(0);
    answer_request(&api, &name, "Denied", json!({}));
    woken(&wake).await;
    let expected = format!("PodCertificateRequest ns/{name} was denied by signer example.com/s: Because: so it is");
    assert_eq!(certificate(0, "ED25519"), CertificateError::Refused(expected));
    certificate(1, "RSA512");
    woken(&wake).await;
    let expected =
        "keyType RSA512 is not supported; supported are ECDSAP256, ECDSAP384, ECDSAP521, ED25519, RSA3072 and RSA4096";
    assert_eq!(certificate(1, "RSA512"), CertificateError::Refused(expected.to_owned()));
}
