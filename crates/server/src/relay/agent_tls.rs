//! TLS to agents: the server shows its own certificate, and accepts only that of the node it means.
//!
//! What an agent shows is recognised by the node's name in its certificate, not by the address that
//! was dialled: addresses change, and a machine may claim any.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::pki::Pki;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Makes the TLS side of connections to agents.
pub struct AgentTls {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    ours: Arc<WebPkiServerVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl AgentTls {
    pub fn new(pki: &Pki) -> Result<Self, BoxError> {
        let own = pki.issue_server_client()?;
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pki.node_authority.certificate().as_bytes())?)?;
        let roots = Arc::new(roots);
        let ours = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
        let chain = CertificateDer::pem_slice_iter(own.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes())?;
        Ok(Self { provider, roots, ours, chain, key })
    }

    /// For a connection to the agent of this node, whatever its address. Any `ServerName` will do.
    pub fn to_node(&self, name: &str) -> Result<Arc<ClientConfig>, Error> {
        let verifier = OneNode {
            user: format!("system:node:{name}"),
            roots: self.roots.clone(),
            algorithms: self.provider.signature_verification_algorithms,
            ours: self.ours.clone(),
        };
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.enable_sni = false;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Takes the certificate that our authority for machines gave to one node.
#[derive(Debug)]
struct OneNode {
    user: String,
    roots: Arc<RootCertStore>,
    algorithms: rustls::crypto::WebPkiSupportedAlgorithms,
    ours: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for OneNode {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(own)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            others,
            now,
            self.algorithms.all,
        )?;
        let wrong = || Error::General(format!("the machine that answered is not {}", self.user));
        let (_, certificate) = X509Certificate::from_der(own).map_err(|_| wrong())?;
        let mut names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        if names.any(|name| name == self.user) { Ok(ServerCertVerified::assertion()) } else { Err(wrong()) }
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
    fn an_agent_is_known_by_its_name_and_not_by_its_address() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), &["localhost".to_owned()]).unwrap();
        let tls = AgentTls::new(&pki).unwrap();
        let verifier = |name: &str| OneNode {
            user: format!("system:node:{name}"),
            roots: tls.roots.clone(),
            algorithms: tls.provider.signature_verification_algorithms,
            ours: tls.ours.clone(),
        };
        let judge = |name: &str, pem: &str| {
            let shown = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            let server = ServerName::try_from("192.0.2.7").unwrap();
            verifier(name).verify_server_cert(&shown, &[], &server, &[], UnixTime::now()).is_ok()
        };
        let node = pki.issue_node("a", &[[10, 0, 0, 1].into()]).unwrap();
        assert!(judge("a", &node.serving.certificate));
        assert!(!judge("b", &node.serving.certificate));
        // What the API's own authority signs is not what an agent shows.
        let forged = pki.authority.server("system:node:a", None, &["a".to_owned()]).unwrap();
        assert!(!judge("a", &forged.certificate));
        assert!(tls.to_node("a").is_ok());
    }
}
