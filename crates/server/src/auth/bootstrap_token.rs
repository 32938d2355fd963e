//! Tokens with which a machine may ask to become a member: `<id>.<secret>`, each a Secret in
//! `kube-system` that names its end.

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use mainstay_store::{Compare, Expect, List, Op, Txn};
use ring::digest::{SHA256, digest};
use serde_json::Value;

use super::{BOOTSTRAPPERS, User};
use crate::{
    api::{Api, CommitError},
    fence::Fence,
    http::status::ApiResult,
    objects::metadata,
};

pub const NAMESPACE: &str = mainstay_api::wellknown::namespace::SYSTEM;
pub const PREFIX: &str = "bootstrap-token-";
pub const TYPE: &str = mainstay_api::wellknown::BOOTSTRAP_TOKEN_SECRET;
const USER_PREFIX: &str = "system:bootstrap:";

/// Id and secret of what looks like such a token.
pub fn parse(token: &str) -> Option<(&str, &str)> {
    let has_form = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    token.split_once('.').filter(|(id, secret)| has_form(id, 6) && has_form(secret, 16))
}

/// The id of the token by which somebody of this name is known.
pub fn id_of(user: &str) -> Option<&str> {
    user.strip_prefix(USER_PREFIX)
}

/// Who presents this token, if it is one that holds.
pub async fn authenticate(api: &Api, id: &str, secret: &str, now: Timestamp) -> ApiResult<Option<User>> {
    let found = api.core_object("secrets", Some(NAMESPACE), &format!("{PREFIX}{id}")).await?;
    Ok(found.and_then(|object| verify_secret(&object, id, secret, now)))
}

fn verify_secret(object: &Value, id: &str, secret: &str, now: Timestamp) -> Option<User> {
    let data = |key: &str| decode_field(object, key);
    let genuine = object["type"] == TYPE
        && metadata::string_field(object, "deletionTimestamp").is_none()
        && data("token-id").as_deref() == Some(id)
        && same(&data("token-secret").unwrap_or_default(), secret)
        && data("usage-bootstrap-authentication").as_deref() == Some("true")
        && !is_expired(object, now);
    if !genuine {
        return None;
    }
    let mut groups = vec![BOOTSTRAPPERS.to_owned()];
    let more = data("auth-extra-groups").unwrap_or_default();
    // Only groups of bootstrappers: a token must not make anyone more than that.
    groups.extend(more.split(',').map(str::trim).filter(|g| g.starts_with("system:bootstrappers:")).map(str::to_owned));
    Some(User::authenticated(format!("{USER_PREFIX}{id}"), groups))
}

/// Compares by hash, so that the time it takes tells nothing about how much was right.
fn same(a: &str, b: &str) -> bool {
    digest(&SHA256, a.as_bytes()).as_ref() == digest(&SHA256, b.as_bytes()).as_ref()
}

/// Whether the end that a token names has come. One that names none has none; one that cannot be read is over.
pub fn is_expired(object: &Value, now: Timestamp) -> bool {
    match decode_field(object, "expiration").filter(|text| !text.is_empty()) {
        None => object["data"].get("expiration").is_some_and(|value| value != ""),
        Some(text) => text.parse::<Timestamp>().map_or(true, |end| end <= now),
    }
}

/// Deletes the tokens whose time is over.
pub async fn sweep(api: &Api, now: Timestamp, fence: Option<&Fence>) -> Result<(), CommitError> {
    let prefix = format!("/registry/secrets/{NAMESPACE}/{PREFIX}");
    for entry in api.store.list(List { prefix: &prefix, ..List::default() }).await?.entries {
        let object: Value = match serde_json::from_slice(&entry.value) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(key = &*entry.key, %error, "stored object cannot be parsed; it is left as it is");
                continue;
            }
        };
        if object["type"] == TYPE && is_expired(&object, now) && metadata::finalizers(&object).next().is_none() {
            let key = entry.key.clone();
            tracing::info!(key = &*key, "delete expired token");
            let txn = Txn {
                compares: vec![Compare { key: key.clone(), expect: Expect::ModifiedAt(entry.modified) }],
                ops: vec![Op::Delete { key }],
            };
            api.commit(txn, fence).await?; // a conflict means news: look again next time
        }
    }
    Ok(())
}

fn decode_field(object: &Value, key: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(object["data"][key].as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(changes: Value) -> Value {
        let mut data = json!({
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": "2026-01-02T00:00:00Z",
            "usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:here, system:masters",
        });
        data.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        for value in data.as_object_mut().unwrap().values_mut() {
            *value = json!(BASE64_STANDARD.encode(value.as_str().unwrap()));
        }
        json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": TYPE, "data": data})
    }

    fn verified(object: &Value, secret: &str, now: &str) -> Option<User> {
        verify_secret(object, "abcdef", secret, now.parse().unwrap())
    }

    #[test]
    fn a_token_makes_a_bootstrapper_and_nothing_more() {
        let user = verified(&secret(json!({})), "0123456789abcdef", "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(user.groups, ["system:bootstrappers", "system:bootstrappers:here", "system:authenticated"]);
    }

    #[test]
    fn a_token_that_is_wrong_over_or_for_something_else_makes_nobody() {
        let now = "2026-01-01T00:00:00Z";
        assert!(verified(&secret(json!({})), "0123456789abcdee", now).is_none());
        assert!(verified(&secret(json!({})), "0123456789abcdef", "2026-01-02T00:00:00Z").is_none());
        assert!(verified(&secret(json!({"expiration": "soon"})), "0123456789abcdef", now).is_none());
        assert!(
            verified(&secret(json!({"usage-bootstrap-authentication": "false"})), "0123456789abcdef", now).is_none()
        );
        let mut other = secret(json!({}));
        other["type"] = json!("Opaque");
        assert!(verified(&other, "0123456789abcdef", now).is_none());
        let mut going = secret(json!({}));
        going["metadata"]["deletionTimestamp"] = json!(now);
        assert!(verified(&going, "0123456789abcdef", now).is_none());
    }

    #[test]
    fn only_what_looks_like_a_token_is_looked_up() {
        assert_eq!(parse("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for other in ["abcdef", "abcde.0123456789abcdef", "abcdeF.0123456789abcdef", "../../.0123456789abcdef"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
