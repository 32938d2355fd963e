//! The structural schema of one version of a custom resource, parsed once into a compact tree.
//!
//! Descriptions, titles and examples stay in the definition's own bytes, from which OpenAPI takes them when asked. What
//! validation, pruning and defaulting need is a small part of a large schema.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::{cel::Rule, format::Format, pattern};

/// Most nodes of all schemas of one definition: more than fit into what a store takes, so that a small text cannot become a
/// large tree.
pub const MAX_NODES: usize = 100_000;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the schemas of one CustomResourceDefinition must have at most {MAX_NODES} nodes")]
pub struct TooLarge;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonType {
    #[default]
    Any,
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

impl JsonType {
    fn parse(name: &str) -> Self {
        match name {
            "array" => Self::Array,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "object" => Self::Object,
            "string" => Self::String,
            _ => Self::Any,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Array => "array",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Object => "object",
            Self::String => "string",
        }
    }
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// `additionalProperties`.
#[derive(Debug, Default)]
pub enum Additional {
    #[default]
    Undefined,
    /// A plain `true` or `false`: the key stays, and nothing is known of its value.
    Bool(bool),
    Schema(Box<Structural>),
}

/// One node of a schema, with its `x-kubernetes-*` extensions.
#[derive(Debug, Default)]
pub struct Structural {
    pub json_type: JsonType,
    pub nullable: bool,
    pub int_or_string: bool,
    pub embedded_resource: bool,
    pub preserve_unknown_fields: bool,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic_map: bool,
    pub list_type: ListType,
    /// Sorted by name.
    pub properties: Box<[(Box<str>, Structural)]>,
    pub items: Option<Box<Structural>>,
    pub additional: Additional,
    pub default: Option<Box<Value>>,
    pub list_map_keys: Box<[String]>,
    pub checks: Option<Box<Checks>>,
    /// `x-kubernetes-validations`.
    pub rules: Box<[Rule]>,
}

/// What the value of a node must satisfy, besides its type.
#[derive(Debug, Default)]
pub struct Checks {
    pub format: Option<Format>,
    pub pattern: Option<Pattern>,
    pub maximum: Option<Bound>,
    pub minimum: Option<Bound>,
    pub multiple_of: Option<f64>,
    pub max_length: Option<u64>,
    pub min_length: Option<u64>,
    pub max_items: Option<u64>,
    pub min_items: Option<u64>,
    pub unique_items: bool,
    pub max_properties: Option<u64>,
    pub min_properties: Option<u64>,
    pub required: Box<[Box<str>]>,
    pub allowed_values: Box<[Value]>,
    pub all_of: Box<[Structural]>,
    pub any_of: Box<[Structural]>,
    pub one_of: Box<[Structural]>,
    pub not: Option<Box<Structural>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub value: f64,
    pub exclusive: bool,
}

/// A regular expression, compiled when it is first needed: most objects of most kinds never meet most patterns.
pub struct Pattern {
    pub text: Box<str>,
    compiled: OnceLock<Option<Arc<regex::Regex>>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Self { text: text.into(), compiled: OnceLock::new() }
    }

    /// A pattern that does not compile matches everything; definitions with one are refused.
    pub fn matches(&self, text: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| pattern::compile(&self.text).ok());
        compiled.as_ref().is_none_or(|regex| regex.is_match(text))
    }
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.text.fmt(f)
    }
}

impl Structural {
    /// Parses an `openAPIV3Schema`. `room` is how many nodes the definition may still have.
    pub fn parse(schema: &Value, room: &mut usize) -> Result<Self, TooLarge> {
        let mut root = Self::parse_node(schema, room)?;
        root.rules = Rule::parse_all(schema, true);
        Ok(root)
    }

    fn parse_node(schema: &Value, room: &mut usize) -> Result<Self, TooLarge> {
        let empty = Map::new();
        let mut node = Self::parse_fields(schema.as_object().unwrap_or(&empty), room)?;
        node.rules = Rule::parse_all(schema, false);
        Ok(node)
    }

    fn parse_fields(fields: &Map<String, Value>, room: &mut usize) -> Result<Self, TooLarge> {
        *room = room.checked_sub(1).ok_or(TooLarge)?;
        let flag = |name: &str| fields.get(name).and_then(Value::as_bool).unwrap_or(false);
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let mut properties: Vec<(Box<str>, Self)> = Vec::new();
        for (name, schema) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
            properties.push((Box::from(name.as_str()), Self::parse_node(schema, room)?));
        }
        properties.sort_by(|(a, _), (b, _)| a.cmp(b));
        let items = match fields.get("items") {
            Some(items @ Value::Object(_)) => Some(Box::new(Self::parse_node(items, room)?)),
            _ => None,
        };
        let additional = match fields.get("additionalProperties") {
            Some(Value::Bool(allowed)) => Additional::Bool(*allowed),
            Some(schema @ Value::Object(_)) => Additional::Schema(Box::new(Self::parse_node(schema, room)?)),
            _ => Additional::Undefined,
        };
        let default = fields.get("default").filter(|default| !default.is_null());
        Ok(Self {
            json_type: JsonType::parse(text("type")),
            nullable: flag("nullable"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            embedded_resource: flag("x-kubernetes-embedded-resource"),
            preserve_unknown_fields: flag("x-kubernetes-preserve-unknown-fields"),
            atomic_map: text("x-kubernetes-map-type") == "atomic",
            list_type: match text("x-kubernetes-list-type") {
                "set" => ListType::Set,
                "map" => ListType::Map,
                _ => ListType::Atomic,
            },
            properties: properties.into(),
            items,
            additional,
            default: default.cloned().map(Box::new),
            list_map_keys: texts(fields.get("x-kubernetes-list-map-keys")).into_iter().map(String::from).collect(),
            checks: Checks::parse(fields, room)?,
            rules: Box::default(),
        })
    }

    pub fn property(&self, name: &str) -> Option<&Structural> {
        let found = self.properties.binary_search_by(|(own, _)| (**own).cmp(name)).ok()?;
        Some(&self.properties[found].1)
    }

    /// The schema of a member of an object, if the schema says anything about it.
    pub fn member(&self, name: &str) -> Option<&Structural> {
        self.property(name).or(match &self.additional {
            Additional::Schema(schema) => Some(schema),
            Additional::Undefined | Additional::Bool(_) => None,
        })
    }

    /// The node that a path of field names leads to.
    pub fn descendant<'s>(&'s self, path: &[&str]) -> Option<&'s Structural> {
        path.iter().try_fold(self, |node, step| node.member(step))
    }
}

impl Checks {
    fn parse(fields: &Map<String, Value>, room: &mut usize) -> Result<Option<Box<Self>>, TooLarge> {
        const NAMES: [&str; 17] = [
            "format",
            "pattern",
            "maximum",
            "minimum",
            "multipleOf",
            "maxLength",
            "minLength",
            "maxItems",
            "minItems",
            "uniqueItems",
            "maxProperties",
            "minProperties",
            "required",
            "enum",
            "allOf",
            "anyOf",
            "oneOf",
        ];
        if !NAMES.iter().any(|name| fields.contains_key(*name)) && !fields.contains_key("not") {
            return Ok(None);
        }
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let count = |name: &str| fields.get(name).and_then(Value::as_u64);
        let bound = |name: &str, exclusive: &str| {
            let exclusive = fields.get(exclusive).and_then(Value::as_bool).unwrap_or(false);
            fields.get(name).and_then(Value::as_f64).map(|value| Bound { value, exclusive })
        };
        let mut schemas = |name: &str| {
            let listed = fields.get(name).and_then(Value::as_array).into_iter().flatten();
            listed.map(|schema| Structural::parse_node(schema, room)).collect::<Result<Box<[_]>, _>>()
        };
        let (all_of, any_of, one_of) = (schemas("allOf")?, schemas("anyOf")?, schemas("oneOf")?);
        let not = match fields.get("not") {
            Some(schema @ Value::Object(_)) => Some(Box::new(Structural::parse_node(schema, room)?)),
            _ => None,
        };
        Ok(Some(Box::new(Self {
            format: Format::parse(text("format")),
            pattern: Some(text("pattern")).filter(|text| !text.is_empty()).map(Pattern::new),
            maximum: bound("maximum", "exclusiveMaximum"),
            minimum: bound("minimum", "exclusiveMinimum"),
            multiple_of: fields.get("multipleOf").and_then(Value::as_f64),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            unique_items: fields.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            required: texts(fields.get("required")),
            allowed_values: fields.get("enum").and_then(Value::as_array).cloned().unwrap_or_default().into(),
            all_of,
            any_of,
            one_of,
            not,
        })))
    }
}

fn texts(list: Option<&Value>) -> Box<[Box<str>]> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(Box::from).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_found_by_its_path() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "ports": {"type": "array", "items": {"type": "integer"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }}}});
        let parsed = Structural::parse(&schema, &mut MAX_NODES.clone()).unwrap();
        assert_eq!(parsed.descendant(&["spec", "labels", "any"]).unwrap().json_type, JsonType::String);
        assert_eq!(parsed.descendant(&["spec", "ports"]).unwrap().items.as_ref().unwrap().json_type, JsonType::Integer);
        assert!(parsed.descendant(&["spec", "none"]).is_none());
    }

    #[test]
    fn a_schema_has_at_most_so_many_nodes() {
        let property = |n: usize| (format!("p{n}"), json!({}));
        let schema = json!({"properties": Map::from_iter((0..9).map(property))});
        assert!(Structural::parse(&schema, &mut 10).is_ok());
        assert_eq!(Structural::parse(&schema, &mut 9).unwrap_err(), TooLarge);
    }
}
