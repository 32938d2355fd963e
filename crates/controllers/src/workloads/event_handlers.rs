//! Event handlers: which owner a change of an object concerns.

use std::{sync::Arc, time::Duration};

use kube::api::ObjectMeta;

use crate::runtime::{Cache, CachedObject, Change, ObjectKey, WorkQueue};

/// Adds the object that changed.
pub fn add_object<K: CachedObject>(
    queue: &Arc<WorkQueue<ObjectKey>>,
) -> impl Fn(Change<'_, K>) + Send + Sync + 'static {
    let queue = queue.clone();
    move |change| queue.add(change.key.clone())
}

/// Adds the owner that controls it now or did before and, for what has no controller, those that select it.
pub fn add_owner<K: CachedObject, O: CachedObject>(
    queue: &Arc<WorkQueue<ObjectKey>>,
    kind: &'static str,
    owners: &Arc<Cache<O>>,
    selects: impl Fn(&O, &ObjectMeta) -> bool + Send + Sync + 'static,
    within: Duration,
) -> impl Fn(Change<'_, K>) + Send + Sync + 'static {
    let (queue, owners) = (queue.clone(), owners.clone());
    move |change| {
        let observed = [change.before, change.after];
        for meta in observed.into_iter().flatten().map(|object| object.meta()) {
            if let Some(owner) = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true)) {
                if owner.kind == kind {
                    queue.add_after(ObjectKey::new(&change.key.namespace, &owner.name), within);
                }
            } else {
                let all = owners.in_namespace(&change.key.namespace);
                let interested = all.iter().filter(|owner| selects(owner, meta));
                interested.for_each(|owner| queue.add_after(ObjectKey::from_meta(owner.meta()), within));
            }
        }
    }
}
