//! Who is asking, and whether they may.
//!
//! A client certificate that our CA signed names a user (CN) and groups (O). Certificates of others are
//! accepted by TLS but name nobody, so that a forged one gets an answer (401) rather than a torn
//! connection. Members of `system:masters` may do everything; nobody else may do anything yet.

use std::{borrow::Cow, sync::Arc};

use http::HeaderMap;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use x509_parser::prelude::{FromDer, X509Certificate};

pub const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    /// The server's own parts, which call the API in the same process.
    pub fn internal(part: &str) -> Self {
        Self { name: format!("system:mainstay:{part}"), groups: vec![MASTERS.to_owned()] }
    }

    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// Whom a request is to be judged as: somebody else, if whoever may do everything says so.
    pub fn judged(&self, headers: &HeaderMap) -> Cow<'_, Self> {
        let texts = |name: &str| headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned);
        match texts("impersonate-user").next() {
            Some(name) if self.is_master() => {
                let groups = texts("impersonate-group").chain([AUTHENTICATED.to_owned()]).collect();
                Cow::Owned(Self { name, groups })
            }
            Some(_) | None => Cow::Borrowed(self),
        }
    }

    fn of_certificate(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
        Some(Self { name, groups })
    }
}

/// Asks for a certificate, takes any, and tells afterwards whose it is.
#[derive(Debug)]
pub struct Verifier {
    ours: Arc<dyn ClientCertVerifier>,
}

impl Verifier {
    /// `ours` accepts exactly the certificates our CA signed for clients.
    pub fn new(ours: Arc<dyn ClientCertVerifier>) -> Self {
        Self { ours }
    }

    /// The user behind the certificates a client presented, if our CA vouches for them now.
    pub fn user(&self, presented: &[CertificateDer<'_>]) -> Option<User> {
        let (own, others) = presented.split_first()?;
        self.ours.verify_client_cert(own, others, UnixTime::now()).ok()?;
        User::of_certificate(own)
    }
}

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.ours.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ours.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.ours.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ours.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_administrator_may_be_judged_as_somebody_else_and_nobody_gains_by_it() {
        let admin = User::internal("test");
        let plain = User { name: "ann".into(), groups: vec![] };
        let mut headers = HeaderMap::new();
        assert!(admin.judged(&headers).is_master());
        headers.insert("impersonate-user", "bob".parse().unwrap());
        assert_eq!(admin.judged(&headers).name, "bob");
        assert!(!admin.judged(&headers).is_master());
        headers.insert("impersonate-group", MASTERS.parse().unwrap());
        assert!(admin.judged(&headers).is_master());
        assert_eq!(*plain.judged(&headers), plain);
    }
}
