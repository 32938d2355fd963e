//! Request bodies: from bytes to an object that is known to have the kind's shape.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{HeaderMap, header};
use mainstay_api::{
    decode::{self, Decoded},
    descriptor::Descriptor,
    protobuf,
    schema::{ConformError, Schema},
};
use serde_json::Value;

use crate::http::{
    query::FieldValidation,
    status::{ApiError, ApiResult},
    warnings::Warnings,
};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", PROTOBUF];

/// The media type of a request, without parameters.
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// A request's body, decoded but not yet known to be of any kind.
pub struct DecodedBody {
    pub value: Value,
    /// Fields that were given twice.
    duplicates: Vec<String>,
    /// The text, if it is JSON.
    json: Option<Bytes>,
}

impl From<Value> for DecodedBody {
    /// What the server made itself: the result of a patch.
    fn from(value: Value) -> Self {
        Self { value, duplicates: Vec::new(), json: None }
    }
}

/// Decodes a body in any encoding we take.
pub fn decode(headers: &HeaderMap, body: &Bytes) -> ApiResult<DecodedBody> {
    let (decoded, json) = match media_type(headers) {
        "" | "application/json" | "*/*" => (decode::json(body), Some(body.clone())),
        "application/yaml" | "application/x-yaml" | "text/yaml" => (decode::yaml(body), None),
        PROTOBUF => return Ok(protobuf::decode(body).map_err(|error| undecodable(&error))?.into()),
        other => return Err(ApiError::unsupported_media_type(other, &ACCEPTED)),
    };
    let Decoded { value, duplicates } = decoded.map_err(|error| undecodable(&error))?;
    Ok(DecodedBody { value, duplicates, json })
}

fn undecodable(error: &dyn std::error::Error) -> Box<ApiError> {
    ApiError::bad_request(format!("couldn't decode the request body: {error}"))
}

/// Decodes the configuration of a server-side apply: YAML, of which JSON is a part.
pub fn decode_configuration(body: &Bytes, validation: FieldValidation, warnings: &mut Warnings) -> ApiResult<Value> {
    let is_json = body.trim_ascii_start().first() == Some(&b'{');
    let decoded = decode::json(body).ok().filter(|_| is_json).map_or_else(|| decode::yaml(body), Ok);
    let Decoded { value, duplicates } =
        decoded.map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
    let complaints: Vec<String> = duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
    match validation {
        FieldValidation::Strict if !complaints.is_empty() => {
            return Err(ApiError::bad_request(format!("error strict decoding YAML: {}", complaints.join(", "))));
        }
        FieldValidation::Warn => warnings.extend(complaints),
        FieldValidation::Strict | FieldValidation::Ignore => {}
    }
    if !value.is_object() {
        return Err(ApiError::bad_request("error decoding YAML: the configuration is not an object"));
    }
    Ok(value)
}

/// Whether a body asks to forget who owns its fields, which it does not any more once it has its kind's shape.
pub fn has_empty_managed_fields(value: &Value) -> bool {
    value["metadata"]["managedFields"].as_array().is_some_and(Vec::is_empty)
}

/// Checks that a decoded body is an object of this kind and gives it the kind's shape.
pub fn shape(
    d: &Descriptor,
    schema: &Schema,
    decoded: DecodedBody,
    validation: FieldValidation,
    warnings: &mut Warnings,
) -> ApiResult<Value> {
    let DecodedBody { mut value, duplicates, json } = decoded;
    check_kind(d, &mut value)?;
    let cannot = |why: String| {
        let version = &d.version;
        let kind = &d.kind;
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let unknown = schema.conform(&d.schema, &mut value).map_err(|error| match error {
        ConformError::TypeMismatch(why) => cannot(why),
        ConformError::TooManyItems(why) => {
            let name = value["metadata"]["name"].as_str().unwrap_or_default();
            ApiError::invalid(d, name, &why.into())
        }
    })?;
    if validation != FieldValidation::Ignore && !(duplicates.is_empty() && unknown.is_empty()) {
        let complaints = complaints(&duplicates, &unknown, json.as_deref());
        match validation {
            FieldValidation::Strict => {
                return Err(cannot(format!("strict decoding error: {}", complaints.join(", "))));
            }
            FieldValidation::Warn | FieldValidation::Ignore => warnings.extend(complaints),
        }
    }
    if !value["metadata"].is_object() {
        value["metadata"] = Value::Object(Default::default());
    }
    Ok(value)
}

/// What is wrong with fields, in upstream's words and order: as they are written in JSON, else those given twice first. An
/// unknown field is reported once, and nothing within it.
fn complaints(duplicates: &[String], unknown: &[String], json: Option<&[u8]>) -> Vec<String> {
    let is_unknown = |path: &str| {
        unknown.iter().any(|unknown| {
            path.strip_prefix(&**unknown).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    };
    let known_duplicates = duplicates.iter().map(String::as_str).filter(|path| !is_unknown(path));
    let duplicate = |path: &str| format!("duplicate field {path:?}");
    let stranger = |path: &str| format!("unknown field {path:?}");
    let mut complaints: Vec<String> = Vec::new();
    if let Some(json) = json {
        let known: BTreeSet<&str> = known_duplicates.collect();
        let wanted = known.iter().copied().chain(unknown.iter().map(String::as_str)).collect();
        let mut written = BTreeSet::new();
        for path in decode::json_field_order(json, &wanted) {
            let is_known = known.contains(path.as_str());
            match (is_known, written.insert(path.clone())) {
                (true, true) | (false, false) => {}
                (true, false) => complaints.push(duplicate(&path)),
                (false, true) => complaints.push(stranger(&path)),
            }
        }
    } else {
        complaints.extend(known_duplicates.map(duplicate).chain(unknown.iter().map(|path| stranger(path))));
    }
    let mut reported = BTreeSet::new();
    complaints.retain(|complaint| reported.insert(complaint.clone()));
    complaints.truncate(decode::MAX_REPORTED);
    complaints
}

/// Checks what the object says it is. One that does not say is what the URL says.
fn check_kind(d: &Descriptor, value: &mut Value) -> ApiResult<()> {
    let Some(fields) = value.as_object_mut() else {
        return Err(ApiError::bad_request("couldn't get version/kind; the request body is not a JSON object"));
    };
    let expected = d.api_version();
    for (name, default) in [("apiVersion", &*expected), ("kind", &d.kind)] {
        let field = fields.entry(name).or_insert(Value::Null);
        if field.is_null() || field == "" {
            *field = Value::String(default.to_owned());
        }
    }
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (text("kind"), text("apiVersion"));
    if version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if kind != d.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: the kind in the data ({kind}) does not match the \
             expected kind ({})",
            d.version, d.kind, d.kind
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mainstay_api::registry::Registry;
    use serde_json::json;

    use super::*;

    fn checked(mut value: Value) -> Result<Value, String> {
        let registry = Registry::builtin();
        let d = registry.find("apps", "v1", "deployments").unwrap();
        check_kind(d, &mut value).map(|()| value).map_err(|error| error.status()["message"].to_string())
    }

    #[test]
    fn an_object_that_does_not_say_its_kind_is_what_the_url_says() {
        let full = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
        assert_eq!(checked(json!({})), Ok(full.clone()));
        assert_eq!(checked(json!({"kind": "", "apiVersion": null})), Ok(full));
    }

    #[test]
    fn complaints_come_in_the_order_of_the_document() {
        let registry = Registry::builtin();
        let d = registry.find("apps", "v1", "deployments").unwrap();
        let body = Bytes::from_static(
            br#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"unknown2":1,"replicas":1,
            "unknown1":{"a":1,"a":2},"unknown1":2,"paused":true,"replicas":2,"paused":false,"template":{"spec":{"containers":[
            {"name":"c","strange":1,"image":"i","image":"j"}]}}}}"#,
        );
        let refusal = |headers: &HeaderMap| {
            let decoded = decode(headers, &body).unwrap();
            let shaped = shape(d, Schema::builtin(), decoded, FieldValidation::Strict, &mut Warnings::default());
            shaped.unwrap_err().message().to_owned()
        };
        let fields = [
            r#"unknown field "spec.unknown2""#,
            r#"unknown field "spec.unknown1""#,
            r#"duplicate field "spec.replicas""#,
            r#"duplicate field "spec.paused""#,
            r#"unknown field "spec.template.spec.containers[0].strange""#,
            r#"duplicate field "spec.template.spec.containers[0].image""#,
        ];
        let refused = refusal(&HeaderMap::new());
        assert!(refused.ends_with(&format!("strict decoding error: {}", fields.join(", "))), "{refused}");
        let mut yaml = HeaderMap::new();
        yaml.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/yaml"));
        let refused = refusal(&yaml);
        let at = |field: &str| refused.find(field).unwrap_or_else(|| panic!("{field} in {refused}"));
        assert!(at(fields[5]) < at(fields[1]), "YAML is searched for duplicates first: {refused}");
    }

    #[test]
    fn an_object_of_another_kind_is_refused() {
        assert!(checked(json!({"kind": "Job"})).unwrap_err().contains("the kind in the data (Job)"));
        assert!(checked(json!({"apiVersion": "v1"})).unwrap_err().contains("does not match the expected API version"));
        assert!(checked(json!([])).is_err());
    }
}
