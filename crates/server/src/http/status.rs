//! Every refusal as a Kubernetes `Status`: the one place where errors become responses.
//!
//! Handlers return an [`ApiError`]; its code, reason, message and details are those upstream
//! gives for the same refusal, because clients branch on them.

use http::{StatusCode, header};
use mainstay_api::{
    apply::managers::{Conflict, ConflictList},
    descriptor::Descriptor,
    field::{Errors, FieldError},
};
use mainstay_store::StoreError;
use serde_json::{Value, json};

use crate::{
    api::CommitError,
    http::response_body::{Body, Response},
};

#[derive(Debug)]
pub struct ApiError {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Value>,
    retry_after: Option<u32>,
    /// `metadata.continue` of the Status: how an expired list can go on.
    resume: Option<String>,
    /// The store did not answer.
    is_store_outage: bool,
}

pub type ApiResult<T> = Result<T, Box<ApiError>>;

fn details(d: &Descriptor, name: &str) -> Value {
    let mut details = json!({ "name": name, "kind": d.plural });
    if !d.group.is_empty() {
        details["group"] = json!(d.group);
    }
    details
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            code,
            reason,
            message: message.into(),
            details: None,
            retry_after: None,
            resume: None,
            is_store_outage: false,
        })
    }

    fn about(mut self: Box<Self>, d: &Descriptor, name: &str) -> Box<Self> {
        self.details = Some(details(d, name));
        self
    }

    fn caused_by(mut self: Box<Self>, causes: Value) -> Box<Self> {
        self.details.get_or_insert_with(|| json!({}))["causes"] = causes;
        self
    }

    fn retry_after(mut self: Box<Self>, seconds: u32) -> Box<Self> {
        self.details.get_or_insert_with(|| json!({}))["retryAfterSeconds"] = json!(seconds);
        self.retry_after = Some(seconds);
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Box<Self> {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn unauthorized() -> Box<Self> {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// Nothing is served at this path.
    pub fn no_such_path() -> Box<Self> {
        let mut error =
            Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
        error.details = Some(json!({}));
        error
    }

    pub fn not_found(d: &Descriptor, name: &str) -> Box<Self> {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{} {name:?} not found", d.qualified())).about(d, name)
    }

    pub fn already_exists(d: &Descriptor, name: &str) -> Box<Self> {
        let message = format!("{} {name:?} already exists", d.qualified());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(d, name)
    }

    pub fn conflict(d: &Descriptor, name: &str, why: &str) -> Box<Self> {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", d.qualified());
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(d, name)
    }

    /// A conflict over a subresource, named as upstream names it.
    pub fn conflict_on(what: &str, name: &str, why: &str) -> Box<Self> {
        let message = format!("Operation cannot be fulfilled on {what} {name:?}: {why}");
        let mut error = Self::new(StatusCode::CONFLICT, "Conflict", message);
        error.details = Some(json!({ "name": name, "kind": what }));
        error
    }

    /// An apply would change fields that belong to others.
    pub fn apply_conflicts(conflicts: &ConflictList) -> Box<Self> {
        let cause = |conflict: &Conflict| json!({ "reason": "FieldManagerConflict", "message": conflict.message(), "field": conflict.path });
        Self::new(StatusCode::CONFLICT, "Conflict", conflicts.describe())
            .caused_by(conflicts.listed.iter().map(cause).collect())
    }

    /// An applied configuration does not fit its kind. Upstream has no better code for it.
    pub fn untyped_configuration(d: &Descriptor, config: &Value, why: &str) -> Box<Self> {
        let text = |field: &str| config["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name, version, kind) = (text("namespace"), text("name"), d.api_version(), &d.kind);
        let message =
            format!("failed to create typed patch object ({namespace}/{name}; {version}, Kind={kind}): {why}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// The object changed since the client read it.
    pub fn modified(d: &Descriptor, name: &str) -> Box<Self> {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(d, name, why)
    }

    pub fn forbidden(d: &Descriptor, name: &str, why: &str) -> Box<Self> {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", d.qualified())
        } else {
            format!("{} {name:?} is forbidden: {why}", d.qualified())
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(d, name)
    }

    /// A validation of an admission policy failed. The message is that of a forbidden request whatever the reason is.
    pub fn denied_by_policy(d: &Descriptor, name: &str, why: &str, reason: &str) -> Box<Self> {
        let mut error = Self::forbidden(d, name, why).caused_by(json!([{ "message": why }]));
        (error.code, error.reason) = match reason {
            "Forbidden" => (StatusCode::FORBIDDEN, "Forbidden"),
            "Unauthorized" => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            "RequestEntityTooLarge" => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
        };
        error
    }

    /// As [`ApiError::forbidden`], of a kind that has no descriptor.
    pub fn forbidden_kind(group: &str, resource: &str, name: &str, why: &str) -> Box<Self> {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let name_part = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{qualified}{name_part} is forbidden: {why}");
        let mut error = Self::new(StatusCode::FORBIDDEN, "Forbidden", message);
        error.details = Some(json!({ "name": name, "group": group, "kind": resource }));
        error
    }

    /// A webhook refused a write, with a code and reason of its choice.
    pub fn denied_by_webhook(code: StatusCode, reason: &str, message: String) -> Box<Self> {
        const REASONS: [&str; 10] = [
            "AlreadyExists",
            "BadRequest",
            "Conflict",
            "Forbidden",
            "Gone",
            "InternalError",
            "Invalid",
            "MethodNotAllowed",
            "NotFound",
            "TooManyRequests",
        ];
        Self::new(code, REASONS.into_iter().find(|known| *known == reason).unwrap_or_default(), message)
    }

    pub fn namespace_terminating(d: &Descriptor, name: &str, namespace: &str) -> Box<Self> {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        Self::forbidden(d, name, &why).caused_by(json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]))
    }

    /// Only those who may do everything may act as somebody else.
    /// `resource` with its group: `uids.authentication.k8s.io`.
    pub fn forbidden_impersonation(resource: &str, name: &str, why: &str) -> Box<Self> {
        let mut error =
            Self::new(StatusCode::FORBIDDEN, "Forbidden", format!("{resource} {name:?} is forbidden: {why}"));
        let (kind, group) = resource.split_once('.').unwrap_or((resource, ""));
        error.details = Some(json!({ "name": name, "kind": kind }));
        if let (Some(details), false) = (&mut error.details, group.is_empty()) {
            details["group"] = json!(group);
        }
        error
    }

    /// A path outside the resources that this user may not use.
    pub fn forbidden_path(user: &str, verb: &str, path: &str) -> Box<Self> {
        let mut error = Self::new(
            StatusCode::FORBIDDEN,
            "Forbidden",
            format!("forbidden: User {user:?} cannot {verb} path {path:?}"),
        );
        error.details = Some(json!({}));
        error
    }

    pub fn invalid(d: &Descriptor, name: &str, errors: &Errors) -> Box<Self> {
        Self::invalid_kind(&d.group, &d.kind, name, errors)
    }

    pub fn invalid_kind(group: &str, kind: &str, name: &str, errors: &Errors) -> Box<Self> {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let mut texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        texts.dedup();
        if errors.omitted() > 0 {
            texts.push(format!("and {} more", errors.omitted()));
        }
        let list = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut error =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", format!("{qualified} {name:?} is invalid: {list}"));
        let mut about = json!({ "name": name, "kind": kind });
        if !group.is_empty() {
            about["group"] = json!(group);
        }
        error.details = Some(about);
        let causes = errors
            .iter()
            .map(|e| json!({ "reason": e.reason.cause(), "message": e.body(), "field": e.path.to_string() }))
            .collect();
        error.caused_by(causes)
    }

    /// A patch that is well formed but cannot be applied.
    pub fn unprocessable(message: impl Into<String>) -> Box<Self> {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    pub fn method_not_allowed() -> Box<Self> {
        let mut error = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        error.details = Some(json!({}));
        error
    }

    /// Nothing is created of a kind that is being deleted.
    pub fn definition_terminating() -> Box<Self> {
        let mut error = Self::method_not_allowed();
        error.message = "create not allowed while custom resource definition is terminating".to_owned();
        error
    }

    pub fn not_acceptable(accepted: &[&str]) -> Box<Self> {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(given: &str, accepted: &[&str]) -> Box<Self> {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}{}",
            accepted.join(", "),
            if given.is_empty() { String::new() } else { format!(" (got {given:?})") },
        );
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub fn too_large(why: impl std::fmt::Display) -> Box<Self> {
        let message = format!("Request entity too large: {why}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub fn too_many_requests() -> Box<Self> {
        let message = "too many requests, please try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(1)
    }

    /// Someone has as many unanswered or recently answered certificate signing requests as one may have.
    pub fn too_many_certificate_requests(user: &str, most: usize) -> Box<Self> {
        let message = format!(
            "{user} has {most} certificate signing requests, which is the most; they are deleted an hour after they were \
             answered, or sooner when there are many"
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(30)
    }

    /// A user writes more Events than EventRateLimit allows; upstream's words.
    pub fn event_rate_exceeded(user: &str, seconds: u32) -> Box<Self> {
        let message = format!("limit reached on type User for key {user}");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(seconds)
    }

    /// A PodDisruptionBudget does not let a pod go now.
    pub fn budget_refuses(why: &str, retry_after: Option<u32>) -> Box<Self> {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
            .caused_by(json!([{ "reason": "DisruptionBudget", "message": why }]));
        match retry_after {
            Some(seconds) => error.retry_after(seconds),
            None => error,
        }
    }

    pub fn too_many_budgets() -> Box<Self> {
        let message =
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub fn timeout(message: impl Into<String>) -> Box<Self> {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    /// The client does not send its request's body.
    pub fn body_timeout(waited: std::time::Duration) -> Box<Self> {
        let message = format!("Timeout: the request body did not arrive within {}s", waited.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
    }

    /// The client asks to see a revision that does not exist yet.
    pub fn too_large_version(requested: u64, current: u64) -> Box<Self> {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        Self::timeout(message).retry_after(1).caused_by(json!([{
            "reason": "ResourceVersionTooLarge",
            "message": "Too large resource version",
        }]))
    }

    pub fn expired(message: impl Into<String>) -> Box<Self> {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// A page of a list whose revision is gone; `token` continues from the same key, inconsistently.
    pub fn expired_page(token: String) -> Box<Self> {
        let mut error = Self::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new \
             list without the continue parameter, or use the continue token in this response to retrieve the \
             remainder of the results. Continuing with the provided token results in an inconsistent list - objects \
             that were created, modified, or deleted between the time the first chunk was returned and now may show \
             up in the list.",
        );
        error.resume = Some(token);
        error
    }

    pub fn internal(message: impl Into<String>) -> Box<Self> {
        let message = message.into();
        let mut error = Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        );
        error.details = Some(json!({ "causes": [{ "message": message }] }));
        error
    }

    pub fn unavailable(message: impl Into<String>) -> Box<Self> {
        Self::not_served(message).retry_after(1)
    }

    /// Something else than this server does not answer; clients need not hurry to try again.
    pub fn not_served(message: impl Into<String>) -> Box<Self> {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// The agent that has to answer cannot be reached.
    pub fn unreachable(message: impl Into<String>) -> Box<Self> {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// What an agent refused, in its words.
    pub fn of_agent(code: StatusCode, message: String) -> Box<Self> {
        match code {
            StatusCode::BAD_REQUEST => Self::bad_request(message),
            StatusCode::FORBIDDEN => Self::new(code, "Forbidden", message),
            StatusCode::NOT_FOUND => Self::new(code, "NotFound", message),
            StatusCode::SERVICE_UNAVAILABLE => Self::unavailable(message),
            StatusCode::INTERNAL_SERVER_ERROR => Self::internal(message),
            other if other.is_client_error() || other.is_server_error() => Self::new(other, "", message),
            other => Self::internal(format!("unexpected answer of an agent ({other}): {message}")),
        }
    }

    /// As [`ApiError::not_found`], of a kind that has no descriptor.
    pub fn not_found_kind(group: &str, resource: &str, name: &str) -> Box<Self> {
        let dot = if group.is_empty() { "" } else { "." };
        let message = format!("{resource}{dot}{group} {name:?} not found");
        let mut error = Self::new(StatusCode::NOT_FOUND, "NotFound", message);
        error.details = Some(json!({ "name": name, "group": group, "kind": resource }));
        error
    }

    pub fn not_implemented(message: impl Into<String>) -> Box<Self> {
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }

    /// Whether it was the store that did not answer, and not the client or an agent that is to blame.
    pub fn is_store_outage(&self) -> bool {
        self.is_store_outage
    }

    fn by_store_outage(mut self: Box<Self>) -> Box<Self> {
        self.is_store_outage = true;
        self
    }

    pub fn code(&self) -> StatusCode {
        self.code
    }

    pub fn reason(&self) -> &'static str {
        self.reason
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn status(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.resume {
            metadata["continue"] = json!(token);
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }

    pub fn into_response(self) -> Response {
        let mut response = http::Response::builder()
            .status(self.code)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CACHE_CONTROL, "no-cache, private");
        if let Some(seconds) = self.retry_after {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        response.body(Body::full(self.status().to_string())).expect("static headers are valid")
    }
}

impl From<CommitError> for Box<ApiError> {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Store(error) => error.into(),
            CommitError::TermEnded(error) => {
                let message = error.to_string();
                let cause = json!([{ "reason": "LeaderTermEnded", "message": message }]);
                ApiError::new(StatusCode::CONFLICT, "Conflict", message).caused_by(cause)
            }
        }
    }
}

impl From<StoreError> for Box<ApiError> {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Compacted { requested, oldest } => {
                ApiError::expired(format!("too old resource version: {requested} ({oldest})"))
            }
            StoreError::Future { requested, newest } => ApiError::too_large_version(requested.0, newest.0),
            StoreError::TooLarge { limit, .. } => ApiError::too_large(format!("limit is {limit}")),
            StoreError::Closing => ApiError::unavailable(error.to_string()),
            StoreError::Unavailable { .. } | StoreError::Timeout { .. } => {
                ApiError::unavailable(error.to_string()).by_store_outage()
            }
            StoreError::NoSpace => {
                let mut refused = ApiError::new(
                    StatusCode::INSUFFICIENT_STORAGE,
                    "InsufficientStorage",
                    "write refused: no space left on the store's disk; free some space and try again",
                );
                refused.details = Some(json!({}));
                refused
            }
            StoreError::Failed { .. } => {
                tracing::error!(%error, "store failed");
                ApiError::internal(error.to_string())
            }
        }
    }
}
