//! The requests behind a watch: a list in pages, then a watch from its version, as a state machine that consumes itself.
//!
//! A watch that ends is resumed from the last version that was delivered, bookmarks included. When that version is too old (410), or an
//! object could not be decoded, everything is listed anew: an object is never taken for absent because it could not be read. After a failure the
//! next attempt waits, longer with each failure in a row; a watch that ends at once without having delivered anything counts as one.

use std::{any::Any, collections::VecDeque, time::Duration};

use kube::Client;
use mainstay_backoff::{Backoff, RetryState};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{
    lines::Lines,
    watch::Event,
    wire::{ListMeta, ListPage, WatchLine},
};

/// After how long the server closes a watch, in seconds.
const WATCH_SECONDS: &str = "290";
/// A watch that delivers nothing is expected to last longer than this.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
const GONE: u16 = 410;
const FORBIDDEN: u16 = 403;

#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// `metadata.name=a,spec.nodeName=b`; empty for all.
    pub field_selector: String,
    /// `app=web`; empty for all.
    pub label_selector: String,
    /// Asks for `PartialObjectMetadata` in place of whole objects.
    pub metadata_only: bool,
    /// Objects per page of a list.
    pub page_size: u32,
    pub backoff: Backoff,
}

impl Default for WatchOptions {
    fn default() -> Self {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), 0.5);
        Self {
            field_selector: String::new(),
            label_selector: String::new(),
            metadata_only: false,
            page_size: 500,
            backoff,
        }
    }
}

impl WatchOptions {
    pub fn fields(selector: impl Into<String>) -> Self {
        Self { field_selector: selector.into(), ..Self::default() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("list objects")]
    List(#[source] kube::Error),
    #[error("start a watch")]
    Watch(#[source] kube::Error),
    #[error("read the events of a watch")]
    Read(#[source] std::io::Error),
    #[error("decode an object")]
    Decode(#[source] serde_json::Error),
    #[error("the server ended the watch: {message}")]
    Ended { code: u16, message: String },
}

impl WatchError {
    /// Whether watches end like this in the ordinary course of things: the server restarts, or has forgotten the version.
    pub fn is_routine(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Ended { .. })
    }

    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::List(kube::Error::Api(status)) | Self::Watch(kube::Error::Api(status)) => status.code == FORBIDDEN,
            _ => false,
        }
    }

    /// Whether what was delivered last cannot be built on.
    fn needs_list(&self) -> bool {
        match self {
            Self::List(_) | Self::Decode(_) => true,
            Self::Watch(kube::Error::Api(status)) => status.code == GONE,
            Self::Ended { code, .. } => *code == GONE,
            Self::Watch(_) | Self::Read(_) => false,
        }
    }
}

/// An object of the kind that is watched, decoded.
pub type AnyObject = Box<dyn Any + Send>;

/// How objects are decoded; the only part that differs from kind to kind.
pub type Decoder = fn(&RawValue) -> Result<AnyObject, serde_json::Error>;

pub struct ListWatch {
    requests: ListWatchRequests,
    retries: RetryState,
    state: State,
}

/// What is asked, of whom, and how objects are read; shared while an answer is awaited.
struct ListWatchRequests {
    client: Client,
    /// Of the list of the kind's objects.
    path: String,
    options: WatchOptions,
    decode: Decoder,
}

enum State {
    /// Everything is to be listed, after a while.
    Start {
        wait: Option<Duration>,
    },
    Listing {
        page: VecDeque<AnyObject>,
        next: Option<NextPage>,
        version: String,
    },
    Listed {
        version: String,
        wait: Option<Duration>,
    },
    Watching {
        version: String,
        lines: Lines,
        since: Instant,
        delivered: bool,
    },
}

/// The token that the server gave for it; none for the first.
struct NextPage(Option<String>);

#[derive(Deserialize)]
struct ObjectHead {
    metadata: ListMeta,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ErrorStatus {
    code: u16,
    message: String,
}

impl ListWatch {
    pub fn new(client: Client, path: String, options: WatchOptions, decode: Decoder) -> Self {
        let retries = RetryState::new(options.backoff);
        let requests = ListWatchRequests { client, path, options, decode };
        Self { requests, retries, state: State::Start { wait: None } }
    }

    /// The next event, or why there is none yet; the next call goes on from there.
    pub async fn next(mut self) -> (Result<Event<AnyObject>, WatchError>, Self) {
        loop {
            let state = std::mem::replace(&mut self.state, State::Start { wait: None });
            let (event, state) = match state {
                State::Start { wait } => {
                    sleep(wait).await;
                    let next = Some(NextPage(None));
                    (Ok(Some(Event::Init)), State::Listing { page: VecDeque::new(), next, version: String::new() })
                }
                State::Listing { mut page, next, version } => match (page.pop_front(), next) {
                    (Some(object), next) => {
                        (Ok(Some(Event::InitApply(object))), State::Listing { page, next, version })
                    }
                    (None, Some(NextPage(token))) => self.requests.list_page(token).await,
                    (None, None) => (Ok(Some(Event::InitDone)), State::Listed { version, wait: None }),
                },
                State::Listed { version, wait } => {
                    sleep(wait).await;
                    self.requests.start_watch(version).await
                }
                State::Watching { version, lines, since, delivered } => {
                    self.next_line(version, lines, since, delivered).await
                }
            };
            self.state = state;
            match event {
                Ok(None) => {}
                Ok(Some(event)) => {
                    if !matches!(event, Event::Init) {
                        self.retries.reset(); // that a list begins is no success: it does so before every attempt
                    }
                    return (Ok(event), self);
                }
                Err(error) => {
                    let delay = Some(self.retries.record_failure(fastrand::f64()));
                    self.state = match self.state {
                        State::Listed { version, .. } if !error.needs_list() => State::Listed { version, wait: delay },
                        _ => State::Start { wait: delay },
                    };
                    return (Err(error), self);
                }
            }
        }
    }

    async fn next_line(
        &mut self,
        version: String,
        mut lines: Lines,
        since: Instant,
        delivered: bool,
    ) -> (StepResult, State) {
        let line = match lines.next().await {
            Ok(Some(line)) => line,
            ended => {
                let worked = delivered || since.elapsed() >= SHORTEST_WATCH;
                if worked {
                    self.retries.reset();
                }
                if let Err(error) = ended {
                    return (Err(WatchError::Read(error)), State::Listed { version, wait: None });
                }
                let wait = (!worked).then(|| self.retries.record_failure(fastrand::f64()));
                return (Ok(None), State::Listed { version, wait });
            }
        };
        match self.requests.decode_line(line) {
            Ok((event, version)) => (Ok(event), State::Watching { version, lines, since, delivered: true }),
            Err(error) => (Err(error), State::Listed { version, wait: None }),
        }
    }
}

impl ListWatchRequests {
    async fn list_page(&self, token: Option<String>) -> (StepResult, State) {
        match self.request_page(token).await {
            Ok(state) => (Ok(None), state),
            Err(error) => (Err(error), State::Start { wait: None }),
        }
    }

    async fn request_page(&self, token: Option<String>) -> Result<State, WatchError> {
        let limit = self.options.page_size.to_string();
        let token = token.as_deref().map(|token| ("continue", token));
        let request = self.request([("limit", limit.as_str())].into_iter().chain(token), "PartialObjectMetadataList");
        let text = self.client.request_text(request).await.map_err(WatchError::List)?;
        let page: ListPage<'_> = serde_json::from_str(&text).map_err(WatchError::Decode)?;
        let objects: Result<VecDeque<_>, _> = page.items().map(self.decode).collect();
        Ok(State::Listing {
            page: objects.map_err(WatchError::Decode)?,
            next: page.continue_token().map(|token| NextPage(Some(token.to_owned()))),
            version: page.metadata.resource_version,
        })
    }

    async fn start_watch(&self, version: String) -> (StepResult, State) {
        let parameters = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version.as_str()),
            ("timeoutSeconds", WATCH_SECONDS),
        ];
        let request = self.request(parameters, "PartialObjectMetadata");
        match self.client.request_stream(request).await {
            Ok(response) => {
                let (lines, since) = (Lines::new(response), Instant::now());
                (Ok(None), State::Watching { version, lines, since, delivered: false })
            }
            Err(error) => (Err(WatchError::Watch(error)), State::Listed { version, wait: None }),
        }
    }

    /// The event in a line, and the version to resume from after it.
    fn decode_line(&self, line: &[u8]) -> Result<(Option<Event<AnyObject>>, String), WatchError> {
        // Text, and not bytes, is what every other response is decoded from: one decoder for each type is enough.
        let line = str::from_utf8(line).map_err(|error| WatchError::Read(std::io::Error::other(error)))?;
        let WatchLine { type_, object } = serde_json::from_str(line).map_err(WatchError::Decode)?;
        let decoded = || (self.decode)(object).map_err(WatchError::Decode);
        let event = match type_ {
            "ADDED" | "MODIFIED" => Some(Event::Apply(decoded()?)),
            "DELETED" => Some(Event::Delete(decoded()?)),
            "BOOKMARK" => None,
            _ => {
                let status: ErrorStatus = serde_json::from_str(object.get()).unwrap_or_default();
                return Err(WatchError::Ended { code: status.code, message: status.message });
            }
        };
        let head: ObjectHead = serde_json::from_str(object.get()).map_err(WatchError::Decode)?;
        Ok((event, head.metadata.resource_version))
    }

    fn request<'a>(
        &self,
        parameters: impl IntoIterator<Item = (&'static str, &'a str)>,
        metadata_kind: &str,
    ) -> http::Request<Vec<u8>> {
        let WatchOptions { field_selector, label_selector, .. } = &self.options;
        let selectors = [("fieldSelector", field_selector.as_str()), ("labelSelector", label_selector)];
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(selectors.into_iter().filter(|(_, selector)| !selector.is_empty())).extend_pairs(parameters);
        let mut request = http::Request::get(format!("{}?{}", self.path, query.finish()));
        if self.options.metadata_only {
            let accepted = format!("application/json;as={metadata_kind};g=meta.k8s.io;v=v1");
            request = request.header(http::header::ACCEPT, accepted);
        }
        request.body(vec![]).expect("paths of kinds and encoded queries are valid")
    }
}

/// An event, nothing yet, or a failure.
type StepResult = Result<Option<Event<AnyObject>>, WatchError>;

async fn sleep(wait: Option<Duration>) {
    if let Some(wait) = wait {
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests;
