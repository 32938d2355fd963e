//! What is known of a request for its audit events, collected while it passes through the handler.

use std::{
    borrow::Cow,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderName, HeaderValue, Method, StatusCode, header::AsHeaderName, request::Parts};
use jiff::Timestamp;
use parking_lot::Mutex;

use super::{
    Audit,
    event::{AuditId, Event, RequestRecord},
    policy::{Level, Stage, Stages, Subject, Target},
};
use crate::{
    auth::User,
    handler::Caller,
    http::{
        response_body::{Body, Response},
        route::{ResourceRoute, Route},
    },
};

static HEADER: HeaderName = HeaderName::from_static("audit-id");
/// Longest identifier that a client may choose.
const LONGEST_ID: usize = 64;
/// Annotations of admission plugins that one event has, and how much of each.
const MAX_ANNOTATIONS: usize = 100;
const MAX_ANNOTATION: usize = 10 * 1024;
/// What others call the status of a request whose client left before the response.
const CLIENT_LEFT: StatusCode = match StatusCode::from_u16(499) {
    Ok(code) => code,
    Err(_) => StatusCode::BAD_REQUEST,
};
const CLIENT_LEFT_STATUS: &[u8] =
    br#"{"kind":"Status","status":"Failure","message":"the client left before the response"}"#;

/// Travels with a request, among its extensions.
pub struct AuditContext {
    audit: Arc<Audit>,
    id: AuditId,
    received: Timestamp,
    record: Mutex<Described>,
    is_answered: AtomicBool,
}

/// Whether it is known what a request is about, and whether that is logged.
enum Described {
    NotYet,
    NotLogged,
    Logged { request: Arc<RequestRecord>, omit_stages: Stages },
}

impl AuditContext {
    pub fn new(audit: Arc<Audit>, parts: &Parts) -> Self {
        let given = parts.headers.get(&HEADER).and_then(|id| id.to_str().ok());
        let given = given.filter(|id| (1..=LONGEST_ID).contains(&id.len()));
        let random = || AuditId::Random(uuid::Builder::from_random_bytes(fastrand::u128(..).to_be_bytes()).into_uuid());
        let id = given.map_or_else(random, |id| AuditId::Given(id.into()));
        Self {
            audit,
            id,
            received: Timestamp::now(),
            record: Mutex::new(Described::NotYet),
            is_answered: AtomicBool::new(false),
        }
    }

    /// The context of a request, if there is an audit log.
    pub fn from_parts(parts: &Parts) -> Option<&Self> {
        parts.extensions.get::<Arc<Self>>().map(|context| &**context)
    }

    /// Says who asks for what, from which the policy decides whether it is logged.
    pub fn describe(&self, parts: &Parts, caller: &Caller, user: Option<&Arc<User>>, verb: &str, route: &Route<'_>) {
        let target = match route {
            Route::Resource(resource) => target(resource),
            Route::Groups { .. } | Route::Group(_) | Route::GroupVersion { .. } | Route::Other => {
                Target::Path(parts.uri.path())
            }
        };
        let verdict = self.audit.policy.decide(user.map(|user| &**user), Subject { verb, target });
        if verdict.level == Level::None {
            *self.record.lock() = Described::NotLogged;
            return;
        }
        let request = RequestRecord {
            audit_id: self.id.clone(),
            level: verdict.level,
            omit_managed_fields: verdict.omit_managed_fields,
            uri: parts.uri.path_and_query().map_or_else(Box::default, |uri| uri.as_str().into()),
            verb: known_verb(verb),
            user: user.cloned(),
            impersonated: None,
            forwarded_for: forwarded_for(parts, caller),
            source: if let Caller::Network { source, .. } = caller { Some(*source) } else { None },
            user_agent: header(parts, http::header::USER_AGENT).map(Into::into),
            is_resource: matches!(route, Route::Resource(_)),
            body: None,
            received: self.received,
            authorization: None,
            annotations: Vec::new(),
        };
        let described = Described::Logged { request: Arc::new(request), omit_stages: verdict.omit_stages };
        *self.record.lock() = described;
        self.emit(Stage::RequestReceived, None, None);
    }

    pub fn set_impersonated(&self, user: &User) {
        self.change(|request| request.impersonated = Some(Arc::new(user.clone())));
    }

    pub fn set_authorization(&self, verdict: &Result<String, String>) {
        self.change(|request| {
            request.authorization = Some(match verdict {
                Ok(why) => (true, why.clone()),
                Err(why) => (false, why.clone()),
            });
        });
    }

    /// Takes what admission plugins say about the request. The first value of a key stays, as upstream's; long values are cut.
    pub fn annotate(&self, annotations: Vec<(String, String)>) {
        if annotations.is_empty() {
            return;
        }
        self.change(|request| {
            for (key, mut value) in annotations {
                let is_known = request.annotations.iter().any(|(known, _)| *known == key);
                if !is_known && request.annotations.len() < MAX_ANNOTATIONS {
                    value.truncate(value.floor_char_boundary(MAX_ANNOTATION));
                    request.annotations.push((key, value));
                }
            }
        });
    }

    /// Takes the body that was sent, as far as it is logged: whole from level Request on, else for the name of what is created.
    pub fn set_body(&self, method: &Method, body: &Bytes) {
        self.change(|request| {
            let is_unnamed = || request.resource().is_some_and(|resource| resource.name.is_none());
            if !body.is_empty() && (request.level >= Level::Request || (*method == Method::POST && is_unnamed())) {
                request.body = Some(body.clone());
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut RequestRecord)) {
        if let Described::Logged { request, .. } = &mut *self.record.lock() {
            change(Arc::make_mut(request));
        }
    }

    /// Logs how the request was answered; a stream is logged once more when it ends.
    pub fn finish(
        self: &Arc<Self>,
        parts: &Parts,
        caller: &Caller,
        mut response: Response,
        panicked: bool,
    ) -> Response {
        self.is_answered.store(true, Relaxed);
        if matches!(*self.record.lock(), Described::NotYet) {
            self.describe_unknown(parts, caller);
        }
        if let Ok(id) = self.id.with_text(HeaderValue::from_str) {
            response.headers_mut().insert(&HEADER, id);
        }
        let level = match &*self.record.lock() {
            Described::Logged { request, .. } => request.level,
            Described::NotYet | Described::NotLogged => return response,
        };
        let code = response.status();
        if panicked {
            self.emit(Stage::Panic, Some(code), None);
            return response;
        }
        let (head, body) = response.into_parts();
        let body = if level == Level::RequestResponse { whole(body) } else { body };
        let body = match body {
            Body::Stream(stream) => Body::Stream(stream.inspect(self.until_end(code)).boxed()),
            Body::Endless(stream) => Body::Endless(stream.inspect(self.until_end(code)).boxed()),
            Body::Relayed(stream) => Body::Relayed(stream.inspect(self.until_end(code)).boxed()),
            Body::Full(bytes) => {
                let wanted = level == Level::RequestResponse || code.as_u16() >= 400;
                self.emit(Stage::ResponseComplete, Some(code), bytes.clone().filter(|_| wanted));
                Body::Full(bytes)
            }
            pieces @ Body::Pieces { .. } => {
                self.emit(Stage::ResponseComplete, Some(code), None);
                pieces
            }
        };
        Response::from_parts(head, body)
    }

    /// Says that the response has begun, and when what this returns is dropped, that it has ended.
    fn until_end<T>(self: &Arc<Self>, code: StatusCode) -> impl FnMut(&T) + Send + 'static {
        self.emit(Stage::ResponseStarted, Some(code), None);
        let end = EndOfStream { context: self.clone(), code };
        move |_| {
            let _ = &end;
        }
    }

    /// For a request that was refused before anybody knew whose it is.
    fn describe_unknown(&self, parts: &Parts, caller: &Caller) {
        let route = Route::parse(parts.uri.path()).unwrap_or(Route::Other);
        let verb = match (&route, &parts.method) {
            (Route::Resource(resource), &Method::GET) if resource.name.is_none() => "list".to_owned(),
            (Route::Resource(_), &Method::POST) => "create".to_owned(),
            (Route::Resource(_), &Method::PUT) => "update".to_owned(),
            (_, method) => method.as_str().to_lowercase(),
        };
        self.describe(parts, caller, None, &verb, &route);
    }

    fn emit(&self, stage: Stage, code: Option<StatusCode>, response: Option<Bytes>) {
        let request = match &*self.record.lock() {
            Described::Logged { request, omit_stages } if !omit_stages.contains(stage) => request.clone(),
            Described::Logged { .. } | Described::NotYet | Described::NotLogged => return,
        };
        let code = code.map(|code| code.as_u16());
        self.audit.record(Event { request, stage, at: Timestamp::now(), code, response });
    }
}

/// A client that leaves takes its request with it, but what that did until then is logged all the same.
impl Drop for AuditContext {
    fn drop(&mut self) {
        if !*self.is_answered.get_mut() {
            self.emit(Stage::ResponseComplete, Some(CLIENT_LEFT), Some(Bytes::from_static(CLIENT_LEFT_STATUS)));
        }
    }
}

struct EndOfStream {
    context: Arc<AuditContext>,
    code: StatusCode,
}

impl Drop for EndOfStream {
    fn drop(&mut self) {
        self.context.emit(Stage::ResponseComplete, Some(self.code), None);
    }
}

/// A list in one piece, to be logged.
fn whole(body: Body) -> Body {
    match body {
        Body::Pieces { length, pieces } => {
            let mut all = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
            pieces.for_each(|piece| all.extend_from_slice(&piece));
            Body::full(all)
        }
        other => other,
    }
}

fn target<'a>(route: &'a ResourceRoute<'a>) -> Target<'a> {
    let text = |part: &'a Option<std::borrow::Cow<'a, str>>| part.as_deref().unwrap_or_default();
    Target::Resource {
        group: &route.group,
        resource: &route.plural,
        subresource: text(&route.subresource),
        namespace: text(&route.namespace),
        name: text(&route.name),
    }
}

/// The beginning of a header.
fn header(parts: &Parts, name: impl AsHeaderName) -> Option<&str> {
    let text = parts.headers.get(name)?.to_str().ok()?;
    Some(&text[..text.floor_char_boundary(1024)])
}

/// The addresses that a request came by before it came to us, as far as proxies tell the truth.
fn forwarded_for(parts: &Parts, caller: &Caller) -> Vec<IpAddr> {
    let Caller::Network { .. } = caller else { return Vec::new() };
    let forwarded = header(parts, "x-forwarded-for").unwrap_or_default();
    forwarded.split(',').filter_map(|text| text.trim().parse().ok()).collect()
}

/// A verb without a copy, unless it is a method that nobody knows.
fn known_verb(verb: &str) -> Cow<'static, str> {
    const KNOWN: [&str; 11] =
        ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "post", "put", "connect"];
    match KNOWN.iter().find(|known| **known == verb) {
        Some(known) => Cow::Borrowed(*known),
        None => Cow::Owned(verb.to_owned()),
    }
}
