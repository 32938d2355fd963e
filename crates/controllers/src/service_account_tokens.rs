//! Secrets of type `kubernetes.io/service-account-token`: completes them with a token of the account that they name, and
//! deletes them when there is no such account.
//!
//! The key that signs tokens is the server's, so it passes in who signs ([`TokenSigner`]). A Secret is completed once and then
//! left alone, except that the authority and the namespace in it are corrected. Unlike upstream, which looks at accounts and
//! Secrets one by one, an account is reconciled with all its Secrets: the deletion of either is seen by one code path.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};

use crate::runtime::{
    ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error, metadata_watch::MetadataEvent,
};

pub const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const TOKEN: &str = "token";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";

/// Whose token is signed, and which Secret it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSubject {
    pub namespace: String,
    pub account: String,
    pub account_uid: String,
    pub secret: String,
}

pub type TokenSignError = Box<dyn std::error::Error + Send + Sync>;

/// Signs tokens that end with their Secret and not by time.
pub trait TokenSigner: Send + Sync + 'static {
    fn sign<'a>(&'a self, subject: &'a TokenSubject) -> BoxFuture<'a, Result<String, TokenSignError>>;
}

pub struct ServiceAccountTokens {
    context: Arc<Context>,
    signer: Arc<dyn TokenSigner>,
    /// The certificate authority of the API server, as PEM.
    root_ca: Arc<str>,
}

pub fn controller(context: &Arc<Context>, signer: Arc<dyn TokenSigner>, root_ca: Arc<str>) -> Runnable {
    let queue = context.queue::<ServiceAccountTokens>();
    context.metadata.on_event({
        let queue = queue.clone();
        move |resource, event| {
            let (MetadataEvent::Applied(meta) | MetadataEvent::Deleted(meta)) = event else { return };
            let account = if resource.is_named("", "serviceaccounts") {
                meta.name.as_ref()
            } else if resource.is_named("", "secrets") {
                meta.annotations.as_ref().and_then(|annotations| annotations.get(ACCOUNT_NAME))
            } else {
                None
            };
            if let (Some(namespace), Some(account)) = (&meta.namespace, account) {
                queue.add(ObjectKey::new(namespace, account));
            }
        }
    });
    let controller = ServiceAccountTokens { context: context.clone(), signer, root_ca };
    context.runnable(Arc::new(controller), queue, Limits::default())
}

/// An account, or the lack of one, and the Secrets that name it.
pub struct World {
    account_uid: Option<String>,
    secrets: Vec<Secret>,
    root_ca: Arc<str>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    /// Carries the version that it completes. The token is signed when it is carried out.
    Complete {
        secret: Box<Secret>,
        account_uid: String,
        needs_token: bool,
    },
    Delete {
        name: String,
        preconditions: Preconditions,
    },
}

fn annotation<'a>(secret: &'a Secret, name: &str) -> &'a str {
    secret.metadata.annotations.as_ref().and_then(|all| all.get(name)).map(String::as_str).unwrap_or_default()
}

fn plan(world: &World) -> Vec<Action> {
    let there = world.secrets.iter().filter(|secret| secret.metadata.deletion_timestamp.is_none());
    there.filter_map(|secret| plan_secret(secret, world.account_uid.as_deref(), &world.root_ca)).collect()
}

fn plan_secret(secret: &Secret, account_uid: Option<&str>, root_ca: &str) -> Option<Action> {
    let named = annotation(secret, ACCOUNT_UID);
    // An account of the same name that was created later is another one.
    let Some(account_uid) = account_uid.filter(|uid| named.is_empty() || named == *uid) else {
        let (uid, resource_version) = (secret.metadata.uid.clone(), secret.metadata.resource_version.clone());
        let name = secret.metadata.name.clone().unwrap_or_default();
        return Some(Action::Delete { name, preconditions: Preconditions { uid, resource_version } });
    };
    let mut complete = secret.clone();
    let data = complete.data.get_or_insert_default();
    let needs_token = data.get(TOKEN).is_none_or(|token| token.0.is_empty());
    set(data, NAMESPACE, secret.metadata.namespace.as_deref().unwrap_or_default());
    if !root_ca.is_empty() {
        set(data, CA, root_ca);
    }
    let annotations = complete.metadata.annotations.get_or_insert_default();
    annotations.insert(ACCOUNT_UID.to_owned(), account_uid.to_owned());
    let is_complete = complete == *secret && !needs_token;
    // What may not change any more stays as somebody wrote it.
    (!is_complete && secret.immutable != Some(true)).then(|| Action::Complete {
        secret: Box::new(complete),
        account_uid: account_uid.to_owned(),
        needs_token,
    })
}

fn set(data: &mut BTreeMap<String, ByteString>, key: &str, value: &str) {
    data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
}

impl ServiceAccountTokens {
    fn secrets(&self, key: &ObjectKey) -> Api<Secret> {
        Api::namespaced(self.context.client.clone(), &key.namespace)
    }
}

impl Controller for ServiceAccountTokens {
    const NAME: &'static str = "serviceaccount_tokens";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let doing = || format!("read the tokens of service account {}", key.name);
        // First the Secrets: an account that is missing after them was not there when they were.
        let params = ListParams::default().fields(&format!("type={SECRET_TYPE}"));
        let found = self.secrets(key).list(&params).await.map_err(ApiError::when(doing()))?;
        let secrets: Vec<Secret> =
            found.items.into_iter().filter(|secret| annotation(secret, ACCOUNT_NAME) == key.name).collect();
        if secrets.is_empty() {
            return Ok(None);
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let account = accounts.get_metadata_opt(&key.name).await.map_err(ApiError::when(doing()))?;
        let account_uid = account.and_then(|account| account.metadata.uid);
        Ok(Some(World { account_uid, secrets, root_ca: self.root_ca.clone() }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan(world))
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let (doing, result) = match action {
            Action::Complete { mut secret, account_uid, needs_token } => {
                let name = secret.metadata.name.clone().unwrap_or_default();
                let doing = format!("complete the token in secret {name}");
                if needs_token {
                    let namespace = key.namespace.clone();
                    let subject =
                        TokenSubject { namespace, account: key.name.clone(), account_uid, secret: name.clone() };
                    let signed = self.signer.sign(&subject).await;
                    let token = signed.map_err(|error| ApiError::new(&*doing, kube::Error::Service(error)))?;
                    set(secret.data.get_or_insert_default(), TOKEN, &token);
                }
                (doing, self.secrets(key).replace(&name, &PostParams::default(), &secret).await.map(drop))
            }
            Action::Delete { name, preconditions } => {
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let result = self.secrets(key).delete(&name, &params).await.map(drop);
                (format!("delete secret {name}, whose service account {} is not there", key.name), result)
            }
        };
        match result {
            Ok(()) => Ok(()),
            // Somebody else was faster: the change itself tells.
            Err(error) if [409, 404].iter().any(|code| error::has_code(&error, *code)) => Ok(()),
            Err(error) => Err(ApiError::new(doing, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(data: serde_json::Value, uid: &str) -> Secret {
        let mut annotations = json!({ ACCOUNT_NAME: "bot" });
        if !uid.is_empty() {
            annotations[ACCOUNT_UID] = json!(uid);
        }
        let metadata =
            json!({ "name": "s", "namespace": "shop", "uid": "u", "resourceVersion": "7", "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "type": SECRET_TYPE, "data": data })).unwrap()
    }

    fn plan_one(account: Option<&str>, secret: Secret) -> Vec<Action> {
        plan(&World { account_uid: account.map(str::to_owned), secrets: vec![secret], root_ca: "CA".into() })
    }

    #[test]
    fn what_is_missing_is_completed_and_a_token_is_kept() {
        let planned = plan_one(Some("a"), secret(json!({ "mine": "eA==" }), ""));
        let [Action::Complete { secret: complete, account_uid, needs_token: true }] = &planned[..] else {
            panic!("{planned:?}")
        };
        assert_eq!((annotation(complete, ACCOUNT_UID), &**account_uid), ("a", "a"));
        let text = |key: &str| String::from_utf8(complete.data.as_ref().unwrap()[key].0.clone()).unwrap();
        assert_eq!((text(CA), text(NAMESPACE), text("mine")), ("CA".into(), "shop".into(), "x".into()));
        let full = |ca: &str| secret(json!({ "token": "eA==", "ca.crt": ca, "namespace": "c2hvcA==" }), "a");
        assert_eq!(plan_one(Some("a"), full("Q0E=")), []);
        let planned = plan_one(Some("a"), full("b2xk"));
        assert!(matches!(&planned[..], [Action::Complete { needs_token: false, .. }]), "{planned:?}");
    }

    #[test]
    fn a_secret_goes_with_its_account() {
        let preconditions = Preconditions { uid: Some("u".to_owned()), resource_version: Some("7".to_owned()) };
        let gone = [Action::Delete { name: "s".to_owned(), preconditions }];
        assert_eq!(plan_one(None, secret(json!({}), "")), gone);
        assert_eq!(plan_one(Some("later"), secret(json!({}), "a")), gone, "another account of the same name");
    }
}
