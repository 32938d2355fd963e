//! Watches: one gRPC stream per watch, followed by a task that outlives the stream.
//!
//! The stream is etcd's; the watch is ours. The task ([`follow`]) keeps what was delivered last
//! and opens a new stream behind it whenever one breaks. What a stream says is put together into
//! whole transactions by [`assemble`]; what "everything up to here" takes is [`progress`]'s.
//!
//! A stream of its own per watch costs etcd a few kilobytes and spares us its faults with several
//! watches on one stream, and one slow reader only ever holds up itself.

mod assemble;
mod follow;
mod progress;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use self::{follow::Follower, progress::ProgressRequests};
use super::{
    Etcd,
    error::EtcdError,
    pool::{Pool, revision, signed},
    proto::{RangeRequest, WatchCreateRequest, WatchRequest, watch_request::Request},
    range::{point, range},
};
use crate::{Revision, StoreError, Watch, WatchEvent};

/// Notices that wait for the reader before the stream has to.
const QUEUE: usize = 8;

struct EtcdWatch {
    events: mpsc::Receiver<Result<WatchEvent, StoreError>>,
    progress_requests: Arc<ProgressRequests>,
}

#[async_trait]
impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        self.events.recv().await.unwrap_or(Err(StoreError::Closing))
    }

    fn request_progress(&mut self) {
        self.progress_requests.ask();
    }
}

pub(super) async fn open(etcd: &Etcd, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
    // Nothing is ever written at etcd's revision 1, and 0 has another meaning to it.
    let observed = after.max(Revision(1));
    let newest = match newest_if_not_compacted(&etcd.pool, prefix, observed).await {
        Ok(newest) => newest,
        Err(fault) => return Err(etcd.error_at(fault, prefix, after).await),
    };
    let (sender, events) = mpsc::channel(QUEUE);
    let progress_requests = Arc::new(ProgressRequests::default());
    tokio::spawn(Follower::new(etcd.clone(), prefix, observed, sender, progress_requests.clone()).run(newest));
    Ok(Box::new(EtcdWatch { events, progress_requests }))
}

/// The newest revision, provided that history since `at` is complete.
async fn newest_if_not_compacted(pool: &Pool, prefix: &str, at: Revision) -> Result<Revision, EtcdError> {
    let request = RangeRequest { key: point(prefix), revision: signed(at), count_only: true, ..Default::default() };
    Ok(revision(range(pool, request).await?.header.map(|header| header.revision)))
}

/// The revision that etcd was last compacted at. Only a watch learns it: one from the beginning of
/// time, which is refused with this number. Nothing is returned if etcd never was compacted.
pub(super) async fn compacted_at(pool: &Pool, near: &str) -> Option<Revision> {
    let tell = async {
        let connection = pool.stream_connection().await.ok()?;
        let (requests, outbound) = mpsc::channel(1);
        let create = WatchCreateRequest { key: point(near), start_revision: 1, ..Default::default() };
        requests.try_send(WatchRequest { request: Some(Request::Create(create)) }).ok()?;
        let mut answers = connection.watch().watch(ReceiverStream::new(outbound)).await.ok()?.into_inner();
        while let Some(Ok(answer)) = answers.next().await {
            if answer.compact_revision > 0 {
                return Some(revision(Some(answer.compact_revision)));
            }
            if answer.canceled {
                return None;
            }
        }
        None
    };
    let reported = timeout(pool.call_deadline / 4, tell).await.ok().flatten();
    if let Some(at) = reported {
        pool.record_compaction(at);
    }
    reported
}
