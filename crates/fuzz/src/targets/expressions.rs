//! CEL expressions.

use std::sync::LazyLock;

use mainstay_cel::{Budget, Environment, Program, Type, Variables, policy_environment};
use serde_json::{Value, json};

pub const WORDS: &[&str] = &[
    "object",
    ".all(x, ",
    ".map(x, ",
    ".exists(x, ",
    "has(",
    "size(",
    "self",
    "cel.bind(x, ",
    " && ",
    " || ",
    " ? ",
    " : ",
    "in ",
    "'%s'.format([",
    "quantity('",
    "ip('",
    "cidr('",
    "url('",
    "semver('",
    "timestamp('",
    "duration('",
    ".matches('",
    ".find('",
    "[?",
    "r'",
    "b'\\xff'",
    ".orValue(",
    "optional.of(",
    "sets.contains(",
    ".split('",
    ".replace('",
    ".join('",
    "0x",
    "u",
    "-9223372036854775808",
    ".isSorted()",
    ".sum()",
    ".substring(",
    ".charAt(",
    "authorizer.path('/')",
    "request.userInfo",
    "dyn(",
    "type(",
    "string(",
    "int(",
];

/// What a budget of this size may cost in time is bounded by the session.
const COST: u64 = 200_000;

static DYNAMIC: LazyLock<Environment> = LazyLock::new(|| Environment::new().variable("object", Type::Dyn));
static POLICY: LazyLock<Environment> = LazyLock::new(|| policy_environment(true));
static OBJECT: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "metadata": {"name": "web", "labels": {"app": "web", "a.b/c": "x"}},
        "spec": {"replicas": 3, "ratio": 0.5, "paused": false, "nothing": null,
                 "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]},
    })
});

/// Compiling ends, evaluating ends within its budget, and an expression that was taken can say what it costs.
pub fn cel(input: &[u8]) {
    let Ok(source) = std::str::from_utf8(input) else { return };
    if let Ok(program) = Program::compile(&POLICY, source) {
        let _ = (program.estimate_cost(), program.uses_variable("params"));
    }
    let Ok(program) = Program::compile(&DYNAMIC, source) else { return };
    let _ = program.estimate_cost();
    let mut budget = Budget::new(COST, COST);
    let value = program.evaluate(&Variables::new().json("object", &OBJECT), &mut budget);
    if let Ok(value) = value {
        let _ = value.to_json();
    }
}
