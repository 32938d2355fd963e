//! Tokens of service accounts: signed claims that hold while what they are bound to exists.
//!
//! The key that signs them lies in the store, where every server finds it and backups include it. It is
//! made when the first token is asked for.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_store::{Compare, Entry, Expect, Op, Outcome, Txn};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{
    SERVICE_ACCOUNTS, User,
    bearer::TokenUser,
    jws::Key,
    secret_token::{self, SecretClaims},
    verified_tokens::VerifiedToken,
};
use crate::{
    api::Api,
    http::status::{ApiError, ApiResult},
    objects::{keys, metadata, object},
    storage,
};

const KEY: &str = keys::TOKEN_KEY;
const USER_PREFIX: &str = "system:serviceaccount:";
/// Clocks of servers differ a little.
const LEEWAY: i64 = 60;
/// What is being deleted may use its token this much longer, in seconds.
const DELETION_LEEWAY: i64 = 60;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub bound: BoundClaims,
    pub nbf: i64,
    pub sub: String,
}

/// The claims of both kinds of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TokenClaims {
    Bound(Box<Claims>),
    Secret(SecretClaims),
}

/// Whose token it is, and with whose end it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundClaims {
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    pub serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

impl Reference {
    pub fn from_object(object: &Value) -> Self {
        let text = |field| metadata::string_field(object, field).unwrap_or_default().to_owned();
        Self { name: text("name"), uid: text("uid") }
    }
}

impl Claims {
    pub fn new(issuer: &str, audiences: Vec<String>, bound: BoundClaims, now: Timestamp, seconds: i64) -> Self {
        let now = now.as_second();
        Self {
            aud: audiences,
            exp: now.saturating_add(seconds),
            iat: now,
            iss: issuer.to_owned(),
            jti: Uuid::new_v4().to_string(),
            nbf: now,
            sub: format!("{USER_PREFIX}{}:{}", bound.namespace, bound.serviceaccount.name),
            bound,
        }
    }

    /// What the claims themselves have against being believed now.
    fn objection(&self, issuer: &str, now: Timestamp) -> Option<&'static str> {
        let now = now.as_second();
        let BoundClaims { namespace, serviceaccount, .. } = &self.bound;
        if self.iss != issuer {
            Some("the token was issued by somebody else")
        } else if now > self.exp.saturating_add(LEEWAY) {
            Some("service account token has expired")
        } else if now.saturating_add(LEEWAY) < self.nbf {
            Some("service account token is not valid yet")
        } else if self.sub != format!("{USER_PREFIX}{namespace}:{}", serviceaccount.name) {
            Some("sub claim is invalid")
        } else {
            None
        }
    }

    pub(super) fn user(&self) -> User {
        let BoundClaims { namespace, node, pod, serviceaccount, .. } = &self.bound;
        let groups = vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
        let mut user = User::authenticated(self.sub.clone(), groups);
        user.uid.clone_from(&serviceaccount.uid);
        let mut add = |name: &str, value: String| {
            if !value.is_empty() {
                user.extra.insert(format!("authentication.kubernetes.io/{name}"), vec![value]);
            }
        };
        add("credential-id", format!("JTI={}", self.jti));
        for (kind, reference) in [("node", node), ("pod", pod)] {
            if let Some(Reference { name, uid }) = reference {
                add(&format!("{kind}-name"), name.clone());
                add(&format!("{kind}-uid"), uid.clone());
            }
        }
        user
    }
}

/// The user name of a service account.
pub fn user_name(namespace: &str, name: &str) -> String {
    format!("{USER_PREFIX}{namespace}:{name}")
}

/// Namespace and name of the service account that a user name stands for.
pub fn parse_user(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix(USER_PREFIX)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Who presents this token, or why it is not believed.
pub async fn authenticate(api: &Api, token: &str, now: Timestamp) -> ApiResult<Result<TokenUser, &'static str>> {
    let key = api.token_key().await?;
    let Ok(verified) = api.verified_tokens.verify(&key, token) else { return Ok(Err("invalid bearer token")) };
    let (claims, user) = match &*verified {
        VerifiedToken::Bound { claims, user } => (claims, user),
        VerifiedToken::Secret(claims) => return secret_token::authenticate(api, token, claims.clone(), now).await,
    };
    if let Some(objection) = claims.objection(&api.settings.issuer, now) {
        return Ok(Err(objection));
    }
    let bound = &claims.bound;
    let namespace = Some(bound.namespace.as_str());
    let known = [
        ("serviceaccounts", namespace, Some(&bound.serviceaccount)),
        ("pods", namespace, bound.pod.as_ref()),
        ("secrets", namespace, bound.secret.as_ref()),
        // The node of a pod's token tells where the pod is; only a token of its own ends with it.
        ("nodes", None, bound.node.as_ref().filter(|_| bound.pod.is_none())),
    ];
    for (plural, namespace, reference) in known {
        let Some(reference) = reference else { continue };
        let entry = api.core_entry(plural, namespace, &reference.name).await?;
        let lifetime = entry.map(|entry| Lifetime::of_entry(&entry)).transpose()?;
        if !lifetime.is_some_and(|lifetime| lifetime.includes(&reference.uid, now)) {
            return Ok(Err("service account token has been invalidated"));
        }
    }
    Ok(Ok(TokenUser { user: user.clone(), audiences: claims.aud.clone() }))
}

/// What says whether an object is still the one that was meant: all that is read of it for every request with a token.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lifetime {
    uid: Option<String>,
    deletion_timestamp: Option<String>,
}

impl Lifetime {
    fn of_entry(entry: &Entry) -> ApiResult<Self> {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Lifetime,
        }
        let read = serde_json::from_slice::<Object>(&entry.value);
        read.map(|object| object.metadata).map_err(|error| object::unreadable(entry, &error.to_string()))
    }

    /// Whether the object with this uid is there, and not long in deletion.
    fn includes(&self, uid: &str, now: Timestamp) -> bool {
        let ends = self.deletion_timestamp.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
        let over = ends.is_some_and(|ends| now.as_second() > ends.as_second().saturating_add(DELETION_LEEWAY));
        self.uid.as_deref() == Some(uid) && !over
    }
}

/// Whether this is still the object that was meant, and not long in deletion.
pub(super) fn is_alive(object: &Value, uid: &str, now: Timestamp) -> bool {
    let text = |field| metadata::string_field(object, field).map(str::to_owned);
    Lifetime { uid: text("uid"), deletion_timestamp: text("deletionTimestamp") }.includes(uid, now)
}

/// The cluster's key: found, or made by whichever server is first.
pub async fn load_key(api: &Api) -> ApiResult<Arc<Key>> {
    let unusable = |error| ApiError::internal(format!("the key of service account tokens: {error}"));
    let (found, _) = api.store.get(KEY).await?;
    let bytes = match found {
        Some(entry) => match storage::unreadable_reason(&entry.value) {
            Some(why) => return Err(ApiError::internal(format!("the key of service account tokens ({KEY}): {why}"))),
            None => entry.value.to_vec(),
        },
        None => {
            let made = Key::generate().map_err(unusable)?;
            let txn = Txn {
                compares: vec![Compare { key: KEY.into(), expect: Expect::Absent }],
                ops: vec![Op::Put { key: KEY.into(), value: made.clone().into() }],
            };
            match api.store.commit(txn).await? {
                Outcome::Committed(_) => made,
                Outcome::Conflict { .. } => {
                    let (found, _) = api.store.get(KEY).await?;
                    found
                        .ok_or_else(|| ApiError::internal("the key of service account tokens vanished"))?
                        .value
                        .to_vec()
                }
            }
        }
    };
    Ok(Arc::new(Key::parse(&bytes).map_err(unusable)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

    fn claims(now: i64) -> Claims {
        let reference = |name: &str| Reference { name: name.to_owned(), uid: format!("uid-{name}") };
        let bound = BoundClaims {
            namespace: "shop".into(),
            node: Some(reference("n")),
            pod: Some(reference("p")),
            secret: None,
            serviceaccount: reference("bot"),
            warnafter: None,
        };
        let now = Timestamp::from_second(now).unwrap();
        Claims::new(ISSUER, vec![ISSUER.to_owned()], bound, now, 600)
    }

    #[test]
    fn a_token_holds_from_when_it_was_issued_until_it_expires() {
        let claims = claims(1000);
        let at = |second: i64| claims.objection(ISSUER, Timestamp::from_second(second).unwrap());
        assert_eq!(at(1000), None);
        assert_eq!(at(1600 + LEEWAY), None);
        assert_eq!(at(1601 + LEEWAY), Some("service account token has expired"));
        assert_eq!(at(999 - LEEWAY), Some("service account token is not valid yet"));
        assert!(claims.objection("https://elsewhere", Timestamp::from_second(1000).unwrap()).is_some());
        let other = Claims { sub: "system:serviceaccount:kube-system:admin".into(), ..claims.clone() };
        assert!(other.objection(ISSUER, Timestamp::from_second(1000).unwrap()).is_some());
    }

    #[test]
    fn a_token_tells_who_and_where() {
        let claims = claims(0);
        let encoded = serde_json::to_value(&claims).unwrap();
        assert_eq!(
            encoded["kubernetes.io"],
            json!({"namespace": "shop", "node": {"name": "n", "uid": "uid-n"}, "pod": {"name": "p", "uid": "uid-p"},
                "serviceaccount": {"name": "bot", "uid": "uid-bot"}})
        );
        let jti = claims.jti.clone();
        let user = claims.user();
        assert_eq!(user.name, "system:serviceaccount:shop:bot");
        assert_eq!(user.uid, "uid-bot");
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"]);
        assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["p"]);
        assert_eq!(user.extra["authentication.kubernetes.io/node-uid"], ["uid-n"]);
        assert_eq!(user.extra["authentication.kubernetes.io/credential-id"], [format!("JTI={jti}")]);
    }

    #[test]
    fn the_same_name_with_another_uid_is_another_object() {
        let now = Timestamp::from_second(1000).unwrap();
        let object = json!({"metadata": {"name": "p", "uid": "u"}});
        assert!(is_alive(&object, "u", now));
        assert!(!is_alive(&object, "v", now));
        let ending = |at: &str| json!({"metadata": {"uid": "u", "deletionTimestamp": at}});
        assert!(is_alive(&ending("1970-01-01T00:16:00Z"), "u", now));
        assert!(!is_alive(&ending("1970-01-01T00:15:00Z"), "u", now));
    }

    #[test]
    fn of_a_stored_object_its_lifetime_alone_is_read() {
        let read = |value: &'static str| {
            let (key, value) = ("/registry/serviceaccounts/shop/bot".into(), value.into());
            let revision = mainstay_store::Revision(1);
            let entry = Entry { key, value, created: revision, modified: revision, memo: Default::default() };
            Lifetime::of_entry(&entry)
        };
        let now = Timestamp::from_second(1000).unwrap();
        let there = read(r#"{"kind":"ServiceAccount","metadata":{"name":"bot","uid":"u"},"secrets":[{}]}"#).unwrap();
        assert!(there.includes("u", now) && !there.includes("v", now));
        let gone = read(r#"{"metadata":{"uid":"u","deletionTimestamp":"1970-01-01T00:15:00Z"}}"#).unwrap();
        assert!(!gone.includes("u", now));
        assert!(!read("{}").unwrap().includes("", now), "what has no uid is nobody");
        assert_eq!(read("k8s").unwrap_err().code(), 500);
    }

    #[test]
    fn user_names_of_service_accounts_are_recognised() {
        assert_eq!(parse_user("system:serviceaccount:shop:bot"), Some(("shop", "bot")));
        for other in ["system:serviceaccount:shop", "system:serviceaccount::bot", "bot", "system:serviceaccount:a:b:c"]
        {
            assert_eq!(parse_user(other), None);
        }
    }
}
