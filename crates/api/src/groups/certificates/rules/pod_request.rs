//! PodCertificateRequest: a node asks a signer for a certificate of one of its pods. What is asked for never changes; what
//! the signer answered never changes either.

use k8s_openapi::{
    api::certificates::v1::{PodCertificateRequest, PodCertificateRequestStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use x509_parser::{certificate::X509Certificate, pem::Pem, prelude::FromDer};

use super::signing_request::validate_signer;
use crate::{
    field::{Errors, FieldError, Path},
    signing_request::proven_key,
    strategy::Rules,
    validation::{
        check::{immutable, list, present},
        labels, names,
    },
};

pub struct PodCertificateRequestRules;

const STOCK_SECONDS: i32 = 24 * 60 * 60;
const MIN_SECONDS: i32 = 60 * 60;
const MAX_SECONDS: i32 = 91 * 24 * 60 * 60;
/// Signers of upstream's own sign for a day at most.
const MAX_OWN_SECONDS: i32 = 24 * 60 * 60;
const MAX_REQUEST: usize = 10 * 1024;
/// A certificate is renewed neither right after it was issued nor shortly before it expires.
const REFRESH_MARGIN: i64 = 10 * 60;
const OMITTED: &str = "<value omitted>";
const ENDINGS: [&str; 3] = ["Issued", "Denied", "Failed"];

impl Rules for PodCertificateRequestRules {
    type Object = PodCertificateRequest;

    fn default(object: &mut PodCertificateRequest) {
        object.spec.max_expiration_seconds.get_or_insert(STOCK_SECONDS);
    }

    fn prepare_create(object: &mut PodCertificateRequest) {
        object.status = Some(Default::default());
    }

    fn validate(object: &PodCertificateRequest, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        validate_signer(&spec.signer_name, &path.child("signerName"), errors);
        for (field, name) in [
            ("podName", &spec.pod_name),
            ("serviceAccountName", &spec.service_account_name),
            ("nodeName", &spec.node_name),
        ] {
            names::require(name, &path.child(field), names::dns1123_subdomain, errors);
        }
        for (field, uid) in
            [("podUID", &spec.pod_uid), ("serviceAccountUID", &spec.service_account_uid), ("nodeUID", &spec.node_uid)]
        {
            present(uid, &path.child(field), errors);
            if uid.len() > 128 {
                errors.push(FieldError::too_long(&path.child(field), 128));
            }
        }
        let is_own = spec.signer_name.split('/').next() == Some("kubernetes.io");
        let most = if is_own { MAX_OWN_SECONDS } else { MAX_SECONDS };
        let seconds = spec.max_expiration_seconds.unwrap_or_default();
        if !(MIN_SECONDS..=most).contains(&seconds) {
            let words = format!("must be in the range [{MIN_SECONDS}, {most}]");
            errors.push(FieldError::invalid(&path.child("maxExpirationSeconds"), seconds, words));
        }
        let (request, at) = (&spec.stub_pkc_s10_request.0, path.child("stubPKCS10Request"));
        if request.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if request.len() > MAX_REQUEST {
            errors.push(FieldError::too_long(&at, MAX_REQUEST));
        } else if proven_key(request).is_none() {
            errors.push(FieldError::invalid(&at, OMITTED, "must be a PKCS#10 request in DER, signed by its key"));
        }
        if let Some(annotations) = &spec.unverified_user_annotations {
            labels::validate_annotations(annotations, &path.child("unverifiedUserAnnotations"), errors);
        }
    }

    fn validate_update(object: &PodCertificateRequest, old: &PodCertificateRequest, errors: &mut Errors) {
        immutable(&object.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(object: &PodCertificateRequest, old: &PodCertificateRequest, errors: &mut Errors) {
        let (empty, path) = (PodCertificateRequestStatus::default(), Path::new("status"));
        let (new, old) = (object.status.as_ref().unwrap_or(&empty), old.status.as_ref().unwrap_or(&empty));
        let ended = |status: &PodCertificateRequestStatus| {
            list(&status.conditions).iter().filter(|own| ENDINGS.contains(&own.type_.as_str())).count()
        };
        if ended(old) > 0 {
            immutable(new, old, &path, errors);
            return;
        }
        let at = path.child("conditions");
        for (i, condition) in list(&new.conditions).iter().enumerate() {
            let at = at.index(i);
            if !ENDINGS.contains(&condition.type_.as_str()) {
                errors.push(FieldError::not_supported(&at.child("type"), condition.type_.as_str(), &ENDINGS));
            }
            if condition.status != "True" {
                errors.push(FieldError::not_supported(&at.child("status"), condition.status.as_str(), &["True"]));
            }
        }
        if ended(new) > 1 {
            let words = r#"There may be at most one condition with type "Issued", "Denied", or "Failed""#;
            errors.push(FieldError::invalid(&at, "", words));
        }
        let is_issued = list(&new.conditions).iter().any(|own| own.type_ == "Issued");
        let fields = [
            ("certificateChain", new.certificate_chain.as_ref().is_some_and(|chain| !chain.is_empty())),
            ("notBefore", new.not_before.is_some()),
            ("beginRefreshAt", new.begin_refresh_at.is_some()),
            ("notAfter", new.not_after.is_some()),
        ];
        for (field, is_set) in fields {
            if is_set != is_issued {
                let words = format!("must {}be set", if is_issued { "" } else { "not " });
                errors.push(FieldError::forbidden(&path.child(field), words));
            }
        }
        if is_issued && fields.iter().all(|(_, is_set)| *is_set) {
            validate_issued(object, new, &path, errors);
        }
    }
}

/// What was issued is for the key that asked, and lives as long as the status says and the request allows.
fn validate_issued(
    object: &PodCertificateRequest,
    status: &PodCertificateRequestStatus,
    path: &Path,
    errors: &mut Errors,
) {
    let (spec, at) = (&object.spec, path.child("certificateChain"));
    let leaf = match parse_chain(status.certificate_chain.as_deref().unwrap_or_default()) {
        Ok(leaf) => leaf,
        Err(words) => return errors.push(FieldError::invalid(&at, OMITTED, words)),
    };
    if proven_key(&spec.stub_pkc_s10_request.0).as_ref() != Some(&leaf.public_key) {
        let words = "leaf certificate was not issued to the requested public key";
        errors.push(FieldError::invalid(&at, OMITTED, words));
    }
    let second = |time: &Option<Time>| time.as_ref().map(|time| time.0.as_second()).unwrap_or_default();
    let (begin, refresh, end) =
        (second(&status.not_before), second(&status.begin_refresh_at), second(&status.not_after));
    let shown = |time: &Option<Time>| time.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
    for (field, time, seconds, words) in [
        ("notBefore", &status.not_before, (begin, leaf.not_before), "NotBefore"),
        ("notAfter", &status.not_after, (end, leaf.not_after), "NotAfter"),
    ] {
        if seconds.0 != seconds.1 {
            let words = format!("must be set and equal to {words} on the leaf certificate in certificateChain");
            errors.push(FieldError::invalid(&path.child(field), shown(time), words));
        }
    }
    let lifetime = leaf.not_after.saturating_sub(leaf.not_before);
    let most = i64::from(spec.max_expiration_seconds.unwrap_or(STOCK_SECONDS));
    if lifetime < i64::from(MIN_SECONDS) {
        errors.push(FieldError::invalid(&at, OMITTED, "leaf certificate lifetime must be >= 1 hour"));
    } else if lifetime > most {
        let words = format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most})");
        errors.push(FieldError::invalid(&at, OMITTED, words));
    }
    let at = path.child("beginRefreshAt");
    let refused = if refresh < begin.saturating_add(REFRESH_MARGIN) {
        "must be at least 10 minutes after status.notBefore"
    } else if refresh > end.saturating_sub(REFRESH_MARGIN) {
        "must be at least 10 minutes before status.notAfter"
    } else {
        return;
    };
    errors.push(FieldError::invalid(&at, shown(&status.begin_refresh_at), refused));
}

/// What a chain's first certificate says.
struct Leaf {
    public_key: Vec<u8>,
    not_before: i64,
    not_after: i64,
}

fn parse_chain(chain: &str) -> Result<Leaf, &'static str> {
    let mut leaf = None;
    for block in Pem::iter_from_buffer(chain.as_bytes()) {
        let block = block.map_err(|_| "must consist of PEM blocks")?;
        if block.label != "CERTIFICATE" {
            return Err("must consist of PEM blocks of type CERTIFICATE");
        }
        let Ok(([], certificate)) = X509Certificate::from_der(&block.contents) else {
            return Err("must consist of X.509 certificates");
        };
        let validity = certificate.validity();
        leaf.get_or_insert_with(|| Leaf {
            public_key: certificate.public_key().raw.to_vec(),
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
        });
    }
    leaf.ok_or("must contain at least one certificate")
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

    fn request() -> Value {
        request_for(&KeyPair::generate().unwrap())
    }

    fn request_for(key: &KeyPair) -> Value {
        let stub = CertificateParams::new(Vec::new()).unwrap().serialize_request(key).unwrap();
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
            "metadata": {"name": "r", "namespace": "a"},
            "spec": {
                "signerName": "example.com/s", "podName": "p", "podUID": "1", "serviceAccountName": "default",
                "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3", "stubPKCS10Request": STANDARD.encode(stub.der()),
            },
        })
    }

    #[test]
    fn a_request_is_for_a_day_and_within_bounds() {
        assert_eq!(completed::<PodCertificateRequestRules>(request())["spec"]["maxExpirationSeconds"], 86_400);
        assert_refused::<PodCertificateRequestRules>(
            with(&request(), json!({"spec": {"maxExpirationSeconds": 60, "podUID": "", "stubPKCS10Request": "AAAA"}})),
            &[
                "spec.podUID: Required value",
                "spec.maxExpirationSeconds: Invalid value: 60: must be in the range [3600, 7862400]",
                r#"spec.stubPKCS10Request: Invalid value: "<value omitted>": must be a PKCS#10 request in DER, signed by its key"#,
            ],
        );
    }

    #[test]
    fn what_is_asked_and_answered_never_changes() {
        let base = request();
        let mut changed = completed::<PodCertificateRequestRules>(base.clone())["spec"].take();
        changed["podName"] = json!("other");
        let expected = format!("spec: Invalid value: {changed}: field is immutable");
        assert_update::<PodCertificateRequestRules>(&base, json!({"spec": {"podName": "other"}}), &[&expected]);
        let condition = json!({
            "type": "Issued", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        assert_status::<PodCertificateRequestRules>(
            &base,
            json!({"status": {"conditions": [condition], "certificateChain": "x", "notBefore": "2026-01-01T00:00:00Z"}}),
            &["status.beginRefreshAt: Forbidden: must be set", "status.notAfter: Forbidden: must be set"],
        );
    }

    #[test]
    fn a_request_is_signed_by_its_own_key() {
        let stub = |key: &KeyPair| request_for(key)["spec"]["stubPKCS10Request"].as_str().unwrap().to_owned();
        let mut der = STANDARD.decode(stub(&KeyPair::generate().unwrap())).unwrap();
        assert!(proven_key(&der).is_some());
        let last = der.len() - 1;
        der[last] ^= 1;
        assert!(proven_key(&der).is_none());
    }

    #[test]
    fn what_is_issued_is_for_the_key_that_asked_and_lives_as_long_as_it_says() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let chain = |key: &KeyPair, hours: i64| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.not_before = rcgen::date_time_ymd(2026, 1, 1);
            params.not_after = params.not_before + std::time::Duration::from_secs(hours.unsigned_abs() * 3600);
            params.self_signed(key).unwrap().pem()
        };
        let issued = |chain: String, refresh: &str, end: &str| {
            let condition = json!({
                "type": "Issued", "status": "True", "reason": "r", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            json!({"status": {
                "conditions": [condition], "certificateChain": chain, "notBefore": "2026-01-01T00:00:00Z",
                "beginRefreshAt": refresh, "notAfter": end,
            }})
        };
        let base = request_for(&key);
        let (refresh, end) = ("2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z");
        let refused_chain =
            |words: &str| format!(r#"status.certificateChain: Invalid value: "<value omitted>": {words}"#);
        for (status, expected) in [
            (issued(chain(&key, 2), refresh, end), vec![]),
            (
                issued(chain(&other, 2), refresh, end),
                vec![refused_chain("leaf certificate was not issued to the requested public key")],
            ),
            (issued("x".to_owned(), refresh, end), vec![refused_chain("must contain at least one certificate")]),
            (issued(other.serialize_pem(), refresh, end), vec![refused_chain("must consist of PEM blocks of type CERTIFICATE")]),
            (
                issued(chain(&key, 48), refresh, end),
                vec![
                    format!(
                        "status.notAfter: Invalid value: {end:?}: must be set and equal to NotAfter on the leaf certificate \
                         in certificateChain"
                    ),
                    refused_chain("leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"),
                ],
            ),
            (
                issued(chain(&key, 2), "2026-01-01T01:55:00Z", end),
                vec![
                    r#"status.beginRefreshAt: Invalid value: "2026-01-01T01:55:00Z": must be at least 10 minutes before status.notAfter"#
                        .to_owned(),
                ],
            ),
        ] {
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            assert_status::<PodCertificateRequestRules>(&base, status, &expected);
        }
    }
}
