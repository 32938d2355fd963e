//! From the claims of a verified token to a user.

use std::collections::BTreeMap;

use mainstay_cel::Budget;
use serde_json::{Map, Value, json};

use super::{
    config::{JwtConfig, PrefixedClaim},
    expressions::{self, Expressions},
};
use crate::auth::User;

/// Why claims make no user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("the token has no claim {0:?} that is text")]
    NoText(String),
    #[error("the token's claim {0:?} is neither text nor a list of texts")]
    NoList(String),
    #[error("the token's claim {claim:?} is not {wanted:?}")]
    Other { claim: String, wanted: String },
    #[error("the token's e-mail address is not verified")]
    EmailNotVerified,
    #[error("the token names nobody")]
    Nobody,
    #[error("an expression failed: {0}")]
    Expression(String),
    #[error("{0}")]
    Rule(String),
}

/// The user that a configuration sees in the claims of a token whose signature, issuer, audience and time were verified.
pub fn user(config: &JwtConfig, expressions: &Expressions, claims: Map<String, Value>) -> Result<User, ClaimError> {
    for rule in config.claim_validation_rules.iter().filter(|rule| !rule.claim.is_empty()) {
        if claims.get(&rule.claim).and_then(Value::as_str) != Some(&rule.required_value) {
            return Err(ClaimError::Other { claim: rule.claim.clone(), wanted: rule.required_value.clone() });
        }
    }
    let claims = Value::Object(claims);
    let budget = &mut Budget::default();
    expressions::check(&expressions.claim_rules, "claims", &claims, budget)?;
    let mappings = &config.claim_mappings;
    let name = match &expressions.username {
        Some(program) => match expressions::evaluate(program, "claims", &claims, budget)? {
            Value::String(name) => name,
            _ => return Err(ClaimError::NoText("username.expression".to_owned())),
        },
        None => claimed_name(&mappings.username, &claims)?,
    };
    if name.is_empty() {
        return Err(ClaimError::Nobody);
    }
    let groups = match &expressions.groups {
        Some(program) => texts(&expressions::evaluate(program, "claims", &claims, budget)?, "groups.expression")?,
        None if mappings.groups.claim.is_empty() => Vec::new(),
        None => {
            let named = texts(&claims[&mappings.groups.claim], &mappings.groups.claim)?;
            named.into_iter().map(|group| prefixed(&mappings.groups, &group)).collect()
        }
    };
    let uid = match &expressions.uid {
        Some(program) => match expressions::evaluate(program, "claims", &claims, budget)? {
            Value::String(uid) => uid,
            _ => return Err(ClaimError::NoText("uid.expression".to_owned())),
        },
        None if mappings.uid.claim.is_empty() => String::new(),
        None => text(&claims, &mappings.uid.claim)?.to_owned(),
    };
    let mut extra = BTreeMap::new();
    for (key, program) in &expressions.extra {
        let values = texts(&expressions::evaluate(program, "claims", &claims, budget)?, key)?;
        if !values.is_empty() {
            extra.insert(key.clone(), values);
        }
    }
    // As the token has it: without the group of everybody who logged in.
    let shown = json!({ "username": name, "uid": uid, "groups": groups, "extra": extra });
    expressions::check(&expressions.user_rules, "user", &shown, budget)?;
    Ok(User { uid, extra, ..User::authenticated(name, groups) })
}

fn claimed_name(mapping: &PrefixedClaim, claims: &Value) -> Result<String, ClaimError> {
    let name = text(claims, &mapping.claim)?;
    // Whoever may choose an address at the issuer could choose another's.
    if mapping.claim == "email" && claims.get("email_verified").is_some_and(|verified| verified != true) {
        return Err(ClaimError::EmailNotVerified);
    }
    Ok(if name.is_empty() { String::new() } else { prefixed(mapping, name) })
}

fn prefixed(mapping: &PrefixedClaim, text: &str) -> String {
    format!("{}{text}", mapping.prefix.as_deref().unwrap_or_default())
}

fn text<'a>(claims: &'a Value, claim: &str) -> Result<&'a str, ClaimError> {
    claims.get(claim).and_then(Value::as_str).ok_or_else(|| ClaimError::NoText(claim.to_owned()))
}

/// One text, several, or none at all.
fn texts(value: &Value, source: &str) -> Result<Vec<String>, ClaimError> {
    let wrong = || ClaimError::NoList(source.to_owned());
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(one) => Ok(Vec::from_iter((!one.is_empty()).then(|| one.clone()))),
        Value::Array(several) => {
            several.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        _ => Err(wrong()),
    }
}
