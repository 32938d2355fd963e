//! PodCertificateRequest: a node asks a signer for a certificate of one of its pods. What is asked for never changes; what
//! the signer answered never changes either.

use k8s_openapi::api::certificates::v1::{PodCertificateRequest, PodCertificateRequestStatus};

use super::signing_request::validate_signer;
use crate::{
    field::{Errors, FieldError, Path},
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
        } else if !is_signing_request(request) {
            errors.push(FieldError::invalid(
                &at,
                "<value omitted>",
                "must be a PKCS#10 request in DER, signed by its key",
            ));
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
    }
}

fn is_signing_request(der: &[u8]) -> bool {
    use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer};
    X509CertificationRequest::from_der(der).is_ok_and(|(rest, _)| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

    fn request() -> Value {
        let key = KeyPair::generate().unwrap();
        let stub = CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap();
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
}
