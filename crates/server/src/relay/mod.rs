//! Requests that agents answer: logs, exec, attach, port-forward, and HTTP to pods, services and nodes.
//!
//! The server decides who may and whom it concerns ([`pod`], [`proxy`], [`service`]), dials the agent of that node
//! ([`agent`]) and from then on only carries bytes ([`pipe`]): the protocols that clients upgrade to are spoken by
//! the agent. Streams have no limit in time; they end when either side does, or are cut off when the server stops.

pub mod agent;
pub mod agent_tls;
mod html_links;
pub mod metrics;
mod options;
pub(crate) mod pipe;
mod pod;
mod proxy;
pub(crate) mod service;
mod table;
pub(crate) mod tunnel;

use http::{Method, request::Parts};
use mainstay_api::{descriptor::Subresource, registry::Registry};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{self, Notes, Request},
    api::{Api, Target},
    auth::User,
    handler::Handler,
    http::{
        query::Query,
        request_body,
        request_limits::TakenSeat,
        response_body::Response,
        route::ResourceRoute,
        status::{ApiError, ApiResult},
    },
    objects::guaranteed_update::Part,
};

pub use agent::Agents;

pub type RequestBody = request_body::BodyStream;

/// A request to pass on.
pub struct RelayRequest<'a> {
    pub api: &'a Api,
    pub agents: &'a Agents,
    pub parts: &'a Parts,
    pub body: &'a mut request_body::RequestBody,
    pub target: Target,
    /// What follows `proxy` in the path, as it came.
    pub rest: &'a str,
    pub lifetime: Lifetime,
}

/// How long a stream lasts, and what it holds until its end.
pub struct Lifetime {
    pub stop: CancellationToken,
    /// Counts the stream against the limits of its user.
    pub seat: Option<TakenSeat>,
    /// When what is not at an end is cut off. Streams that last as long as either side likes have none.
    pub deadline: Option<Instant>,
}

/// Whether requests for this are passed on.
pub fn is_relayed(registry: &Registry, route: &ResourceRoute<'_>) -> bool {
    let Some(subresource) = route.subresource.as_deref() else { return false };
    let d = registry.find(&route.group, &route.version, &route.plural);
    d.and_then(|d| d.find_subresource(subresource)).is_some_and(Subresource::is_relayed)
}

impl Handler {
    pub(crate) fn agents(&self) -> ApiResult<&Agents> {
        self.agents.as_deref().ok_or_else(|| ApiError::not_served("this server has no agents to ask"))
    }

    pub(crate) async fn relay(
        &self,
        parts: &Parts,
        body: &mut request_body::RequestBody,
        user: &User,
        route: &ResourceRoute<'_>,
        seat: Option<TakenSeat>,
    ) -> ApiResult<Response> {
        let target = self.target(route)?;
        self.admit_connection(parts, user, route, &target).await?;
        let (api, agents) = (&self.api, self.agents()?);
        let lifetime = Lifetime { stop: self.stop.clone(), seat, deadline: None };
        let relayed = RelayRequest { api, agents, parts, body, target, rest: route.rest, lifetime };
        dispatch(relayed, route.subresource.as_deref().unwrap_or_default()).await
    }

    /// Asks admission about a stream or a proxied request, as upstream does with the operation `CONNECT`.
    async fn admit_connection(
        &self,
        parts: &Parts,
        user: &User,
        route: &ResourceRoute<'_>,
        target: &Target,
    ) -> ApiResult<()> {
        let subresource = route.subresource.as_deref().unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default();
        let Some(options) = options::connect_options(&target.d.kind, subresource, query, route.rest) else {
            return Ok(());
        };
        let (query, notes) = (Query::default(), Notes::default());
        let request = Request {
            api: &self.api,
            user,
            target,
            part: Part::Main,
            dry_run: false,
            query: &query,
            notes: &notes,
            fence: None,
        };
        admission::connect(&request, subresource, &options).await
    }
}

async fn dispatch(relayed: RelayRequest<'_>, subresource: &str) -> ApiResult<Response> {
    let method = &relayed.parts.method;
    match (&*relayed.target.d.plural, subresource) {
        ("pods", "log") if method == Method::GET => pod::log(relayed).await,
        ("pods", "exec" | "attach") if matches!(*method, Method::GET | Method::POST) => {
            pod::stream(relayed, subresource).await
        }
        ("pods", "portforward") if matches!(*method, Method::GET | Method::POST) => pod::forward(relayed).await,
        ("pods", "proxy") => proxy::pod(relayed).await,
        ("services", "proxy") => proxy::service(relayed).await,
        ("nodes", "proxy") => proxy::node(relayed).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}
