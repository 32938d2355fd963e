//! Tables of expressions: what they evaluate to, and what they are refused for.

mod authorization;
mod bounds;
mod compile_errors;
mod custom_resources;
mod language;
mod libraries;
mod mutations;

use serde_json::{Value as Json, json};

use crate::{Budget, Environment, EvalError, Program, Type, Variables};

/// What the expressions of the tables see as `object`.
fn sample() -> Json {
    json!({
        "metadata": {"name": "web", "labels": {"app": "web", "a.b/c": "x"}},
        "spec": {"replicas": 3, "ratio": 0.5, "paused": false, "nothing": null,
                 "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]},
    })
}

fn evaluate_json(expression: &str, object: &Json) -> Result<Json, String> {
    let environment = Environment::new().variable("object", Type::Dyn);
    let program = Program::compile(&environment, expression).map_err(|error| error.to_string())?;
    let variables = Variables::new().json("object", object);
    let value = program.evaluate(&variables, &mut Budget::default()).map_err(|error| error.to_string())?;
    value.to_json().map_err(|error| error.to_string())
}

#[track_caller]
fn assert_all_true(expressions: &[&str]) {
    let object = sample();
    let failed: Vec<String> = expressions
        .iter()
        .filter_map(|expression| match evaluate_json(expression, &object) {
            Ok(Json::Bool(true)) => None,
            other => Some(format!("{expression} => {other:?}")),
        })
        .collect();
    assert!(failed.is_empty(), "not true:\n{}", failed.join("\n"));
}

/// Each expression compiles and then fails with this message.
#[track_caller]
fn assert_errors(expressions: &[(&str, &str)]) {
    let object = sample();
    let environment = Environment::new().variable("object", Type::Dyn);
    for (expression, message) in expressions {
        let program =
            Program::compile(&environment, expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        let variables = Variables::new().json("object", &object);
        let error = program.evaluate(&variables, &mut Budget::default()).expect_err(expression);
        assert_eq!(error.to_string(), *message, "{expression}");
    }
}

fn evaluate_within(expression: &str, object: &Json, cost: u64) -> Result<(), EvalError> {
    let environment = Environment::new().variable("object", Type::Dyn);
    let program = Program::compile(&environment, expression).expect(expression);
    program.evaluate(&Variables::new().json("object", object), &mut Budget::new(cost, cost)).map(|_| ())
}
