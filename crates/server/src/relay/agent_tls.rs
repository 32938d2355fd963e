//! TLS to agents: the server presents its own certificate, and accepts only that of the node it means.
//!
//! An agent is recognised by the node's name in its certificate, not by the address that
//! was dialled: addresses change, and a node may claim any.

use std::sync::Arc;

use mainstay_tls::{RotatingCertificate, ServerVerifier, TlsError, provider, root_store};
use rustls::{ClientConfig, Error, RootCertStore};

use crate::pki::Pki;

/// Makes the TLS side of connections to agents.
pub struct AgentTls {
    roots: Arc<RootCertStore>,
    own: Arc<RotatingCertificate>,
}

impl AgentTls {
    pub fn new(pki: &Pki) -> Result<Self, TlsError> {
        let roots = Arc::new(root_store(pki.node_authority.certificate())?);
        Ok(Self { roots, own: pki.agent_client.clone() })
    }

    /// For a connection to the agent of this node, whatever its address. Any `ServerName` will do.
    pub fn to_node(&self, name: &str) -> Result<Arc<ClientConfig>, Error> {
        let verifier = ServerVerifier::common_name(self.roots.clone(), format!("system:node:{name}"));
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(self.own.clone());
        config.enable_sni = false;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use mainstay_tls::ClientVerifier;
    use rustls::{ServerConfig, pki_types::ServerName};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::pki::{Identity, SERVERS};

    static CALLERS: [&str; 1] = [SERVERS];

    /// Whether the server talks to an agent that presents this certificate as the one of this node.
    async fn connects(pki: &Pki, node: &str, presented: &Identity) -> bool {
        let certificate = RotatingCertificate::new(&presented.certificate, &presented.key).unwrap();
        let agent = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(Arc::new(ClientVerifier::members_of(&pki.ca, &CALLERS).unwrap()))
            .with_cert_resolver(Arc::new(certificate));
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let config = AgentTls::new(pki).unwrap().to_node(node).unwrap();
        let (accepted, connected) = tokio::join!(
            TlsAcceptor::from(Arc::new(agent)).accept(theirs),
            TlsConnector::from(config).connect(ServerName::try_from("192.0.2.7").unwrap(), ours),
        );
        accepted.is_ok() && connected.is_ok()
    }

    #[tokio::test]
    async fn an_agent_is_known_by_its_name_and_not_by_its_address() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), &["localhost".to_owned()]).unwrap();
        let node = pki.issue_node("a", &[[10, 0, 0, 1].into()]).unwrap();
        assert!(connects(&pki, "a", &node.serving).await);
        assert!(!connects(&pki, "b", &node.serving).await);
        // What the API's own authority signs is not what an agent presents.
        let now = time::OffsetDateTime::now_utc();
        let forged = pki.authority.server("system:node:a", None, &["a".to_owned()], now).unwrap();
        assert!(!connects(&pki, "a", &forged).await);
    }
}
