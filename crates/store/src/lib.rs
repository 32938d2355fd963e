//! A revisioned key-value store with watch, behind one trait and several backends.
//!
//! Every committed transaction takes the next number of one monotonic sequence, the
//! [`Revision`]; revisions are the `resourceVersion`s that API clients see. A backend answers
//! reads with what is committed and durable, never with what merely is on its way.
//!
//! The crate knows nothing of Kubernetes: keys are paths, values are bytes.

mod types;

pub use types::{
    Change, Compare, Entry, Expect, List, Listing, Memo, Notice, Op, Outcome, Revision, Store, StoreError, Txn, Watch,
};
