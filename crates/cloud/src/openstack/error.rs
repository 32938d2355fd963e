//! Calls to a cloud that failed: which service, which call, what the cloud said, and what that means.

use std::{fmt, time::Duration};

use serde_json::Value;

use super::Service;

/// A call, as errors and logs name it. Paths hold ids and names, never secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub service: Service,
    /// What it does, in words: `create server`.
    pub operation: &'static str,
    pub method: &'static str,
    pub path: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({} {})", self.service.name(), self.operation, self.method, self.path)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    #[error("{call}: {status} {message}")]
    Refused {
        call: Call,
        status: u16,
        /// The cloud's own name of the error, where it has one: `RoutesExhausted`, `OverQuota`.
        kind: Option<String>,
        message: String,
        /// Seconds after which it may be tried again, as the service says.
        retry_after: Option<u16>,
    },
    #[error("{call}: no answer within {after:?}")]
    Timeout { call: Call, after: Duration },
    #[error("{call}: no connection")]
    Connect {
        call: Call,
        #[source]
        source: reqwest::Error,
    },
    #[error("{call}: the connection broke")]
    Transport {
        call: Call,
        #[source]
        source: reqwest::Error,
    },
    #[error("{call}: the answer is not what this call answers")]
    Malformed {
        call: Call,
        #[source]
        source: serde_json::Error,
    },
    #[error("{call}: the answer is longer than {limit} bytes")]
    TooLong { call: Call, limit: usize },
    #[error("{call}: the list has no end after {limit} objects")]
    TooMany { call: Call, limit: usize },
    #[error("the cloud's catalog has no {} service in region {region}", service.name())]
    NoSuchService { service: Service, region: String },
    #[error("the project cannot be told from the login: name a project")]
    NoProject,
}

impl CloudError {
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The cloud's own name of the error, where it has one.
    pub fn kind(&self) -> Option<&str> {
        match self {
            Self::Refused { kind, .. } => kind.as_deref(),
            _ => None,
        }
    }

    /// The cloud's own words, alone.
    pub fn message(&self) -> String {
        match self {
            Self::Refused { message, .. } => message.clone(),
            other => mainstay_errors::error_chain(other),
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// The object changed, is in use, or is in a state that forbids the call: look again.
    pub fn is_conflict(&self) -> bool {
        matches!(self.status(), Some(409 | 412)) && !self.is_quota_exceeded()
    }

    /// A quota of the project does not allow it; the message says which.
    pub fn is_quota_exceeded(&self) -> bool {
        let Self::Refused { status, kind, message, .. } = self else { return false };
        match status {
            413 => true,
            403 | 409 => {
                kind.as_deref() == Some("OverQuota")
                    || ["quota exceeded", "quota has been met", "exceeds allowed", "quota limit"]
                        .iter()
                        .any(|words| message.to_ascii_lowercase().contains(words))
            }
            _ => false,
        }
    }

    /// The login was refused, or has no right to do this.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.status(), Some(401 | 403)) && !self.is_quota_exceeded()
    }

    /// It may work later without anybody doing anything: no answer, a broken one, a service that is overloaded or down.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Self::Timeout { .. } | Self::Connect { .. } | Self::Transport { .. } | Self::Malformed { .. } => true,
            Self::TooLong { .. } | Self::TooMany { .. } | Self::NoSuchService { .. } | Self::NoProject => false,
        }
    }

    /// The service may have done what was asked: whoever asked has to look.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500 || *status == 408,
            Self::Timeout { .. } | Self::Transport { .. } | Self::Malformed { .. } | Self::TooLong { .. } => true,
            Self::Connect { .. } | Self::TooMany { .. } | Self::NoSuchService { .. } | Self::NoProject => false,
        }
    }
}

/// The cloud's name of an error and its words, from the body of an answer: every service has a shape of its own.
pub(super) fn parse_error_body(body: &[u8]) -> (Option<String>, String) {
    const LONGEST: usize = 2000;
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        let text = String::from_utf8_lossy(&body[..body.len().min(LONGEST)]);
        return (None, strip_markup(&text));
    };
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
    // Octavia: faultstring. Others: one member that names the error and holds the message.
    let inner = match &value {
        Value::Object(members) if members.len() == 1 => members.iter().next(),
        _ => None,
    };
    let (kind, message) = match inner {
        Some((_, Value::Object(_))) => {
            let (name, inner) = inner.expect("just matched");
            let kind = text(inner, "type").or_else(|| (name != "error").then(|| name.clone()));
            (kind, text(inner, "message").or_else(|| text(inner, "detail")))
        }
        Some((name, Value::String(message))) => (Some(name.clone()), Some(message.clone())),
        _ => (None, text(&value, "faultstring").or_else(|| text(&value, "message"))),
    };
    let message = message.unwrap_or_else(|| value.to_string());
    (kind, message.chars().take(LONGEST).collect())
}

fn strip_markup(text: &str) -> String {
    let mut plain = String::new();
    let mut in_tag = false;
    for each in text.chars() {
        match each {
            '<' => in_tag = true,
            '>' => in_tag = false,
            other if !in_tag => plain.push(other),
            _ => {}
        }
    }
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(status: u16, body: Value) -> CloudError {
        let (kind, message) = parse_error_body(body.to_string().as_bytes());
        let call = Call { service: Service::Network, operation: "show port", method: "GET", path: "/ports/1".into() };
        CloudError::Refused { call, status, kind, message, retry_after: None }
    }

    #[test]
    fn every_services_words_are_found() {
        for (body, kind, message) in [
            (json!({"itemNotFound": {"code": 404, "message": "Instance gone"}}), Some("itemNotFound"), "Instance gone"),
            (
                json!({"NeutronError": {"type": "RoutesExhausted", "message": "too many", "detail": ""}}),
                Some("RoutesExhausted"),
                "too many",
            ),
            (json!({"error": {"code": 401, "title": "Unauthorized", "message": "no"}}), None, "no"),
            (json!({"faultcode": "Client", "faultstring": "immutable", "debuginfo": null}), None, "immutable"),
        ] {
            let (found_kind, found) = parse_error_body(body.to_string().as_bytes());
            assert_eq!((found_kind.as_deref(), found.as_str()), (kind, message));
        }
        assert_eq!(parse_error_body(b"<html><h1>403</h1> No\n way</html>").1, "403 No way");
        assert_eq!(parse_error_body(b"").1, "");
    }

    #[test]
    fn an_error_names_service_call_status_and_words() {
        let error = refused(404, json!({"NeutronError": {"type": "PortNotFound", "message": "Port 1 gone"}}));
        assert_eq!(error.to_string(), "network: show port (GET /ports/1): 404 Port 1 gone");
        assert!(error.is_not_found() && !error.is_transient() && !error.is_outcome_unknown());
        assert_eq!(error.kind(), Some("PortNotFound"));
    }

    #[test]
    fn quotas_are_told_from_conflicts_and_missing_rights() {
        let nova = refused(
            403,
            json!({"forbidden": {"message": "Quota exceeded for cores: Requested 1, but already used 20 of 20 cores"}}),
        );
        let neutron = refused(
            409,
            json!({"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['port']."}}),
        );
        let cinder = refused(413, json!({"overLimit": {"message": "VolumeSizeExceedsAvailableQuota"}}));
        for quota in [nova, neutron, cinder] {
            assert!(quota.is_quota_exceeded() && !quota.is_conflict() && !quota.is_forbidden());
        }
        assert!(refused(409, json!({"conflictingRequest": {"message": "task_state deleting"}})).is_conflict());
        assert!(
            refused(412, json!({"NeutronError": {"type": "RevisionNumberConstraintFailed", "message": ""}}))
                .is_conflict()
        );
        assert!(refused(403, json!({"forbidden": {"message": "Policy doesn't allow"}})).is_forbidden());
    }

    #[test]
    fn what_may_have_been_done_is_unknown() {
        assert!(refused(500, json!({})).is_outcome_unknown());
        assert!(!refused(429, json!({})).is_outcome_unknown());
        assert!(refused(429, json!({})).is_transient());
    }
}
