//! Which certificates a client accepts of a server.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

use crate::Subject;

/// Accepts servers by another rule than the name that was dialled.
#[derive(Debug)]
pub struct ServerVerifier {
    accepted: AcceptedServer,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum AcceptedServer {
    AnyCertificate,
    CommonName { roots: Arc<RootCertStore>, name: String },
}

impl ServerVerifier {
    /// Accepts whatever certificate is shown, as the kubelet does for HTTPS probes and the API server's proxy for pods:
    /// their certificates are of anyone's making and prove nothing. The server still has to own the key.
    pub fn any_certificate() -> Self {
        Self::new(AcceptedServer::AnyCertificate)
    }

    /// Accepts the certificate that one of `roots` issued to this common name, whatever address was dialled: addresses of
    /// nodes change, and a node may claim any.
    pub fn common_name(roots: Arc<RootCertStore>, name: String) -> Self {
        Self::new(AcceptedServer::CommonName { roots, name })
    }

    fn new(accepted: AcceptedServer) -> Self {
        Self { accepted, algorithms: ring::default_provider().signature_verification_algorithms }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let AcceptedServer::CommonName { roots, name } = &self.accepted {
            let parsed = ParsedCertificate::try_from(own)?;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, self.algorithms.all)?;
            if Subject::from_der(own).is_none_or(|subject| subject.common_name != *name) {
                return Err(Error::General(format!("who answered is not {name}")));
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{root_store, testing::TestAuthority};

    fn accepts(verifier: &ServerVerifier, shown: &CertificateDer<'_>) -> bool {
        let dialled = ServerName::try_from("192.0.2.7").unwrap();
        verifier.verify_server_cert(shown, &[], &dialled, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn a_node_is_known_by_its_name_and_not_by_its_address() {
        let (ca, stranger) = (TestAuthority::new(), TestAuthority::new());
        let roots = Arc::new(root_store(&ca.pem).unwrap());
        let verifier = |name: &str| ServerVerifier::common_name(roots.clone(), name.to_owned());
        let shown = ca.issue("system:node:a", "system:nodes").der();
        assert!(accepts(&verifier("system:node:a"), &shown));
        assert!(!accepts(&verifier("system:node:b"), &shown));
        assert!(!accepts(&verifier("system:node:a"), &stranger.issue("system:node:a", "system:nodes").der()));
        assert!(!accepts(&verifier("system:node:a"), &CertificateDer::from(vec![1, 2, 3])));
    }

    #[test]
    fn any_certificate_is_accepted_where_certificates_prove_nothing() {
        let verifier = ServerVerifier::any_certificate();
        assert!(accepts(&verifier, &TestAuthority::new().issue("anyone", "x").der()));
        assert!(!verifier.supported_verify_schemes().is_empty(), "its key is verified all the same");
    }
}
