//! TLS: whose certificate is accepted, and certificates that are replaced while they are in use.
//!
//! * [`ServerVerifier`]: which certificates a client accepts of a server
//! * [`ClientVerifier`]: which certificates a server accepts of a client
//! * [`source_network`]: whose handshakes and connections count together
//! * [`RotatingCertificate`]: a certificate and key for either side; every handshake uses the newest
//!
//! Every rustls verifier of Mainstay is here, so that the places where a certificate is accepted without an authority
//! can be counted: [`ServerVerifier::any_certificate`] and [`ClientVerifier::optional`].

mod client_verifier;
mod rotating_certificate;
mod server_verifier;
mod source_network;
mod subject;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, pem::PemObject},
};

pub use self::{
    client_verifier::ClientVerifier, rotating_certificate::RotatingCertificate, server_verifier::ServerVerifier,
    source_network::source_network, subject::Subject,
};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{what} is not usable")]
    Unusable {
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn unusable<E: Into<Box<dyn std::error::Error + Send + Sync>>>(what: &'static str) -> impl Fn(E) -> TlsError {
    move |source| TlsError::Unusable { what, source: source.into() }
}

/// The one implementation of cryptography in this program.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The authorities of a PEM file as those that are trusted.
pub fn root_store(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.map_err(unusable("the CA"))?).map_err(unusable("the CA"))?;
    }
    Ok(roots)
}

/// A client that accepts any certificate and shows none. It protects from listeners, not from impostors.
pub fn insecure_client_config() -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable("TLS"))?;
    let verifier = Arc::new(ServerVerifier::any_certificate());
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}
