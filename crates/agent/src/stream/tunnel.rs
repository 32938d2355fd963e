//! `/tunnel`: a bare connection to a port of a pod, for what the API server proxies.

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::{
    response::{HandlerResult, RequestError},
    server::Parts,
    upgrade::{self, PendingUpgrade, RequestedUpgrade},
};

pub async fn serve_tunnel(
    mut request: Request<Incoming>,
    parts: &Arc<Parts>,
    namespace: &str,
    pod: &str,
    port: u16,
    stop: CancellationToken,
) -> HandlerResult {
    if upgrade::requested_upgrade(request.headers()) != Some(RequestedUpgrade::Tunnel) {
        return Err(upgrade::no_upgrade_requested());
    }
    let found = parts.find(namespace, pod).await?;
    let connected = parts.runtime.connect(found.sandbox()?, port).await;
    let mut tunnel = connected.map_err(|error| {
        RequestError::new(StatusCode::BAD_GATEWAY, format!("cannot connect to port {port} of pod {pod:?}: {error}"))
    })?;
    let pending = PendingUpgrade::new(&mut request);
    let work = async move {
        if let Some(mut io) = pending.io().await {
            let _ = tokio::io::copy_bidirectional(&mut io, &mut tunnel).await;
        }
    };
    tokio::spawn(async move { stop.run_until_cancelled(work).await });
    Ok(upgrade::switching("tcp"))
}
