//! `x-kubernetes-validations`: rules of a schema, written in CEL.
//!
//! Rules are compiled when the schema is parsed, against the type of the node they stand at. They run after everything else about an object
//! was found right, within one budget for the whole object. A rule that mentions `oldSelf` is a transition rule: it runs only where a
//! value replaces another that it correlates with. A rule whose value did not change is not run again.

use std::sync::Arc;

use mainstay_cel::{
    Budget, DEFINITION_COST_LIMIT, Environment, EvalError, Program, RULE_COST_LIMIT, Type, Value as CelValue,
    Variables, type_from_schema,
};
use serde_json::Value;

use super::{
    structural::{Additional, ListType, Structural},
    validate::list_key,
    walk_path::WalkPath,
};
use crate::field::{Errors, FieldError, Path, Reason};

const SELF: &str = "self";
const OLD_SELF: &str = "oldSelf";
/// Longer messages of a `messageExpression` are not used.
const MAX_MESSAGE_LENGTH: usize = 5 << 10;

/// One rule of a node.
#[derive(Debug)]
pub struct Rule {
    rule: Box<str>,
    message: Option<Box<str>>,
    reason: Option<Box<str>>,
    field_path: Option<Box<str>>,
    optional_old_self: bool,
    program: Result<Program, String>,
    message_program: Option<Result<Program, String>>,
}

impl Rule {
    /// The rules of a node. `schema` is the node, as its definition has it.
    pub(super) fn parse_all(schema: &Value, is_root: bool) -> Box<[Self]> {
        let Some(rules) = schema["x-kubernetes-validations"].as_array() else { return Box::default() };
        let is_resource = is_root || schema["x-kubernetes-embedded-resource"] == true;
        let ty = type_from_schema(schema, is_resource);
        rules.iter().map(|rule| Self::parse(rule, ty.as_ref())).collect()
    }

    fn parse(rule: &Value, ty: Option<&Type>) -> Self {
        let text = |name: &str| rule[name].as_str().map(Box::from);
        let optional_old_self = rule["optionalOldSelf"].as_bool().unwrap_or(false);
        let source: Box<str> = text("rule").unwrap_or_default();
        let compile = |source: &str, what: &str, wanted: fn(&Type) -> bool, name: &str| {
            let ty = ty.ok_or_else(|| "the schema of the value has no type that rules can see".to_owned())?;
            let old = if optional_old_self { Type::Optional(Arc::new(ty.clone())) } else { ty.clone() };
            let environment = Environment::new().variable(SELF, ty.clone()).variable(OLD_SELF, old);
            let program = Program::compile(&environment, source).map_err(|error| format!("{what} failed: {error}"))?;
            match wanted(program.result_type()) {
                true => Ok(program),
                false => Err(format!("cel expression must evaluate to a {name}")),
            }
        };
        let is_bool = |ty: &Type| matches!(ty, Type::Bool | Type::Dyn);
        let is_string = |ty: &Type| matches!(ty, Type::String(_) | Type::Dyn);
        let message_expression: Option<Box<str>> = text("messageExpression").filter(|text| !text.is_empty());
        Self {
            program: compile(&source, "compilation", is_bool, "bool"),
            message_program: message_expression
                .map(|source| compile(&source, "messageExpression compilation", is_string, "string")),
            rule: source,
            message: text("message"),
            reason: text("reason").filter(|text| !text.is_empty()),
            field_path: text("fieldPath").filter(|text| !text.is_empty()),
            optional_old_self,
        }
    }

    fn is_transition(&self) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses_variable(OLD_SELF))
    }

    fn default_message(&self) -> String {
        match self.message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
            Some(message) => message.to_owned(),
            None => format!("failed rule: {}", self.rule.trim()),
        }
    }
}

/// Whether any node has rules: most schemas have none and need no walk.
pub fn has_rules(schema: &Structural) -> bool {
    !schema.rules.is_empty()
        || schema.properties.iter().any(|(_, property)| has_rules(property))
        || schema.items.as_deref().is_some_and(has_rules)
        || matches!(&schema.additional, Additional::Schema(schema) if has_rules(schema))
}

/// Runs the rules of all nodes for an object; `old` is what it replaces, where there is something.
pub fn evaluate(schema: &Structural, value: &Value, old: Option<&Value>, errors: &mut Errors) {
    let mut run = Run { budget: Budget::default(), is_over: false };
    run.node(schema, value, old, &WalkPath::Root, errors);
}

struct Run {
    budget: Budget,
    /// The budget is spent: nothing more is run.
    is_over: bool,
}

impl Run {
    fn node(
        &mut self,
        schema: &Structural,
        value: &Value,
        old: Option<&Value>,
        at: &WalkPath<'_>,
        errors: &mut Errors,
    ) {
        if self.is_over || value.is_null() {
            return;
        }
        let is_unchanged = old == Some(value);
        for rule in &schema.rules {
            if is_unchanged && !rule.is_transition() {
                continue;
            }
            self.rule(rule, value, old, at, errors);
            if self.is_over {
                return;
            }
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if let Some(member) = schema.member(name) {
                        self.node(member, value, old.and_then(|old| old.get(name)), &at.field(name), errors);
                    }
                }
            }
            Value::Array(items) => {
                let Some(inner) = schema.items.as_deref() else { return };
                let old_items = old.and_then(Value::as_array).filter(|_| schema.list_type == ListType::Map);
                for (index, item) in items.iter().enumerate() {
                    let key = |item: &Value| list_key(schema, item);
                    let old = old_items.and_then(|old| old.iter().find(|old| key(old) == key(item)));
                    self.node(inner, item, old, &at.index(index), errors);
                }
            }
            _ => {}
        }
    }

    fn rule<'a>(
        &mut self,
        rule: &'a Rule,
        value: &'a Value,
        old: Option<&'a Value>,
        at: &WalkPath<'_>,
        errors: &mut Errors,
    ) {
        // Definitions whose rules do not compile are refused.
        let Ok(program) = &rule.program else { return };
        let mut variables = Variables::new().json(SELF, value);
        if rule.is_transition() {
            variables = match (old, rule.optional_old_self) {
                (Some(old), false) => variables.json(OLD_SELF, old),
                (None, false) => return,
                (old, true) => {
                    let old = old.and_then(|old| CelValue::from_json(old).ok());
                    variables.value(OLD_SELF, CelValue::Optional(old.map(Arc::new)))
                }
            };
        }
        let detail = match program.evaluate(&variables, &mut self.budget) {
            Ok(result) if result.as_bool() == Some(true) => return,
            Ok(_) => self.message(rule, &variables),
            Err(error @ EvalError::BudgetExceeded) => {
                self.is_over = true;
                error.to_string()
            }
            Err(EvalError::CallCostExceeded) => format!(
                "{}: call cost exceeds limit for rule: {}",
                "operation cancelled: actual cost limit exceeded",
                rule.rule.trim()
            ),
            Err(error) => format!("{error} evaluating rule: {}", rule.default_message()),
        };
        let path = match &rule.field_path {
            Some(inner) => below(&at.path(), inner),
            None => at.path(),
        };
        errors.push(refusal(rule, &path, value, detail));
    }

    fn message<'a>(&mut self, rule: &'a Rule, variables: &Variables<'a>) -> String {
        let expression = rule.message_program.as_ref().and_then(|program| program.as_ref().ok());
        let made = expression.and_then(|program| {
            let value = program.evaluate(variables, &mut self.budget).ok()?;
            let text = value.as_str()?.trim();
            let is_usable = !text.is_empty() && text.len() <= MAX_MESSAGE_LENGTH && !text.contains('\n');
            is_usable.then(|| text.to_owned())
        });
        made.unwrap_or_else(|| rule.default_message())
    }
}

fn refusal(rule: &Rule, path: &Path, value: &Value, detail: String) -> FieldError {
    let shown = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match rule.reason.as_deref() {
        Some("FieldValueRequired") => FieldError::required(path, detail),
        Some("FieldValueForbidden") => FieldError::forbidden(path, detail),
        Some("FieldValueDuplicate") => {
            FieldError { reason: Reason::Duplicate, path: path.clone(), value: Some(shown.into()), detail }
        }
        _ => FieldError::invalid(path, shown, detail),
    }
}

/// A path with a relative one (`.spec.x`, `.list['a b']`) behind it.
fn below(path: &Path, relative: &str) -> Path {
    let relative = relative.strip_prefix('.').unwrap_or(relative);
    let plain = relative.replace("['", ".").replace("']", "");
    plain.split('.').filter(|step| !step.is_empty()).fold(path.clone(), |path, step| path.child(step))
}

/// How often a rule can run for one object, and what may not be said where it stands.
#[derive(Clone, Copy)]
struct Surroundings {
    /// Elements of the lists and maps around.
    times: u64,
    /// Whether a value here can be found in the old object.
    correlates: bool,
}

/// Judges the rules of all nodes of a schema. `total` is what those of the definition cost so far.
pub fn validate_rules(schema: &Structural, total: &mut u64, path: &Path, errors: &mut Errors) {
    validate_node(schema, Surroundings { times: 1, correlates: true }, total, path, errors);
    if *total > DEFINITION_COST_LIMIT {
        let words = format!(
            "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of {} {HINT}",
            factor(*total, DEFINITION_COST_LIMIT)
        );
        errors.push(FieldError::forbidden(path, words));
        *total = 0;
    }
}

const HINT: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
/// Upstream's limit of a request, in bytes: what bounds a list whose schema does not.
const MAX_REQUEST: u64 = 3 << 20;

fn factor(cost: u64, limit: u64) -> String {
    match cost as f64 / limit as f64 {
        factor if factor > 100.0 => "more than 100x".to_owned(),
        factor => format!("{factor:.1}x"),
    }
}

fn validate_node(schema: &Structural, around: Surroundings, total: &mut u64, path: &Path, errors: &mut Errors) {
    for (index, rule) in schema.rules.iter().enumerate() {
        rule.validate(around, total, &path.child("x-kubernetes-validations").index(index), errors);
    }
    for (name, property) in &schema.properties {
        validate_node(property, around, total, &path.child("properties").key(name), errors);
    }
    let count = |most: Option<u64>| around.times.saturating_mul(most.unwrap_or(MAX_REQUEST / 2));
    if let Some(items) = &schema.items {
        let most = schema.checks.as_ref().and_then(|checks| checks.max_items);
        let correlates = around.correlates && schema.list_type == ListType::Map;
        validate_node(items, Surroundings { times: count(most), correlates }, total, &path.child("items"), errors);
    }
    if let Additional::Schema(additional) = &schema.additional {
        let most = schema.checks.as_ref().and_then(|checks| checks.max_properties);
        let around = Surroundings { times: count(most), ..around };
        validate_node(additional, around, total, &path.child("additionalProperties"), errors);
    }
}

const REASONS: [&str; 4] = ["FieldValueRequired", "FieldValueForbidden", "FieldValueInvalid", "FieldValueDuplicate"];

impl Rule {
    fn validate(&self, around: Surroundings, total: &mut u64, path: &Path, errors: &mut Errors) {
        self.validate_texts(path, errors);
        if self.rule.trim().is_empty() {
            return;
        }
        let at_rule = path.child("rule");
        match &self.program {
            Err(why) => errors.push(FieldError::invalid(&at_rule, &*self.rule, why.clone())),
            Ok(program) => {
                let uses_old = program.uses_variable(OLD_SELF);
                if uses_old && !around.correlates {
                    let words = "oldSelf cannot be used on the uncorrelatable portion of the schema";
                    errors.push(FieldError::invalid(&at_rule, &*self.rule, words));
                }
                if self.optional_old_self && !uses_old {
                    let words = "must not be set if oldSelf is not used in rule";
                    errors.push(FieldError::invalid(&path.child("optionalOldSelf"), true, words));
                }
                let cost = program.estimate_cost().times(around.times).max;
                *total = total.saturating_add(cost);
                if cost > RULE_COST_LIMIT {
                    let words = format!(
                        "estimated rule cost exceeds budget by factor of {} {HINT}",
                        factor(cost, RULE_COST_LIMIT)
                    );
                    errors.push(FieldError::forbidden(&at_rule, words));
                }
            }
        }
        if let Some(Err(why)) = &self.message_program {
            errors.push(FieldError::invalid(&path.child("messageExpression"), "", why.clone()));
        }
    }

    fn validate_texts(&self, path: &Path, errors: &mut Errors) {
        if self.rule.trim().is_empty() {
            errors.push(FieldError::required(&path.child("rule"), "rule is not specified"));
        }
        let has_break = |text: &str| text.trim().contains(['\n', '\r']);
        if let Some(message) = self.message.as_deref() {
            let at = path.child("message");
            if message.trim().is_empty() {
                errors.push(FieldError::invalid(&at, message, "message must be non-empty if specified"));
            } else if has_break(message) {
                errors.push(FieldError::invalid(&at, message, "message must not contain line breaks"));
            }
        } else if has_break(&self.rule) && self.message_program.is_none() {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::testing::schema;

    fn spec(rules: Value) -> Structural {
        schema(json!({"type": "object", "properties": {"spec": {
            "type": "object", "x-kubernetes-validations": rules,
            "properties": {
                "min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string", "maxLength": 20},
                "list": {"type": "array", "maxItems": 10, "items": {"type": "object", "properties": {"n": {"type": "string", "maxLength": 5}}}},
            },
        }}}))
    }

    fn run(rules: Value, value: Value, old: Option<Value>) -> Vec<String> {
        let mut errors = Errors::new();
        let old = old.map(|old| json!({"spec": old}));
        evaluate(&spec(rules), &json!({"spec": value}), old.as_ref(), &mut errors);
        errors.iter().map(FieldError::to_string).collect()
    }

    fn refused(rules: Value) -> Vec<String> {
        let mut errors = Errors::new();
        validate_rules(&spec(rules), &mut 0, &Path::new("s"), &mut errors);
        errors
            .iter()
            .map(|error| error.to_string().replace("s.properties[spec].x-kubernetes-validations", "v"))
            .collect()
    }

    #[test]
    fn a_rule_that_does_not_hold_is_told_with_its_message() {
        let rule = "self.min <= self.max";
        let value = json!({"min": 3, "max": 1});
        assert_eq!(run(json!([{"rule": rule}]), json!({"min": 1, "max": 3}), None), [""; 0]);
        assert_eq!(
            run(json!([{"rule": rule}]), value.clone(), None),
            ["spec: Invalid value: \"object\": failed rule: self.min <= self.max"]
        );
        let told = json!([{"rule": rule, "message": "min is above max", "reason": "FieldValueForbidden", "fieldPath": ".min"}]);
        assert_eq!(run(told, value.clone(), None), ["spec.min: Forbidden: min is above max"]);
        let made = json!([{"rule": rule, "messageExpression": "'min is ' + string(self.min)"}]);
        assert_eq!(run(made, value.clone(), None), ["spec: Invalid value: \"object\": min is 3"]);
        let long = format!("'{}'", "x".repeat(6 << 10));
        let long = json!([{"rule": rule, "message": "min is above max", "messageExpression": long}]);
        assert_eq!(run(long, value, None), ["spec: Invalid value: \"object\": min is above max"]);
    }

    #[test]
    fn transition_rules_run_where_something_is_replaced() {
        let rules = json!([{"rule": "self.name == oldSelf.name", "message": "name is immutable"}]);
        assert_eq!(run(rules.clone(), json!({"name": "a"}), None), [""; 0]);
        assert_eq!(run(rules.clone(), json!({"name": "a", "min": 1}), Some(json!({"name": "a"}))), [""; 0]);
        assert_eq!(
            run(rules, json!({"name": "b"}), Some(json!({"name": "a"}))),
            ["spec: Invalid value: \"object\": name is immutable"]
        );
        let optional = json!([{"rule": "oldSelf.hasValue() || self.min == 1", "optionalOldSelf": true}]);
        assert_eq!(run(optional.clone(), json!({"min": 2}), None).len(), 1);
        assert_eq!(run(optional, json!({"min": 2}), Some(json!({"min": 1}))), [""; 0]);
    }

    #[test]
    fn a_value_that_did_not_change_is_not_judged_again() {
        let rules = json!([{"rule": "self.min > 5"}]);
        assert_eq!(run(rules, json!({"min": 1}), Some(json!({"min": 1}))), [""; 0]);
    }

    #[test]
    fn rules_that_cannot_run_are_refused() {
        assert_eq!(refused(json!([{"rule": "self.min > 0", "message": "m"}])), [""; 0]);
        assert_eq!(refused(json!([{"rule": " "}])), ["v[0].rule: Required value: rule is not specified"]);
        assert_eq!(
            refused(json!([{"rule": "self.min > 0", "message": "a\nb"}])),
            [r#"v[0].message: Invalid value: "a\nb": message must not contain line breaks"#]
        );
        assert!(
            refused(json!([{"rule": "self.none > 0"}]))[0]
                .starts_with(r#"v[0].rule: Invalid value: "self.none > 0": compilation failed: "#)
        );
        assert_eq!(
            refused(json!([{"rule": "self.min"}])),
            [r#"v[0].rule: Invalid value: "self.min": cel expression must evaluate to a bool"#]
        );
        let reasons = refused(json!([{"rule": "self.min > 0", "reason": "Because"}]));
        assert!(reasons[0].starts_with("v[0].reason: Unsupported value: \"Because\""), "{reasons:?}");
    }

    #[test]
    fn rules_that_would_cost_too_much_are_refused() {
        let unbounded =
            schema(json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}}}));
        let mut errors = Errors::new();
        validate_rules(&unbounded, &mut 0, &Path::new("s"), &mut errors);
        let text = errors.iter().next().unwrap().to_string();
        assert!(text.contains("estimated rule cost exceeds budget by factor of more than 100x"), "{text}");
    }
}
