//! From the claims of a verified token to a user.

use serde_json::{Map, Value};

use super::config::{JwtConfig, PrefixedClaim};
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
}

/// The user that a configuration sees in the claims of a token whose signature, issuer, audience and time were verified.
pub fn user(config: &JwtConfig, claims: &Map<String, Value>) -> Result<User, ClaimError> {
    for rule in &config.claim_validation_rules {
        if !rule.claim.is_empty() && claims.get(&rule.claim).and_then(Value::as_str) != Some(&rule.required_value) {
            return Err(ClaimError::Other { claim: rule.claim.clone(), wanted: rule.required_value.clone() });
        }
    }
    let mappings = &config.claim_mappings;
    let name = text(claims, &mappings.username.claim)?;
    if name.is_empty() {
        return Err(ClaimError::Nobody);
    }
    // Whoever may choose an address at the issuer could choose another's.
    if mappings.username.claim == "email" && claims.get("email_verified").is_some_and(|verified| verified != true) {
        return Err(ClaimError::EmailNotVerified);
    }
    let groups = match &*mappings.groups.claim {
        "" => Vec::new(),
        claim => list(claims, claim)?.iter().map(|group| prefixed(&mappings.groups, group)).collect(),
    };
    let uid = match &*mappings.uid.claim {
        "" => String::new(),
        claim => text(claims, claim)?.to_owned(),
    };
    Ok(User { uid, ..User::authenticated(prefixed(&mappings.username, name), groups) })
}

fn prefixed(mapping: &PrefixedClaim, text: &str) -> String {
    format!("{}{text}", mapping.prefix.as_deref().unwrap_or_default())
}

fn text<'a>(claims: &'a Map<String, Value>, claim: &str) -> Result<&'a str, ClaimError> {
    claims.get(claim).and_then(Value::as_str).ok_or_else(|| ClaimError::NoText(claim.to_owned()))
}

/// A claim that is absent is an empty list.
fn list<'a>(claims: &'a Map<String, Value>, claim: &str) -> Result<Vec<&'a str>, ClaimError> {
    let wrong = || ClaimError::NoList(claim.to_owned());
    match claims.get(claim) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one]),
        Some(Value::Array(several)) => several.iter().map(|item| item.as_str().ok_or_else(wrong)).collect(),
        Some(_) => Err(wrong()),
    }
}
