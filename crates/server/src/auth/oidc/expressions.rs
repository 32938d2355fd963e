//! The CEL expressions of a configuration, compiled at start: over `claims` for mappings and claim rules, over `user` for
//! user rules.

use mainstay_cel::{Budget, Environment, ObjectType, Program, Type, Variables};
use serde_json::Value;

use super::{
    claims::ClaimError,
    config::{ConfigError, JwtConfig},
};

/// An expression that must be true, and what is said if it is not.
pub struct Rule {
    program: Program,
    message: String,
}

pub struct Expressions {
    pub username: Option<Program>,
    pub groups: Option<Program>,
    pub uid: Option<Program>,
    pub extra: Vec<(String, Program)>,
    pub claim_rules: Vec<Rule>,
    pub user_rules: Vec<Rule>,
}

impl Expressions {
    pub fn compile(config: &JwtConfig) -> Result<Self, ConfigError> {
        let claims = Environment::new().variable("claims", Type::map(Type::STRING, Type::Dyn));
        let user = Environment::new().variable("user", user_type());
        let mappings = &config.claim_mappings;
        let value = |field: &str, source: &str| {
            let wanted = |ty: &Type| !matches!(ty, Type::Bool | Type::Int | Type::Uint | Type::Double);
            compile_optional(&claims, &format!("claimMappings.{field}"), source, &wanted, "text or a list of texts")
        };
        let extra = mappings.extra.iter().enumerate().map(|(at, extra)| {
            let field = format!("extra[{at}].valueExpression");
            if extra.key.is_empty() || extra.value_expression.is_empty() {
                let field = format!("claimMappings.extra[{at}]");
                return Err(ConfigError { field, problem: "key and valueExpression are required".to_owned() });
            }
            Ok(value(&field, &extra.value_expression)?.map(|program| (extra.key.clone(), program)))
        });
        let extra: Vec<_> = extra.collect::<Result<_, _>>()?;
        let claim_rules = config.claim_validation_rules.iter().enumerate().map(|(at, rule)| {
            compile_rule(&claims, &format!("claimValidationRules[{at}].expression"), &rule.expression, &rule.message)
        });
        let user_rules = config.user_validation_rules.iter().enumerate().map(|(at, rule)| {
            compile_rule(&user, &format!("userValidationRules[{at}].expression"), &rule.expression, &rule.message)
        });
        Ok(Self {
            username: value("username.expression", &mappings.username.expression)?,
            groups: value("groups.expression", &mappings.groups.expression)?,
            uid: value("uid.expression", &mappings.uid.expression)?,
            extra: extra.into_iter().flatten().collect(),
            claim_rules: claim_rules.filter_map(Result::transpose).collect::<Result<_, _>>()?,
            user_rules: user_rules.filter_map(Result::transpose).collect::<Result<_, _>>()?,
        })
    }
}

fn user_type() -> Type {
    ObjectType::with_fields(
        "kubernetes.UserInfo",
        [
            ("username", Type::STRING),
            ("uid", Type::STRING),
            ("groups", Type::list(Type::STRING)),
            ("extra", Type::map(Type::STRING, Type::list(Type::STRING))),
        ],
    )
}

fn compile_optional(
    environment: &Environment,
    field: &str,
    source: &str,
    is_wanted: &dyn Fn(&Type) -> bool,
    wanted: &str,
) -> Result<Option<Program>, ConfigError> {
    if source.is_empty() {
        return Ok(None);
    }
    let fail = |problem: String| ConfigError { field: field.to_owned(), problem };
    let program = Program::compile(environment, source).map_err(|error| fail(error.to_string()))?;
    if !is_wanted(program.result_type()) {
        return Err(fail(format!("must evaluate to {wanted}")));
    }
    Ok(Some(program))
}

fn compile_rule(
    environment: &Environment,
    field: &str,
    source: &str,
    message: &str,
) -> Result<Option<Rule>, ConfigError> {
    let is_wanted = |ty: &Type| matches!(ty, Type::Bool | Type::Dyn);
    let program = compile_optional(environment, field, source, &is_wanted, "true or false")?;
    let message = if message.is_empty() { format!("the rule {source:?} does not hold") } else { message.to_owned() };
    Ok(program.map(|program| Rule { program, message }))
}

/// The value of an expression over one variable, as JSON.
pub fn evaluate(program: &Program, name: &str, value: &Value, budget: &mut Budget) -> Result<Value, ClaimError> {
    let failed = |error: mainstay_cel::EvalError| ClaimError::Expression(error.to_string());
    program.evaluate(&Variables::new().json(name, value), budget).and_then(|value| value.to_json()).map_err(failed)
}

pub fn check(rules: &[Rule], name: &str, value: &Value, budget: &mut Budget) -> Result<(), ClaimError> {
    for rule in rules {
        if evaluate(&rule.program, name, value, budget)? != true {
            return Err(ClaimError::Rule(rule.message.clone()));
        }
    }
    Ok(())
}
