//! Txn requests: one etcd transaction per commit.
//!
//! Most transactions compare a key that they also write. If no answer comes from one member, such a transaction is sent to the
//! next: should the first have been carried out after all, its own write makes the compare of the second fail, and what the
//! key then holds tells that it was ours. So a member that is lost costs a write some time, and no client an error.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use prost::Message;

use super::{
    error::EtcdError,
    pool::{CallKind, CountedResponse, Pool, revision, signed},
    proto::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
        compare::{Operand, Result as Holds, Target},
        request_op::Request,
        response_op::Response,
    },
    range::entry,
};
use crate::{Entry, Expect, Op, Outcome, Revision, StoreError, Txn};

/// What etcd takes in one request unless told otherwise (`--max-request-bytes`).
const STOCK_LIMIT: usize = 3 << 19;

pub(super) async fn commit(pool: &Pool, txn: Txn) -> Result<Outcome, StoreError> {
    // etcd refuses a key put twice, but not one deleted twice.
    let mut observed = HashSet::new();
    for op in &txn.ops {
        let (Op::Put { key, .. } | Op::Delete { key }) = op;
        if !observed.insert(key) {
            return Err(StoreError::Failed { why: format!("key {key:?} appears twice in a transaction").into() });
        }
    }
    let (compared, guard) = (txn.compares.len(), Guard::find(&txn));
    let request = request(txn);
    let size = request.encoded_len();
    let kind = if guard.is_some() { CallKind::GuardedWrite } else { CallKind::Write };
    match send(pool, kind, request).await {
        Ok(CountedResponse { response, .. }) if response.succeeded => {
            Ok(Outcome::Committed(header_revision(&response)))
        }
        Ok(CountedResponse { response, is_repeated }) => {
            let newest = header_revision(&response);
            let current = conflict(response, compared)?;
            let own = guard.filter(|_| is_repeated).and_then(|guard| guard.committed_at(&current, newest));
            Ok(own.map_or(Outcome::Conflict { current }, Outcome::Committed))
        }
        Err(EtcdError::TooLarge { limit }) => Err(StoreError::TooLarge { size, limit: limit.unwrap_or(STOCK_LIMIT) }),
        Err(fault) => Err(pool.error(fault)),
    }
}

/// What keeps a transaction from being carried out twice: a key that it compares and changes.
#[derive(Debug, PartialEq, Eq)]
struct Guard {
    /// Which of the compares it is.
    compare: usize,
    expect: Expect,
    /// What the transaction puts there; `None` if it deletes the key.
    value: Option<Bytes>,
}

impl Guard {
    fn find(txn: &Txn) -> Option<Self> {
        let guard = |op: &Op| {
            let (key, value) = match op {
                Op::Put { key, value } => (key, Some(value.clone())),
                Op::Delete { key } => (key, None),
            };
            let compare = txn.compares.iter().position(|compare| compare.key == *key)?;
            let expect = txn.compares[compare].expect;
            // Deleting what is expected to be absent changes nothing.
            (value.is_some() || expect != Expect::Absent).then_some(Self { compare, expect, value })
        };
        txn.ops.iter().find_map(guard)
    }

    /// The revision at which an earlier attempt was carried out, if what the compared keys hold now shows that one was.
    fn committed_at(&self, current: &[Option<Arc<Entry>>], newest: Revision) -> Option<Revision> {
        match (&self.value, current.get(self.compare)?) {
            (Some(value), Some(entry)) => {
                let is_new = self.expect != Expect::ModifiedAt(entry.modified);
                (is_new && entry.value == value).then_some(entry.modified)
            }
            (None, None) => Some(newest),
            (Some(_), None) | (None, Some(_)) => None,
        }
    }
}

fn header_revision(answer: &TxnResponse) -> Revision {
    revision(answer.header.as_ref().map(|header| header.revision))
}

pub(super) async fn send(
    pool: &Pool,
    kind: CallKind,
    request: TxnRequest,
) -> Result<CountedResponse<TxnResponse>, EtcdError> {
    pool.call_counted(kind, |connection| {
        let request = request.clone();
        async move { connection.kv().txn(request).await }
    })
    .await
}

fn request(txn: Txn) -> TxnRequest {
    let look = |compare: &crate::Compare| RequestOp {
        request: Some(Request::Range(RangeRequest { key: compare.key.as_bytes().into(), ..Default::default() })),
    };
    TxnRequest {
        failure: txn.compares.iter().map(look).collect(),
        compare: txn.compares.into_iter().map(compare).collect(),
        success: txn.ops.into_iter().map(op).collect(),
    }
}

fn compare(compare: crate::Compare) -> Compare {
    let (result, target, operand) = match compare.expect {
        Expect::Absent => (Holds::Equal, Target::Create, Operand::CreateRevision(0)),
        // An absent key counts as modified at 0 to etcd; here nothing ever was, and no key has
        // a version beyond all numbers.
        Expect::ModifiedAt(Revision(0)) => (Holds::Greater, Target::Version, Operand::Version(i64::MAX)),
        Expect::ModifiedAt(at) => (Holds::Equal, Target::Mod, Operand::ModRevision(signed(at))),
    };
    Compare { result: result.into(), target: target.into(), key: compare.key.as_bytes().into(), operand: Some(operand) }
}

fn op(op: Op) -> RequestOp {
    let request = match op {
        Op::Put { key, value } => Request::Put(PutRequest { key: key.as_bytes().into(), value }),
        Op::Delete { key } => Request::DeleteRange(DeleteRangeRequest { key: key.as_bytes().into() }),
    };
    RequestOp { request: Some(request) }
}

/// What each compared key holds, in order.
fn conflict(answer: TxnResponse, compared: usize) -> Result<Vec<Option<Arc<Entry>>>, StoreError> {
    let mut current = Vec::with_capacity(compared);
    for looked in answer.responses {
        if let Some(Response::Range(mut found)) = looked.response {
            current.push(found.kvs.pop().map(entry).transpose()?);
        }
    }
    if current.len() != compared {
        return Err(StoreError::Failed { why: "etcd answered a transaction only in part".into() });
    }
    Ok(current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memo;

    fn put(key: &str, value: &'static str) -> Op {
        Op::Put { key: key.into(), value: value.into() }
    }

    fn expect(key: &str, expect: Expect) -> crate::Compare {
        crate::Compare { key: key.into(), expect }
    }

    fn entry(value: &'static str, modified: u64) -> Option<Arc<Entry>> {
        let modified = Revision(modified);
        Some(Arc::new(Entry {
            key: "k".into(),
            value: value.into(),
            created: modified,
            modified,
            memo: Memo::default(),
        }))
    }

    #[test]
    fn only_what_compares_a_key_that_it_changes_may_be_sent_twice() {
        let guard = |compares, ops| Guard::find(&Txn { compares, ops });
        assert_eq!(guard(vec![], vec![put("k", "v")]), None);
        assert_eq!(guard(vec![expect("other", Expect::Absent)], vec![put("k", "v")]), None);
        assert_eq!(guard(vec![expect("k", Expect::Absent)], vec![Op::Delete { key: "k".into() }]), None);
        let compares = vec![expect("other", Expect::Absent), expect("k", Expect::ModifiedAt(Revision(3)))];
        let found = guard(compares, vec![put("event", "e"), put("k", "v")]).unwrap();
        assert_eq!((found.compare, found.value), (1, Some("v".into())));
    }

    #[test]
    fn a_repeated_write_finds_its_own_traces_and_takes_nobody_elses_for_them() {
        let update = Guard { compare: 0, expect: Expect::ModifiedAt(Revision(3)), value: Some("v".into()) };
        assert_eq!(update.committed_at(&[entry("v", 5)], Revision(9)), Some(Revision(5)));
        assert_eq!(update.committed_at(&[entry("v", 3)], Revision(9)), None, "another compare failed");
        assert_eq!(update.committed_at(&[entry("w", 5)], Revision(9)), None, "somebody was faster");
        assert_eq!(update.committed_at(&[None], Revision(9)), None, "somebody deleted it");
        let create = Guard { compare: 0, expect: Expect::Absent, value: Some("v".into()) };
        assert_eq!(create.committed_at(&[entry("v", 5)], Revision(9)), Some(Revision(5)));
        let delete = Guard { compare: 0, expect: Expect::ModifiedAt(Revision(3)), value: None };
        assert_eq!(delete.committed_at(&[None], Revision(9)), Some(Revision(9)));
        assert_eq!(delete.committed_at(&[entry("v", 3)], Revision(9)), None);
    }
}
