//! A ValidatingAdmissionPolicy with its expressions compiled.

use mainstay_cel::{CompileError, Environment, Program, Type, policy_environment};
use serde_json::Value;

use super::MatchConditions;

/// A compiled expression. One that does not compile was stored before it was checked; it fails every evaluation.
pub struct Expression {
    pub source: String,
    pub program: Result<Program, CompileError>,
}

impl Expression {
    pub fn compile(environment: &Environment, source: &Value) -> Self {
        let source = source.as_str().unwrap_or_default().to_owned();
        Self { program: Program::compile(environment, &source), source }
    }
}

pub struct Validation {
    pub expression: Expression,
    pub message: String,
    pub message_expression: Option<Expression>,
    /// Of the Status that refuses a request.
    pub reason: String,
}

pub struct CompiledPolicy {
    pub name: String,
    /// Whether an expression that cannot be evaluated refuses the request.
    pub fails_closed: bool,
    pub match_conditions: MatchConditions,
    pub variables: Vec<(String, Expression)>,
    pub validations: Vec<Validation>,
    pub audit_annotations: Vec<(String, Expression)>,
}

impl CompiledPolicy {
    pub fn compile(policy: &Value) -> Self {
        let spec = &policy["spec"];
        let list = |field: &str| spec[field].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut environment = policy_environment(spec["paramKind"].is_object());
        let match_conditions = MatchConditions::compile(&environment, &spec["matchConditions"]);
        let mut variables = Vec::new();
        for variable in list("variables") {
            let name = format!("variables.{}", text(&variable["name"]));
            let expression = Expression::compile(&environment, &variable["expression"]);
            let ty = expression.program.as_ref().map_or(Type::Dyn, |program| program.result_type().clone());
            environment = environment.variable(&name, ty);
            variables.push((name, expression));
        }
        let validations = list("validations")
            .map(|validation| Validation {
                expression: Expression::compile(&environment, &validation["expression"]),
                message: text(&validation["message"]).trim().to_owned(),
                message_expression: validation["messageExpression"]
                    .as_str()
                    .filter(|source| !source.is_empty())
                    .map(|_| Expression::compile(&environment, &validation["messageExpression"])),
                reason: text(&validation["reason"]),
            })
            .collect();
        let audit_annotations = list("auditAnnotations")
            .map(|note| (text(&note["key"]), Expression::compile(&environment, &note["valueExpression"])))
            .collect();
        Self {
            name: text(&policy["metadata"]["name"]),
            fails_closed: spec["failurePolicy"] != "Ignore",
            match_conditions,
            variables,
            validations,
            audit_annotations,
        }
    }
}
