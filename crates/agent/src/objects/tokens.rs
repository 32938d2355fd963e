//! Service account tokens, one for each pod and audience, renewed before they expire.
//!
//! A token is asked for again after four fifths of its life, or a day if that is sooner. If that
//! fails, the old one goes on being used while it lasts, and the pod is woken to try again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use kube::{Api, Client, api::PostParams};
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::ObjectError;
use crate::wake::Wake;

const ANSWER: Duration = Duration::from_secs(10);
const LONGEST_USE: SignedDuration = SignedDuration::from_hours(24);
const TRY_AGAIN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pod: PodUid,
    audience: String,
    seconds: i64,
}

struct Token {
    text: Arc<str>,
    due: Timestamp,
    expires: Timestamp,
    alarm: AbortHandle,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.alarm.abort();
    }
}

pub(super) struct Tokens {
    client: Client,
    wake: Wake,
    held: Mutex<BTreeMap<Key, Token>>,
}

impl Tokens {
    pub(super) fn new(client: Client, wake: Wake) -> Self {
        Self { client, wake, held: Mutex::default() }
    }

    pub(super) async fn get(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Arc<str>, ObjectError> {
        let uid = PodUid(pod.metadata.uid.clone().unwrap_or_default());
        let key = Key { pod: uid, audience: audience.to_owned(), seconds };
        let now = Timestamp::now();
        let old = self.held.lock().get(&key).map(|token| (token.text.clone(), token.due, token.expires));
        if let Some((text, due, _)) = &old
            && now < *due
        {
            return Ok(text.clone());
        }
        match self.ask(pod, audience, seconds).await {
            Ok((text, expires)) => {
                let due = renewal(now, expires);
                self.keep(key, text.clone(), due, expires);
                Ok(text)
            }
            Err(lack) => match old {
                Some((text, _, expires)) if now < expires => {
                    tracing::debug!(%lack, "a token cannot be renewed yet");
                    self.keep(key, text.clone(), now + TRY_AGAIN, expires);
                    Ok(text)
                }
                _ => Err(lack),
            },
        }
    }

    pub(super) fn forget(&self, pod: &PodUid) {
        self.held.lock().retain(|key, _| key.pod != *pod);
    }

    fn keep(&self, key: Key, text: Arc<str>, due: Timestamp, expires: Timestamp) {
        let (wake, pod) = (self.wake.clone(), key.pod.clone());
        let wait = Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default();
        let alarm = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            wake.pod(&pod);
        });
        self.held.lock().insert(key, Token { text, due, expires, alarm: alarm.abort_handle() });
    }

    async fn ask(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<(Arc<str>, Timestamp), ObjectError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let account = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref())
            .unwrap_or(mainstay_api::wellknown::DEFAULT_SERVICE_ACCOUNT);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: (!audience.is_empty()).then(|| vec![audience.to_owned()]),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let post = PostParams::default();
        let asked = tokio::time::timeout(ANSWER, api.create_token_request(account, &post, &request));
        let answer = match asked.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                return Err(ObjectError::Missing);
            }
            Ok(Err(error)) => return Err(ObjectError::Unreachable(error_chain(&error))),
            Err(_) => return Err(ObjectError::Unreachable("the API does not answer".to_owned())),
        };
        let given = answer.status.and_then(|status| status.token.zip(status.expiration_timestamp));
        let (token, expires) = given.ok_or_else(|| ObjectError::Unreachable("the API gave no token".to_owned()))?;
        Ok((token.into(), expires.0))
    }
}

/// When a token is to be replaced.
fn renewal(issued: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(issued).max(SignedDuration::ZERO);
    issued + (life * 4 / 5).min(LONGEST_USE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_replaced_after_four_fifths_of_its_life_or_a_day() {
        let issued = Timestamp::from_second(1_000_000).unwrap();
        let after = |life, due| {
            assert_eq!(
                renewal(issued, issued + SignedDuration::from_secs(life)),
                issued + SignedDuration::from_secs(due)
            );
        };
        after(600, 480);
        after(3600, 2880);
        after(365 * 24 * 3600, 24 * 3600);
        after(-5, 0);
    }
}
