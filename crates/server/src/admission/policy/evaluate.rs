//! Evaluates a compiled policy for one write and one parameter.

use std::sync::Arc;

use mainstay_cel::{AuthorizationCheck, AuthorizerValue, Budget, EvalError, Value as CelValue, Variables};
use serde_json::Value;

use super::{
    CompiledPolicy, DecisionCache, NULL,
    compiled::{Expression, Validation},
};

/// Longer messages of a `messageExpression` are not used.
const MAX_MESSAGE_LENGTH: usize = 5 << 10;

/// What the variables of a policy's expressions stand for.
pub struct PolicyInputs<'a> {
    /// Nothing for a delete.
    pub object: Option<&'a Value>,
    /// Nothing for a create.
    pub old: Option<&'a Value>,
    pub request: &'a Value,
    pub params: Option<&'a Value>,
    pub namespace: Option<&'a Value>,
    pub decisions: &'a DecisionCache,
    /// What `authorizer.requestResource` asks about.
    pub resource: AuthorizationCheck,
}

/// A validation that a write did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    /// Of the Status: `Invalid`, `Forbidden`, …
    pub reason: String,
    pub expression_index: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    pub failures: Vec<Failure>,
    pub audit_annotations: Vec<(String, String)>,
}

/// Evaluates; `Err` names a decision that must be looked up first. Nothing if a match condition leaves the write out.
pub fn evaluate_policy(
    policy: &CompiledPolicy,
    inputs: &PolicyInputs<'_>,
) -> Result<Option<Evaluation>, Arc<AuthorizationCheck>> {
    let variables = bind(policy, inputs);
    match policy.match_conditions.hold(&variables)? {
        Ok(true) => {}
        Err(message) if policy.fails_closed => {
            let failure = Failure { message, reason: "Invalid".into(), expression_index: 0 };
            return Ok(Some(Evaluation { failures: vec![failure], ..Evaluation::default() }));
        }
        Ok(false) | Err(_) => return Ok(None),
    }
    let mut budget = Budget::default();
    let mut evaluation = Evaluation::default();
    for (index, validation) in policy.validations.iter().enumerate() {
        let failure = match evaluate(&validation.expression, &variables, &mut budget)? {
            Ok(CelValue::Bool(true)) => None,
            Ok(CelValue::Bool(false)) => Some(failure_message(validation, &variables, &mut budget)?),
            Ok(_) => Some(error_message(&validation.expression, "must evaluate to bool")),
            Err(_) if !policy.fails_closed => None,
            Err(error) => Some(error_message(&validation.expression, &error)),
        };
        if let Some(message) = failure {
            let reason = if validation.reason.is_empty() { "Invalid" } else { &validation.reason };
            evaluation.failures.push(Failure { message, reason: reason.to_owned(), expression_index: index });
        }
    }
    for (key, expression) in &policy.audit_annotations {
        match evaluate(expression, &variables, &mut budget)? {
            Ok(value) => {
                if let Some(text) = value.as_str().map(str::trim).filter(|text| !text.is_empty()) {
                    evaluation.audit_annotations.push((format!("{}/{key}", policy.name), text.to_owned()));
                }
            }
            Err(_) if !policy.fails_closed => {}
            Err(error) => {
                let message = error_message(expression, &error);
                evaluation.failures.push(Failure { message, reason: "Invalid".into(), expression_index: 0 });
            }
        }
    }
    Ok(Some(evaluation))
}

pub(super) fn bind<'a>(policy: &'a CompiledPolicy, inputs: &PolicyInputs<'a>) -> Variables<'a> {
    let resource = AuthorizerValue::for_resource(inputs.decisions, inputs.resource.clone());
    let mut variables = Variables::new()
        .json("object", inputs.object.unwrap_or(&NULL))
        .json("oldObject", inputs.old.unwrap_or(&NULL))
        .json("request", inputs.request)
        .json("namespaceObject", inputs.namespace.unwrap_or(&NULL))
        .json("params", inputs.params.unwrap_or(&NULL))
        .value("authorizer", CelValue::Authorizer(AuthorizerValue::new(inputs.decisions)))
        .value("authorizer.requestResource", CelValue::Authorizer(resource));
    for (name, expression) in &policy.variables {
        if let Ok(program) = &expression.program {
            variables = variables.lazy(name, program);
        }
    }
    variables
}

pub(super) type Evaluated<'a> = Result<CelValue<'a>, String>;

pub(super) fn evaluate<'a>(
    expression: &'a Expression,
    variables: &Variables<'a>,
    budget: &mut Budget,
) -> Result<Evaluated<'a>, Arc<AuthorizationCheck>> {
    let program = match &expression.program {
        Ok(program) => program,
        Err(error) => return Ok(Err(format!("compilation error: {error}"))),
    };
    match program.evaluate(variables, budget) {
        Err(EvalError::AuthorizationNeeded(check)) => Err(check),
        result => Ok(result.map_err(|error| error.to_string())),
    }
}

pub(super) fn error_message(expression: &Expression, error: &str) -> String {
    format!("expression '{}' resulted in error: {error}", expression.source)
}

/// What a failed validation says: its `messageExpression`, else its `message`, else the expression.
fn failure_message<'a>(
    validation: &'a Validation,
    variables: &Variables<'a>,
    budget: &mut Budget,
) -> Result<String, Arc<AuthorizationCheck>> {
    if let Some(expression) = &validation.message_expression
        && let Ok(value) = evaluate(expression, variables, budget)?
        && let Some(message) = value.as_str().map(str::trim)
        && !message.is_empty()
        && message.len() <= MAX_MESSAGE_LENGTH
        && !message.contains('\n')
    {
        return Ok(message.to_owned());
    }
    Ok(if validation.message.is_empty() {
        format!("failed expression: {}", validation.expression.source.trim())
    } else {
        validation.message.clone()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn evaluate_spec(spec: Value, object: Value, params: Option<Value>) -> Option<Evaluation> {
        let policy = CompiledPolicy::compile(&json!({"metadata": {"name": "p"}, "spec": spec}));
        let (request, decisions) = (json!({"operation": "CREATE"}), DecisionCache::default());
        let inputs = PolicyInputs {
            object: Some(&object),
            old: None,
            request: &request,
            params: params.as_ref(),
            namespace: None,
            decisions: &decisions,
            resource: AuthorizationCheck::default(),
        };
        evaluate_policy(&policy, &inputs).expect("no authorization is asked for")
    }

    fn messages(spec: Value, object: Value) -> Vec<(String, String)> {
        let failures = evaluate_spec(spec, object, None).map(|evaluation| evaluation.failures).unwrap_or_default();
        failures.into_iter().map(|failure| (failure.message, failure.reason)).collect()
    }

    #[test]
    fn a_failed_validation_says_why() {
        let object = || json!({"spec": {"replicas": 7}});
        let expression = "object.spec.replicas <= 5";
        for (validation, expected) in [
            (json!({"expression": expression}), ("failed expression: object.spec.replicas <= 5", "Invalid")),
            (json!({"expression": expression, "message": "too many"}), ("too many", "Invalid")),
            (
                json!({"expression": expression, "message": "m", "messageExpression": "'at most 5, not ' + string(object.spec.replicas)", "reason": "Forbidden"}),
                ("at most 5, not 7", "Forbidden"),
            ),
            (
                json!({"expression": expression, "message": "m", "messageExpression": "object.missing"}),
                ("m", "Invalid"),
            ),
            (json!({"expression": expression, "message": "m", "messageExpression": "'a\\nb'"}), ("m", "Invalid")),
        ] {
            let found = messages(json!({"validations": [validation]}), object());
            assert_eq!(found, [(expected.0.to_owned(), expected.1.to_owned())], "{validation}");
        }
        assert!(
            messages(json!({"validations": [{"expression": expression}]}), json!({"spec": {"replicas": 5}})).is_empty()
        );
    }

    #[test]
    fn errors_follow_the_failure_policy() {
        let spec =
            |policy: &str| json!({"failurePolicy": policy, "validations": [{"expression": "object.missing == 1"}]});
        let message = "expression 'object.missing == 1' resulted in error: no such key: missing";
        assert_eq!(messages(spec("Fail"), json!({})), [(message.to_owned(), "Invalid".to_owned())]);
        assert!(messages(spec("Ignore"), json!({})).is_empty());
    }

    #[test]
    fn match_conditions_leave_writes_out() {
        let spec = |conditions: Value| json!({"matchConditions": conditions, "validations": [{"expression": "false"}]});
        let matched = |conditions| evaluate_spec(spec(conditions), json!({"a": 1}), None).is_some();
        assert!(matched(json!([{"name": "a", "expression": "object.a == 1"}])));
        assert!(!matched(json!([{"name": "a", "expression": "object.a == 2"}])));
        assert!(!matched(
            json!([{"name": "e", "expression": "object.missing"}, {"name": "a", "expression": "object.a == 2"}])
        ));
        let failed = messages(spec(json!([{"name": "e", "expression": "object.missing == 1"}])), json!({}));
        assert_eq!(failed[0].0, "expression 'object.missing == 1' resulted in error: no such key: missing");
    }

    #[test]
    fn variables_and_parameters_are_seen_and_annotations_made() {
        let spec = json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [
                {"name": "limit", "expression": "int(params.data.limit)"},
                {"name": "over", "expression": "object.replicas > variables.limit"},
                {"name": "unused", "expression": "object.no.such.field"},
            ],
            "validations": [{"expression": "!variables.over"}],
            "auditAnnotations": [
                {"key": "limit", "valueExpression": "'limit is ' + string(variables.limit)"},
                {"key": "none", "valueExpression": "variables.over ? null : null"},
            ],
        });
        let found = evaluate_spec(spec, json!({"replicas": 3}), Some(json!({"data": {"limit": "5"}})));
        let annotations = vec![("p/limit".to_owned(), "limit is 5".to_owned())];
        assert_eq!(found, Some(Evaluation { failures: Vec::new(), audit_annotations: annotations }));
    }

    #[test]
    fn an_expensive_policy_is_cut_off() {
        let object = json!({"list": (0..1000).collect::<Vec<_>>()});
        let spec = json!({"validations": [{"expression": "object.list.all(a, object.list.all(b, object.list.all(c, true)))"}]});
        assert!(messages(spec, object)[0].0.ends_with("operation cancelled: actual cost limit exceeded"));
    }
}
