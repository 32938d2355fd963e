//! Watches: what changes in a collection, as a stream of events.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use http::StatusCode;
use mainstay_api::descriptor::Descriptor;
use mainstay_store::{Change, Entry, Revision, StoreError, Watch, WatchEvent};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Call, list};
use crate::{
    custom_resources::webhook_conversion::WebhookConversion,
    documents::metrics,
    http::{
        negotiate::{Encoding, Shape},
        query::{Query, Version},
        reply::{self, RowObject},
        request_limits::TakenSeat,
        response_body::{Body, Response},
        status::{ApiError, ApiResult},
    },
    objects::{
        filter::Filter,
        object::{self, Wire},
    },
};

/// Events leave in pieces of about this size.
const PIECE: usize = 64 * 1024;
/// Longest time in seconds that a client may ask for: a week.
const LONGEST_TIMEOUT: u64 = 7 * 24 * 3600;
/// How many batches of events that are ready are delivered after a watch was told to end.
const FLUSHES: usize = 16;
/// How many events a conversion webhook is asked about before the first of them is sent.
const CONVERTED_AT_ONCE: usize = 500;
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What counts a watch as open until it is dropped.
type OpenWatch = (metrics::OpenWatchGauge, Option<TakenSeat>);

pub async fn watch(call: &Call<'_>, stop: CancellationToken, open: OpenWatch) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, .. } = call;
    if accepted.encoding != Encoding::Json {
        return Err(ApiError::not_acceptable(&["application/json"]));
    }
    let filter = Filter::parse(&target.d, query)?;
    let encoder = Encoder { d: target.d.clone(), shape: accepted.shape, row: *row, begun: false };
    let newest = api.store.revision().await?;
    let (initial, after) = match (query.version, query.send_initial_events) {
        (Version::Of(wanted), _) if wanted > newest.0 => return Err(ApiError::too_large_version(wanted, newest.0)),
        (Version::Of(wanted), None | Some(false)) => (Vec::new(), Revision(wanted)),
        (Version::Newest | Version::Any, Some(false)) => (Vec::new(), newest),
        (_, None | Some(true)) => {
            let whole = Query { limit: None, version: Version::Newest, ..Query::default() };
            let page = list::page(api, target, &whole, &filter).await?;
            let end = (query.send_initial_events == Some(true)).then_some(PendingEvent::InitialEnd(page.revision));
            (page.entries.into_iter().map(PendingEvent::Initial).chain(end).collect(), page.revision)
        }
    };
    // History that is gone is told inside the stream: by then clients know how to start over.
    let (prefix, part) = (target.prefix(), filter.part(&target.d));
    let source = match part {
        Some(part) => api.store.watch_indexed(&prefix, after, part).await,
        None => api.store.watch(&prefix, after).await,
    };
    let source = match source {
        Ok(source) => Ok(source),
        Err(error @ StoreError::Compacted { .. }) => Err(error),
        Err(error) => return Err(error.into()),
    };
    let patience = match query.timeout_seconds {
        None | Some(0) => api.settings.watch_timeout.mul_f64(1.0 + fastrand::f64()),
        Some(seconds) => Duration::from_secs(seconds.min(LONGEST_TIMEOUT)),
    };
    let watching = WatchStream {
        due: initial.into_iter(),
        source,
        filter,
        encoder,
        conversion: api.served.webhook_conversion(&target.d),
        converted: 0,
        bookmarks: query.bookmarks.then(|| bookmark_timer(api.settings.bookmark_interval)),
        deadline: Instant::now() + patience,
        stop,
        flushes: FLUSHES,
        _open: open,
    };
    let body = stream::unfold(Some(watching), WatchStream::next).boxed();
    Ok(reply::with_media_type(StatusCode::OK, "application/json", Body::Endless(body)))
}

fn bookmark_timer(period: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// What is still to be told to the client.
enum PendingEvent {
    Initial(Arc<Entry>),
    /// The revision of the initial events, all of which have been told.
    InitialEnd(Revision),
    Change(Change),
}

impl PendingEvent {
    fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let (first, second) = match self {
            Self::Initial(entry) => (Some(entry), None),
            Self::InitialEnd(_) => (None, None),
            Self::Change(change) => (change.previous.as_ref(), change.current.as_ref()),
        };
        first.into_iter().chain(second)
    }
}

struct WatchStream {
    /// Told before anything more is taken from the source. Encoded as the client takes it, so that
    /// what is held for a slow client is shared with everyone else.
    due: std::vec::IntoIter<PendingEvent>,
    source: Result<Box<dyn Watch>, StoreError>,
    filter: Filter,
    encoder: Encoder,
    /// The webhook that converts objects to the version that is watched.
    conversion: Option<Arc<WebhookConversion>>,
    /// How many of the events that are due it has converted.
    converted: usize,
    bookmarks: Option<Interval>,
    deadline: Instant,
    stop: CancellationToken,
    /// How many more batches of events are delivered once it is to stop.
    flushes: usize,
    _open: OpenWatch,
}

impl WatchStream {
    /// The next piece of the stream; the state is gone after the last.
    async fn next(state: Option<Self>) -> Option<(Bytes, Option<Self>)> {
        let mut this = state?;
        loop {
            let mut piece = Vec::new();
            while piece.len() < PIECE {
                if let Err(error) = this.convert_due().await {
                    piece.extend(line("ERROR", &error.status()));
                    return Some((piece.into(), None));
                }
                let Some(due) = this.due.next() else { break };
                if let Err(error) = this.encoder.due(&this.filter, &due, &mut piece) {
                    piece.extend(line("ERROR", &error.status()));
                    return Some((piece.into(), None));
                }
            }
            if !piece.is_empty() {
                return Some((piece.into(), Some(this)));
            }
            match this.notice().await? {
                Ok(WatchEvent::Changes(changes)) => {
                    this.due = changes.into_iter().map(PendingEvent::Change).collect::<Vec<_>>().into_iter();
                }
                Ok(WatchEvent::Progress(revision)) if this.bookmarks.is_some() => {
                    return Some((this.encoder.bookmark(revision, false).into(), Some(this)));
                }
                Ok(WatchEvent::Progress(_)) => {}
                Err(error) => return Some((this.encoder.error(error), None)),
            }
        }
    }

    /// Has the webhook convert the next events, if it has not yet.
    async fn convert_due(&mut self) -> ApiResult<()> {
        let Some(conversion) = &self.conversion else { return Ok(()) };
        if let Some(left) = self.converted.checked_sub(1) {
            self.converted = left;
            return Ok(());
        }
        let next = &self.due.as_slice()[..self.due.len().min(CONVERTED_AT_ONCE)];
        let entries: Vec<Arc<Entry>> = next.iter().flat_map(PendingEvent::entries).cloned().collect();
        self.converted = next.len().saturating_sub(1);
        conversion.prefetch(&self.encoder.d, &entries).await
    }

    /// What the store has to say next; nothing more once the watch is over.
    async fn notice(&mut self) -> Option<Result<WatchEvent, StoreError>> {
        loop {
            let tick = async {
                match &mut self.bookmarks {
                    Some(interval) => interval.tick().await,
                    None => std::future::pending().await,
                }
            };
            let source = match &mut self.source {
                Ok(source) => source,
                Err(error) => return Some(Err(error.clone())),
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.last_events(),
                () = tokio::time::sleep_until(self.deadline) => return None,
                notice = source.next() => return Some(notice),
                _ = tick => source.request_progress(),
            }
        }
    }
}

impl WatchStream {
    /// What has happened already when the watch is ended from outside: the deletion of a kind's last object comes just before the kind goes.
    fn last_events(&mut self) -> Option<Result<WatchEvent, StoreError>> {
        self.flushes = self.flushes.checked_sub(1)?;
        let source = self.source.as_mut().ok()?;
        source.next().now_or_never().filter(|event| matches!(event, Ok(WatchEvent::Changes(_))))
    }
}

/// Turns what happened into events as this client wants to see them.
struct Encoder {
    d: Arc<Descriptor>,
    shape: Shape,
    row: RowObject,
    /// Whether the column definitions of a table have been sent.
    begun: bool,
}

impl Encoder {
    /// Fails for an object that cannot be parsed; the client then starts over with a list, which says so too.
    fn due(&mut self, filter: &Filter, due: &PendingEvent, out: &mut Vec<u8>) -> ApiResult<()> {
        match due {
            PendingEvent::Initial(entry) => self.event("ADDED", entry, entry.modified, out),
            PendingEvent::InitialEnd(revision) => {
                out.extend_from_slice(&self.bookmark(*revision, true));
                Ok(())
            }
            PendingEvent::Change(change) => self.change(filter, change, out),
        }
    }

    fn change(&mut self, filter: &Filter, change: &Change, out: &mut Vec<u8>) -> ApiResult<()> {
        let passes = |entry: &Option<Arc<Entry>>| entry.as_ref().filter(|e| filter.matches(&self.d, e)).cloned();
        // An object that leaves the selection is deleted as far as this client can tell.
        let (kind, entry) = match (passes(&change.previous), passes(&change.current)) {
            (None, Some(entry)) => ("ADDED", entry),
            (Some(_), Some(entry)) => ("MODIFIED", entry),
            (Some(entry), None) => ("DELETED", entry),
            (None, None) => return Ok(()),
        };
        self.event(kind, &entry, change.revision, out)
    }

    fn event(&mut self, kind: &str, entry: &Entry, revision: Revision, out: &mut Vec<u8>) -> ApiResult<()> {
        let wire = Wire::from_entry(&self.d, entry)?;
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        match self.shape {
            Shape::Object => wire.write(revision, out),
            Shape::Partial(version) => wire.write_partial(version, revision, out),
            Shape::Table(version) => {
                let object = self.parse_with_version(entry, revision)?;
                let metadata = json!({ "resourceVersion": revision.to_string() });
                let first = !std::mem::replace(&mut self.begun, true);
                let table = reply::table(version, &self.d.columns, self.row, metadata, first, &[object]);
                out.extend_from_slice(table.to_string().as_bytes());
            }
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    fn parse_with_version(&self, entry: &Entry, revision: Revision) -> ApiResult<Value> {
        let mut object = object::parse(&self.d, entry)?;
        object::set_version(&mut object, revision);
        Ok(object)
    }

    fn bookmark(&self, revision: Revision, end_of_initial: bool) -> Vec<u8> {
        let mut metadata = json!({ "resourceVersion": revision.to_string(), "creationTimestamp": null });
        if end_of_initial {
            metadata["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
        }
        let (kind, version) = match self.shape {
            Shape::Object => (self.d.kind.to_string(), self.d.api_version()),
            Shape::Partial(version) => ("PartialObjectMetadata".to_owned(), version.to_owned()),
            Shape::Table(version) => ("Table".to_owned(), version.to_owned()),
        };
        let object = json!({ "kind": kind, "apiVersion": version, "metadata": metadata });
        line("BOOKMARK", &object)
    }

    fn error(&self, error: StoreError) -> Bytes {
        let refused: Box<ApiError> = error.into();
        line("ERROR", &refused.status()).into()
    }
}

fn line(kind: &str, object: &Value) -> Vec<u8> {
    let mut line = json!({ "type": kind, "object": object }).to_string().into_bytes();
    line.push(b'\n');
    line
}
