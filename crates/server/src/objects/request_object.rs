//! Request bodies: from bytes to an object that is known to have the kind's shape.

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

/// Decodes a body in any encoding we take.
pub fn decode(headers: &HeaderMap, body: &Bytes) -> ApiResult<Decoded> {
    let decoded = match media_type(headers) {
        "" | "application/json" | "*/*" => decode::json(body),
        "application/yaml" | "application/x-yaml" | "text/yaml" => decode::yaml(body),
        PROTOBUF => {
            let value = protobuf::decode(body).map_err(|error| undecodable(&error))?;
            return Ok(Decoded { value, duplicates: Vec::new() });
        }
        other => return Err(ApiError::unsupported_media_type(other, &ACCEPTED)),
    };
    decoded.map_err(|error| undecodable(&error))
}

fn undecodable(error: &dyn std::error::Error) -> Box<ApiError> {
    ApiError::bad_request(format!("couldn't decode the request body: {error}"))
}

/// Checks that a decoded body is an object of this kind and gives it the kind's shape.
pub fn shape(
    d: &Descriptor,
    schema: &Schema,
    decoded: Decoded,
    validation: FieldValidation,
    warnings: &mut Warnings,
) -> ApiResult<Value> {
    let Decoded { mut value, duplicates } = decoded;
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
    // The reference decoder reports duplicates where it meets them, before it looks for strangers.
    let complaints = duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .chain(unknown.iter().map(|path| format!("unknown field {path:?}")));
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => complaints.for_each(|complaint| warnings.add(complaint)),
        FieldValidation::Strict => {
            let complaints: Vec<_> = complaints.take(decode::MAX_REPORTED).collect();
            if !complaints.is_empty() {
                return Err(cannot(format!("strict decoding error: {}", complaints.join(", "))));
            }
        }
    }
    if !value["metadata"].is_object() {
        value["metadata"] = Value::Object(Default::default());
    }
    Ok(value)
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
    fn an_object_of_another_kind_is_refused() {
        assert!(checked(json!({"kind": "Job"})).unwrap_err().contains("the kind in the data (Job)"));
        assert!(checked(json!({"apiVersion": "v1"})).unwrap_err().contains("does not match the expected API version"));
        assert!(checked(json!([])).is_err());
    }
}
