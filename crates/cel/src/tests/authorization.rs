use std::sync::Arc;

use crate::{
    AUTHORIZER, AuthorizationCheck, AuthorizationDecision, Authorizer, AuthorizerValue, Budget, Environment, EvalError,
    Program, RESOURCE_CHECK, Type, Value, Variables,
};

struct AllowGets;

impl Authorizer for AllowGets {
    fn decide(&self, check: &AuthorizationCheck) -> Option<AuthorizationDecision> {
        let allowed = &*check.verb == "get";
        Some(AuthorizationDecision { allowed, reason: format!("{check:?}"), error: None })
    }
}

struct Unanswered;

impl Authorizer for Unanswered {
    fn decide(&self, _: &AuthorizationCheck) -> Option<AuthorizationDecision> {
        None
    }
}

fn evaluate(host: &dyn Authorizer, expression: &str) -> Result<String, EvalError> {
    let environment = Environment::new()
        .variable("authorizer", Type::named(AUTHORIZER))
        .variable("authorizer.requestResource", Type::named(RESOURCE_CHECK));
    let program = Program::compile(&environment, expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let request = AuthorizationCheck { resource: "pods".into(), namespace: "default".into(), ..Default::default() };
    let variables = Variables::new()
        .value("authorizer", Value::Authorizer(AuthorizerValue::new(host)))
        .value("authorizer.requestResource", Value::Authorizer(AuthorizerValue::for_resource(host, request)));
    program.evaluate(&variables, &mut Budget::default()).map(|value| value.to_string())
}

#[test]
fn checks_are_built_and_decided_by_the_host() {
    for (expression, expected) in [
        ("authorizer.group('apps').resource('deployments').namespace('x').name('y').check('get').allowed()", "true"),
        ("authorizer.group('').resource('pods').subresource('exec').check('create').allowed()", "false"),
        ("authorizer.path('/healthz').check('get').allowed()", "true"),
        ("authorizer.serviceAccount('default', 'builder').group('').resource('pods').check('get').allowed()", "true"),
        ("authorizer.requestResource.check('get').allowed()", "true"),
        ("authorizer.requestResource.check('get').errored()", "false"),
        ("authorizer.requestResource.subresource('exec').check('get').reason().contains('exec')", "true"),
    ] {
        assert_eq!(evaluate(&AllowGets, expression).as_deref(), Ok(expected), "{expression}");
    }
}

#[test]
fn a_check_without_answer_ends_the_evaluation() {
    let expected = AuthorizationCheck {
        resource: "pods".into(),
        namespace: "default".into(),
        verb: "list".into(),
        ..Default::default()
    };
    assert_eq!(
        evaluate(&Unanswered, "true || authorizer.requestResource.check('list').allowed()").as_deref(),
        Ok("true")
    );
    assert_eq!(
        evaluate(&Unanswered, "authorizer.requestResource.check('list').allowed() || true"),
        Err(EvalError::AuthorizationNeeded(Arc::new(expected)))
    );
}

#[test]
fn three_checks_are_too_many_for_one_expression() {
    let check = "authorizer.requestResource.check('list').allowed()";
    assert_eq!(evaluate(&AllowGets, &format!("{check} || {check} || {check}")), Err(EvalError::CallCostExceeded));
}
