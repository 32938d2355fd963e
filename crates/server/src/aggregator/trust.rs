//! The ConfigMap `kube-system/extension-apiserver-authentication`: by it other API servers know whose client certificates count,
//! and who may say in `X-Remote-*` headers on whose behalf a request comes.
//!
//! Every server adds its own front-proxy authority to those that are there, as upstream's do; expired ones are left out.

use std::collections::BTreeSet;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, Pem, X509Certificate};

use super::{FrontProxy, remote_headers};
use crate::{
    background::bootstrap::{BootstrapClient, BootstrapError, failed},
    pki::FRONT_PROXY_CLIENT,
};

const COLLECTION: &str = "/api/v1/namespaces/kube-system/configmaps";
const NAME: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "client-ca-file";
const FRONT_PROXY_CA: &str = "requestheader-client-ca-file";

/// Writes the ConfigMap, if it lacks anything.
pub async fn publish(client: &BootstrapClient<'_>, ca: &str, front_proxy: &FrontProxy) -> Result<(), BootstrapError> {
    let path = format!("{COLLECTION}/{NAME}");
    let now = Timestamp::now();
    let (code, found) = client.call(Method::GET, &path, None).await;
    let answer = match code {
        StatusCode::OK => {
            let data = merged(&found["data"], ca, &front_proxy.authority, now);
            if data == found["data"] {
                return Ok(());
            }
            let mut wanted = found;
            wanted["data"] = data;
            client.call(Method::PUT, &path, Some(&wanted)).await
        }
        StatusCode::NOT_FOUND => {
            let wanted = json!({
                "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": NAME, "namespace": "kube-system" },
                "data": merged(&Value::Null, ca, &front_proxy.authority, now),
            });
            client.call(Method::POST, COLLECTION, Some(&wanted)).await
        }
        _ => (code, found),
    };
    match answer {
        // Another server was faster; this one looks again.
        (StatusCode::OK | StatusCode::CREATED | StatusCode::CONFLICT, _) => Ok(()),
        (_, status) => Err(failed(COLLECTION, NAME, &status)),
    }
}

/// What is there, with what this server adds.
fn merged(data: &Value, ca: &str, front_proxy_ca: &str, now: Timestamp) -> Value {
    let mut data = if data.is_object() { data.clone() } else { json!({}) };
    let bundle = |known: &Value, own: &str| combine(known.as_str().unwrap_or_default(), own, now);
    data[CLIENT_CA] = bundle(&data[CLIENT_CA], ca).into();
    data[FRONT_PROXY_CA] = bundle(&data[FRONT_PROXY_CA], front_proxy_ca).into();
    let list = |name: &str| json!([name]).to_string();
    data["requestheader-allowed-names"] = list(FRONT_PROXY_CLIENT).into();
    data["requestheader-username-headers"] = list(&title(remote_headers::USER)).into();
    data["requestheader-uid-headers"] = list(&title(remote_headers::UID)).into();
    data["requestheader-group-headers"] = list(&title(remote_headers::GROUP)).into();
    data["requestheader-extra-headers-prefix"] = list(&title(remote_headers::EXTRA_PREFIX)).into();
    data
}

/// `X-Remote-User`, as the header is written in documents.
fn title(header: &str) -> String {
    let words = header.split('-').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("-")
}

/// The certificates of both, each once, without those that have expired.
fn combine(known: &str, own: &str, now: Timestamp) -> String {
    let mut seen = BTreeSet::new();
    let mut bundle = String::new();
    for pem in Pem::iter_from_buffer(known.as_bytes()).chain(Pem::iter_from_buffer(own.as_bytes())).flatten() {
        let is_valid = X509Certificate::from_der(&pem.contents)
            .is_ok_and(|(_, certificate)| certificate.validity().not_after.timestamp() > now.as_second());
        if is_valid && seen.insert(pem.contents.clone()) {
            bundle += &encode(&pem.contents);
        }
    }
    bundle
}

fn encode(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len()).step_by(64).filter_map(|at| text.get(at..text.len().min(at + 64))).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Pki;

    #[test]
    fn servers_add_their_authorities_and_none_is_named_twice() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |dir: &std::path::Path| Pki::open(dir, &["localhost".to_owned()]).unwrap();
        let (one, other) = (open(one.path()), open(other.path()));
        let now = Timestamp::now();
        let count = |data: &Value| data[FRONT_PROXY_CA].as_str().unwrap().matches("BEGIN CERTIFICATE").count();
        let first = merged(&Value::Null, &one.ca, one.front_proxy_authority.certificate(), now);
        assert_eq!((count(&first), &first["requestheader-allowed-names"]), (1, &json!(r#"["front-proxy-client"]"#)));
        assert_eq!(first["requestheader-extra-headers-prefix"], r#"["X-Remote-Extra-"]"#);
        assert_eq!(merged(&first, &one.ca, one.front_proxy_authority.certificate(), now), first, "rests");
        let both = merged(&first, &one.ca, other.front_proxy_authority.certificate(), now);
        assert_eq!(count(&both), 2);
        assert_eq!(both[CLIENT_CA].as_str().unwrap().matches("BEGIN").count(), 1);
        let later = now + jiff::SignedDuration::from_hours(24 * 4000);
        assert_eq!(combine(first[FRONT_PROXY_CA].as_str().unwrap(), "", later), "", "expired");
    }
}
