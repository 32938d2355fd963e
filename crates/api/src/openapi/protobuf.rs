//! The v2 document as protobuf.
//!
//! Paths and definitions are encoded as they come; only their encoded form is kept until the
//! document is put together. Extensions travel as YAML text, of which JSON is a part.

use prost::{Message, encoding};
use serde_json::{Map, Value};

mod v2 {
    include!(concat!(env!("OUT_DIR"), "/openapi.v2.rs"));
}

use v2::{
    AdditionalPropertiesItem, Any, BodyParameter, Info, ItemsItem, NamedAny, NamedPathItem, NamedResponseValue,
    NamedSchema, NonBodyParameter, Operation, Parameter, ParametersItem, PathItem, PathParameter, Properties,
    QueryParameter, Response, ResponseValue, Responses, Schema, SchemaItem, TypeItem, additional_properties_item,
    non_body_parameter, parameter, parameters_item, response_value, schema_item,
};

/// A document in the making.
pub struct Document {
    head: v2::Document,
    paths: Vec<u8>,
    definitions: Vec<u8>,
}

// Field numbers of `Document`, `Paths` and `Definitions`.
const PATHS: u32 = 8;
const DEFINITIONS: u32 = 9;
const PATH: u32 = 2;
const ADDITIONAL_PROPERTIES: u32 = 1;

impl Document {
    pub fn new(title: &str, version: &str) -> Self {
        let info = Info { title: title.to_owned(), version: version.to_owned() };
        let head = v2::Document { swagger: "2.0".to_owned(), info: Some(info), ..Default::default() };
        Self { head, paths: Vec::new(), definitions: Vec::new() }
    }

    pub fn path(&mut self, name: &str, item: &Value) {
        let named = NamedPathItem { name: name.to_owned(), value: Some(path_item(item)) };
        encoding::message::encode(PATH, &named, &mut self.paths);
    }

    pub fn definition(&mut self, name: &str, definition: &Value) {
        encoding::message::encode(ADDITIONAL_PROPERTIES, &named_schema(name, definition), &mut self.definitions);
    }

    pub fn finish(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.paths.len() + self.definitions.len() + 64);
        // A vector grows as needed: encoding into it does not fail.
        self.head.encode(&mut out).unwrap_or_default();
        encoding::bytes::encode(PATHS, &self.paths, &mut out);
        encoding::bytes::encode(DEFINITIONS, &self.definitions, &mut out);
        out
    }
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or_default()
}

fn texts(value: &Value, name: &str) -> Vec<String> {
    let items = value.get(name).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn extensions(value: &Value) -> Vec<NamedAny> {
    let members = value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-"));
    let named =
        members.map(|(name, value)| NamedAny { name: name.clone(), value: Some(Any { yaml: value.to_string() }) });
    named.collect()
}

fn path_item(item: &Value) -> PathItem {
    let method = |name: &str| item.get(name).map(operation);
    PathItem {
        get: method("get"),
        put: method("put"),
        post: method("post"),
        delete: method("delete"),
        patch: method("patch"),
        parameters: parameters(item),
    }
}

fn operation(operation: &Value) -> Operation {
    let responses = operation.get("responses").and_then(Value::as_object).into_iter().flatten();
    let responses = responses.map(|(code, value)| NamedResponseValue {
        name: code.clone(),
        value: Some(ResponseValue { oneof: Some(response_value::Oneof::Response(response(value))) }),
    });
    Operation {
        tags: texts(operation, "tags"),
        description: text(operation, "description"),
        operation_id: text(operation, "operationId"),
        produces: texts(operation, "produces"),
        consumes: texts(operation, "consumes"),
        parameters: parameters(operation),
        responses: Some(Responses { response_code: responses.collect() }),
        schemes: texts(operation, "schemes"),
        vendor_extension: extensions(operation),
    }
}

fn response(value: &Value) -> Response {
    let schema = value.get("schema").map(schema);
    Response {
        description: text(value, "description"),
        schema: schema.map(|schema| SchemaItem { oneof: Some(schema_item::Oneof::Schema(schema)) }),
    }
}

fn parameters(owner: &Value) -> Vec<ParametersItem> {
    let items = owner.get("parameters").and_then(Value::as_array).into_iter().flatten();
    let items =
        items.map(|item| ParametersItem { oneof: Some(parameters_item::Oneof::Parameter(one_parameter(item))) });
    items.collect()
}

fn one_parameter(item: &Value) -> Parameter {
    let (name, place, description, kind) =
        (text(item, "name"), text(item, "in"), text(item, "description"), text(item, "type"));
    let unique_items = flag(item, "uniqueItems");
    let other = |oneof| parameter::Oneof::NonBodyParameter(NonBodyParameter { oneof: Some(oneof) });
    let oneof = match place.as_str() {
        "body" => parameter::Oneof::BodyParameter(BodyParameter {
            name,
            r#in: place,
            required: flag(item, "required"),
            schema: item.get("schema").map(schema),
        }),
        "path" => other(non_body_parameter::Oneof::PathParameter(PathParameter {
            required: true,
            r#in: place,
            description,
            name,
            r#type: kind,
            unique_items,
        })),
        _ => other(non_body_parameter::Oneof::QueryParameter(QueryParameter {
            r#in: place,
            description,
            name,
            r#type: kind,
            unique_items,
        })),
    };
    Parameter { oneof: Some(oneof) }
}

fn named_schema(name: &str, value: &Value) -> NamedSchema {
    NamedSchema { name: name.to_owned(), value: Some(schema(value)) }
}

fn schema(value: &Value) -> Schema {
    let kind = value.get("type").and_then(Value::as_str);
    let properties = |fields: &Map<String, Value>| Properties {
        additional_properties: fields.iter().map(|(name, value)| named_schema(name, value)).collect(),
    };
    let entries = value.get("additionalProperties").map(|item| AdditionalPropertiesItem {
        oneof: Some(additional_properties_item::Oneof::Schema(Box::new(schema(item)))),
    });
    Schema {
        reference: text(value, "$ref"),
        format: text(value, "format"),
        description: text(value, "description"),
        required: texts(value, "required"),
        additional_properties: entries.map(Box::new),
        r#type: kind.map(|kind| TypeItem { value: vec![kind.to_owned()] }),
        items: value.get("items").map(|item| ItemsItem { schema: vec![schema(item)] }),
        properties: value.get("properties").and_then(Value::as_object).map(properties),
        vendor_extension: extensions(value),
    }
}

/// What a test wants to know of an encoded document.
#[cfg(test)]
pub struct Summary {
    pub paths: usize,
    pub definitions: usize,
    pub patch_parameters: Vec<String>,
    pub patch_kind: String,
}

#[cfg(test)]
pub fn summary(bytes: &[u8]) -> Result<Summary, prost::DecodeError> {
    let document = v2::Document::decode(bytes)?;
    let paths = document.paths.unwrap_or_default().path;
    let deployment = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
    let item = paths.iter().find(|path| path.name == deployment).and_then(|path| path.value.clone());
    let patch = item.and_then(|item| item.patch).unwrap_or_default();
    let parameters = patch.parameters.iter().filter_map(|item| match &item.oneof {
        Some(parameters_item::Oneof::Parameter(Parameter {
            oneof:
                Some(parameter::Oneof::NonBodyParameter(NonBodyParameter {
                    oneof: Some(non_body_parameter::Oneof::QueryParameter(query)),
                })),
        })) => Some(query.name.clone()),
        _ => None,
    });
    let kind = patch.vendor_extension.iter().find(|x| x.name == "x-kubernetes-group-version-kind");
    Ok(Summary {
        paths: paths.len(),
        definitions: document.definitions.unwrap_or_default().additional_properties.len(),
        patch_parameters: parameters.collect(),
        patch_kind: kind.and_then(|kind| kind.value.clone()).unwrap_or_default().yaml,
    })
}
