//! One debug line per request: who did what, how it ended and how long it took, as upstream's httplog.

use std::{sync::Arc, time::Duration};

use http::{StatusCode, request::Parts};
use mainstay_api::descriptor::Descriptor;

use crate::{auth::User, documents::metrics::Verb};

/// What a request turned out to be about, as far as it got.
#[derive(Clone)]
pub struct RequestInfo {
    pub verb: Verb,
    /// `None` for requests that are about no resource we serve.
    pub resource: Option<Arc<Descriptor>>,
    /// `None` for those who have not logged in.
    pub user: Option<Arc<User>>,
}

/// The span of everything that is logged on behalf of a request. Queries are left out: they may be long.
pub fn span(parts: &Parts) -> tracing::Span {
    tracing::debug_span!("request", method = %parts.method, path = parts.uri.path())
}

pub fn answered(info: &RequestInfo, code: StatusCode, took: Duration) {
    tracing::debug!(
        user = info.user.as_deref().map_or("system:anonymous", |user| &user.name),
        verb = ?info.verb,
        resource = info.resource.as_deref().map_or("", |d| &d.plural),
        code = code.as_u16(),
        ?took,
        "request answered"
    );
}
