//! Client certificates: who is behind one that our CA signed.
//!
//! Certificates of others are accepted by TLS but name nobody, so that a forged one gets an answer (401)
//! rather than a torn connection.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::User;

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
        user_of(own)
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

/// The user (CN) and groups (O) of a certificate.
fn user_of(der: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    Some(User::authenticated(name, groups))
}
