//! Joining a cluster: a bootstrap token is exchanged for client and serving certificates of this node.
//!
//! The first time, the machine learns the server's authority and checks it against the token, makes a key, and
//! asks for a certificate that names it; the key never leaves the machine. From then on that certificate is its
//! identity, renewed by itself ([`renew`]); the token is needed no more.

mod authority;
mod files;
mod renew;
mod request;
mod token;

use std::{net::IpAddr, path::Path};

use jiff::Timestamp;
use mainstay_files::Format;
use x509_parser::prelude::{FromDer, GeneralName, Pem, X509Certificate};

pub use self::{
    files::FileError,
    renew::{renew, renew_now},
    token::{NotAToken, Token},
};
use self::{files::Files, request::Purpose};
use crate::{
    servers::Servers,
    tls::{self, Identity, Pair, TlsError},
};

/// Of the files of a machine that joined, and of the token it joined with. They are PEM and text, which bear no number of their own.
pub const FORMAT: Format = Format::new("the identity of a node", 1);

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("this machine is not a member yet: give it a token that `mainstay token create` on a server prints")]
    NoToken,
    #[error("the server does not know the token, or it has expired: make a new one with `mainstay token create`")]
    TokenRefused,
    #[error(
        "what answers at {server} is not the cluster that the token is for: its certificate has another hash. Check the \
         address, and that nobody is in between"
    )]
    WrongServer { server: String },
    #[error("cannot reach a server at {server}")]
    Unreachable {
        server: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the server refused: {why}")]
    Refused { why: String },
    #[error("the server did not answer the request {name} for a certificate")]
    NoAnswer { name: String },
    #[error("{doing}")]
    Api {
        doing: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("make a request for a certificate")]
    Request {
        #[source]
        source: rcgen::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl JoinError {
    /// Whether trying again later may help: the server may be starting, the network may come back.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } => true,
            Self::Api { source, .. } => {
                !matches!(**source, kube::Error::Api(ref status) if status.code < 500 && status.code != 429)
            }
            Self::NoToken | Self::TokenRefused | Self::WrongServer { .. } | Self::Refused { .. } => false,
            Self::Request { .. } | Self::Tls(_) | Self::File(_) => false,
        }
    }
}

/// The machine's identity: the one it has, or a new one for which the token is used.
pub async fn join(
    servers: &Servers,
    token: Option<&Token>,
    node: &str,
    addresses: &[IpAddr],
    directory: &Path,
) -> Result<Identity, JoinError> {
    let files = Files::open(directory)?;
    let now = Timestamp::now().as_second();
    let stored = files.ca()?.zip(files.pair("client")?.filter(|pair| names_node(pair, node, now)));
    let (ca, own) = match (stored, token) {
        (Some(stored), _) => stored,
        (None, None) => return Err(JoinError::NoToken),
        (None, Some(token)) => {
            let ca = authority::fetch(servers, token).await?;
            let bearer = with_bearer(servers, &ca, token)?;
            let own = request::obtain(&bearer, node, &Purpose::Client, &files).await?;
            files.set_ca(&ca)?;
            files.set_pair("client", &own)?;
            (ca, own)
        }
    };
    let serving = match files.pair("serving")?.filter(|pair| names_node(pair, node, now) && names_all(pair, addresses))
    {
        Some(pair) => pair,
        None => {
            // What it will show is not known yet; until then it calls only, and shows the same.
            let client = Identity::new(&ca, &own, &own)?.client(servers)?;
            let pair = request::obtain(&client, node, &Purpose::Serving(addresses), &files).await?;
            files.set_pair("serving", &pair)?;
            pair
        }
    };
    Ok(Identity::new(&ca, &own, &serving)?)
}

/// A client of the API that has only a token.
fn with_bearer(servers: &Servers, ca: &str, token: &Token) -> Result<kube::Client, TlsError> {
    let config = tls::client_builder(ca)?.with_no_client_auth();
    tls::client_with_bearer(servers, config, &token.bearer())
}

fn with_certificate<T>(pair: &Pair, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let pem = Pem::iter_from_buffer(pair.certificate.as_bytes()).next()?.ok()?;
    let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
    Some(look(&certificate))
}

/// Whether this is a certificate of this machine that is good now.
fn names_node(pair: &Pair, node: &str, now: i64) -> bool {
    with_certificate(pair, |certificate| {
        let user = format!("system:node:{node}");
        let named = certificate.subject().iter_common_name().any(|name| name.as_str() == Ok(user.as_str()));
        named && now < certificate.validity().not_after.timestamp()
    })
    .unwrap_or(false)
}

fn names_all(pair: &Pair, addresses: &[IpAddr]) -> bool {
    let named = with_certificate(pair, |certificate| {
        let names =
            certificate.subject_alternative_name().ok().flatten().map(|names| names.value.general_names.clone());
        names
            .into_iter()
            .flatten()
            .filter_map(|name| match name {
                GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(bytes)
                    .map(IpAddr::from)
                    .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
                    .ok(),
                _ => None,
            })
            .collect::<Vec<_>>()
    });
    named.is_some_and(|named| addresses.iter().all(|address| named.contains(address)))
}
