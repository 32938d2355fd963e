//! A `kube::Client` that calls the API within the process: the same requests, no socket.
//!
//! Requests are function calls. Only what upgrades its connection (`exec`, `attach`, `portforward`) needs one: it gets a pipe in memory with HTTP/1.1
//! on both ends, so that the client's side and the server's are the same as over the network.

use std::{convert::Infallible, sync::Arc};

use http::{Request, Response};
use http_body_util::Either;
use hyper::{
    body::Incoming, client::conn::http1 as client_http1, server::conn::http1 as server_http1,
    service::service_fn as http_service_fn,
};
use hyper_util::rt::TokioIo;
use kube::client::Body as ClientBody;
use mainstay_api::wellknown::namespace::SYSTEM;
use tower::service_fn;

use crate::{
    auth::User,
    fence::Fence,
    handler::{Caller, Handler},
    http::{response_body::Body, status::ApiError},
    relay::pipe::wants_upgrade,
};

/// How much a pipe in memory holds before its writer waits.
const PIPE_SIZE: usize = 64 * 1024;

/// A client for a part of this process, named for the logs.
pub fn internal(handler: Arc<Handler>, part: &str) -> kube::Client {
    client_for(handler, User::internal(part), None)
}

/// Such a client whose writes hold behind the fence alone.
pub fn internal_fenced(handler: Arc<Handler>, part: &str, fence: Fence) -> kube::Client {
    client_for(handler, User::internal(part), Some(Arc::new(fence)))
}

/// A client with no rights but those that roles give to the user. Its writes hold behind the fence alone, if there is one.
pub fn user(handler: Arc<Handler>, name: &str, fence: Option<Arc<Fence>>) -> kube::Client {
    client_for(handler, User::authenticated(name.to_owned(), Vec::new()), fence)
}

/// A client with no rights but those that roles give to the service account of `kube-system`. Its writes hold behind the
/// fence alone, if there is one.
pub fn controller(handler: Arc<Handler>, account: &str, fence: Option<Arc<Fence>>) -> kube::Client {
    client_for(handler, User::service_account(SYSTEM, account), fence)
}

/// A client for the agent in this process, which may do no more than that of another node.
pub fn node(handler: Arc<Handler>, name: &str) -> kube::Client {
    client_for(handler, User::node(name), None)
}

fn client_for(handler: Arc<Handler>, user: User, fence: Option<Arc<Fence>>) -> kube::Client {
    let caller = Caller::Internal(Arc::new(user));
    let service = service_fn(move |mut request: Request<ClientBody>| {
        if let Some(fence) = &fence {
            request.extensions_mut().insert(fence.clone());
        }
        let (handler, caller) = (handler.clone(), caller.clone());
        async move {
            Ok::<_, Infallible>(if wants_upgrade(request.headers()) {
                call_by_pipe(handler, caller, request).await
            } else {
                handler.handle(request, caller).await.map(Either::Left)
            })
        }
    });
    kube::Client::new(service, "default")
}

/// Sends one request through a pipe in memory. Both ends live until either hangs up.
async fn call_by_pipe(
    handler: Arc<Handler>,
    caller: Caller,
    request: Request<ClientBody>,
) -> Response<Either<Body, Incoming>> {
    let (client, server) = tokio::io::duplex(PIPE_SIZE);
    let service = http_service_fn(move |request: Request<Incoming>| {
        let (handler, caller) = (handler.clone(), caller.clone());
        async move { Ok::<_, Infallible>(handler.handle(request, caller).await) }
    });
    tokio::spawn(async move {
        let served = server_http1::Builder::new().serve_connection(TokioIo::new(server), service);
        if let Err(error) = served.with_upgrades().await {
            tracing::debug!(%error, "a stream within the process ended badly");
        }
    });
    let answer = async {
        let (mut sender, connection) = client_http1::handshake(TokioIo::new(client)).await?;
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await
    };
    match answer.await {
        Ok(response) => response.map(Either::Right),
        Err(error) => ApiError::unreachable(error.to_string()).into_response().map(Either::Left),
    }
}
