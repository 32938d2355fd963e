//! ClusterTrustBundle: certificates of authorities, for pods to verify others with.

use std::collections::BTreeMap;

use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use x509_parser::{pem::Pem, prelude::FromDer, prelude::X509Certificate};

use super::signing_request::validate_signer;
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{immutable, text},
        names,
    },
};

pub struct ClusterTrustBundleRules;

const MAX_BYTES: usize = 1 << 20;
const OMITTED: &str = "<value omitted>";

impl Rules for ClusterTrustBundleRules {
    type Object = ClusterTrustBundle;

    fn default(_: &mut ClusterTrustBundle) {}

    fn validate(object: &ClusterTrustBundle, errors: &mut Errors) {
        let (path, signer) = (Path::new("spec"), text(&object.spec.signer_name));
        let (name, at) = (text(&object.metadata.name), Path::new("metadata").child("name"));
        if let Some(words) = name_complaint(name, signer) {
            errors.push(FieldError::invalid(&at, name, words));
        }
        if !signer.is_empty() {
            validate_signer(signer, &path.child("signerName"), errors);
        }
        validate_bundle(&object.spec.trust_bundle, &path.child("trustBundle"), errors);
    }

    fn validate_update(object: &ClusterTrustBundle, old: &ClusterTrustBundle, errors: &mut Errors) {
        let path = Path::new("spec").child("signerName");
        immutable(&object.spec.signer_name, &old.spec.signer_name, &path, errors);
    }
}

/// A bundle of a signer is named after it.
fn name_complaint(name: &str, signer: &str) -> Option<String> {
    let rest = match signer {
        "" if name.contains(':') => {
            return Some(r#"ClusterTrustBundle without signer name must not have ":" in its name"#.to_owned());
        }
        "" => name,
        signer => {
            let prefix = format!("{}:", signer.replace('/', ":"));
            let Some(rest) = name.strip_prefix(&prefix) else {
                let words = format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}");
                return Some(words);
            };
            rest
        }
    };
    names::dns1123_subdomain(rest).into_iter().next()
}

fn validate_bundle(bundle: &str, path: &Path, errors: &mut Errors) {
    if bundle.len() > MAX_BYTES {
        errors.push(FieldError::too_long(path, MAX_BYTES));
        return;
    }
    let mut refuse = |words: String| errors.push(FieldError::invalid(path, OMITTED, words));
    let mut indices: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    let mut count = 0;
    for (i, block) in Pem::iter_from_buffer(bundle.as_bytes()).enumerate() {
        let Ok(block) = block else {
            refuse(format!("entry {i} does not parse as PEM"));
            break;
        };
        count += 1;
        if block.label != "CERTIFICATE" {
            refuse(format!("entry {i} has bad block type: {}", block.label));
            continue;
        }
        let Ok((rest, certificate)) = X509Certificate::from_der(&block.contents) else {
            refuse(format!("entry {i} does not parse as X.509"));
            continue;
        };
        if !rest.is_empty() {
            refuse(format!("entry {i} does not parse as X.509"));
        } else if !certificate.is_ca() {
            refuse(format!("entry {i} does not have the CA bit set"));
        }
        indices.entry(block.contents).or_default().push(i);
    }
    if count == 0 {
        refuse("at least one trust anchor must be provided".to_owned());
    }
    for same in indices.values().filter(|same| same.len() > 1) {
        let same: Vec<_> = same.iter().map(ToString::to_string).collect();
        refuse(format!("duplicate trust anchor (indices [{}])", same.join(" ")));
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_update, with};

    fn certificate(is_ca: bool) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn bundle(name: &str, spec: Value) -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": {"name": name}, "spec": spec,
        })
    }

    #[test]
    fn a_bundle_of_a_signer_is_named_after_it() {
        let anchor = certificate(true);
        let signed = json!({"signerName": "example.com/ca", "trustBundle": anchor});
        assert_refused::<ClusterTrustBundleRules>(bundle("example.com:ca:v1", signed.clone()), &[]);
        assert_refused::<ClusterTrustBundleRules>(bundle("anchors", json!({"trustBundle": anchor})), &[]);
        assert_refused::<ClusterTrustBundleRules>(
            bundle("anchors", signed.clone()),
            &[
                r#"metadata.name: Invalid value: "anchors": ClusterTrustBundle for signerName example.com/ca must be named with prefix example.com:ca:"#,
            ],
        );
        assert_refused::<ClusterTrustBundleRules>(
            bundle("a:b", json!({"trustBundle": anchor})),
            &[
                r#"metadata.name: Invalid value: "a:b": ClusterTrustBundle without signer name must not have ":" in its name"#,
            ],
        );
        let other = with(&json!({}), json!({"spec": {"signerName": "example.com/other"}}));
        let old = bundle("example.com:ca:v1", signed);
        assert_update::<ClusterTrustBundleRules>(
            &old,
            other,
            &[
                r#"metadata.name: Invalid value: "example.com:ca:v1": ClusterTrustBundle for signerName example.com/other must be named with prefix example.com:other:"#,
                r#"spec.signerName: Invalid value: "example.com/other": field is immutable"#,
            ],
        );
    }

    #[test]
    fn anchors_are_certificates_of_authorities() {
        let (anchor, leaf) = (certificate(true), certificate(false));
        let omitted = r#"spec.trustBundle: Invalid value: "<value omitted>": "#;
        for (text, words) in [
            (String::new(), "at least one trust anchor must be provided"),
            (leaf, "entry 0 does not have the CA bit set"),
            (format!("{anchor}{anchor}"), "duplicate trust anchor (indices [0 1])"),
            (anchor.replace("CERTIFICATE", "PRIVATE KEY"), "entry 0 has bad block type: PRIVATE KEY"),
        ] {
            let expected = format!("{omitted}{words}");
            assert_refused::<ClusterTrustBundleRules>(bundle("anchors", json!({"trustBundle": text})), &[&expected]);
        }
    }
}
