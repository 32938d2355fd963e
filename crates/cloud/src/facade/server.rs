//! The listener of the façade: plain HTTP/1.1, with bounds on connections, time and bodies.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::handlers::{Facade, FacadeError, TokenValidator};

const MOST_CONNECTIONS: usize = 256;
const MOST_BODY: usize = 1 << 20;
const MOST_HEAD: usize = 64 << 10;
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
#[error("listen on {address} for the façade")]
pub struct BindError {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// Bound, and not yet answering.
pub struct FacadeServer<V> {
    listener: TcpListener,
    facade: Arc<Facade<V>>,
}

impl<V: TokenValidator> FacadeServer<V> {
    pub async fn bind(address: SocketAddr, facade: Arc<Facade<V>>) -> Result<Self, BindError> {
        let listener = TcpListener::bind(address).await.map_err(|source| BindError { address, source })?;
        Ok(Self { listener, facade })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until asked to stop, then lets requests under way end.
    pub async fn run(self, stop: CancellationToken) {
        let (seats, tasks) = (Arc::new(Semaphore::new(MOST_CONNECTIONS)), TaskTracker::new());
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                // Too many files are open, mostly; those that are will be closed.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            // Whoever comes when all seats are taken is told so by the closed connection.
            let Ok(seat) = seats.clone().try_acquire_owned() else { continue };
            let (facade, stop) = (self.facade.clone(), stop.clone());
            tasks.spawn(async move {
                let service = service_fn(|request| answer(facade.clone(), request));
                let mut server = http1::Builder::new();
                server.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MOST_HEAD);
                let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
                let ended = tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = stop.cancelled() => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the façade ended early");
                }
                drop(seat);
            });
        }
        tasks.close();
        tasks.wait().await;
    }
}

async fn answer<V: TokenValidator>(
    facade: Arc<Facade<V>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let answered = tokio::time::timeout(REQUEST_DEADLINE, handle(&facade, request)).await;
    let timed_out = || FacadeError { code: StatusCode::GATEWAY_TIMEOUT, message: "no answer in time".to_owned() };
    let (code, body) = answered
        .unwrap_or_else(|_| Err(timed_out()))
        .unwrap_or_else(|error| (error.code, json!({"code": error.code.as_u16(), "message": error.message})));
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn handle<V: TokenValidator>(
    facade: &Facade<V>,
    request: Request<Incoming>,
) -> Result<(StatusCode, Value), FacadeError> {
    let (parts, body) = request.into_parts();
    let token = parts.headers.get("x-auth-token").and_then(|value| value.to_str().ok());
    let too_large = |_| FacadeError {
        code: StatusCode::PAYLOAD_TOO_LARGE,
        message: format!("the body did not arrive whole, or is larger than {MOST_BODY} bytes"),
    };
    let body = Limited::new(body, MOST_BODY).collect().await.map_err(too_large)?.to_bytes();
    facade.answer(&parts.method, parts.uri.path(), token, &body).await
}
