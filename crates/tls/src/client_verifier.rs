//! Which certificates a server accepts of a client.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use crate::{Subject, TlsError, provider, root_store, unusable};

/// Accepts clients by their subject, or leaves the judgement to HTTP.
#[derive(Debug)]
pub struct ClientVerifier {
    /// Accepts exactly what the authority issued to clients.
    authority: Arc<dyn ClientCertVerifier>,
    accepted: AcceptedClient,
}

#[derive(Debug)]
enum AcceptedClient {
    Anyone,
    MembersOf(&'static [&'static str]),
}

impl ClientVerifier {
    /// Asks for a certificate, and lets everybody through the handshake, so that a forged one gets a `Status` with 401 and
    /// not a broken connection. [`ClientVerifier::subject`] says afterwards whose it is.
    pub fn optional(ca: &str) -> Result<Self, TlsError> {
        Self::new(ca, AcceptedClient::Anyone)
    }

    /// Accepts certificates of this authority with one of these organizations; without one there is no connection.
    pub fn members_of(ca: &str, groups: &'static [&'static str]) -> Result<Self, TlsError> {
        Self::new(ca, AcceptedClient::MembersOf(groups))
    }

    fn new(ca: &str, accepted: AcceptedClient) -> Result<Self, TlsError> {
        let roots = Arc::new(root_store(ca)?);
        let authority = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        Ok(Self { authority: authority.map_err(unusable("the CA"))?, accepted })
    }

    /// The subject of what a client presented, if the authority issued it and it is valid now.
    pub fn subject(&self, presented: &[CertificateDer<'_>], now: UnixTime) -> Option<Subject> {
        let (own, intermediates) = presented.split_first()?;
        self.authority.verify_client_cert(own, intermediates, now).ok()?;
        Subject::from_der(own)
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        matches!(self.accepted, AcceptedClient::MembersOf(_))
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authority.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let AcceptedClient::MembersOf(groups) = self.accepted else { return Ok(ClientCertVerified::assertion()) };
        let verified = self.authority.verify_client_cert(own, intermediates, now)?;
        let subject = Subject::from_der(own);
        let mut organizations = subject.iter().flat_map(|subject| &subject.organizations);
        if organizations.any(|organization| groups.contains(&organization.as_str())) {
            Ok(verified)
        } else {
            Err(Error::General(format!("only members of {} may connect", groups.join(" and "))))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::TestAuthority;

    #[test]
    fn only_members_of_the_groups_connect() {
        let (ca, stranger) = (TestAuthority::new(), TestAuthority::new());
        let verifier = ClientVerifier::members_of(&ca.pem, &["mainstay:servers", "system:masters"]).unwrap();
        let accepts = |shown: CertificateDer<'_>| verifier.verify_client_cert(&shown, &[], UnixTime::now()).is_ok();
        assert!(verifier.client_auth_mandatory());
        assert!(accepts(ca.issue("mainstay-server", "mainstay:servers").der()));
        assert!(accepts(ca.issue("mainstay-admin", "system:masters").der()));
        assert!(!accepts(ca.issue("system:node:a", "system:nodes").der()));
        assert!(!accepts(stranger.issue("mainstay-server", "mainstay:servers").der()));
    }

    #[test]
    fn anyone_connects_where_it_is_optional_and_strangers_remain_nobody() {
        let (ca, stranger) = (TestAuthority::new(), TestAuthority::new());
        let verifier = ClientVerifier::optional(&ca.pem).unwrap();
        let (own, forged) = (ca.issue("alice", "dev").der(), stranger.issue("alice", "dev").der());
        let now = UnixTime::now();
        assert!(!verifier.client_auth_mandatory());
        for shown in [&own, &forged] {
            assert!(verifier.verify_client_cert(shown, &[], now).is_ok());
        }
        let alice = Subject { common_name: "alice".to_owned(), organizations: vec!["dev".to_owned()] };
        assert_eq!(verifier.subject(std::slice::from_ref(&own), now), Some(alice));
        assert_eq!(verifier.subject(&[forged], now), None);
        assert_eq!(verifier.subject(&[], now), None);
        let ages = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() + (4000 << 30)));
        assert_eq!(verifier.subject(&[own], ages), None, "what has ended names nobody");
    }
}
