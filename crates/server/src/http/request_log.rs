//! One span and one debug line per request: who did what to which object, how it ended and how long it took.
//!
//! The fields are those of upstream's httplog.

use std::{sync::Arc, time::Duration};

use http::{StatusCode, request::Parts};
use mainstay_api::descriptor::Descriptor;

use crate::{auth::User, documents::metrics::Verb, flowcontrol::RequestFlow, http::route::ResourceRoute};

/// What a request turned out to be about, as far as it got.
#[derive(Clone)]
pub struct RequestInfo {
    pub verb: Verb,
    /// `None` for requests that are about no resource we serve.
    pub resource: Option<Arc<Descriptor>>,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// `None` for those who have not logged in.
    pub user: Option<Arc<User>>,
    /// Which FlowSchema and priority level it was classified by.
    pub flow: Option<RequestFlow>,
    /// What the client is to know about the kind, however the request ends.
    pub deprecation: Option<std::borrow::Cow<'static, str>>,
}

impl RequestInfo {
    pub fn new(verb: Verb) -> Self {
        Self {
            verb,
            resource: None,
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            user: None,
            flow: None,
            deprecation: None,
        }
    }

    /// Records the object, if anybody will see it: this is the way of every request.
    pub fn set_object(&mut self, route: &ResourceRoute<'_>) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            let owned = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
            self.subresource = owned(&route.subresource);
            self.namespace = owned(&route.namespace);
            self.name = owned(&route.name);
        }
    }
}

/// The span of everything that is logged on behalf of a request. Queries are left out: they may be long.
pub fn span(parts: &Parts) -> tracing::Span {
    tracing::debug_span!("request", method = %parts.method, path = parts.uri.path())
}

pub fn log_response(info: &RequestInfo, code: StatusCode, duration: Duration) {
    tracing::debug!(
        user = info.user.as_deref().map_or("system:anonymous", |user| &user.name),
        verb = ?info.verb,
        resource = info.resource.as_deref().map_or("", |d| &d.plural),
        subresource = info.subresource,
        namespace = info.namespace,
        name = info.name,
        code = code.as_u16(),
        ?duration,
        "request answered"
    );
}
