//! The request handler: authenticates, authorizes, and calls the verb that serves the request.

use std::{borrow::Cow, future::Future, net::IpAddr, panic::AssertUnwindSafe, path::Path, sync::Arc, time::Instant};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Version, header, request::Parts};
use http_body_util::BodyExt;
use jiff::Timestamp;
use mainstay_api::{descriptor::Subresource, strategy::SpecPart};
use mainstay_store::{List, Store};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    admission::Notes,
    aggregator::{self, FrontProxy, RemoteRequest, api_services::RemoteService},
    api::{Api, Target},
    audit::{Audit, AuditContext},
    auth::{UNAUTHENTICATED, User, bearer, impersonate},
    authorize::{self, Attributes, RequestTarget, rbac::controller_policy},
    documents::{
        component_status,
        debug::{self, Debug},
        discovery, health,
        metrics::{Metrics, Verb},
        nonresource,
        openapi::OpenApi,
        reviews, rotate_key,
    },
    fence::Fence,
    flowcontrol::{ListSize, RequestDigest},
    http::{
        fairness::{Flow, source_network},
        negotiate,
        outages::Outages,
        query::Query,
        reply::RowObject,
        request_body::{ReceivedBody, RequestBody},
        request_limits::{RequestKind, RequestLimits, Seat, SeatOwner},
        request_log::{self, RequestInfo},
        response_body::Response,
        route::{ResourceRoute, Route},
        status::{ApiError, ApiResult},
        warnings::{self, Warnings},
        websocket,
    },
    objects::{guaranteed_update::Part, keys, large_work},
    pki::Pki,
    relay::{self, Agents},
    storage::encryption::Encryption,
    verbs::{self, Call},
};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Answers requests, whether they come over TLS or from within the process.
pub struct Handler {
    pub(crate) api: Api,
    limits: RequestLimits,
    /// Ends watches and streams when the server stops.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the server is about to stop, and still answers: `/readyz` fails.
    pub(crate) shutting_down: CancellationToken,
    /// Writes a copy of the store to a file, where the store can.
    pub(crate) backup: Option<Backup>,
    /// Encrypts the store, where it is encrypted.
    pub(crate) encryption: Option<Arc<Encryption>>,
    /// Where requests are logged, if they are.
    pub(crate) audit: Option<Arc<Audit>>,
    /// The certificate by which clients recognise the server, as PEM.
    pub(crate) ca: Option<Arc<str>>,
    /// The agents of nodes, where there are any to pass requests on to.
    pub(crate) agents: Option<Arc<Agents>>,
    /// Who answers below `/debug`.
    pub(crate) debug: Option<Debug>,
    /// The documents of the kinds that were served when somebody last asked for one.
    openapi: Mutex<Arc<OpenApi>>,
    pub(crate) metrics: Metrics,
    outages: Outages,
}

/// Which FlowSchema and PriorityLevelConfiguration a request was classified by.
static FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
static PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// The store, among outages.
const STORE: &str = "store";

/// Writes a consistent copy of a store to a file that does not exist yet.
pub type Backup = Arc<dyn Fn(&Path) -> Result<(), BoxError> + Send + Sync>;

/// Where a request comes from.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Over the network, from this address, with or without a client certificate that holds.
    Network { user: Option<Arc<User>>, source: IpAddr },
    /// A part of this process; limits that protect us from strangers do not apply.
    Internal(Arc<User>),
}

impl Caller {
    /// The source of a request, for what is open to whoever has not logged in.
    fn source_flow(&self) -> Option<Flow> {
        match self {
            Self::Network { source, .. } => Some(Flow::of_source(*source)),
            Self::Internal(_) => None,
        }
    }
}

impl Handler {
    pub fn new(api: Api, stop: CancellationToken) -> Self {
        let openapi = Mutex::new(OpenApi::new(api.served.current(), Vec::new()));
        Self {
            limits: RequestLimits::new(&api.settings),
            stop,
            shutting_down: CancellationToken::new(),
            backup: None,
            encryption: None,
            audit: None,
            ca: None,
            agents: None,
            debug: None,
            openapi,
            metrics: Metrics::with_flow_control(&api.flow_control),
            outages: Outages::default(),
            api,
        }
    }

    /// From now on `/readyz` fails, so that whoever balances between servers goes to another.
    pub fn begin_shutdown(&self) {
        self.shutting_down.cancel();
    }

    pub fn with_backup(self, backup: Option<Backup>) -> Self {
        Self { backup, ..self }
    }

    pub fn with_encryption(self, encryption: Arc<Encryption>) -> Self {
        Self { encryption: Some(encryption), ..self }
    }

    pub fn with_audit(mut self, audit: Option<Arc<Audit>>) -> Self {
        if let Some(audit) = &audit {
            self.metrics.also(audit.metrics());
        }
        Self { audit, ..self }
    }

    pub fn with_ca(self, ca: &str) -> Self {
        Self { ca: Some(ca.into()), ..self }
    }

    pub fn with_agents(self, agents: impl Into<Arc<Agents>>) -> Self {
        let agents = agents.into();
        self.api.webhooks.set_agents(agents.clone());
        Self { agents: Some(agents), ..self }
    }

    /// Lets requests be passed on to other API servers, with the front-proxy certificate of this one.
    pub fn with_front_proxy(self, pki: &Pki) -> Self {
        let authority = pki.front_proxy_authority.certificate().to_owned();
        let certificate = pki.front_proxy_client.clone();
        self.api.aggregator.set_front_proxy(FrontProxy { certificate, authority });
        self
    }

    pub fn with_debug(self, debug: Debug) -> Self {
        Self { debug: Some(debug), ..self }
    }

    /// Shows at `/metrics` what another part of the process counts.
    pub fn with_metrics(mut self, registry: prometheus_client::registry::Registry) -> Self {
        self.metrics.also(registry);
        self
    }

    /// The documents of the kinds that are served now.
    pub(crate) fn openapi(&self) -> Arc<OpenApi> {
        let current = self.api.served.current();
        let extra = self.api.aggregator.v2_definitions(&self.api);
        let mut openapi = self.openapi.lock();
        if !openapi.is_of(&current, &extra) {
            *openapi = OpenApi::new(current, extra);
        }
        openapi.clone()
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.api.store
    }

    pub fn handle<B>(self: Arc<Self>, request: Request<B>, caller: Caller) -> BoxFuture<'static, Response>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        bearer::move_websocket_token(&mut parts.headers);
        let audit = self.audit.clone().map(|audit| Arc::new(AuditContext::new(audit, &parts)));
        if let Some(audit) = &audit {
            parts.extensions.insert(audit.clone());
        }
        let mut body = RequestBody::new(&parts.headers, body.map_err(std::io::Error::other).boxed_unsync());
        let span = request_log::span(&parts);
        async move {
            let started = Instant::now();
            let mut info = RequestInfo::new(Verb::from_request(&parts.method, true, false));
            let answer = AssertUnwindSafe(self.respond(&parts, &mut body, &caller, &mut info)).catch_unwind().await;
            let panicked = answer.is_err();
            // A fault in our own code ends the request that met it and nothing else; the panic is in the log.
            let answer = answer.unwrap_or_else(|_| Err(ApiError::internal("the server met a fault of its own")));
            self.observe_store(&info, &answer, started);
            let mut response = answer.unwrap_or_else(|error| error.into_response());
            if let Some(flow) = &info.flow {
                let schema = &flow.schema;
                for (name, uid) in [(&FLOW_SCHEMA_UID, &schema.uid), (&PRIORITY_LEVEL_UID, &schema.level.uid)] {
                    if let Some(uid) = uid {
                        response.headers_mut().insert(name, uid.clone());
                    }
                }
            }
            if let Some(text) = &info.deprecation {
                let mut warnings = Warnings::default();
                warnings.add(text.to_string());
                warnings.write(response.headers_mut());
            }
            if let Some(audit) = &audit {
                response = audit.finish(&parts, &caller, response, panicked);
            }
            let duration = started.elapsed();
            self.metrics.record_request(&info, response.status(), duration.as_secs_f64());
            request_log::log_response(&info, response.status(), duration);
            let goes_on = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            if !goes_on && !body.drain(self.api.settings.max_body).await && parts.version < Version::HTTP_2 {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
        .instrument(span)
        .boxed()
    }

    async fn respond(
        &self,
        parts: &Parts,
        body: &mut RequestBody,
        caller: &Caller,
        info: &mut RequestInfo,
    ) -> ApiResult<Response> {
        let path = parts.uri.path();
        if health::serves(path) {
            return Box::pin(health::respond(self, parts)).await;
        }
        if nonresource::is_public(parts) {
            let mut seat = self.public_seat(parts, caller, info);
            seat.take().await?;
            return Box::pin(nonresource::respond(self, parts)).await;
        }
        let user = self.user(parts, caller).await?;
        info.user = Some(user.clone());
        let route = Route::parse(path).ok_or_else(|| ApiError::bad_request("the path is not valid UTF-8"))?;
        let (route, remote) = aggregator::find_remote(&self.api, path, route);
        // What is passed on has options of its own, and no limit in time.
        let relayed = match &remote {
            Some(_) => aggregator::is_upgrade(&parts.headers) || aggregator::is_stream(&route),
            None => matches!(&route, Route::Resource(r) if relay::is_relayed(&self.api.registry, r)),
        };
        let query = if relayed && remote.is_none() { "" } else { parts.uri.query().unwrap_or_default() };
        let query = match Query::parse(query) {
            // What another server makes of it is its business. Only whether it may take it for a watch is ours too.
            parsed if remote.is_some() => Query { watch: Query::may_ask_to_watch(query), ..parsed.unwrap_or_default() },
            parsed => parsed?,
        };
        let watch = parts.method == Method::GET
            && matches!(&route, Route::Resource(r) if r.watch || (query.watch && r.subresource.is_none()));
        if let Route::Resource(r) = &route {
            info.verb = Verb::from_request(&parts.method, r.name.is_some(), watch);
            info.set_object(r);
            if matches!(caller, Caller::Network { .. }) {
                info.deprecation = warnings::builtin_deprecation(&r.group, &r.version, &r.plural);
            }
            info.resource = self.api.served.find(&r.group, &r.version, &r.plural);
            if let (Some(d), Caller::Network { .. }) = (&info.resource, caller) {
                info.deprecation = warnings::deprecation(d).or(info.deprecation.take());
            }
        }
        let kind = match parts.method {
            _ if watch || relayed => RequestKind::LongRunning,
            Method::GET | Method::HEAD => RequestKind::ReadOnly,
            _ => RequestKind::Mutating,
        };
        let flow = matches!(caller, Caller::Network { .. }).then(|| Flow::of_request(&user, &route));
        let mut seat = {
            let asked = Attributes::from_request(&parts.method, path, &route, &query);
            if let Some(audit) = AuditContext::from_parts(parts) {
                audit.describe(parts, caller, Some(&user), asked.verb, &route);
            }
            let width = match flow {
                Some(_) => self.seats_of_request(&asked, &route, info, &query).await,
                None => 1,
            };
            self.seat(flow, &user, &asked, kind, width, info)
        };
        seat.take().await?;
        let remote = remote.as_deref().map(|service| RemoteRequest {
            service,
            source: match caller {
                Caller::Network { source, .. } => Some(*source),
                Caller::Internal(_) => None,
            },
            is_long_running: watch || aggregator::is_stream(&route),
        });
        let work = self.route(parts, body, &user, route, remote, query, watch, &mut seat);
        let mut response = match caller {
            Caller::Network { .. } if !relayed => self.with_timeout(work).await?,
            Caller::Network { .. } | Caller::Internal(_) => work.await?,
        };
        // Its memory is ours until the client has taken it, and so its seat is the client's: see `connection`. Not so for
        // administrators, whose shares have no bound: they would keep each other out.
        let is_bounded = flow.is_some_and(|flow| flow.level().bounds_flows())
            && info.flow.as_ref().is_some_and(|flow| !flow.schema.level.is_exempt);
        if let Some(taken) = seat.hand_over().filter(|_| is_bounded) {
            response.extensions_mut().insert(Arc::new(taken));
        }
        Ok(response)
    }

    /// Logs when the store stops to answer requests, and when it answers again.
    fn observe_store(&self, info: &RequestInfo, answer: &ApiResult<Response>, now: Instant) {
        match answer {
            Err(error) if error.is_store_outage() => {
                if self.outages.begins(STORE, now) {
                    let error = error.message();
                    tracing::warn!(error, "the store does not answer; requests fail until it does");
                }
            }
            Ok(_) if info.resource.is_some() => {
                if let Some(outage) = self.outages.ends(STORE, now) {
                    tracing::info!(?outage, "the store answers again");
                }
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// The seat of a request, and which flow it belongs to.
    fn seat(
        &self,
        flow: Option<Flow>,
        user: &User,
        asked: &Attributes<'_>,
        kind: RequestKind,
        width: usize,
        info: &mut RequestInfo,
    ) -> Seat<'_> {
        let owner = flow.map(|flow| {
            info.flow = self.api.flow_control.classify(&RequestDigest { user, asked });
            SeatOwner { user: flow, classified: info.flow.clone() }
        });
        Seat::new(&self.limits, &self.api.flow_control, &self.metrics, owner, kind, width)
    }

    /// The seat of a request for what is open to whoever has not logged in: each source address is a flow.
    fn public_seat(&self, parts: &Parts, caller: &Caller, info: &mut RequestInfo) -> Seat<'_> {
        let source = match caller {
            Caller::Network { source, .. } => source_network(*source).to_string(),
            Caller::Internal(_) => String::new(),
        };
        let user = User { name: source, groups: vec![UNAUTHENTICATED.to_owned()], ..User::default() };
        let asked = Attributes { verb: "get", target: RequestTarget::Path(parts.uri.path()) };
        self.seat(caller.source_flow(), &user, &asked, RequestKind::ReadOnly, 1, info)
    }

    /// A LIST takes as many seats as it has objects and bytes to show for it.
    async fn seats_of_request(
        &self,
        asked: &Attributes<'_>,
        route: &Route<'_>,
        info: &RequestInfo,
        query: &Query,
    ) -> usize {
        let (Route::Resource(route), Some(d), "list") = (route, &info.resource, asked.verb) else { return 1 };
        let prefix = keys::prefix(d, route.namespace.as_deref());
        if let Some(seats) = self.api.list_sizes.seats(&prefix, query.limit) {
            return seats;
        }
        // A flood must not get in for the price of a short list until the first of its LISTs is through.
        let first = List { prefix: &prefix, limit: Some(1), ..List::default() };
        if let Ok(first) = self.api.store.list_any(first).await {
            self.api.list_sizes.record(&prefix, ListSize::estimate(&first.entries, first.remaining));
        }
        self.api.list_sizes.seats(&prefix, query.limit).unwrap_or(1)
    }

    /// Who asks: whoever the connection belongs to, or else whoever the token names.
    async fn user(&self, parts: &Parts, caller: &Caller) -> ApiResult<Arc<User>> {
        match caller {
            Caller::Internal(user) | Caller::Network { user: Some(user), .. } => Ok(user.clone()),
            Caller::Network { user: None, .. } => {
                let token = bearer::presented(&parts.headers).ok_or_else(ApiError::unauthorized)?;
                let user = Box::pin(bearer::user(&self.api, token, Timestamp::now())).await?;
                user.ok_or_else(ApiError::unauthorized)
            }
        }
    }

    /// Ends a request that takes too long. A watch counts until its answer begins.
    pub(crate) async fn with_timeout<T>(&self, work: impl Future<Output = ApiResult<T>>) -> ApiResult<T> {
        match tokio::time::timeout(self.api.settings.request_timeout, work).await {
            Ok(answer) => answer,
            Err(_) => Err(ApiError::timeout("Timeout: request did not complete within the allotted timeout")),
        }
    }

    /// The whole body. The seat is free meanwhile: who sends slowly, or never, keeps nobody waiting.
    pub(crate) async fn receive(&self, body: &mut RequestBody, seat: &mut Seat<'_>) -> ApiResult<ReceivedBody> {
        if body.is_empty() {
            return Ok(ReceivedBody::default());
        }
        seat.release();
        let received = body.receive(&self.api.settings, seat).await?;
        seat.take().await?;
        Ok(received)
    }

    #[expect(clippy::too_many_arguments, reason = "what is known of a request once its head is understood")]
    async fn route(
        &self,
        parts: &Parts,
        body: &mut RequestBody,
        user: &User,
        route: Route<'_>,
        remote: Option<RemoteRequest<'_>>,
        query: Query,
        watch: bool,
        seat: &mut Seat<'_>,
    ) -> ApiResult<Response> {
        let user = match impersonate::requested(&parts.headers)? {
            Some(impersonated) => Cow::Owned(Box::pin(impersonated.authorized(&self.api, user)).await?),
            None => Cow::Borrowed(user),
        };
        let asked = Attributes::from_request(&parts.method, parts.uri.path(), &route, &query);
        let verdict = authorize::decide(&self.api, &user, &asked).await?;
        if let Some(audit) = AuditContext::from_parts(parts) {
            if let Cow::Owned(impersonated) = &user {
                audit.set_impersonated(impersonated);
            }
            audit.set_authorization(&verdict);
        }
        if let Err(why) = verdict {
            if controller_policy::is_own_part(&user) {
                let (user, verb, path) = (&user.name, asked.verb, parts.uri.path());
                tracing::warn!(user, verb, path, "a part of this server lacks a right: its ClusterRole was changed");
            }
            return Err(self.refusal(&user, &asked, &route, &why, remote.is_some()));
        }
        if let Some(remote) = remote {
            return Box::pin(self.proxy_to_remote(parts, body, &user, remote, seat)).await;
        }
        match route {
            Route::Resource(resource) if relay::is_relayed(&self.api.registry, &resource) => {
                Box::pin(self.relay(parts, body, &user, &resource, seat.hand_over())).await
            }
            Route::Resource(resource) if resource.group == relay::metrics::GROUP => {
                Box::pin(relay::metrics::respond(&self.api, self.agents()?, parts, &resource, &query)).await
            }
            Route::Resource(resource) if component_status::serves(&resource) => {
                Box::pin(component_status::respond(&self.api, parts, &resource, &query)).await
            }
            Route::Resource(resource) if verbs::placements::serves(&resource) => {
                if parts.method != Method::POST {
                    return Err(ApiError::method_not_allowed());
                }
                let received = self.receive(body, seat).await?;
                let fence = Fence::from_request(parts);
                Box::pin(verbs::placements::bind_all(&self.api, &received.bytes, query.dry_run, fence)).await
            }
            Route::Resource(resource) => self.resource(parts, body, &user, resource, query, watch, seat).await,
            Route::Other if debug::serves(parts.uri.path()) => Box::pin(debug::respond(self, parts)).await,
            Route::Other if rotate_key::serves(parts.uri.path()) => Box::pin(rotate_key::respond(self, parts)).await,
            Route::Other => match self.remote_document(parts) {
                Some(service) => {
                    let remote = RemoteRequest { service: &service, source: None, is_long_running: false };
                    Box::pin(self.proxy_to_remote(parts, body, &user, remote, seat)).await
                }
                None => Box::pin(nonresource::respond(self, parts)).await,
            },
            discovery => {
                if parts.method != Method::GET {
                    return Err(ApiError::method_not_allowed());
                }
                let versions = self.api.aggregator.versions(&self.api);
                discovery::respond(&self.api.served.current(), &versions, &parts.headers, &discovery)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what is known of a request once its head is understood")]
    async fn resource(
        &self,
        parts: &Parts,
        body: &mut RequestBody,
        user: &User,
        route: ResourceRoute<'_>,
        query: Query,
        watch: bool,
        seat: &mut Seat<'_>,
    ) -> ApiResult<Response> {
        let target = self.target(&route)?;
        let (target, query) = if watch { narrowed_to_name(target, query) } else { (target, query) };
        let accepted = negotiate::accepted(&parts.headers, !target.d.is_review)?;
        let row = RowObject::parse(query.include_object.as_deref())?;
        let received = self.receive(body, seat).await?;
        let body = received.bytes.clone();
        if let Some(audit) = AuditContext::from_parts(parts) {
            audit.set_body(&parts.method, &body);
        }
        let call = Call {
            api: &self.api,
            user,
            target,
            accepted,
            row,
            query,
            headers: &parts.headers,
            notes: Notes::default(),
            body,
            fence: Fence::from_request(parts),
        };
        let is_large = !seat.is_internal() && large_work::is_large(&call.body);
        let work = self.verb(parts, &call, &route, watch, seat);
        // What cannot be interrupted cannot be ended from outside either: the time is watched from within.
        let answer = if is_large { self.api.large_bodies.run(true, self.with_timeout(work)).await } else { work.await };
        if let Some(audit) = AuditContext::from_parts(parts) {
            audit.annotate(call.notes.take_audit_annotations());
        }
        let mut response = answer?;
        call.notes.write(response.headers_mut());
        Ok(response)
    }

    /// Calls the verb. All but GET are boxed, so that the future of a GET, which is moved several times on its way
    /// here, is not as large as that of a write with all of its admission.
    async fn verb(
        &self,
        parts: &Parts,
        call: &Call<'_>,
        route: &ResourceRoute<'_>,
        watch: bool,
        seat: &mut Seat<'_>,
    ) -> ApiResult<Response> {
        if let Some(name) = route.subresource.as_deref() {
            return Box::pin(self.subresource(&parts.method, call, name)).await;
        }
        if is_binding(route) {
            return match parts.method {
                Method::POST if call.target.namespace.is_some() => Box::pin(verbs::binding::bind(call)).await,
                _ => Err(ApiError::method_not_allowed()),
            };
        }
        let d = &call.target.d;
        let named = !call.target.name.is_empty();
        if d.is_review {
            return match (&parts.method, named) {
                (&Method::POST, false) => Box::pin(reviews::respond(call)).await,
                _ => Err(ApiError::method_not_allowed()),
            };
        }
        match (&parts.method, named) {
            (&Method::GET, _) if watch => {
                let open = (self.metrics.watching(), seat.hand_over());
                let stop = self.api.served.watch_stop(d, &self.stop);
                let response = Box::pin(verbs::watch::watch(call, stop, open)).await?;
                if websocket::is_requested(&parts.headers) { websocket::watch(parts, response) } else { Ok(response) }
            }
            (&Method::GET, true) => verbs::get::get(call).await,
            (&Method::GET, false) => Box::pin(verbs::list::list(call)).await,
            (&Method::POST, false) if d.namespaced() && call.target.namespace.is_none() => {
                Err(ApiError::method_not_allowed())
            }
            (&Method::POST, false) if d.custom.as_ref().is_some_and(|custom| custom.is_terminating) => {
                Err(ApiError::definition_terminating())
            }
            (&Method::POST, false) => Box::pin(verbs::create::create(call)).await,
            (&Method::PUT, true) => Box::pin(verbs::update::update(call, Part::Main)).await,
            (&Method::PATCH, true) => Box::pin(verbs::patch::patch(call, Part::Main)).await,
            (&Method::DELETE, true) => Box::pin(verbs::delete::delete(call)).await,
            (&Method::DELETE, false) if d.delete_collection => {
                Box::pin(verbs::delete_collection::delete_collection(call)).await
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    async fn subresource(&self, method: &Method, call: &Call<'_>, name: &str) -> ApiResult<Response> {
        let subresource = call.target.d.find_subresource(name).ok_or_else(ApiError::no_such_path)?;
        let part = match subresource {
            Subresource::Scale => {
                return match *method {
                    Method::GET | Method::PUT | Method::PATCH => verbs::scale::scale(call, method).await,
                    _ => Err(ApiError::method_not_allowed()),
                };
            }
            Subresource::Token | Subresource::Binding | Subresource::Eviction | Subresource::Refusal
                if *method != Method::POST =>
            {
                return Err(ApiError::method_not_allowed());
            }
            Subresource::Token => return verbs::token::token(call).await,
            Subresource::Binding => return verbs::binding::bind(call).await,
            Subresource::Eviction => return verbs::eviction::evict(call).await,
            Subresource::Refusal => return verbs::refusal::refuse(call).await,
            Subresource::Approval => Part::Approval,
            Subresource::Status => Part::Status,
            Subresource::Finalize => Part::Finalize,
            Subresource::EphemeralContainers => Part::Spec(SpecPart::EphemeralContainers),
            Subresource::Resize => Part::Spec(SpecPart::Resources),
            // Passed on to agents before this.
            Subresource::Log
            | Subresource::Exec
            | Subresource::Attach
            | Subresource::PortForward
            | Subresource::Proxy => return Err(ApiError::no_such_path()),
        };
        match *method {
            Method::GET if part != Part::Finalize => verbs::get::get(call).await,
            Method::PUT => verbs::update::update(call, part).await,
            Method::PATCH if part != Part::Finalize => verbs::patch::patch(call, part).await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    pub(crate) fn target(&self, route: &ResourceRoute<'_>) -> ApiResult<Target> {
        // The oldest clients post Bindings to a collection of their own.
        let plural = if is_binding(route) { "pods" } else { &route.plural };
        let found = self.api.served.find(&route.group, &route.version, plural);
        let d = found.ok_or_else(ApiError::no_such_path)?;
        if !d.namespaced() && route.namespace.is_some() {
            return Err(ApiError::no_such_path());
        }
        if d.namespaced() && route.name.is_some() && route.namespace.is_none() {
            return Err(ApiError::no_such_path());
        }
        for segment in [&route.name, &route.namespace].into_iter().flatten() {
            if !keys::is_segment(segment) {
                return Err(ApiError::not_found(&d, segment));
            }
        }
        let owned = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(str::to_owned);
        Ok(Target { namespace: owned(&route.namespace), name: owned(&route.name).unwrap_or_default(), d })
    }

    /// Whose document of OpenAPI v3 is asked for, if it is another server's.
    fn remote_document(&self, parts: &Parts) -> Option<Arc<RemoteService>> {
        let (group, version) = parts.uri.path().strip_prefix("/openapi/v3/apis/")?.split_once('/')?;
        self.api.aggregator.remote(&self.api, group, version).filter(|_| parts.method == Method::GET)
    }

    fn refusal(
        &self,
        user: &User,
        asked: &Attributes<'_>,
        route: &Route<'_>,
        why: &str,
        is_remote: bool,
    ) -> Box<ApiError> {
        let (Route::Resource(route), RequestTarget::Resource(resource)) = (route, &asked.target) else {
            let path = if let RequestTarget::Path(path) = &asked.target { path } else { "" };
            return ApiError::forbidden_path(&user.name, asked.verb, path);
        };
        let target = self.target(route).ok();
        if verbs::placements::serves(route) {
            return ApiError::forbidden_path(&user.name, asked.verb, "/apis/mainstay.dev/v1/placements");
        }
        if target.is_none() && !is_remote && !component_status::serves(route) {
            return ApiError::no_such_path();
        }
        let words = authorize::refusal(user, asked.verb, resource, why);
        match target {
            Some(target) => ApiError::forbidden(&target.d, resource.name(), &words),
            None => ApiError::forbidden_kind(&resource.group, &resource.resource, resource.name(), &words),
        }
    }
}

/// `/api/v1/namespaces/<namespace>/bindings`.
fn is_binding(route: &ResourceRoute<'_>) -> bool {
    route.group.is_empty() && route.plural == "bindings" && route.name.is_none()
}

/// A watch of one object is a watch of its collection that looks at one name.
fn narrowed_to_name(mut target: Target, mut query: Query) -> (Target, Query) {
    if !target.name.is_empty() {
        let name = std::mem::take(&mut target.name);
        let by_name = format!("metadata.name={name}");
        query.field_selector =
            if query.field_selector.is_empty() { by_name } else { format!("{},{by_name}", query.field_selector) };
    }
    (target, query)
}

#[cfg(test)]
mod tests;
