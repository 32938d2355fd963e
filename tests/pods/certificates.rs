//! Certificates of pods in projected volumes, with a signer of our own.

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use super::{container, manifest, shell, until_running};
use crate::harness::{Kubectl, Version, eventually};

const SIGNER: &str = "example.com/mesh";

/// Answers requests as a signer in a cluster does: with the rights of whoever runs kubectl.
struct TestSigner<'a> {
    k: &'a Kubectl,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> TestSigner<'a> {
    fn new(k: &'a Kubectl) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "mesh");
        Self { k, issuer: Issuer::new(params, KeyPair::generate().unwrap()) }
    }

    /// A request of this pod that nobody has answered yet.
    fn next_request(&self, pod: &str) -> Value {
        eventually(&format!("a request of {pod}"), || {
            let all = self.k.json("get podcertificaterequests -o json");
            let open = |request: &&Value| {
                request["spec"]["podName"] == pod
                    && request["status"]["conditions"].as_array().is_none_or(Vec::is_empty)
            };
            all["items"].as_array().unwrap().iter().find(open).cloned()
        })
    }

    fn issue(&self, request: &Value, common_name: &str, renew_in: Duration) {
        let second = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap();
        let (begin, end) = (second - Duration::minutes(20), second + Duration::hours(2));
        let der = STANDARD.decode(request["spec"]["stubPKCS10Request"].as_str().unwrap()).unwrap();
        let mut asked = CertificateSigningRequestParams::from_der(&der.into()).unwrap();
        assert!(asked.params.distinguished_name.iter().next().is_none(), "who it is for is not the pod's to say");
        asked.params.distinguished_name.push(DnType::CommonName, common_name);
        (asked.params.not_before, asked.params.not_after) = (begin, end);
        let chain = asked.signed_by(&self.issuer).unwrap().pem();
        let time = |at: OffsetDateTime| jiff::Timestamp::from_second(at.unix_timestamp()).unwrap().to_string();
        self.answer(
            request,
            "Issued",
            json!({
                "certificateChain": chain, "notBefore": time(begin), "notAfter": time(end),
                "beginRefreshAt": time(second + renew_in),
            }),
        );
    }

    fn answer(&self, request: &Value, kind: &str, mut status: Value) {
        status["conditions"] = json!([{
            "type": kind, "status": "True", "reason": "Test", "message": "by a test",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let name = request["metadata"]["name"].as_str().unwrap();
        let patch = self.k.cluster.file("answer.json", &json!({"status": status}).to_string());
        self.k
            .ok(&format!("patch podcertificaterequest {name} --subresource=status --type=merge --patch-file {patch}"));
    }
}

fn certified(name: &str, signer: &str) -> String {
    let sources = json!([
        {"podCertificate": {
            "signerName": signer, "keyType": "ECDSAP256", "credentialBundlePath": "bundle.pem",
            "userAnnotations": {"example.com/role": "web"},
        }},
        {"podCertificate": {
            "signerName": signer, "keyType": "ED25519", "keyPath": "key.pem", "certificateChainPath": "chain.pem",
        }},
    ]);
    let mounts = json!({"volumeMounts": [{"name": "identity", "mountPath": "/identity"}]});
    manifest(
        name,
        json!({
            "serviceAccountName": "robot",
            "containers": [container("c", "exec sleep 1000", mounts)],
            "volumes": [{"name": "identity", "projected": {"sources": sources}}],
        }),
    )
}

#[test]
fn a_pod_gets_certificates_of_a_signer_and_they_are_renewed() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create serviceaccount robot");
    k.create(&certified("p", SIGNER));
    let signer = TestSigner::new(&k);
    let first = signer.next_request("p");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].state.waiting.reason}"), "ContainerCreating");
    let spec = &first["spec"];
    for (field, what, path) in [
        ("podUID", "pod p", "{.metadata.uid}"),
        ("nodeName", "pod p", "{.spec.nodeName}"),
        ("nodeUID", "node", "{.items[0].metadata.uid}"),
        ("serviceAccountUID", "serviceaccount robot", "{.metadata.uid}"),
    ] {
        assert_eq!(spec[field], k.value(what, path), "{field}");
    }
    assert_eq!((&spec["serviceAccountName"], &spec["signerName"]), (&json!("robot"), &json!(SIGNER)));
    let is_bundle = |request: &Value| request["spec"]["unverifiedUserAnnotations"]["example.com/role"] == "web";
    let soon = |request: &Value| if is_bundle(request) { Duration::seconds(2) } else { Duration::hours(1) };
    signer.issue(&first, "first", soon(&first));
    let second = signer.next_request("p");
    assert_ne!(is_bundle(&first), is_bundle(&second), "each source has a certificate of its own");
    signer.issue(&second, "first", soon(&second));
    until_running(&k, "p");

    let files = shell(&k, "p", "ls /identity; grep -h BEGIN /identity/*");
    let expected = "bundle.pem\nchain.pem\nkey.pem\n-----BEGIN PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n\
                    -----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----";
    assert_eq!(files, expected);
    let bundle = || shell(&k, "p", "cat /identity/bundle.pem");
    let (before, key_of) = (bundle(), |bundle: &str| KeyPair::from_pem(bundle).unwrap().public_key_raw().to_vec());
    let renewal = signer.next_request("p");
    assert!(is_bundle(&renewal) && renewal["spec"]["stubPKCS10Request"] != spec["stubPKCS10Request"], "{renewal}");
    assert_eq!(bundle(), before, "the old one is there until there is a new one");
    signer.issue(&renewal, "second", Duration::hours(1));
    let after = eventually("the certificate is renewed", || Some(bundle()).filter(|bundle| *bundle != before));
    assert_ne!(key_of(&after), key_of(&before), "with a new key");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].restartCount}"), "0");

    k.create(&certified("denied", "example.com/strict"));
    let request = signer.next_request("denied");
    signer.answer(&request, "Denied", json!({}));
    let name = request["metadata"]["name"].as_str().unwrap();
    let expected =
        format!("PodCertificateRequest default/{name} was denied by signer example.com/strict: Test: by a test");
    eventually("it is said why the pod does not start", || {
        let events = k.ok("get events --field-selector reason=FailedMount -o jsonpath={.items[*].message}");
        events.contains(&expected).then_some(())
    });
}
