//! The cluster CA of a server, fetched without TLS verification and checked against the hash in the join token.

use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;

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
    // Nothing but a public document is exchanged over such a connection.
    let config = mainstay_tls::insecure_client_config().map_err(|error| unreachable(error.into()))?;
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
