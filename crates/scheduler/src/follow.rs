//! Follows the objects of one kind, straight from the API's bytes.
//!
//! Every object is decoded once, here and not where decisions are made, and only as far as placing looks at it. A
//! [`Follower`] tells everything there is ([`Seen::All`]), then each change; whenever it cannot be sure of having
//! heard everything it tells everything again. That is also how a comparison is asked for: by [`Relist`].

use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt, io::ErrorKind};
use kube::Client;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How many objects a page of a list has.
const PAGE: usize = 2_000;
/// After how long the server ends a watch by itself, in seconds.
const WATCH_SECONDS: u32 = 290;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Which object, in which version of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Id {
    /// Empty for kinds without.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub version: u64,
}

#[derive(Clone, Debug)]
pub struct Item<T> {
    pub id: Id,
    pub view: T,
}

#[derive(Clone, Debug)]
pub enum Seen<T> {
    /// Everything there is, as of this version; `round` says which request for everything this answers.
    All {
        items: Vec<Item<T>>,
        version: u64,
        round: u64,
    },
    There(Item<T>),
    Gone(Id),
}

/// Asks followers to tell everything again.
pub type Relist = watch::Receiver<u64>;

#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error("ask the API")]
    Ask(#[source] kube::Error),
    #[error("make a request")]
    Request(#[from] http::Error),
    #[error("read what the API sends")]
    Read(#[from] std::io::Error),
    #[error("understand what the API sends")]
    Decode(#[from] serde_json::Error),
    #[error("the API remembers too little: {0}")]
    Expired(String),
}

impl FollowError {
    fn from_api(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Expired(status.message.clone()),
            error => Self::Ask(error),
        }
    }
}

#[derive(Deserialize)]
struct Listing<'a> {
    metadata: ListMeta,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Headed {
    metadata: Head,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Head {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
}

impl From<Head> for Id {
    fn from(head: Head) -> Self {
        let version = head.resource_version.parse().unwrap_or(0);
        Self { namespace: head.namespace, name: head.name, uid: head.uid, version }
    }
}

fn id(object: &RawValue) -> Result<Id, serde_json::Error> {
    Ok(serde_json::from_str::<Headed>(object.get())?.metadata.into())
}

fn item<T: DeserializeOwned>(object: &RawValue) -> Result<Item<T>, serde_json::Error> {
    Ok(Item { id: id(object)?, view: serde_json::from_str(object.get())? })
}

/// Follows one kind until asked to stop.
pub struct Follower<T, F> {
    pub client: Client,
    /// Where all objects of the kind are listed.
    pub path: &'static str,
    pub relist: Relist,
    pub tell: F,
    pub of: std::marker::PhantomData<fn() -> T>,
}

impl<T, F> Follower<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(Seen<T>) + Send + Sync,
{
    pub fn new(client: Client, path: &'static str, relist: Relist, tell: F) -> Self {
        Self { client, path, relist, tell, of: std::marker::PhantomData }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            let mut pause = FIRST_PAUSE;
            let mut from = None;
            loop {
                match self.listen(&mut from).await {
                    Ok(()) => pause = FIRST_PAUSE,
                    Err(error) => {
                        if matches!(error, FollowError::Expired(_) | FollowError::Decode(_)) {
                            from = None;
                        }
                        tracing::debug!(path = self.path, ?error, "cannot follow; will follow again");
                        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
        })
        .await;
    }

    /// Listens until the watch ends; `from` is the last version heard of.
    async fn listen(&mut self, from: &mut Option<u64>) -> Result<(), FollowError> {
        let version = match *from {
            Some(version) => version,
            None => {
                let round = *self.relist.borrow_and_update();
                let (items, version) = self.list().await?;
                (self.tell)(Seen::All { items, version, round });
                *from = Some(version);
                version
            }
        };
        let request = http::Request::get(format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={WATCH_SECONDS}",
            self.path
        ));
        let stream = self.client.request_stream(request.body(vec![])?).await.map_err(FollowError::from_api)?;
        let mut lines = Lines { stream: std::pin::pin!(stream), line: Vec::new() };
        loop {
            let line = tokio::select! {
                line = lines.next() => line?,
                Ok(()) = self.relist.changed() => {
                    *from = None;
                    return Ok(());
                }
            };
            let Some(line) = line else { return Ok(()) };
            let Line { type_, object } = serde_json::from_slice(line)?;
            let heard = match type_ {
                "ADDED" | "MODIFIED" => {
                    let item: Item<T> = item(object)?;
                    let heard = item.id.version;
                    (self.tell)(Seen::There(item));
                    heard
                }
                "DELETED" => {
                    let id = id(object)?;
                    let heard = id.version;
                    (self.tell)(Seen::Gone(id));
                    heard
                }
                "BOOKMARK" => id(object)?.version,
                _ => return Err(FollowError::Expired(object.get().to_owned())),
            };
            *from = Some(heard);
        }
    }

    async fn list(&self) -> Result<(Vec<Item<T>>, u64), FollowError> {
        let mut items = Vec::new();
        let mut token = String::new();
        loop {
            let mut path = format!("{}?limit={PAGE}", self.path);
            if !token.is_empty() {
                path.push_str("&continue=");
                path.push_str(&token);
            }
            let request = http::Request::get(path).body(vec![])?;
            let text = self.client.request_text(request).await.map_err(FollowError::from_api)?;
            let page: Listing<'_> = serde_json::from_str(&text)?;
            for object in page.items {
                items.push(item(object)?);
            }
            token = page.metadata.token;
            if token.is_empty() {
                return Ok((items, page.metadata.resource_version.parse().unwrap_or(0)));
            }
        }
    }
}

/// Lines of a stream, read so that one that is not complete yet is not lost when nobody waits for it.
struct Lines<'a, S> {
    stream: std::pin::Pin<&'a mut S>,
    line: Vec<u8>,
}

impl<S: AsyncBufRead> Lines<'_, S> {
    async fn next(&mut self) -> Result<Option<&[u8]>, std::io::Error> {
        if self.line.ends_with(b"\n") {
            self.line.clear();
        }
        match self.stream.read_until(b'\n', &mut self.line).await {
            Ok(_) if self.line.ends_with(b"\n") => Ok(Some(&self.line)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, io::BufReader};

    use super::*;

    /// Gives what is there, then nothing, then the rest.
    struct Halting(Vec<Option<&'static [u8]>>);

    impl futures::AsyncRead for Halting {
        fn poll_read(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            into: &mut [u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            match self.0.pop() {
                Some(Some(bytes)) => {
                    into[..bytes.len()].copy_from_slice(bytes);
                    std::task::Poll::Ready(Ok(bytes.len()))
                }
                Some(None) => std::task::Poll::Pending,
                None => std::task::Poll::Ready(Ok(0)),
            }
        }
    }

    #[test]
    fn half_a_line_is_kept_when_nobody_waits_for_the_rest() {
        let mut stream = BufReader::new(Halting(vec![Some(b"e\nlast"), None, Some(b"one\nmor")]));
        let mut lines = Lines { stream: std::pin::Pin::new(&mut stream), line: vec![] };
        let mut next = || lines.next().now_or_never().map(|line| line.unwrap().map(<[u8]>::to_vec));
        assert_eq!(next(), Some(Some(b"one\n".to_vec())));
        assert_eq!(next(), None, "given up while waiting");
        assert_eq!(next(), Some(Some(b"more\n".to_vec())));
        assert_eq!(next(), Some(None), "what has no end was cut off");
    }

    #[test]
    fn objects_are_told_by_their_heads() {
        let line = br#"{"type":"ADDED","object":{"metadata":{"name":"n","uid":"u","resourceVersion":"7","labels":null},"x":1}}"#;
        let Line { type_, object } = serde_json::from_slice(line).unwrap();
        assert_eq!(type_, "ADDED");
        let expected = Id { namespace: String::new(), name: "n".to_owned(), uid: "u".to_owned(), version: 7 };
        assert_eq!(id(object).unwrap(), expected);
    }
}
