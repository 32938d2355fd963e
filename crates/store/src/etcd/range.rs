//! Range requests: one key, or a prefix page by page.

use std::sync::Arc;

use prost::Message;

use super::{
    Etcd,
    error::EtcdError,
    pool::{CallKind, Pool, revision, signed},
    proto::{KeyValue, RangeRequest, RangeResponse},
};
use crate::{Entry, List, Listing, Memo, Revision, StoreError};

/// Pages grow and shrink so that an answer stays between these sizes.
const PAGE_BYTES: std::ops::Range<usize> = 2 << 20..8 << 20;
const FIRST_PAGE: usize = 500;
const LARGEST_PAGE: usize = 10_000;
/// How often a list of the newest state is begun anew when compaction overtakes it.
const RESTARTS: usize = 3;

/// The keys below a prefix, as etcd wants them named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub first: Vec<u8>,
    /// The first key behind the range; a single zero byte if there is none.
    pub end: Vec<u8>,
}

impl Keys {
    pub fn below(prefix: &str) -> Self {
        let mut end = prefix.as_bytes().to_vec();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        if end.is_empty() {
            end.push(0);
        }
        Self { first: point(prefix), end }
    }
}

/// A key for questions about a prefix that are not about any key; etcd knows no empty one.
pub(super) fn point(prefix: &str) -> Vec<u8> {
    if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() }
}

pub(super) async fn range(pool: &Pool, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
    range_of_kind(pool, CallKind::Read, request).await
}

async fn range_of_kind(pool: &Pool, kind: CallKind, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
    let request = RangeRequest { serializable: kind == CallKind::StaleRead, ..request };
    pool.call(kind, |connection| {
        let request = request.clone();
        async move { connection.kv().range(request).await }
    })
    .await
}

/// What a member has at hand, whether or not it can be confirmed.
pub(super) async fn get_stale(pool: &Pool, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
    get_of_kind(pool, CallKind::StaleRead, key).await
}

pub(super) async fn get(pool: &Pool, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
    get_of_kind(pool, CallKind::Read, key).await
}

async fn get_of_kind(pool: &Pool, kind: CallKind, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
    let request = RangeRequest { key: key.into(), ..Default::default() };
    let mut answer = range_of_kind(pool, kind, request).await.map_err(|fault| pool.error(fault))?;
    let found = answer.kvs.pop().map(entry).transpose()?;
    Ok((found, revision(answer.header.map(|header| header.revision))))
}

/// What a member has at hand, whether or not it can be confirmed.
pub(super) async fn list_stale(etcd: &Etcd, query: List<'_>) -> Result<Listing, StoreError> {
    list_of_kind(etcd, CallKind::StaleRead, query).await
}

pub(super) async fn list(etcd: &Etcd, query: List<'_>) -> Result<Listing, StoreError> {
    list_of_kind(etcd, CallKind::Read, query).await
}

async fn list_of_kind(etcd: &Etcd, kind: CallKind, query: List<'_>) -> Result<Listing, StoreError> {
    let mut restarts = 0;
    loop {
        match (pages(&etcd.pool, kind, &query).await, query.at) {
            (Ok(listing), _) => return Ok(listing),
            (Err(RangeFault::Store(error)), _) => return Err(error),
            (Err(RangeFault::EtcdError(EtcdError::Compacted, _)), None) if restarts < RESTARTS => restarts += 1,
            (Err(RangeFault::EtcdError(fault, reached)), at) => {
                return Err(etcd.error_at(fault, query.prefix, at.unwrap_or(reached)).await);
            }
        }
    }
}

enum RangeFault {
    /// With the revision that was being read.
    EtcdError(EtcdError, Revision),
    Store(StoreError),
}

async fn pages(pool: &Pool, kind: CallKind, query: &List<'_>) -> Result<Listing, RangeFault> {
    let Keys { first, end } = Keys::below(query.prefix);
    let mut next = match query.start {
        Some(start) => first.max(start.as_bytes().to_vec()),
        None => first,
    };
    // Revision 0 means "newest" to etcd. At its revision 1 nothing was written yet, so that is
    // as good a name for "before everything".
    let mut at = query.at.map(|at| at.max(Revision(1)));
    let mut entries = Vec::new();
    let mut page = FIRST_PAGE;
    loop {
        let wanted = query.limit.map(|limit| limit - entries.len());
        let request = RangeRequest {
            key: next.clone(),
            range_end: end.clone(),
            limit: wanted.map_or(page, |wanted| wanted.min(page)) as i64,
            revision: at.map_or(0, signed),
            count_only: wanted == Some(0),
            ..Default::default()
        };
        let asked = request.limit as usize;
        let answer = range_of_kind(pool, kind, request)
            .await
            .map_err(|fault| RangeFault::EtcdError(fault, at.unwrap_or_default()))?;
        let pinned = *at.get_or_insert(revision(answer.header.map(|header| header.revision)));
        let size = answer.encoded_len();
        let got = answer.kvs.len();
        let remaining = u64::try_from(answer.count).unwrap_or_default().saturating_sub(got as u64);
        if let Some(last) = answer.kvs.last() {
            next = last.key.clone();
            next.push(0);
        }
        for kv in answer.kvs {
            entries.push(entry(kv).map_err(RangeFault::Store)?);
        }
        let full = query.limit.is_some_and(|limit| entries.len() >= limit);
        if full || got < asked || remaining == 0 {
            return Ok(Listing { entries, revision: query.at.unwrap_or(pinned), remaining });
        }
        page = next_page(page, size);
    }
}

fn next_page(page: usize, size: usize) -> usize {
    if size > PAGE_BYTES.end {
        (page / 2).max(1)
    } else if size < PAGE_BYTES.start {
        (page * 2).min(LARGEST_PAGE)
    } else {
        page
    }
}

pub(super) fn entry(kv: KeyValue) -> Result<Arc<Entry>, StoreError> {
    Ok(Arc::new(Entry {
        key: key(kv.key)?,
        value: kv.value.into(),
        created: revision(Some(kv.create_revision)),
        modified: revision(Some(kv.mod_revision)),
        memo: Memo::default(),
    }))
}

pub(super) fn key(bytes: Vec<u8>) -> Result<Arc<str>, StoreError> {
    match String::from_utf8(bytes) {
        Ok(key) => Ok(key.into()),
        Err(bad) => {
            Err(StoreError::Failed { why: format!("etcd holds a key that is not UTF-8: {:?}", bad.as_bytes()).into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_behind_it() {
        assert_eq!(Keys::below("/a/").end, b"/a0");
        assert_eq!(Keys::below("").end, [0]);
        assert_eq!(Keys::below("").first, [0]);
        assert_eq!(Keys::below("a\u{10ffff}").end, [b'a', 0xf4, 0x8f, 0xbf, 0xc0]);
    }

    #[test]
    fn pages_shrink_when_values_are_big_and_grow_when_they_are_small() {
        assert_eq!(next_page(500, 20 << 20), 250);
        assert_eq!(next_page(500, 4 << 20), 500);
        assert_eq!(next_page(500, 1000), 1000);
        assert_eq!(next_page(LARGEST_PAGE, 0), LARGEST_PAGE);
        assert_eq!(next_page(1, usize::MAX), 1);
    }
}
