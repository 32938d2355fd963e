//! Request bodies: from bytes to an object that is known to have the kind's shape.

use bytes::Bytes;
use http::{HeaderMap, header};
use mainstay_api::{
    decode::{self, Decoded},
    descriptor::Descriptor,
    protobuf,
    schema::Schema,
};
use serde_json::Value;

use crate::{
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
    check_kind(d, &value)?;
    let cannot = |why: String| {
        let version = &d.version;
        let kind = &d.kind;
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    let unknown = schema.conform(&d.schema, &mut value).map_err(|error| cannot(error.to_string()))?;
    // The reference decoder reports duplicates where it meets them, before it looks for strangers.
    let complaints = duplicates
        .iter()
        .map(|path| format!("duplicate field {path:?}"))
        .chain(unknown.iter().map(|path| format!("unknown field {path:?}")));
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => complaints.for_each(|complaint| warnings.add(complaint)),
        FieldValidation::Strict => {
            let complaints: Vec<_> = complaints.collect();
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

fn check_kind(d: &Descriptor, value: &Value) -> ApiResult<()> {
    let Some(fields) = value.as_object() else {
        return Err(ApiError::bad_request("couldn't get version/kind; the request body is not a JSON object"));
    };
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (text("kind"), text("apiVersion"));
    let expected = d.api_version();
    if kind.is_empty() {
        return Err(ApiError::bad_request(format!("Object 'Kind' is missing in '{}'", shortened(value))));
    }
    if version.is_empty() {
        return Err(ApiError::bad_request(format!("Object 'apiVersion' is missing in '{}'", shortened(value))));
    }
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

/// Enough of an object to recognise it by.
fn shortened(value: &Value) -> String {
    const ENOUGH: usize = 512;
    let text = value.to_string();
    match text.char_indices().nth(ENOUGH) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
