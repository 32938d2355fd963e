//! Responses that carry objects, in the shape and encoding that the client accepts.

use bytes::Bytes;
use http::{StatusCode, header};
use jiff::Timestamp;
use mainstay_api::{descriptor::Descriptor, table::PrinterColumns};
use mainstay_store::Revision;
use serde_json::{Value, json};

use crate::{
    http::{
        negotiate::{Accepted, Encoding, Shape},
        response_body::{Body, Response},
        status::{ApiError, ApiResult},
    },
    objects::object::Wire,
};

/// How much of the object a table row carries, from `includeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowObject {
    None,
    Metadata,
    Object,
}

impl RowObject {
    pub fn parse(value: Option<&str>) -> ApiResult<Self> {
        match value {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(ApiError::bad_request(format!(
                "query parameter \"includeObject\": {other:?} is not one of None, Metadata, Object"
            ))),
        }
    }
}

/// One object. `revision` is absent for what was not stored (dry run of a create).
pub fn object(
    d: &Descriptor,
    accepted: Accepted,
    row: RowObject,
    wire: &Wire,
    revision: Option<Revision>,
) -> ApiResult<Response> {
    let bytes = revision.map_or_else(|| wire.json().clone(), |revision| wire.with_version(revision));
    match accepted {
        Accepted::JSON => Ok(json_bytes(StatusCode::OK, bytes)),
        Accepted { encoding, shape } => {
            let parsed = serde_json::from_slice(&bytes);
            let value = parsed.map_err(|error| ApiError::internal(format!("read an object for its reply: {error}")))?;
            Ok(encoded(StatusCode::OK, encoding, &to_shape(d, shape, row, value)))
        }
    }
}

fn to_shape(d: &Descriptor, shape: Shape, row: RowObject, object: Value) -> Value {
    match shape {
        Shape::Object => object,
        Shape::Partial(version) => partial(version, &object),
        Shape::Table(version) => {
            let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
            table(version, &d.columns, row, metadata, true, &[object])
        }
    }
}

pub fn partial(version: &str, object: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": version, "metadata": object["metadata"] })
}

pub fn table(
    version: &str,
    columns: &PrinterColumns,
    row: RowObject,
    metadata: Value,
    with_definitions: bool,
    objects: &[Value],
) -> Value {
    let now = Timestamp::now();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut cells = json!({ "cells": columns.cells(object, now) });
            match row {
                RowObject::None => {}
                RowObject::Metadata => cells["object"] = partial(version, object),
                RowObject::Object => cells["object"] = object.clone(),
            }
            cells
        })
        .collect();
    let definitions = with_definitions.then(|| columns.definitions());
    json!({ "kind": "Table", "apiVersion": version, "metadata": metadata, "columnDefinitions": definitions, "rows": rows })
}

pub fn json_bytes(code: StatusCode, bytes: impl Into<Bytes>) -> Response {
    with_media_type(code, "application/json", Body::full(bytes))
}

pub fn json(code: StatusCode, value: &Value) -> Response {
    json_bytes(code, value.to_string())
}

pub fn encoded(code: StatusCode, encoding: Encoding, value: &Value) -> Response {
    match encoding {
        Encoding::Json => json(code, value),
        Encoding::Yaml => {
            let text = mainstay_api::encode::to_yaml(value);
            with_media_type(code, "application/yaml", Body::full(text))
        }
    }
}

pub fn with_media_type(code: StatusCode, media_type: &'static str, body: Body) -> Response {
    http::Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, media_type)
        .header(header::CACHE_CONTROL, "no-cache, private")
        .body(body)
        .expect("static headers are valid")
}

pub fn text(code: StatusCode, text: impl Into<Bytes>) -> Response {
    with_media_type(code, "text/plain; charset=utf-8", Body::full(text))
}
