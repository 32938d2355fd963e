//! Which certificates a client accepts of a server.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use crate::{ClientVerifier, Subject, TlsError, root_store, unusable};

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
    ClientCertificate { verifier: ClientVerifier, name: String, group: &'static str },
    Bundle { roots: RootCertStore, listed: Vec<CertificateDer<'static>> },
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

    /// Accepts the *client* certificate that this authority issued to a member of `group` with this common name. For nodes that ask
    /// each other: they know the authority of clients, not the one that signs what nodes serve, and what can be done
    /// with the certificate elsewhere stays what a client can do.
    pub fn client_certificate(ca: &str, name: String, group: &'static str) -> Result<Self, TlsError> {
        let verifier = ClientVerifier::optional(ca)?;
        Ok(Self::new(AcceptedServer::ClientCertificate { verifier, name, group }))
    }

    /// Accepts for the name that was dialled what an authority of this PEM bundle issued, and the certificates of the bundle themselves:
    /// a server whose bundle is its own self-signed certificate is common, and Go accepts it even where it may issue others
    /// (`CA:TRUE`, what `openssl req -x509` makes).
    pub fn bundle(pem: &str) -> Result<Self, TlsError> {
        let listed = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>();
        let listed = listed.map_err(unusable("the CA"))?;
        Ok(Self::new(AcceptedServer::Bundle { roots: root_store(pem)?, listed }))
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
        dialled: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify_issuer = |parsed: &ParsedCertificate<'_>, roots: &RootCertStore| {
            verify_server_cert_signed_by_trust_anchor(parsed, roots, intermediates, now, self.algorithms.all)
        };
        let is_other = |name: &str| Err(Error::General(format!("who answered is not {name}")));
        match &self.accepted {
            AcceptedServer::AnyCertificate => {}
            AcceptedServer::CommonName { roots, name } => {
                verify_issuer(&ParsedCertificate::try_from(own)?, roots)?;
                if Subject::from_der(own).is_none_or(|subject| subject.common_name != *name) {
                    return is_other(name);
                }
            }
            AcceptedServer::ClientCertificate { verifier, name, group } => {
                let presented: Vec<CertificateDer<'_>> = std::iter::once(own).chain(intermediates).cloned().collect();
                let is_it = |subject: &Subject| {
                    subject.common_name == *name && subject.organizations.iter().any(|member| member == group)
                };
                if !verifier.subject(&presented, now).is_some_and(|subject| is_it(&subject)) {
                    return is_other(name);
                }
            }
            AcceptedServer::Bundle { roots, listed } => {
                let parsed = ParsedCertificate::try_from(own)?;
                if let Err(error) = verify_issuer(&parsed, roots)
                    && !(listed.contains(own) && is_valid_at(own, now))
                {
                    return Err(error);
                }
                verify_server_name(&parsed, dialled)?;
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

/// Whether the certificate has begun and not ended.
fn is_valid_at(certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
    let now = i64::try_from(now.as_secs()).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    let parsed = X509Certificate::from_der(certificate).ok();
    parsed.zip(now).is_some_and(|((_, parsed), now)| parsed.validity().is_valid_at(now))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

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
    fn a_node_is_known_to_others_by_its_client_certificate() {
        let (ca, stranger) = (TestAuthority::new(), TestAuthority::new());
        let name = "system:node:a".to_owned();
        let verifier = ServerVerifier::client_certificate(&ca.pem, name, "system:nodes").unwrap();
        assert!(accepts(&verifier, &ca.issue("system:node:a", "system:nodes").der()));
        assert!(!accepts(&verifier, &ca.issue("system:node:b", "system:nodes").der()));
        assert!(!accepts(&verifier, &ca.issue("system:node:a", "people").der()));
        assert!(!accepts(&verifier, &stranger.issue("system:node:a", "system:nodes").der()));
        assert!(!accepts(&verifier, &CertificateDer::from(vec![1, 2, 3])));
    }

    #[test]
    fn a_certificate_that_is_its_own_bundle_is_accepted_for_its_names() {
        let make = |is_ca: IsCa| {
            let mut params = CertificateParams::new(vec!["hook.default.svc".to_owned()]).unwrap();
            params.is_ca = is_ca;
            params.self_signed(&KeyPair::generate().unwrap()).unwrap()
        };
        let accepts = |verifier: &ServerVerifier, shown: &CertificateDer<'_>, name: &'static str, now: UnixTime| {
            verifier.verify_server_cert(shown, &[], &ServerName::try_from(name).unwrap(), &[], now).is_ok()
        };
        for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
            let own = make(is_ca);
            let verifier = ServerVerifier::bundle(&own.pem()).unwrap();
            assert!(accepts(&verifier, own.der(), "hook.default.svc", UnixTime::now()), "{is_ca:?}");
            assert!(!accepts(&verifier, own.der(), "other.default.svc", UnixTime::now()), "{is_ca:?}");
            assert!(!accepts(&verifier, make(is_ca).der(), "hook.default.svc", UnixTime::now()), "{is_ca:?}");
            let long_ago = UnixTime::since_unix_epoch(Duration::ZERO);
            assert!(!accepts(&verifier, own.der(), "hook.default.svc", long_ago), "not valid yet: {is_ca:?}");
        }
        let ca = TestAuthority::new();
        let verifier = ServerVerifier::bundle(&ca.pem).unwrap();
        assert!(accepts(&verifier, &ca.issue("u", "g").der(), "agent", UnixTime::now()), "what it issued");
        assert!(!accepts(&verifier, &ca.issue("u", "g").der(), "hook.default.svc", UnixTime::now()));
        assert!(ServerVerifier::bundle("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n").is_err());
    }

    #[test]
    fn any_certificate_is_accepted_where_certificates_prove_nothing() {
        let verifier = ServerVerifier::any_certificate();
        assert!(accepts(&verifier, &TestAuthority::new().issue("anyone", "x").der()));
        assert!(!verifier.supported_verify_schemes().is_empty(), "its key is verified all the same");
    }
}
