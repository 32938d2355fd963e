//! The subject of a certificate, as Kubernetes reads it: the common name is a user, organizations are its groups.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The first of them.
    pub common_name: String,
    pub organizations: Vec<String>,
}

impl Subject {
    /// `None` if the certificate cannot be parsed or has no common name.
    pub fn from_der(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let common_name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let organizations = subject.iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned);
        Some(Self { common_name, organizations: organizations.collect() })
    }
}
