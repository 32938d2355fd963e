//! Writes stored objects of a resource anew that are not in the form in which they would be written now: of an older version of their
//! kind, in upstream's protobuf form, plain or under an older key where they are to be encrypted.
//!
//! When that happens is decided by the controller of StorageVersionMigrations; see `mainstay_controllers`. What is in its form already
//! is left alone, as upstream does: a migration wakes no watcher for nothing. A migration may be given up and begun again at any time.

use std::sync::Arc;

use mainstay_api::descriptor::Descriptor;
use mainstay_store::{Compare, Entry, Expect, List, Op, Revision, StoreError, Txn};

use crate::{
    api::CommitError,
    custom_resources::webhook_conversion,
    fence::Fence,
    handler::Handler,
    objects::{keys, object},
};

/// Keys looked at at a time.
const PAGE: usize = 500;

/// What a migration came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    pub rewritten: usize,
    /// The store's revision when it began.
    pub revision: Revision,
}

#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    #[error("resource {resource:?} of group {group:?} is not served here")]
    NotServed { group: String, resource: String },
    #[error("{key} cannot be read: {why}")]
    Unreadable { key: String, why: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl MigrationError {
    /// Whether another attempt would come to the same.
    pub fn is_final(&self) -> bool {
        match self {
            Self::NotServed { .. } | Self::Unreadable { .. } => true,
            Self::Store(_) | Self::Commit(_) => false,
        }
    }
}

/// Migrates every object of a resource.
pub async fn migrate(
    handler: &Handler,
    group: &str,
    resource: &str,
    fence: Option<&Fence>,
) -> Result<Migration, MigrationError> {
    let d = find_stored(handler, group, resource)
        .ok_or_else(|| MigrationError::NotServed { group: group.to_owned(), resource: resource.to_owned() })?;
    let mut migration = Migration { rewritten: 0, revision: handler.store().revision().await? };
    let (prefix, mut start) = (keys::prefix(&d, None), None::<String>);
    loop {
        let query = List { prefix: &prefix, start: start.as_deref(), limit: Some(PAGE), at: None };
        let listing = handler.store().list(query).await?;
        // One that cannot be converted is named below.
        let _ = webhook_conversion::prefetch(&handler.api, &d, &listing.entries).await;
        for entry in &listing.entries {
            migration.rewritten += usize::from(rewrite(handler, &d, entry, fence).await?);
        }
        match listing.entries.last() {
            Some(last) if listing.remaining > 0 => start = Some(format!("{}\0", last.key)),
            _ => return Ok(migration),
        }
    }
}

/// The kind of a resource, in the version in which it is stored if that is served.
fn find_stored(handler: &Handler, group: &str, resource: &str) -> Option<Arc<Descriptor>> {
    let served = handler.api.served.current();
    let mut versions: Vec<_> = served.iter().filter(|d| d.group == group && d.plural == resource).collect();
    versions.sort_by_key(|d| d.api_version() != d.stored_api_version());
    versions.first().map(|d| (*d).clone())
}

/// Writes one object if it is not in its form. Says whether it did.
async fn rewrite(
    handler: &Handler,
    d: &Descriptor,
    entry: &Entry,
    fence: Option<&Fence>,
) -> Result<bool, MigrationError> {
    let unreadable = |why: String| MigrationError::Unreadable { key: entry.key.to_string(), why };
    let object = object::parse(d, entry).map_err(|error| unreadable(error.message().to_owned()))?;
    let wire = object::to_stored(d, &object).map_err(|error| unreadable(error.message().to_owned()))?;
    let is_current_below = match &handler.encryption {
        Some(encryption) => encryption.is_in_current_form(&entry.key).await?,
        None => true,
    };
    if is_current_below && wire.json() == &entry.value {
        return Ok(false);
    }
    let txn = Txn {
        compares: vec![Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) }],
        ops: vec![Op::Put { key: entry.key.clone(), value: wire.json().clone() }],
    };
    handler.api.commit(txn, fence).await?; // a conflict means that somebody else wrote it in the form of now
    Ok(true)
}
