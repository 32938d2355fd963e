//! Checks between the waves of a Release: what is asked for, and what counts as a good answer.

use std::sync::LazyLock;

use mainstay_cel::{Budget, Environment, Program, Type, Variables};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub const DEFAULT_HTTP_TIMEOUT_SECONDS: i32 = 5;
pub const DEFAULT_EXEC_TIMEOUT_SECONDS: i32 = 10;
/// No check takes longer, whatever a Release says.
pub const LONGEST_TIMEOUT_SECONDS: i32 = 60;
/// Longer answers are not read to their end.
pub const LONGEST_BODY: usize = 64 * 1024;
pub const MOST_STATUSES: usize = 16;
/// Longest command of a check, all arguments together, in bytes.
pub const LONGEST_COMMAND: usize = 16 * 1024;
/// Steps that an expression may take, in units of upstream's cost.
const EXPRESSION_BUDGET: u64 = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpGate {
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
    /// 200 to 299 if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// As PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecGate {
    pub namespace: String,
    pub pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// What an expression sees of an answer.
static ANSWER: LazyLock<Environment> = LazyLock::new(|| {
    let environment = Environment::new().variable("status", Type::Int).variable("body", Type::STRING);
    environment.variable("json", Type::Dyn)
});

/// The expression of a check, or what is wrong with it.
pub fn compile_expectation(source: &str) -> Result<Program, String> {
    let program = Program::compile(&ANSWER, source).map_err(|error| error.to_string())?;
    match program.result_type() {
        Type::Bool | Type::Dyn => Ok(program),
        _ => Err("must evaluate to true or false".to_owned()),
    }
}

impl HttpGate {
    pub fn expects_status(&self, status: u16) -> bool {
        match &self.statuses[..] {
            [] => (200..300).contains(&status),
            listed => listed.contains(&i32::from(status)),
        }
    }

    /// What is wrong with an answer, if something is.
    pub fn judge(&self, status: u16, body: &str) -> Result<(), String> {
        if !self.expects_status(status) {
            return Err(format!("answers {status}"));
        }
        let Some(source) = &self.expect else { return Ok(()) };
        let program = compile_expectation(source)?;
        let (status, text) = (Value::from(status), Value::from(body));
        let json: Value = serde_json::from_str(body).unwrap_or_default();
        let variables = Variables::new().json("status", &status).json("body", &text).json("json", &json);
        let mut budget = Budget::new(EXPRESSION_BUDGET, EXPRESSION_BUDGET);
        match program.evaluate(&variables, &mut budget).and_then(|value| value.to_json()) {
            Ok(Value::Bool(true)) => Ok(()),
            Ok(_) => Err(format!("answers {status}, but {source} is not true")),
            Err(error) => Err(format!("answers {status}, but {source} cannot be told: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_status_and_expression() {
        let gate = |statuses: &[i32], expect: &str| HttpGate {
            statuses: statuses.to_vec(),
            expect: (!expect.is_empty()).then(|| expect.to_owned()),
            ..HttpGate::default()
        };
        let body = r#"{"errors": 3, "state": "green"}"#;
        for (own, status, good) in [
            (gate(&[], ""), 204, true),
            (gate(&[], ""), 302, false),
            (gate(&[302, 401], ""), 302, true),
            (gate(&[302], ""), 200, false),
            (gate(&[], "json.errors < 5"), 200, true),
            (gate(&[], "json.errors < 3"), 200, false),
            (gate(&[], "status == 200 && body.contains('green')"), 200, true),
            (gate(&[], "json.nothing"), 200, false),
            (gate(&[], "json.state"), 200, false),
        ] {
            assert_eq!(own.judge(status, body).is_ok(), good, "{own:?}");
        }
        let words = gate(&[], "json.errors == 0").judge(200, "no json").unwrap_err();
        assert!(words.starts_with("answers 200, but json.errors == 0 cannot be told: "), "{words}");
        assert_eq!(compile_expectation("status + 1").unwrap_err(), "must evaluate to true or false");
        assert!(compile_expectation("nothing == 1").is_err() && compile_expectation("(").is_err());
    }
}
