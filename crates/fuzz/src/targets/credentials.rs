//! Tokens, certificates and requests for certificates.

use std::sync::LazyLock;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use http::StatusCode;
use mainstay_server::{auth::jws, pki};
use mainstay_tls::Subject;
use serde_json::{Value, json};

use super::{documents, requests};

/// The token key is found in the store, where a cluster has it too.
pub const TOKEN_KEY: &str = "/mainstay/service-account-key";

pub static KEY: LazyLock<Vec<u8>> = LazyLock::new(|| jws::Key::generate().expect("a key"));

/// `{"header", "claims", "signature"}`, or a token as it is. Nothing that the cluster's key has not signed is believed; claims that it
/// has signed name no more than an account that exists.
pub fn jwt(input: &[u8]) {
    let key = jws::Key::parse(&KEY).expect("our own key");
    let Some([header, claims, signature]) = documents(input, ["header", "claims", "signature"]) else {
        let token = String::from_utf8_lossy(input);
        assert!(key.verify::<Value>(&token).is_err());
        return refused(&token);
    };
    let part = |value: &Value| BASE64.encode(value.to_string());
    let forged = format!("{}.{}.{}", part(&header), part(&claims), signature.as_str().unwrap_or_default());
    assert!(key.verify::<Value>(&forged).is_err(), "a forged token");
    refused(&forged);
    let signed = key.sign(&claims).expect("signed");
    assert_eq!(key.verify::<Value>(&signed).ok().as_ref(), Some(&claims));
    refused(&signed); // no such account
}

fn refused(token: &str) {
    let status = requests::with_token(token);
    assert!(matches!(status, StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST), "{status}");
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let (status, answer) = requests::post("/apis/authentication.k8s.io/v1/tokenreviews", &review);
    assert!(status.is_success() || status.is_client_error(), "{status}");
    assert_ne!(answer["status"]["authenticated"], true, "{token}");
}

pub fn client_certificate(input: &[u8]) {
    let _ = Subject::from_der(&input.into());
}

/// As PEM, or as the DER within.
pub fn certificate_request(input: &[u8]) {
    let pem = match input.starts_with(b"-----") {
        true => input.to_vec(),
        false => {
            let body = base64::prelude::BASE64_STANDARD.encode(input);
            format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n").into_bytes()
        }
    };
    if let Ok(request) = pki::Request::parse(&pem) {
        assert!(request.common_names > 0 || request.common_name.is_empty());
    }
}
