//! Which owner wants to know of a change.

use std::{sync::Arc, time::Duration};

use kube::api::ObjectMeta;

use crate::{
    cache::{Cache, Change, Kept, Key},
    runner::Queue,
};

/// The object that changed itself.
pub fn itself<K: Kept>(queue: &Arc<Queue<Key>>) -> impl Fn(Change<'_, K>) + Send + Sync + 'static {
    let queue = queue.clone();
    move |change| queue.wake(change.key.clone())
}

/// Who controls it now, who did before, and, for what nobody controls, who may want to.
pub fn owner<K: Kept, O: Kept>(
    queue: &Arc<Queue<Key>>,
    kind: &'static str,
    owners: &Arc<Cache<O>>,
    selects: impl Fn(&O, &ObjectMeta) -> bool + Send + Sync + 'static,
    within: Duration,
) -> impl Fn(Change<'_, K>) + Send + Sync + 'static {
    let (queue, owners) = (queue.clone(), owners.clone());
    move |change| {
        let seen = [change.before, change.after];
        for meta in seen.into_iter().flatten().map(|object| object.meta()) {
            if let Some(owner) = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true)) {
                if owner.kind == kind {
                    queue.wake_within(Key::new(&change.key.namespace, &owner.name), within);
                }
            } else {
                let all = owners.in_namespace(&change.key.namespace);
                let interested = all.iter().filter(|owner| selects(owner, meta));
                interested.for_each(|owner| queue.wake_within(Key::of(owner.meta()), within));
            }
        }
    }
}
