//! An agent without a server: a client whose calls all fail, and a self-signed identity.

use kube::Client;

use crate::tls::{Identity, Pair, TlsError};

#[derive(Debug, thiserror::Error)]
#[error("this machine has no server")]
struct NoServer;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A client whose every call fails.
pub fn client() -> Client {
    let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(NoServer)
    });
    Client::new(nobody, mainstay_api::wellknown::namespace::DEFAULT)
}

/// Signed by an authority that nobody else has.
pub fn identity(node_name: &str) -> Result<Identity, IdentityError> {
    let made = rcgen::generate_simple_self_signed(vec![node_name.to_owned()])?;
    let pair = Pair { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() };
    Ok(Identity::new(&made.cert.pem(), &pair, &pair)?)
}
