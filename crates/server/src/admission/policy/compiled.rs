//! A ValidatingAdmissionPolicy or MutatingAdmissionPolicy with its expressions compiled.

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

/// A change that a MutatingAdmissionPolicy makes.
pub enum Mutation {
    /// An expression that builds a configuration, which is merged as server-side apply does.
    ApplyConfiguration(Expression),
    /// An expression that builds a list of operations.
    JsonPatch(Expression),
}

pub struct CompiledPolicy {
    pub name: String,
    /// Whether an expression that cannot be evaluated refuses the request.
    pub fails_closed: bool,
    pub match_conditions: MatchConditions,
    pub variables: Vec<(String, Expression)>,
    pub validations: Vec<Validation>,
    pub audit_annotations: Vec<(String, Expression)>,
    pub mutations: Vec<Mutation>,
    /// Whether a later change by others calls for its mutations once more.
    pub is_reinvoked: bool,
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
        let building = environment.clone().with_objects();
        let mutations = list("mutations")
            .map(|mutation| match mutation["patchType"].as_str() {
                Some("JSONPatch") => {
                    Mutation::JsonPatch(Expression::compile(&building, &mutation["jsonPatch"]["expression"]))
                }
                _ => {
                    let expression = &mutation["applyConfiguration"]["expression"];
                    Mutation::ApplyConfiguration(Expression::compile(&building, expression))
                }
            })
            .collect();
        Self {
            name: text(&policy["metadata"]["name"]),
            fails_closed: spec["failurePolicy"] != "Ignore",
            match_conditions,
            variables,
            validations,
            audit_annotations,
            mutations,
            is_reinvoked: spec["reinvocationPolicy"] == "IfNeeded",
        }
    }
}
