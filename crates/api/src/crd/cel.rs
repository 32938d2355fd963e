//! `x-kubernetes-validations`: rules of a schema, written in CEL.

use serde_json::Value;

use super::structural::{Additional, Structural};
use crate::field::{Errors, FieldError, Path};

/// One rule of a node, as its definition has it.
#[derive(Debug)]
pub struct Rule {
    pub rule: Box<str>,
    pub message: Option<Box<str>>,
    pub message_expression: Option<Box<str>>,
    pub reason: Option<Box<str>>,
    pub field_path: Option<Box<str>>,
    pub optional_old_self: bool,
}

impl Rule {
    pub(super) fn parse_all(rules: Option<&Value>) -> Box<[Self]> {
        rules.and_then(Value::as_array).into_iter().flatten().map(Self::parse).collect()
    }

    fn parse(rule: &Value) -> Self {
        let text = |name: &str| rule[name].as_str().filter(|text| !text.is_empty()).map(Box::from);
        Self {
            rule: text("rule").unwrap_or_default(),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: rule["optionalOldSelf"].as_bool().unwrap_or(false),
        }
    }
}

/// Judges the rules of all nodes of a schema.
pub fn validate_rules(schema: &Structural, path: &Path, errors: &mut Errors) {
    for (index, rule) in schema.rules.iter().enumerate() {
        rule.validate(&path.child("x-kubernetes-validations").index(index), errors);
    }
    for (name, property) in &schema.properties {
        validate_rules(property, &path.child("properties").key(name), errors);
    }
    if let Some(items) = &schema.items {
        validate_rules(items, &path.child("items"), errors);
    }
    if let Additional::Schema(additional) = &schema.additional {
        validate_rules(additional, &path.child("additionalProperties"), errors);
    }
}

const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

impl Rule {
    fn validate(&self, path: &Path, errors: &mut Errors) {
        if self.rule.trim().is_empty() {
            errors.push(FieldError::required(&path.child("rule"), "rule is not specified"));
        }
        if self.message.as_ref().is_some_and(|message| message.trim().is_empty()) {
            errors.push(FieldError::invalid(
                &path.child("message"),
                self.message.as_deref(),
                "message must be non-empty if specified",
            ));
        }
        let has_break = |text: &str| text.contains(['\n', '\r']);
        if self.message.as_deref().is_some_and(has_break) {
            errors.push(FieldError::invalid(
                &path.child("message"),
                self.message.as_deref(),
                "message must not contain line breaks",
            ));
        }
        if has_break(&self.rule) && self.message.is_none() {
            errors.push(FieldError::required(
                &path.child("message"),
                "message must be specified if rule contains line breaks",
            ));
        }
        if let Some(reason) = self.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
            errors.push(FieldError::not_supported(&path.child("reason"), reason, &REASONS));
        }
    }
}
