//! The format of keys and values in a store, recorded in the store itself.
//!
//! Servers of several versions may share an etcd, and a backup may be restored by another version than the one that wrote it: a
//! server that is too old for what is there refuses before it writes anything.

use mainstay_files::{Format, FormatError};
use mainstay_store::{Compare, Expect, Op, Outcome, Store, StoreError, Txn};
use serde_json::Map;

use crate::objects::keys;

pub const FORMAT: Format = Format::new("the layout of objects in the store", 1);

#[derive(Debug, thiserror::Error)]
pub enum StoreFormatError {
    #[error("{}", keys::FORMAT)]
    Newer(#[source] FormatError),
    #[error("read or write {} in the store", keys::FORMAT)]
    Store(#[from] StoreError),
}

/// Refuses a store of a newer format; records this one in a store without a number.
pub async fn check_store_format(store: &dyn Store) -> Result<(), StoreFormatError> {
    if let Some(entry) = store.get(keys::FORMAT).await?.0 {
        return FORMAT.check(&entry.value).map_err(|newer| StoreFormatError::Newer(newer.into()));
    }
    let value = FORMAT.encode(&Map::new()).map_err(|error| StoreFormatError::Newer(error.into()))?;
    let txn = Txn {
        compares: vec![Compare { key: keys::FORMAT.into(), expect: Expect::Absent }],
        ops: vec![Op::Put { key: keys::FORMAT.into(), value: value.into() }],
    };
    match store.commit(txn).await {
        // A server must start on a full disk: there are pods to delete.
        Ok(Outcome::Committed(_)) | Err(StoreError::NoSpace) => Ok(()),
        // Another server was faster.
        Ok(_) => match store.get(keys::FORMAT).await?.0 {
            Some(entry) => FORMAT.check(&entry.value).map_err(|newer| StoreFormatError::Newer(newer.into())),
            None => Ok(()),
        },
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_store::Memory;

    use super::*;

    #[tokio::test]
    async fn a_store_without_a_number_gets_one_and_a_newer_one_is_refused() {
        let store = Memory::new();
        check_store_format(&store).await.unwrap();
        let written = store.get(keys::FORMAT).await.unwrap().0.unwrap().value.clone();
        check_store_format(&store).await.unwrap();
        let text = String::from_utf8(written.to_vec()).unwrap().replace("\"format\":1", "\"format\":2");
        let newer = Op::Put { key: keys::FORMAT.into(), value: text.into_bytes().into() };
        store.commit(Txn { compares: vec![], ops: vec![newer] }).await.unwrap();
        let error = mainstay_errors::error_chain(&check_store_format(&store).await.unwrap_err());
        assert!(error.starts_with("/mainstay/format: the layout of objects in the store has format 2"), "{error}");
    }
}
