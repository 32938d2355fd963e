//! Serves one TLS connection: routes each request to its handler.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use http::{Method, Request, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::Acceptor;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{
    exec, find, forward,
    handshakes::Handshake,
    host_logs, logs,
    response::{self, HandlerResult, RequestError, Response},
    route::Route,
    server::{AcceptedTls, Parts},
    stats, tunnel,
};
use crate::fence::peers::{self, CONTACT_PROTOCOL};

/// A server that vanished without a word is noticed within about a minute.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection may stay silent between requests.
const IDLE: Duration = Duration::from_secs(120);

/// Serves a connection. `handshake` is its place among those that have not shown a certificate.
pub async fn run(
    stream: TcpStream,
    handshake: Handshake,
    tls: AcceptedTls,
    parts: Arc<Parts>,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE);
    let accepted = tokio::select! {
        () = handshake.evicted() => return tracing::debug!("another connection took the place of this handshake"),
        accepted = tokio::time::timeout(HANDSHAKE, accept(stream, tls)) => accepted,
    };
    drop(handshake);
    let stream = match accepted {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let service = service_fn(move |request| {
        let (parts, stop) = (parts.clone(), stop.clone());
        async move {
            let answer = respond(request, &parts, stop).await;
            Ok::<Response, Infallible>(answer.unwrap_or_else(RequestError::into_response))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection ended badly");
    }
}

/// Nothing if it was another node's question, which is answered.
async fn accept(stream: TcpStream, tls: AcceptedTls) -> io::Result<Option<TlsStream<TcpStream>>> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let is_question = begun.client_hello().alpn().is_some_and(|mut all| all.any(|name| name == CONTACT_PROTOCOL));
    match tls.peers.filter(|_| is_question) {
        Some((config, fence)) => {
            let stream = begun.into_stream(config).await?;
            peers::answer(stream, fence.answer()).await?;
            Ok(None)
        }
        None => begun.into_stream(tls.calls).await.map(Some),
    }
}

async fn respond(request: Request<Incoming>, parts: &Arc<Parts>, stop: CancellationToken) -> HandlerResult {
    let route = Route::parse(request.uri().path()).ok_or_else(|| RequestError::not_found("404 page not found"))?;
    let query = request.uri().query().unwrap_or_default().to_owned();
    let upgrades =
        matches!(route, Route::Exec { .. } | Route::Attach { .. } | Route::PortForward { .. } | Route::Tunnel { .. });
    if !(request.method() == Method::GET || (upgrades && request.method() == Method::POST)) {
        return Err(RequestError::new(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed"));
    }
    match route {
        Route::Logs { namespace, pod, container } => {
            logs::serve_logs(parts, &namespace, &pod, &container, &query).await
        }
        Route::Exec { namespace, pod, container } => {
            exec::exec(request, parts, &namespace, &pod, &container, stop).await
        }
        Route::Attach { namespace, pod, container } => {
            exec::attach(request, parts, &namespace, &pod, &container, stop).await
        }
        Route::PortForward { namespace, pod } => {
            forward::serve_port_forward(request, parts, &namespace, &pod, stop).await
        }
        Route::Tunnel { namespace, pod, port } => {
            tunnel::serve_tunnel(request, parts, &namespace, &pod, port, stop).await
        }
        Route::Summary => stats::summary(parts).await,
        Route::ResourceMetrics => stats::resource_metrics(parts).await,
        Route::CadvisorMetrics => stats::cadvisor_metrics(parts).await,
        Route::HostLogs { path } => host_logs::serve_host_logs(&path).await,
        Route::Configuration => Ok(response::json(&parts.configuration)),
        Route::RunningPods => {
            let observed = parts.runtime.observe(None).await.map_err(find::unavailable)?;
            Ok(response::json(&find::running_pods(&observed)))
        }
        Route::Metrics => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            Ok(response::typed(StatusCode::OK, kind, parts.metrics.exposed()))
        }
        Route::Pods => {
            let items: Vec<_> = parts.pods.all().into_iter().map(|wanted| wanted.pod).collect();
            let items: Vec<&k8s_openapi::api::core::v1::Pod> = items.iter().map(|pod| &**pod).collect();
            Ok(response::json(&serde_json::json!({
                "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items,
            })))
        }
        Route::Health => Ok(response::typed(StatusCode::OK, "text/plain; charset=utf-8", "ok")),
    }
}
