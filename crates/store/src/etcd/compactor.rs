//! Compacts etcd at every interval, up to the revision of the interval before, in turn with kube-apiservers on the same etcd.
//!
//! Any number of servers run this against one etcd, upstream API servers among them. They
//! coordinate through the key `compact_rev_key`, whose version counts the compactions: each
//! interval, whoever first moves it from the version it saw an interval ago compacts, to the
//! revision it saw back then; the others learn the new version and wait. So history of one to two
//! intervals is kept, and a server that was away does harm to nobody.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{
    Etcd,
    pool::{CallKind, revision},
    proto::{
        Compare, PutRequest, RangeRequest, RequestOp, TxnRequest,
        compare::{Operand, Result as Holds, Target},
        request_op::Request,
        response_op::Response,
    },
    txn,
};
use crate::{Revision, Store, StoreError};

/// The interval of upstream's API server.
pub const INTERVAL: Duration = Duration::from_secs(300);

const KEY: &[u8] = b"compact_rev_key";

/// What a compactor remembers from one interval to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactorState {
    /// How often `compact_rev_key` had been written.
    version: i64,
    /// The newest revision at that time; what may go next time.
    revision: Revision,
}

/// Compacts once per interval until asked to stop. An etcd out of reach is tried again at the
/// next interval.
pub async fn run(etcd: Etcd, interval: Duration, stop: CancellationToken) {
    let mut observed = CompactorState::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        match compact_once(&etcd, observed).await {
            Ok(next) => observed = next,
            Err(error) => tracing::warn!(%error, "cannot compact etcd; will retry at the next interval"),
        }
    }
}

/// One interval's work: claims the turn and compacts to what was `seen` last time.
pub async fn compact_once(etcd: &Etcd, observed: CompactorState) -> Result<CompactorState, StoreError> {
    let request = TxnRequest {
        compare: vec![Compare {
            result: Holds::Equal.into(),
            target: Target::Version.into(),
            key: KEY.into(),
            operand: Some(Operand::Version(observed.version)),
        }],
        success: vec![RequestOp {
            request: Some(Request::Put(PutRequest { key: KEY.into(), value: observed.revision.to_string().into() })),
        }],
        failure: vec![RequestOp {
            request: Some(Request::Range(RangeRequest { key: KEY.into(), ..Default::default() })),
        }],
    };
    let answer =
        txn::send(&etcd.pool, CallKind::Write, request).await.map_err(|fault| etcd.pool.error(fault))?.response;
    let newest = revision(answer.header.map(|header| header.revision));
    if !answer.succeeded {
        let found = answer.responses.into_iter().find_map(|looked| match looked.response {
            Some(Response::Range(found)) => found.kvs.into_iter().next(),
            _ => None,
        });
        return Ok(CompactorState { version: found.map_or(0, |kv| kv.version), revision: newest });
    }
    if observed.revision > Revision(0) {
        match etcd.compact(observed.revision).await {
            // Somebody outside this agreement was faster; gone is gone.
            Ok(()) | Err(StoreError::Compacted { .. }) => {}
            Err(error) => return Err(error),
        }
        tracing::debug!(revision = observed.revision.0, "compacted etcd");
    }
    Ok(CompactorState { version: observed.version + 1, revision: newest })
}
