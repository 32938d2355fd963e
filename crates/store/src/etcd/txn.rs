//! Txn requests: one etcd transaction per commit.

use std::collections::HashSet;

use prost::Message;

use super::{
    error::EtcdError,
    pool::{CallKind, Pool, revision, signed},
    proto::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
        compare::{Operand, Result as Holds, Target},
        request_op::Request,
        response_op::Response,
    },
    range::entry,
};
use crate::{Expect, Op, Outcome, Revision, StoreError, Txn};

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
    let compared = txn.compares.len();
    let request = request(txn);
    let size = request.encoded_len();
    match send(pool, request).await {
        Ok(answer) if answer.succeeded => Ok(Outcome::Committed(revision(answer.header.map(|header| header.revision)))),
        Ok(answer) => conflict(answer, compared),
        Err(EtcdError::TooLarge { limit }) => Err(StoreError::TooLarge { size, limit: limit.unwrap_or(STOCK_LIMIT) }),
        Err(fault) => Err(pool.error(fault)),
    }
}

pub(super) async fn send(pool: &Pool, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
    pool.call(CallKind::Write, |connection| {
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

fn conflict(answer: TxnResponse, compared: usize) -> Result<Outcome, StoreError> {
    let mut current = Vec::with_capacity(compared);
    for looked in answer.responses {
        if let Some(Response::Range(mut found)) = looked.response {
            current.push(found.kvs.pop().map(entry).transpose()?);
        }
    }
    if current.len() != compared {
        return Err(StoreError::Failed { why: "etcd answered a transaction only in part".into() });
    }
    Ok(Outcome::Conflict { current })
}
