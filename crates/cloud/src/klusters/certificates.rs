//! Certificates of Klusters: the authorities of each, and the certificate of its administrator.
//!
//! Authorities last ten years and are made once: everybody who knows the Kluster knows it by them. The administrator's certificate lasts a year and
//! is made anew 90 days before its end. What the Kluster's servers present to others they make themselves, from these authorities, and renew likewise.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use mainstay_api::encode::to_yaml;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, Pem, X509Certificate};

const AUTHORITY_LIFE: Duration = Duration::days(3650);
const LEAF_LIFE: Duration = Duration::days(365);
pub const RENEW_BEFORE: Duration = Duration::days(90);
/// Clocks of clients may be behind.
const BACKDATE: Duration = Duration::hours(2);

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("make the certificate of {name}")]
    Make {
        name: &'static str,
        #[source]
        source: rcgen::Error,
    },
    #[error("the authority in Secret {secret} is not usable; the Kluster can be reached by nobody without it")]
    Authority { secret: String },
}

/// A certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificatePair {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CertificatePair(<hidden>)")
    }
}

fn parameters(name: &str, group: Option<&str>, life: Duration, now: OffsetDateTime) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    parameters.distinguished_name = subject;
    parameters.not_before = now - BACKDATE;
    parameters.not_after = now + life;
    parameters
}

fn timestamp(now: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(now.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

pub fn make_authority(name: &'static str, now: Timestamp) -> Result<CertificatePair, CertificateError> {
    let fail = |source| CertificateError::Make { name, source };
    let mut parameters = parameters(&format!("kluster-{name}"), None, AUTHORITY_LIFE, timestamp(now));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = parameters.self_signed(&key).map_err(fail)?;
    Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The certificate of somebody who may do everything in the Kluster.
pub fn make_administrator(
    authority: &CertificatePair,
    secret: &str,
    user: &str,
    now: Timestamp,
) -> Result<CertificatePair, CertificateError> {
    let unusable = || CertificateError::Authority { secret: secret.to_owned() };
    let key = KeyPair::from_pem(&authority.key).map_err(|_| unusable())?;
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate, key).map_err(|_| unusable())?;
    let fail = |source| CertificateError::Make { name: "the administrator", source };
    let mut parameters = parameters(user, Some("system:masters"), LEAF_LIFE, timestamp(now));
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = parameters.signed_by(&key, &issuer).map_err(fail)?;
    Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// When a certificate is to be made anew; at once if it cannot be read.
pub fn renewal_time(pem: &str) -> Timestamp {
    let ends = || {
        let pem = Pem::iter_from_buffer(pem.as_bytes()).next()?.ok()?;
        let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
        Timestamp::from_second(certificate.validity().not_after.timestamp() - RENEW_BEFORE.whole_seconds()).ok()
    };
    ends().unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A kubeconfig with everything its user needs.
pub fn kubeconfig(kluster: &str, server: &str, authority: &str, user: &CertificatePair) -> String {
    let encode = |text: &str| BASE64_STANDARD.encode(text);
    to_yaml(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": kluster,
        "clusters": [{"name": kluster, "cluster": {"server": server, "certificate-authority-data": encode(authority)}}],
        "users": [{"name": "admin", "user": {
            "client-certificate-data": encode(&user.certificate), "client-key-data": encode(&user.key),
        }}],
        "contexts": [{"name": kluster, "context": {"cluster": kluster, "user": "admin"}}],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    #[test]
    fn an_administrators_certificate_is_renewed_90_days_before_its_end() {
        let authority = make_authority("ca", now()).expect("an authority");
        let user = make_administrator(&authority, "s", "admin", now()).expect("a certificate");
        let renew = renewal_time(&user.certificate);
        let days = |days: i64| now() + jiff::SignedDuration::from_hours(24 * days);
        assert!(days(274) < renew && renew <= days(275), "{renew}");
        assert!(renewal_time(&authority.certificate) > days(3500), "the authority is kept");
        assert_eq!(renewal_time("garbage"), Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn an_authority_that_is_damaged_is_named() {
        let damaged = CertificatePair { certificate: "x".to_owned(), key: "y".to_owned() };
        let error = make_administrator(&damaged, "k-pki", "admin", now()).unwrap_err();
        assert!(error.to_string().contains("k-pki"), "{error}");
        assert_eq!(format!("{damaged:?}"), "CertificatePair(<hidden>)");
    }
}
