//! Certificates, honest and forged.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use time::{Duration, OffsetDateTime};

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// Someone who signs certificates.
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// The authority that these belong to.
    pub fn of(certificate: &str, key: &str) -> Self {
        let key = KeyPair::from_pem(key).expect("a key");
        Self(Issuer::from_ca_cert_pem(certificate, key).expect("a CA certificate"))
    }

    /// An authority of this name that nobody knows.
    pub fn unknown(name: &str) -> Self {
        let mut parameters = parameters(name, &[]);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(Issuer::new(parameters, KeyPair::generate().expect("a key")))
    }

    pub fn client(&self, user: &str, groups: &[&str]) -> Identity {
        self.sign(parameters(user, groups))
    }

    /// A client certificate that ended an hour ago.
    pub fn expired_client(&self, user: &str, groups: &[&str]) -> Identity {
        let mut parameters = parameters(user, groups);
        parameters.not_before = OffsetDateTime::now_utc() - Duration::days(2);
        parameters.not_after = OffsetDateTime::now_utc() - Duration::hours(1);
        self.sign(parameters)
    }

    /// A certificate for serving, which must not do for asking.
    pub fn server(&self, user: &str, groups: &[&str]) -> Identity {
        let mut parameters = parameters(user, groups);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(parameters)
    }

    fn sign(&self, parameters: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.0).expect("a certificate");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn parameters(name: &str, organizations: &[&str]) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    organizations.iter().for_each(|o| subject.push(DnType::OrganizationName, *o));
    parameters.distinguished_name = subject;
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
    parameters.not_after = OffsetDateTime::now_utc() + Duration::days(1);
    parameters
}
