//! Deletes all objects of a CustomResourceDefinition that is being deleted, then the definition.
//!
//! Objects are deleted as a client would delete them: finalizers hold them, and with them the definition. Nothing new is created meanwhile.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use http::StatusCode;
use mainstay_api::{
    crd::{self, kind, status},
    descriptor::Descriptor,
};
use mainstay_backoff::{Backoff, RetryState};
use mainstay_store::List;
use serde_json::Value;

use super::{Writer, follow::definition_target};
use crate::{
    admission::Request,
    api::{Api, Target},
    http::status::{ApiError, ApiResult},
    objects::{
        guaranteed_update::{Ownership, Part, guaranteed_update},
        keys, metadata,
    },
    verbs::delete,
};

/// How many objects are read and deleted at a time.
const PAGE: usize = 500;
/// How many deletes are under way at once; they share commits.
const WIDTH: usize = 32;
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2), 0.5);

/// Returns when the definition is gone, or is not being deleted.
pub async fn delete_definition(api: &Api, name: &str) {
    let mut retry = RetryState::new(RETRY);
    loop {
        match delete_once(api, name).await {
            Ok(Progress::Done) => return,
            Ok(Progress::Remaining) => {}
            Err(error) => {
                tracing::warn!(
                    definition = name,
                    error = error.message(),
                    "cannot delete all objects of a CustomResourceDefinition; retrying"
                );
            }
        }
        tokio::time::sleep(retry.record_failure(fastrand::f64())).await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Done,
    /// Objects with finalizers are left.
    Remaining,
}

async fn delete_once(api: &Api, name: &str) -> ApiResult<Progress> {
    let target = definition_target(api, name)?;
    let (entry, _) = api.store.get(&target.key()).await?;
    let Some(entry) = entry else { return Ok(Progress::Done) };
    let definition: Value = serde_json::from_slice(&entry.value).map_err(|error| {
        ApiError::internal(format!("stored CustomResourceDefinition {name:?} cannot be parsed: {error}"))
    })?;
    if !definition["metadata"]["deletionTimestamp"].is_string()
        || !metadata::finalizers(&definition).any(|finalizer| finalizer == crd::CLEANUP_FINALIZER)
    {
        return Ok(Progress::Done);
    }
    let writer = Writer::new();
    let request = writer.request(api, &target);
    // A definition that never had its names has no objects: what lies there belongs to somebody else.
    let is_established = status::condition_is_true(&definition, status::ESTABLISHED);
    let stored = kind::stored(&definition, &entry.value).map_err(|error| ApiError::internal(error.to_string()))?;
    if let Some(d) = stored.map(Arc::new).filter(|_| is_established)
        && delete_objects(api, &writer, &d).await? > 0
    {
        let (reason, message) = status::DELETION_IN_PROGRESS;
        let marked = guaranteed_update(&request, Part::Status, Ownership::Kept, false, |old| {
            let mut definition = old.clone();
            status::mark_terminating(&mut definition, reason, message, crate::api::now());
            Ok(definition)
        });
        ignore_missing(marked.await.map(drop))?;
        return Ok(Progress::Remaining);
    }
    let released = guaranteed_update(&request, Part::Main, Ownership::Kept, false, |old| {
        let mut definition = old.clone();
        if let Some(finalizers) = definition["metadata"]["finalizers"].as_array_mut() {
            finalizers.retain(|finalizer| finalizer != crd::CLEANUP_FINALIZER);
        }
        Ok(definition)
    });
    ignore_missing(released.await.map(drop))?;
    Ok(Progress::Done)
}

fn ignore_missing(result: ApiResult<()>) -> ApiResult<()> {
    match result {
        Err(error) if error.code() == StatusCode::NOT_FOUND => Ok(()),
        other => other,
    }
}

/// Deletes every object once; returns how many are still there.
async fn delete_objects(api: &Api, writer: &Writer, d: &Arc<Descriptor>) -> ApiResult<usize> {
    let prefix = keys::prefix(d, None);
    let options = delete::Options { propagation: Some(delete::Propagation::Background), ..Default::default() };
    let (mut start, mut remaining) = (None::<String>, 0);
    loop {
        let request = List { prefix: &prefix, start: start.as_deref(), limit: Some(PAGE), at: None };
        let listing = api.store.list(request).await?;
        let Some(last) = listing.entries.last() else { return Ok(remaining) };
        start = Some(format!("{}\0", last.key));
        let targets: Vec<Target> = listing
            .entries
            .iter()
            .map(|entry| {
                let (namespace, name) = keys::names(d, &entry.key);
                Target { d: d.clone(), namespace: namespace.map(str::to_owned), name: name.to_owned() }
            })
            .collect();
        let requests: Vec<Request<'_>> = targets.iter().map(|target| writer.request(api, target)).collect();
        let deletes = requests.iter().map(|request| delete::delete_one(request, &options));
        let mut deletes = stream::iter(deletes.collect::<Vec<_>>()).buffer_unordered(WIDTH);
        while let Some(deleted) = deletes.next().await {
            match deleted {
                Ok(outcome) => remaining += usize::from(!outcome.gone),
                Err(error) if error.code() == StatusCode::NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
    }
}
