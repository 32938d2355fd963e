//! A certificate that can be replaced while it is in use.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::{
    SignatureScheme,
    client::ResolvesClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{TlsError, unusable};

/// A certificate and its key: every handshake uses the newest, connections that exist keep what they began with.
#[derive(Debug)]
pub struct RotatingCertificate(RwLock<Arc<CertifiedKey>>);

impl RotatingCertificate {
    /// From a chain and a key, as PEM. A key that is not the certificate's is an error.
    pub fn new(certificate: &str, key: &str) -> Result<Self, TlsError> {
        Ok(Self(RwLock::new(certified_key(certificate, key)?)))
    }

    /// Uses this one from the next handshake on.
    pub fn replace(&self, certificate: &str, key: &str) -> Result<(), TlsError> {
        *self.0.write() = certified_key(certificate, key)?;
        Ok(())
    }

    fn current(&self) -> Arc<CertifiedKey> {
        self.0.read().clone()
    }

    /// From when until when the current one is valid, in seconds since 1970.
    pub fn validity(&self) -> Option<(i64, i64)> {
        let current = self.current();
        let (_, certificate) = X509Certificate::from_der(current.cert.first()?).ok()?;
        let validity = certificate.validity();
        Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
    }
}

fn certified_key(certificate: &str, key: &str) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(unusable("the certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(unusable("the key"))?;
    let key = CertifiedKey::from_der(chain, key, &ring::default_provider());
    Ok(Arc::new(key.map_err(unusable("the certificate with its key"))?))
}

impl ResolvesServerCert for RotatingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for RotatingCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestAuthority;

    #[test]
    fn a_replacement_is_used_from_then_on_and_an_unusable_one_changes_nothing() {
        let ca = TestAuthority::new();
        let (first, second) = (ca.issue("a", "x"), ca.issue("a", "x"));
        let rotating = RotatingCertificate::new(&first.certificate, &first.key).unwrap();
        assert_eq!(rotating.current().cert, [first.der()]);
        assert!(rotating.validity().is_some());
        assert!(rotating.replace(&second.certificate, &first.key).is_err(), "the key is another's");
        assert!(rotating.replace("", "").is_err());
        assert_eq!(rotating.current().cert, [first.der()]);
        rotating.replace(&second.certificate, &second.key).unwrap();
        assert_eq!(rotating.current().cert, [second.der()]);
    }
}
