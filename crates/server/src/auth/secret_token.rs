//! Tokens in Secrets of type `kubernetes.io/service-account-token`: without an end in time, they hold while the Secret has
//! them and the service account exists. The claims are upstream's.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{SERVICE_ACCOUNTS, User, bearer::TokenUser, service_account};
use crate::{
    api::Api,
    handler::Handler,
    http::status::{ApiError, ApiResult},
    objects::metadata,
};

/// Who issues them, whatever the issuer of other tokens is called.
const ISSUER: &str = "kubernetes/serviceaccount";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretClaims {
    iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    account_uid: String,
    sub: String,
}

impl SecretClaims {
    fn new(namespace: &str, secret: &str, account: &str, account_uid: &str) -> Self {
        Self {
            iss: ISSUER.to_owned(),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            account: account.to_owned(),
            account_uid: account_uid.to_owned(),
            sub: service_account::user_name(namespace, account),
        }
    }

    /// What the claims themselves have against being believed.
    fn objection(&self) -> Option<&'static str> {
        if self.iss != ISSUER {
            Some("the token was issued by somebody else")
        } else if self.sub != service_account::user_name(&self.namespace, &self.account) {
            Some("sub claim is invalid")
        } else {
            None
        }
    }
}

/// Signs the token of a service account for a Secret.
pub async fn sign(
    handler: &Handler,
    namespace: &str,
    secret: &str,
    account: &str,
    account_uid: &str,
) -> Result<String, Box<ApiError>> {
    let claims = SecretClaims::new(namespace, secret, account, account_uid);
    let signed = handler.api.token_key().await?.sign(&claims);
    signed.map_err(|error| ApiError::internal(format!("failed to generate token: {error}")))
}

/// Who presents this token, which was signed with our key, or why it is not believed.
pub async fn authenticate(
    api: &Api,
    token: &str,
    claims: SecretClaims,
    now: Timestamp,
) -> ApiResult<Result<TokenUser, &'static str>> {
    if let Some(objection) = claims.objection() {
        return Ok(Err(objection));
    }
    let namespace = Some(claims.namespace.as_str());
    let secret = api.core_object("secrets", namespace, &claims.secret).await?;
    let account = api.core_object("serviceaccounts", namespace, &claims.account).await?;
    let holds = secret.is_some_and(|secret| contains(&secret, token));
    if !holds || !account.is_some_and(|account| service_account::is_alive(&account, &claims.account_uid, now)) {
        return Ok(Err("service account token has been invalidated"));
    }
    let groups = vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{}", claims.namespace)];
    let user = User { uid: claims.account_uid, ..User::authenticated(claims.sub, groups) };
    Ok(Ok(TokenUser { user: Arc::new(user), audiences: vec![api.settings.issuer.clone()] }))
}

/// Whether a Secret still has this token; one that is being deleted has none.
fn contains(secret: &Value, token: &str) -> bool {
    let stored = secret["data"]["token"].as_str().and_then(|stored| BASE64_STANDARD.decode(stored).ok());
    metadata::string_field(secret, "deletionTimestamp").is_none()
        && stored.is_some_and(|stored| stored == token.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_claims_are_upstreams_and_have_no_end() {
        let claims = SecretClaims::new("shop", "bot-token", "bot", "u");
        let expected = json!({
            "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:shop:bot",
            "kubernetes.io/serviceaccount/namespace": "shop",
            "kubernetes.io/serviceaccount/secret.name": "bot-token",
            "kubernetes.io/serviceaccount/service-account.name": "bot",
            "kubernetes.io/serviceaccount/service-account.uid": "u",
        });
        assert_eq!(serde_json::to_value(&claims).unwrap(), expected);
        assert_eq!(claims.objection(), None);
        let other = SecretClaims { sub: "system:serviceaccount:kube-system:admin".to_owned(), ..claims };
        assert_eq!(other.objection(), Some("sub claim is invalid"));
    }

    #[test]
    fn a_token_holds_while_its_secret_has_it() {
        let secret = json!({"metadata": {}, "data": {"token": "YS5iLmM="}});
        assert!(contains(&secret, "a.b.c") && !contains(&secret, "a.b.d"));
        assert!(!contains(&json!({"metadata": {}, "data": {}}), "a.b.c"));
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "data": secret["data"]});
        assert!(!contains(&going, "a.b.c"));
    }
}
