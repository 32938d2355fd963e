//! The cluster CA of a server, fetched without TLS verification and checked against the hash in the join token.

use std::{sync::Arc, time::Duration};

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::{JoinError, token::Token};
use crate::{servers::Servers, tls};

const PATIENCE: Duration = Duration::from_secs(30);
/// An authority is a few hundred bytes; whatever sends more is none.
const LARGEST: usize = 64 * 1024;

/// The authority of the servers, if it is the one the token was made for.
pub async fn fetch(servers: &Servers, token: &Token) -> Result<String, JoinError> {
    let unreachable = |source: Box<dyn std::error::Error + Send + Sync>| JoinError::Unreachable {
        server: servers.to_string(),
        source,
    };
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unreachable(error.into()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    let client = tls::client(servers, config);
    let ask = async {
        let request = Request::get("/cacerts").body(Body::empty())?;
        let response = client.send(request).await?;
        let code = response.status();
        let body = http_body_util::Limited::new(response.into_body(), LARGEST).collect().await?.to_bytes();
        if code != StatusCode::OK {
            return Err(format!("it answered {code} when asked for its certificate").into());
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    };
    let answer: Result<String, Box<dyn std::error::Error + Send + Sync>> =
        tokio::time::timeout(PATIENCE, ask).await.unwrap_or_else(|_| Err("it did not answer in time".into()));
    let ca = answer.map_err(unreachable)?;
    if token.vouches_for(&ca) { Ok(ca) } else { Err(JoinError::WrongServer { server: servers.to_string() }) }
}

/// Takes whatever certificate is shown. Nothing but a public document is exchanged over such a connection.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
