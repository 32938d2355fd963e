//! AdmissionReview: what webhooks are asked, and what they may answer.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::StatusCode;
use serde_json::{Value, json};
use uuid::Uuid;

use super::matching::Subject;
use crate::{
    admission::{
        Request,
        matching::{self, Operation},
    },
    http::query::FieldValidation,
};

const API_VERSION: &str = "admission.k8s.io/v1";
const API_VERSION_BETA: &str = "admission.k8s.io/v1beta1";

/// What a webhook decided.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    Allowed {
        patch: Option<Value>,
    },
    /// With the code, reason and message of its status.
    Denied {
        code: StatusCode,
        reason: String,
        message: String,
    },
}

/// The answer of a webhook.
#[derive(Debug, PartialEq)]
pub struct WebhookResponse {
    pub verdict: Verdict,
    pub warnings: Vec<String>,
    pub audit_annotations: Vec<(String, String)>,
}

pub fn review(hook: &Value, request: &Request<'_>, subject: &Subject<'_>) -> Value {
    let d = subject.d;
    // Whoever connects sends no object, but options, which have a kind of their own.
    let options = subject.object.filter(|_| subject.operation == Operation::Connect);
    let resource = json!({ "group": d.group, "version": d.version, "resource": d.plural });
    let own = &request.target.d;
    let (kind, own_kind) = matching::request_kinds(d, own, subject.object);
    let own_resource = json!({ "group": own.group, "version": own.version, "resource": own.plural });
    let subresource = (!subject.subresource.is_empty()).then_some(subject.subresource);
    let object_name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
    let name = if request.target.name.is_empty() {
        subject.object.and_then(object_name).unwrap_or_default()
    } else {
        request.target.name.clone()
    };
    let namespace = if d.is_core("Namespace") { Some(name.clone()) } else { request.target.namespace.clone() };
    let user = request.user;
    let mut asked = json!({
        "uid": Uuid::new_v4(),
        "kind": kind, "resource": resource,
        "requestKind": own_kind, "requestResource": own_resource,
        "name": name,
        "operation": subject.operation.as_str(),
        "userInfo": { "username": user.name, "groups": user.groups },
        "object": subject.object.unwrap_or(&Value::Null),
        "oldObject": subject.old.unwrap_or(&Value::Null),
        "dryRun": request.dry_run,
        "options": if options.is_some() { Value::Null } else { self::options(request, subject.operation.as_str()) },
    });
    if let Some(subresource) = subresource {
        asked["subResource"] = json!(subresource);
        asked["requestSubResource"] = json!(subresource);
    }
    if let Some(namespace) = namespace {
        asked["namespace"] = json!(namespace);
    }
    if !user.uid.is_empty() {
        asked["userInfo"]["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        asked["userInfo"]["extra"] = json!(user.extra);
    }
    let versions = hook["admissionReviewVersions"].as_array().map_or(&[][..], Vec::as_slice);
    let version = versions.iter().find_map(|version| match version.as_str()? {
        "v1" => Some(API_VERSION),
        "v1beta1" => Some(API_VERSION_BETA),
        _ => None,
    });
    json!({ "kind": "AdmissionReview", "apiVersion": version.unwrap_or(API_VERSION), "request": asked })
}

/// The options of the request, as far as webhooks look at them.
fn options(request: &Request<'_>, operation: &str) -> Value {
    let kind = match operation {
        "CREATE" => "CreateOptions",
        "DELETE" => "DeleteOptions",
        _ => "UpdateOptions",
    };
    let mut options = json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1" });
    if request.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    if operation != "DELETE" {
        options["fieldValidation"] = json!(match request.query.field_validation {
            FieldValidation::Ignore => "Ignore",
            FieldValidation::Warn => "Warn",
            FieldValidation::Strict => "Strict",
        });
        if !request.query.field_manager.is_empty() {
            options["fieldManager"] = json!(request.query.field_manager);
        }
    }
    options
}

/// Reads an answer; errors say why it is none.
pub fn parse_response(review: &Value, answer: &Value, may_patch: bool) -> Result<WebhookResponse, String> {
    let kind = |value: &Value| {
        let (api_version, kind) = (value["apiVersion"].as_str(), value["kind"].as_str());
        format!("{}, Kind={}", api_version.unwrap_or_default(), kind.unwrap_or_default())
    };
    if kind(review) != kind(answer) {
        return Err(format!("expected webhook response of {}, got {}", kind(review), kind(answer)));
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let (asked, answered) = (&review["request"]["uid"], response["uid"].as_str().unwrap_or_default());
    let is_beta = review["apiVersion"] == API_VERSION_BETA;
    if asked != answered && !(is_beta && answered.is_empty()) {
        let asked = asked.as_str().unwrap_or_default();
        return Err(format!("expected response.uid={asked:?}, got {answered:?}"));
    }
    let Some(allowed) = response["allowed"].as_bool() else {
        return Err("response.allowed must be true or false".to_owned());
    };
    let warnings = response["warnings"].as_array().into_iter().flatten();
    let annotations = response["auditAnnotations"].as_object().into_iter().flatten();
    Ok(WebhookResponse {
        verdict: if allowed { Verdict::Allowed { patch: patch(response, may_patch)? } } else { denial(response) },
        warnings: warnings.filter_map(|text| text.as_str().map(str::to_owned)).collect(),
        audit_annotations: annotations
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect(),
    })
}

fn patch(response: &Value, may_patch: bool) -> Result<Option<Value>, String> {
    let Some(encoded) = response["patch"].as_str().filter(|patch| !patch.is_empty()) else {
        return Ok(None);
    };
    match response["patchType"].as_str() {
        _ if !may_patch => return Err("validating webhook may not return response.patch".to_owned()),
        Some("JSONPatch") => {}
        None => return Err("webhook returned response.patch but not response.patchType".to_owned()),
        Some(other) => return Err(format!("webhook returned invalid response.patchType of {other:?}")),
    }
    let decoded = BASE64_STANDARD.decode(encoded).map_err(|error| format!("response.patch: {error}"))?;
    let patch = serde_json::from_slice(&decoded).map_err(|error| format!("response.patch: {error}"))?;
    Ok(Some(patch))
}

fn denial(response: &Value) -> Verdict {
    let status = &response["status"];
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    let code =
        status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code));
    let code = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::BAD_REQUEST);
    Verdict::Denied { code, reason: text("reason"), message: text("message") }
}

/// What the client is told of a denial.
pub fn denial_message(hook: &str, reason: &str, message: &str) -> String {
    let denied = format!("admission webhook {hook:?} denied the request");
    match (message, reason) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Value {
        json!({ "kind": "AdmissionReview", "apiVersion": API_VERSION, "request": { "uid": "u1" } })
    }

    fn answer(response: Value) -> Value {
        json!({ "kind": "AdmissionReview", "apiVersion": API_VERSION, "response": response })
    }

    #[test]
    fn an_answer_is_read_with_its_patch_and_warnings() {
        let patch = json!([{ "op": "add", "path": "/metadata/labels", "value": {} }]);
        let given = answer(json!({
            "uid": "u1", "allowed": true, "patchType": "JSONPatch", "patch": BASE64_STANDARD.encode(patch.to_string()),
            "warnings": ["mind the gap"], "auditAnnotations": { "k": "v" },
        }));
        let expected = WebhookResponse {
            verdict: Verdict::Allowed { patch: Some(patch) },
            warnings: vec!["mind the gap".to_owned()],
            audit_annotations: vec![("k".to_owned(), "v".to_owned())],
        };
        assert_eq!(parse_response(&asked(), &given, true), Ok(expected));
    }

    #[test]
    fn garbage_is_refused_with_the_reason() {
        for (given, words) in [
            (json!("garbage"), "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got , Kind="),
            (answer(Value::Null), "webhook response was absent"),
            (answer(json!({ "uid": "u2", "allowed": true })), "expected response.uid=\"u1\", got \"u2\""),
            (answer(json!({ "uid": "u1" })), "response.allowed must be true or false"),
            (
                answer(json!({ "uid": "u1", "allowed": true, "patch": "W10=" })),
                "webhook returned response.patch but not response.patchType",
            ),
            (
                answer(json!({ "uid": "u1", "allowed": true, "patch": "W10=", "patchType": "Magic" })),
                "webhook returned invalid response.patchType of \"Magic\"",
            ),
        ] {
            assert_eq!(parse_response(&asked(), &given, true).unwrap_err(), words);
        }
        let patched = answer(json!({ "uid": "u1", "allowed": true, "patch": "W10=", "patchType": "JSONPatch" }));
        let words = "validating webhook may not return response.patch";
        assert_eq!(parse_response(&asked(), &patched, false).unwrap_err(), words);
    }

    #[test]
    fn a_denial_has_a_code_and_words() {
        let denied = |status: Value| {
            parse_response(&asked(), &answer(json!({ "uid": "u1", "allowed": false, "status": status })), true)
        };
        let Verdict::Denied { code, .. } = denied(json!({ "code": 200 })).unwrap().verdict else { panic!("denied") };
        assert_eq!(code, StatusCode::BAD_REQUEST, "never a success");
        assert_eq!(denial_message("h", "", ""), "admission webhook \"h\" denied the request without explanation");
        assert_eq!(denial_message("h", "Forbidden", "no"), "admission webhook \"h\" denied the request: no");
    }
}
