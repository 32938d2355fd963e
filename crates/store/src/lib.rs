//! A revisioned key-value store with watch, behind one trait and several backends.
//!
//! Every committed transaction takes the next number of one monotonic sequence, the
//! [`Revision`]; revisions are the `resourceVersion`s that API clients see. A backend answers
//! reads with what is committed and durable, never with what merely is on its way.
//!
//! The crate knows nothing of Kubernetes: keys are paths, values are bytes.

mod check;
pub mod embedded;
pub mod etcd;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod mvcc;
#[cfg(any(test, feature = "testing"))]
pub mod suite;
mod types;

pub use check::{TXN_BYTES, txn as check_txn};
pub use embedded::Embedded;
pub use etcd::{Etcd, EtcdConfig, EtcdConfigError, EtcdConnectError};
#[cfg(any(test, feature = "testing"))]
pub use memory::Memory;
pub use types::{
    Change, Compare, Entry, Expect, IndexMatch, List, Listing, Memo, Op, Outcome, Revision, Store, StoreError, Txn,
    Watch, WatchEvent, WatchIndex,
};
