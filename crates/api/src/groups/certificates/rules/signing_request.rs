//! CertificateSigningRequest.
//!
//! Who asks is not taken from the object: the server puts the requester in. What is asked for
//! never changes.

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{list, one_of, shown, unique},
        names,
    },
};

pub struct CertificateSigningRequestRules;

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const MIN_SECONDS: i32 = 600;
const MAX_SIGNER: usize = 571;

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

impl Rules for CertificateSigningRequestRules {
    type Object = CertificateSigningRequest;

    fn default(_: &mut CertificateSigningRequest) {}

    fn prepare_create(object: &mut CertificateSigningRequest) {
        object.status = Some(Default::default());
    }

    fn prepare_update(object: &mut CertificateSigningRequest, old: &CertificateSigningRequest) {
        object.spec = old.spec.clone();
    }

    fn validate(object: &CertificateSigningRequest, errors: &mut Errors) {
        validate_spec(&object.spec, &Path::new("spec"), errors);
    }

    fn validate_status(object: &CertificateSigningRequest, old: &CertificateSigningRequest, errors: &mut Errors) {
        let path = Path::new("status").child("conditions");
        let has = |request: &CertificateSigningRequest, kind: &str| {
            let conditions = request.status.iter().flat_map(|status| list(&status.conditions));
            conditions.into_iter().any(|condition| condition.type_ == kind)
        };
        if has(object, "Approved") && has(object, "Denied") {
            errors.push(FieldError::invalid(&path, "Denied", "Approved and Denied conditions are mutually exclusive"));
        }
        for kind in ["Approved", "Denied", "Failed"] {
            if has(old, kind) && !has(object, kind) {
                let words = format!("updates may not remove a condition of type {kind:?}");
                errors.push(FieldError::forbidden(&path, words));
            }
        }
    }
}

fn validate_spec(spec: &CertificateSigningRequestSpec, path: &Path, errors: &mut Errors) {
    if !is_request(&spec.request.0) {
        let words = "PEM block type must be CERTIFICATE REQUEST";
        errors.push(FieldError::invalid(&path.child("request"), shown(&spec.request), words));
    }
    let (usages, at) = (list(&spec.usages), path.child("usages"));
    if usages.is_empty() {
        errors.push(FieldError::required(&at, ""));
    }
    for (i, usage) in usages.iter().enumerate() {
        one_of(usage, USAGES, &at.index(i), errors);
    }
    unique(usages.iter().enumerate().map(|(i, usage)| (at.index(i), usage.as_str())), errors);
    validate_signer(&spec.signer_name, &path.child("signerName"), errors);
    if let Some(seconds) = spec.expiration_seconds.filter(|seconds| *seconds < MIN_SECONDS) {
        let words =
            format!("may not specify a duration less than {MIN_SECONDS} seconds ({} minutes)", MIN_SECONDS / 60);
        errors.push(FieldError::invalid(&path.child("expirationSeconds"), seconds, words));
    }
}

/// Whether this is a PEM block of the right kind; its content is for the signer to judge.
fn is_request(pem: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(pem) else { return false };
    let Some((_, rest)) = text.split_once("-----BEGIN CERTIFICATE REQUEST-----") else { return false };
    let Some((body, _)) = rest.split_once("-----END CERTIFICATE REQUEST-----") else { return false };
    let mut body = body.bytes().filter(|byte| !byte.is_ascii_whitespace()).peekable();
    body.peek().is_some() && body.all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
}

pub(super) fn validate_signer(name: &str, path: &Path, errors: &mut Errors) {
    let mut refuse = |value: &str, words: String| errors.push(FieldError::invalid(path, value, words));
    if name == LEGACY_SIGNER {
        refuse(name, "the legacy signerName is not allowed via this API version".to_owned());
        return;
    }
    let Some((domain, signer)) = name.split_once('/').filter(|(_, signer)| !signer.contains('/')) else {
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else {
            let words = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
            refuse(name, words.to_owned());
        }
        return;
    };
    let complaints = names::dns1123_subdomain(domain);
    if !complaints.is_empty() {
        refuse(domain, complaints.join(","));
    } else if !domain.contains('.') {
        refuse(domain, "should be a domain with at least two segments separated by dots".to_owned());
    }
    for words in names::dns1123_subdomain(signer) {
        refuse(signer, format!("validating label {signer:?}: {words}"));
    }
    if name.len() > MAX_SIGNER {
        errors.push(FieldError::too_long(path, MAX_SIGNER));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

    // A PEM block with "AAAA" in it.
    const REQUEST: &str =
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KQUFBQQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K";

    fn request() -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "eve"},
            "spec": {"request": REQUEST, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
        })
    }

    #[test]
    fn bad_requests_are_refused_with_upstreams_messages() {
        assert_eq!(completed::<CertificateSigningRequestRules>(request())["status"], json!({}));
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"request": "AAAA"}),
                &[r#"spec.request: Invalid value: "AAAA": PEM block type must be CERTIFICATE REQUEST"#],
            ),
            (json!({"usages": []}), &["spec.usages: Required value"]),
            (
                json!({"usages": ["client auth", "client auth"], "signerName": "mine", "expirationSeconds": 5}),
                &[
                    r#"spec.usages[1]: Duplicate value: "client auth""#,
                    r#"spec.signerName: Invalid value: "mine": must be a fully qualified domain and path of the form 'example.com/signer-name'"#,
                    "spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 minutes)",
                ],
            ),
            (
                json!({"signerName": LEGACY_SIGNER}),
                &[
                    r#"spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": the legacy signerName is not allowed via this API version"#,
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<CertificateSigningRequestRules>(with(&request(), json!({"spec": change})), expected);
        }
    }

    #[test]
    fn what_is_asked_for_never_changes() {
        assert_update::<CertificateSigningRequestRules>(&request(), json!({"spec": {"usages": ["any"]}}), &[]);
        assert_status::<CertificateSigningRequestRules>(
            &request(),
            json!({"status": {"conditions": [{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]}}),
            &[r#"status.conditions: Invalid value: "Denied": Approved and Denied conditions are mutually exclusive"#],
        );
    }
}
