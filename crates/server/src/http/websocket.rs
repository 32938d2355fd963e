//! Watches and logs over WebSocket, for clients that cannot read a response while it comes: browsers.
//!
//! As upstream: a watch is one text message per event; a log begins with an empty message and goes on in binary messages,
//! or in base64 if the client asks for the protocol `base64.binary.k8s.io`. What the client sends is read and dropped;
//! when it hangs up, the watch or log ends.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message, handshake::derive_accept_key, protocol::Role},
};

use super::{
    response_body::{Body, Response},
    status::{ApiError, ApiResult},
};

/// How long a client may take to hang up once it has everything.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How bytes become messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// A text message per line.
    Lines,
    Binary,
    Base64,
}

impl Framing {
    fn messages(self, piece: &Bytes) -> Vec<Message> {
        match self {
            Self::Lines => piece
                .split_inclusive(|byte| *byte == b'\n')
                .map(|line| Message::text(String::from_utf8_lossy(line).into_owned()))
                .collect(),
            Self::Binary => vec![Message::binary(piece.clone())],
            Self::Base64 => vec![Message::text(BASE64_STANDARD.encode(piece))],
        }
    }
}

/// The items of a list in a header.
pub fn values<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|value| !value.is_empty())
}

/// Whether the client wants the response over a WebSocket.
pub fn is_requested(headers: &HeaderMap) -> bool {
    let lists = |name, wanted: &str| values(headers, &name).any(|value| value.eq_ignore_ascii_case(wanted));
    lists(header::CONNECTION, "upgrade") && lists(header::UPGRADE, "websocket")
}

/// The events of a watch.
pub fn watch(parts: &Parts, response: Response) -> ApiResult<Response> {
    let protocol = values(&parts.headers, &header::SEC_WEBSOCKET_PROTOCOL).next();
    upgrade(parts, response, Framing::Lines, protocol)
}

/// The bytes of a log.
pub fn log(parts: &Parts, response: Response) -> ApiResult<Response> {
    let mut offered = values(&parts.headers, &header::SEC_WEBSOCKET_PROTOCOL).peekable();
    if offered.peek().is_none() {
        return upgrade(parts, response, Framing::Binary, None);
    }
    let known = offered.find_map(|protocol| match protocol {
        "binary.k8s.io" => Some((protocol, Framing::Binary)),
        "base64.binary.k8s.io" => Some((protocol, Framing::Base64)),
        _ => None,
    });
    let (protocol, framing) = known.ok_or_else(|| {
        ApiError::bad_request("websocket: the protocols of a log are binary.k8s.io and base64.binary.k8s.io")
    })?;
    upgrade(parts, response, framing, Some(protocol))
}

fn upgrade(parts: &Parts, response: Response, framing: Framing, protocol: Option<&str>) -> ApiResult<Response> {
    if response.status() != StatusCode::OK {
        return Ok(response);
    }
    let refused = || ApiError::bad_request("websocket: the request has no Sec-WebSocket-Key, or is not HTTP/1.1");
    let client = parts.extensions.get::<OnUpgrade>().cloned().ok_or_else(refused)?;
    let key = parts.headers.get(header::SEC_WEBSOCKET_KEY).ok_or_else(refused)?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| refused())?;
    let mut switching = http::Response::new(Body::empty());
    *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = switching.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol.and_then(|protocol| HeaderValue::from_str(protocol).ok()) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    tokio::spawn(async move {
        match client.await {
            Ok(stream) => {
                let socket = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Server, None).await;
                if let Err(error) = send(socket, response.into_body(), framing).await {
                    tracing::debug!(%error, "a WebSocket was cut");
                }
            }
            Err(error) => tracing::debug!(%error, "a connection was not upgraded"),
        }
    });
    Ok(switching)
}

async fn send<S>(socket: WebSocketStream<S>, body: Body, framing: Framing) -> Result<(), tungstenite::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut sink, mut source) = socket.split();
    let mut hung_up = std::pin::pin!(async { while let Some(Ok(_)) = source.next().await {} });
    let sending = async {
        if framing != Framing::Lines {
            for message in framing.messages(&Bytes::new()) {
                sink.send(message).await?;
            }
        }
        let mut pieces = body.into_data_stream();
        while let Some(Ok(piece)) = pieces.next().await {
            for message in framing.messages(&piece) {
                sink.send(message).await?;
            }
        }
        sink.close().await
    };
    tokio::select! {
        sent = sending => sent?,
        () = hung_up.as_mut() => return Ok(()),
    }
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, hung_up).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use hyper::{server::conn::http1, service::service_fn};
    use tokio_tungstenite::{client_async, tungstenite::client::IntoClientRequest};

    use super::*;

    type Serve = fn(&Parts, Response) -> ApiResult<Response>;

    /// The protocol agreed on and all messages, as text.
    async fn receive(serve: Serve, protocols: &str, pieces: &[&'static str]) -> Result<(String, Vec<String>), u16> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let pieces: Vec<Bytes> = pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect();
        tokio::spawn(async move {
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let (parts, _) = request.into_parts();
                assert!(is_requested(&parts.headers));
                let body = Body::Stream(stream::iter(pieces.clone()).boxed());
                let served = serve(&parts, http::Response::new(body)).unwrap_or_else(|error| error.into_response());
                async move { Ok::<_, Infallible>(served) }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(theirs), service).with_upgrades().await;
        });
        let mut request = "ws://localhost/".into_client_request().unwrap();
        if !protocols.is_empty() {
            request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocols).unwrap());
        }
        let (mut socket, head) = match client_async(request, ours).await {
            Ok(connected) => connected,
            Err(tungstenite::Error::Http(response)) => return Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        };
        let protocol = head.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
        let protocol = protocol.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        let mut received = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Text(text) => received.push(format!("text {}", text.as_str())),
                Message::Binary(bytes) => received.push(format!("binary {}", String::from_utf8_lossy(&bytes))),
                _ => {}
            }
        }
        Ok((protocol, received))
    }

    #[tokio::test]
    async fn a_watch_is_one_text_message_per_event() {
        let received = receive(watch, "", &["{1}\n{2}\n", "{3}\n"]).await.unwrap();
        assert_eq!(received, (String::new(), ["text {1}\n", "text {2}\n", "text {3}\n"].map(str::to_owned).into()));
    }

    #[tokio::test]
    async fn a_log_is_binary_or_base64_as_the_client_asks() {
        let binary: Vec<String> = ["binary ", "binary one\n", "binary two\n"].map(str::to_owned).into();
        assert_eq!(receive(log, "", &["one\n", "two\n"]).await.unwrap(), (String::new(), binary.clone()));
        let received = receive(log, "v1.unknown, binary.k8s.io", &["one\n", "two\n"]).await.unwrap();
        assert_eq!(received, ("binary.k8s.io".to_owned(), binary));
        let received = receive(log, "base64.binary.k8s.io", &["one\n"]).await.unwrap();
        assert_eq!(received, ("base64.binary.k8s.io".to_owned(), ["text ", "text b25lCg=="].map(str::to_owned).into()));
        assert_eq!(receive(log, "v1.unknown", &["one\n"]).await, Err(400));
    }
}
