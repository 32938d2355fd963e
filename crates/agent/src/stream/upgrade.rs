//! HTTP upgrades: negotiates WebSocket or SPDY and takes over the connection.

use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::response::{RequestError, Response, empty};

pub const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
const ACCEPTED_PROTOCOLS: &str = "x-accepted-stream-protocol-versions";

/// What a client asks to change to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedUpgrade {
    WebSocket,
    Spdy,
    /// Bare bytes, between our own parts.
    Tunnel,
}

pub fn requested_upgrade(headers: &HeaderMap) -> Option<RequestedUpgrade> {
    let listed = |name: header::HeaderName, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case(wanted))
    };
    if !listed(header::CONNECTION, "upgrade") {
        return None;
    }
    if listed(header::UPGRADE, "websocket") {
        Some(RequestedUpgrade::WebSocket)
    } else if listed(header::UPGRADE, "SPDY/3.1") {
        Some(RequestedUpgrade::Spdy)
    } else if listed(header::UPGRADE, "tcp") {
        Some(RequestedUpgrade::Tunnel)
    } else {
        None
    }
}

pub fn no_upgrade_requested() -> RequestError {
    RequestError::bad_request("unable to upgrade: missing upgrade headers in request")
}

/// The values of a header that holds a list, on one line or on several.
pub fn list<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).map(str::trim).filter(|v| !v.is_empty()).collect()
}

/// The protocol of ours that a client which upgrades to SPDY prefers. If it names none, it
/// means the oldest, the last of ours.
pub fn spdy_protocol(headers: &HeaderMap, ours: &[&'static str]) -> Result<&'static str, RequestError> {
    let wanted = list(headers, STREAM_PROTOCOL);
    if wanted.is_empty() {
        return ours.last().copied().ok_or_else(no_upgrade_requested);
    }
    let agreed = wanted.iter().find_map(|w| ours.iter().find(|o| *o == w));
    agreed.copied().ok_or_else(|| {
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {wanted:?}, server accepts {ours:?}"
        );
        RequestError::new(StatusCode::FORBIDDEN, text)
    })
}

/// Agrees to SPDY.
pub fn to_spdy(protocol: &'static str) -> Response {
    let mut response = switching("SPDY/3.1");
    response.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
    response.headers_mut().insert(ACCEPTED_PROTOCOLS, HeaderValue::from_static(protocol));
    response
}

/// Agrees to a WebSocket, with one of the protocols the client offered, if it offered any.
pub fn to_websocket(headers: &HeaderMap, protocol: Option<&'static str>) -> Result<Response, RequestError> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| RequestError::bad_request("websocket: the request has no Sec-WebSocket-Key"))?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        .map_err(|_| RequestError::bad_request("websocket: bad Sec-WebSocket-Key"))?;
    let mut response = switching("websocket");
    response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok(response)
}

pub fn switching(protocol: &'static str) -> Response {
    let mut response = http::Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
    response
}

/// The connection as it will be once the answer is sent.
pub struct PendingUpgrade(OnUpgrade);

pub type Io = TokioIo<hyper::upgrade::Upgraded>;

impl PendingUpgrade {
    pub fn new(request: &mut Request<Incoming>) -> Self {
        Self(hyper::upgrade::on(request))
    }

    pub async fn io(self) -> Option<Io> {
        match self.0.await {
            Ok(upgraded) => Some(TokioIo::new(upgraded)),
            Err(error) => {
                tracing::debug!(%error, "a connection was not upgraded");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn an_upgrade_is_requested_only_with_both_headers() {
        assert_eq!(
            requested_upgrade(&headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")])),
            Some(RequestedUpgrade::WebSocket)
        );
        assert_eq!(
            requested_upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")])),
            Some(RequestedUpgrade::Spdy)
        );
        assert_eq!(requested_upgrade(&headers(&[("upgrade", "SPDY/3.1")])), None);
        assert_eq!(requested_upgrade(&headers(&[("connection", "Upgrade"), ("upgrade", "h2c")])), None);
    }

    #[test]
    fn the_first_protocol_both_know_is_spoken() {
        let ours = ["v4.channel.k8s.io", "channel.k8s.io"];
        let asked = |values: &[&'static str]| {
            spdy_protocol(&headers(&values.iter().map(|v| (STREAM_PROTOCOL, *v)).collect::<Vec<_>>()), &ours)
        };
        assert_eq!(asked(&["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"]).unwrap(), ours[0]);
        assert_eq!(asked(&[]).unwrap(), "channel.k8s.io");
        assert_eq!(asked(&["v9"]).unwrap_err().code, StatusCode::FORBIDDEN);
    }
}
