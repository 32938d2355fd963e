//! Validates transactions before a backend decides them: size, number of operations, keys.

use std::{collections::HashSet, sync::Arc};

use crate::{Op, StoreError, Txn};

/// Most bytes of keys and values in one transaction, unless set otherwise.
pub const TXN_BYTES: usize = 8 << 20;
/// Most operations in one transaction: a row's number holds a revision and 16 bits beside it.
pub(crate) const TXN_OPS: usize = 1 << 16;

impl Op {
    pub fn key(&self) -> &Arc<str> {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}

impl Txn {
    /// Bytes of keys and values written.
    pub fn size(&self) -> usize {
        let sizes = self.ops.iter().map(|op| match op {
            Op::Put { key, value } => key.len() + value.len(),
            Op::Delete { key } => key.len(),
        });
        sizes.sum()
    }
}

/// Whether every backend takes a transaction of this shape.
pub fn txn(txn: &Txn, limit: usize) -> Result<(), StoreError> {
    let size = txn.size();
    if size > limit {
        return Err(StoreError::TooLarge { size, limit });
    }
    if txn.ops.len() > TXN_OPS {
        return Err(StoreError::Failed { why: format!("more than {TXN_OPS} operations in a transaction").into() });
    }
    if txn.ops.iter().any(|op| op.key().is_empty()) {
        return Err(StoreError::Failed { why: "key is not provided".into() });
    }
    let mut observed = HashSet::with_capacity(txn.ops.len());
    if txn.ops.len() > 1 && !txn.ops.iter().all(|op| observed.insert(op.key())) {
        return Err(StoreError::Failed { why: "duplicate key given in transaction".into() });
    }
    Ok(())
}
