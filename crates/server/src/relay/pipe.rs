//! Copies bytes between a client and the backend that answers it, an agent or another API server: a response as it comes, or both
//! directions of an upgraded connection.

use std::io;

use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderName, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Limited};
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Lifetime;
use crate::http::{
    response_body::{Body, Response},
    status::{ApiError, ApiResult},
};

/// Longest refusal of an agent that is read.
const MAX_REFUSAL: usize = 64 * 1024;

/// Whether the client asks to leave HTTP on this connection.
pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case("upgrade"))
}

/// Refuses what would need an upgrade and does not ask for one, or cannot have it.
pub fn upgrade_required(parts: &Parts) -> ApiResult<()> {
    if wants_upgrade(&parts.headers) && parts.extensions.get::<OnUpgrade>().is_some() {
        Ok(())
    } else {
        Err(ApiError::bad_request("Upgrade request required"))
    }
}

/// Headers of a request that go on to the next hop. Credentials were for us.
pub fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let upgrade = wants_upgrade(headers);
    let ours = [header::AUTHORIZATION, header::HOST, header::PROXY_AUTHORIZATION];
    let mut kept = HeaderMap::new();
    for (name, value) in headers {
        let impersonation = name.as_str().starts_with("impersonate-");
        if !ours.contains(name) && !impersonation && !is_hop_by_hop(name, upgrade) {
            kept.append(name, value.clone());
        }
    }
    kept
}

/// Whether a header is about the connection and not about what it carries.
fn is_hop_by_hop(name: &HeaderName, upgrade: bool) -> bool {
    match *name {
        header::CONNECTION | header::UPGRADE => !upgrade,
        header::TE | header::TRAILER | header::TRANSFER_ENCODING => true,
        _ => name == "keep-alive" || name == "proxy-connection",
    }
}

/// Passes an answer on: its bytes, or if it agreed to an upgrade, everything from now on.
pub fn forward_response(
    parts: &Parts,
    mut response: http::Response<Incoming>,
    lifetime: Lifetime,
) -> ApiResult<Response> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(stream_body(response, lifetime));
    }
    let client = parts.extensions.get::<OnUpgrade>().cloned();
    let client = client.ok_or_else(|| ApiError::bad_request("Upgrade request required"))?;
    let backend = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        lifetime.stop.run_until_cancelled(connect(client, backend)).await;
        drop(lifetime.seat);
    });
    let (head, _) = response.into_parts();
    let mut answer = http::Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in &head.headers {
        if !is_hop_by_hop(name, true) && name != header::CONTENT_LENGTH {
            answer.headers_mut().append(name, value.clone());
        }
    }
    Ok(answer)
}

/// Both ways until both have ended; an end of one is passed on and leaves the other alone.
async fn connect(client: OnUpgrade, backend: OnUpgrade) {
    let upgraded: Result<(Upgraded, Upgraded), hyper::Error> = async { Ok((client.await?, backend.await?)) }.await;
    match upgraded {
        Ok((client, backend)) => {
            let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
            if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut backend).await {
                tracing::debug!(%error, "a stream was cut");
            }
        }
        Err(error) => tracing::debug!(%error, "a connection was not upgraded"),
    }
}

/// The answer as it comes. If it breaks off or is cut off, so is what the client gets: never does a part look whole.
fn stream_body(response: http::Response<Incoming>, lifetime: Lifetime) -> Response {
    let (head, body) = response.into_parts();
    // The seat is taken until the stream is dropped.
    let begun = (body.into_data_stream(), Box::pin(cut_off(lifetime.stop, lifetime.deadline)), lifetime.seat);
    let pieces = stream::try_unfold(begun, |(mut body, mut cut, seat)| async move {
        tokio::select! {
            biased;
            why = &mut cut => Err(why),
            piece = body.next() => {
                let piece = piece.transpose().map_err(io::Error::other)?;
                Ok(piece.map(|piece| (piece, (body, cut, seat))))
            }
        }
    });
    let mut answer = http::Response::new(Body::Relayed(pieces.boxed()));
    *answer.status_mut() = head.status;
    for (name, value) in &head.headers {
        if !is_hop_by_hop(name, false) {
            answer.headers_mut().append(name, value.clone());
        }
    }
    answer
}

/// Waits until a response may go on no longer; returns why.
async fn cut_off(stop: CancellationToken, deadline: Option<Instant>) -> io::Error {
    let late = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => io::Error::new(io::ErrorKind::ConnectionAborted, "the server stops"),
        () = late => io::Error::new(io::ErrorKind::TimedOut, "the answer did not end within the allotted timeout"),
    }
}

/// What an agent says when it refuses, as a refusal of ours.
pub async fn refusal(response: http::Response<Incoming>) -> Box<ApiError> {
    let code = response.status();
    let text = match Limited::new(response.into_body(), MAX_REFUSAL).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).trim().to_owned(),
        Err(error) => format!("its answer cannot be read: {error}"),
    };
    ApiError::of_agent(code, text)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_concerns_one_connection_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive"),
            ("upgrade", "websocket"),
            ("authorization", "Bearer x"),
            ("impersonate-user", "bob"),
            ("accept", "*/*"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(forwarded_headers(&headers).keys().map(|k| k.as_str()).collect::<Vec<_>>(), ["accept"]);
        headers.insert("connection", HeaderValue::from_static("Upgrade"));
        assert!(forwarded_headers(&headers).contains_key("upgrade"));
    }
}
