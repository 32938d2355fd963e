//! `matchConditions` of policies and webhooks: expressions that leave a request out.

use std::{collections::HashMap, sync::Arc};

use mainstay_cel::{
    AuthorizationCheck, AuthorizerValue, Budget, Environment, PER_CALL_LIMIT, Value as CelValue, Variables,
    webhook_environment,
};
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    DecisionCache, NULL,
    compiled::Expression,
    evaluate::{error_message, evaluate},
};
use crate::{
    admission::Request,
    http::status::{ApiError, ApiResult},
};

/// Upstream's budget for all match conditions of a policy or webhook.
const BUDGET: u64 = 2_500_000;

/// More lists of conditions than any cluster has webhooks; then all are compiled anew.
const MAX_CACHED: usize = 1000;

/// Compiled conditions of webhooks, by their text.
#[derive(Default)]
pub struct MatchConditionsCache(Mutex<HashMap<String, Arc<MatchConditions>>>);

impl MatchConditionsCache {
    /// The compiled form of a webhook's list; compiled off the workers that serve requests.
    pub async fn get(&self, conditions: &Value) -> ApiResult<Arc<MatchConditions>> {
        let text = conditions.to_string();
        if let Some(compiled) = self.0.lock().get(&text) {
            return Ok(compiled.clone());
        }
        let conditions = conditions.clone();
        let compiled =
            tokio::task::spawn_blocking(move || Arc::new(MatchConditions::compile_for_webhook(&conditions))).await;
        let compiled =
            compiled.map_err(|error| ApiError::internal(format!("match conditions cannot be compiled: {error}")))?;
        let mut cached = self.0.lock();
        if cached.len() >= MAX_CACHED {
            cached.clear();
        }
        cached.insert(text, compiled.clone());
        Ok(compiled)
    }
}

pub struct MatchConditions(Vec<Expression>);

impl MatchConditions {
    /// From the list in a policy or webhook.
    pub fn compile(environment: &Environment, conditions: &Value) -> Self {
        let conditions = conditions.as_array().into_iter().flatten();
        Self(conditions.map(|condition| Expression::compile(environment, &condition["expression"])).collect())
    }

    /// From the list in a webhook, whose conditions see `object`, `oldObject`, `request` and `authorizer`.
    fn compile_for_webhook(conditions: &Value) -> Self {
        Self::compile(&webhook_environment(), conditions)
    }

    /// Whether all conditions hold, or why that cannot be told. One that is false decides, whatever errors others had.
    pub fn hold<'a>(&'a self, variables: &Variables<'a>) -> Result<Result<bool, String>, Arc<AuthorizationCheck>> {
        let mut budget = Budget::new(BUDGET, PER_CALL_LIMIT);
        let mut failed = None;
        for expression in &self.0 {
            match evaluate(expression, variables, &mut budget)? {
                Ok(CelValue::Bool(true)) => {}
                Ok(CelValue::Bool(false)) => return Ok(Ok(false)),
                Ok(_) => failed = Some(error_message(expression, "must evaluate to bool")),
                Err(error) => failed = Some(error_message(expression, &error)),
            }
        }
        Ok(failed.map_or(Ok(true), Err))
    }

    /// Whether a webhook is to be called for a write; `described` is what `describe_request` makes of it. An error is for
    /// the webhook's failure policy.
    pub async fn match_webhook(
        &self,
        request: &Request<'_>,
        described: &Value,
        resource: &AuthorizationCheck,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, String> {
        let decisions = DecisionCache::default();
        // Each round answers one check, and every expression can pay for two.
        for _ in 0..=2 * self.0.len() {
            let round = self.hold(
                &Variables::new()
                    .json("object", object.unwrap_or(&NULL))
                    .json("oldObject", old.unwrap_or(&NULL))
                    .json("request", described)
                    .value("authorizer", CelValue::Authorizer(AuthorizerValue::new(&decisions)))
                    .value(
                        "authorizer.requestResource",
                        CelValue::Authorizer(AuthorizerValue::for_resource(&decisions, resource.clone())),
                    ),
            );
            match round {
                Ok(outcome) => return outcome,
                Err(check) => decisions.look_up(request, &check).await,
            }
        }
        Err("match conditions ask for too many authorization checks".to_owned())
    }
}
