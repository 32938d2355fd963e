//! A `kube::Client` that calls the API within the process: the same requests, no socket.

use std::{convert::Infallible, sync::Arc};

use http::Request;
use kube::client::Body as ClientBody;
use mainstay_api::wellknown::namespace::SYSTEM;
use tower::service_fn;

use crate::{
    auth::User,
    fence::Fence,
    handler::{Caller, Handler},
};

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
        async move { Ok::<_, Infallible>(handler.handle(request, caller).await) }
    });
    kube::Client::new(service, "default")
}
