//! Lists and watches the objects of one kind, decoding them from the API's bytes.
//!
//! Every object is decoded once, here and not in the task that schedules, and only the fields that scheduling reads. A
//! [`Reflector`] reports all objects ([`Delta::Replaced`]), then each change; whenever it may have missed an event it lists
//! all objects again. [`Relist`] asks for that, too. Requests that fail are retried with backoff.

use std::time::Duration;

use kube::Client;
use mainstay_backoff::{Backoff, RetryState};
use mainstay_watch::{Lines, ListPage, WatchLine};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Objects per page of a list.
const PAGE_SIZE: usize = 2_000;
/// After how long the server closes a watch, in seconds.
const WATCH_SECONDS: u32 = 290;
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), 0.5);

/// An object and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectRef {
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub version: u64,
}

#[derive(Clone, Debug)]
pub struct Item<T> {
    pub object: ObjectRef,
    pub view: T,
}

#[derive(Clone, Debug)]
pub enum Delta<T> {
    /// All objects as of this version; `round` is the newest [`Relist`] request that this list answers.
    Replaced {
        items: Vec<Item<T>>,
        version: u64,
        round: u64,
    },
    Updated(Item<T>),
    Deleted(ObjectRef),
}

/// Asks reflectors to list all objects again: raised with every request.
pub type Relist = watch::Receiver<u64>;

#[derive(Debug, thiserror::Error)]
enum ReflectorError {
    #[error("send a request to the API")]
    Send(#[source] kube::Error),
    #[error("build a request")]
    Request(#[from] http::Error),
    #[error("read the response")]
    Read(#[from] std::io::Error),
    #[error("decode the response")]
    Decode(#[from] serde_json::Error),
    #[error("the watch cannot be resumed: {0}")]
    Expired(String),
}

impl ReflectorError {
    fn from_api(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Expired(status.message.clone()),
            error => Self::Send(error),
        }
    }
}

#[derive(Deserialize)]
struct ObjectHead {
    metadata: HeadMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct HeadMetadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
}

impl From<HeadMetadata> for ObjectRef {
    fn from(metadata: HeadMetadata) -> Self {
        let version = metadata.resource_version.parse().unwrap_or(0);
        Self { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid, version }
    }
}

fn decode_ref(object: &RawValue) -> Result<ObjectRef, serde_json::Error> {
    Ok(serde_json::from_str::<ObjectHead>(object.get())?.metadata.into())
}

fn decode_item<T: DeserializeOwned>(object: &RawValue) -> Result<Item<T>, serde_json::Error> {
    Ok(Item { object: decode_ref(object)?, view: serde_json::from_str(object.get())? })
}

/// Lists and watches one kind until asked to stop.
pub struct Reflector<T, F> {
    client: Client,
    /// Of the list of all objects of the kind.
    path: &'static str,
    relist: Relist,
    handler: F,
    kind: std::marker::PhantomData<fn() -> T>,
}

impl<T, F> Reflector<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(Delta<T>) + Send + Sync,
{
    pub fn new(client: Client, path: &'static str, relist: Relist, handler: F) -> Self {
        Self { client, path, relist, handler, kind: std::marker::PhantomData }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            let mut retries = RetryState::new(RETRY_BACKOFF);
            let (mut resume_from, mut failing) = (None, false);
            loop {
                let before = resume_from;
                let result = self.list_and_watch(&mut resume_from).await;
                if failing && (result.is_ok() || resume_from != before) {
                    failing = false;
                    tracing::info!(path = self.path, "list and watch work again");
                }
                match result {
                    Ok(()) => retries.reset(),
                    Err(error) => {
                        // A watch that ends is routine; one outage is one warning.
                        if matches!(error, ReflectorError::Send(_)) && !std::mem::replace(&mut failing, true) {
                            tracing::warn!(path = self.path, ?error, "cannot list or watch; retrying");
                        }
                        if matches!(error, ReflectorError::Expired(_) | ReflectorError::Decode(_)) {
                            resume_from = None;
                        }
                        tracing::debug!(path = self.path, ?error, "cannot list or watch; will retry");
                        tokio::time::sleep(retries.record_failure(fastrand::f64())).await;
                    }
                }
            }
        })
        .await;
    }

    /// Watches until the watch is closed, after a list if `resume_from`, the last version observed, is not known.
    async fn list_and_watch(&mut self, resume_from: &mut Option<u64>) -> Result<(), ReflectorError> {
        let version = match *resume_from {
            Some(version) => version,
            None => {
                let round = *self.relist.borrow_and_update();
                let (items, version) = self.list().await?;
                (self.handler)(Delta::Replaced { items, version, round });
                *resume_from = Some(version);
                version
            }
        };
        let request = http::Request::get(format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={WATCH_SECONDS}",
            self.path
        ));
        let stream = self.client.request_stream(request.body(vec![])?).await.map_err(ReflectorError::from_api)?;
        let mut lines = Lines::new(stream);
        loop {
            let line = tokio::select! {
                line = lines.next() => line?,
                Ok(()) = self.relist.changed() => {
                    *resume_from = None;
                    return Ok(());
                }
            };
            let Some(line) = line else { return Ok(()) };
            let WatchLine { type_, object } = serde_json::from_slice(line)?;
            let version = match type_ {
                "ADDED" | "MODIFIED" => {
                    let item: Item<T> = decode_item(object)?;
                    let version = item.object.version;
                    (self.handler)(Delta::Updated(item));
                    version
                }
                "DELETED" => {
                    let deleted = decode_ref(object)?;
                    let version = deleted.version;
                    (self.handler)(Delta::Deleted(deleted));
                    version
                }
                "BOOKMARK" => decode_ref(object)?.version,
                _ => return Err(ReflectorError::Expired(object.get().to_owned())),
            };
            *resume_from = Some(version);
        }
    }

    async fn list(&self) -> Result<(Vec<Item<T>>, u64), ReflectorError> {
        let mut items = Vec::new();
        let mut token = String::new();
        loop {
            let mut path = format!("{}?limit={PAGE_SIZE}", self.path);
            if !token.is_empty() {
                path.push_str("&continue=");
                path.push_str(&token);
            }
            let request = http::Request::get(path).body(vec![])?;
            let text = self.client.request_text(request).await.map_err(ReflectorError::from_api)?;
            let page: ListPage<'_> = serde_json::from_str(&text)?;
            for object in page.items() {
                items.push(decode_item(object)?);
            }
            let Some(next) = page.continue_token() else {
                return Ok((items, page.metadata.resource_version.parse().unwrap_or(0)));
            };
            token = next.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_identified_by_their_metadata() {
        let line = br#"{"type":"ADDED","object":{"metadata":{"name":"n","uid":"u","resourceVersion":"7","labels":null},"x":1}}"#;
        let WatchLine { type_, object } = serde_json::from_slice(line).unwrap();
        assert_eq!(type_, "ADDED");
        let expected = ObjectRef { namespace: String::new(), name: "n".to_owned(), uid: "u".to_owned(), version: 7 };
        assert_eq!(decode_ref(object).unwrap(), expected);
    }
}
