//! Objects in groups, such as the slices of a Service, kept as they change.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;

use super::Shared;
use crate::cache::Key;

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

#[derive(Default)]
pub struct Groups {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: HashMap<Key, BTreeSet<Key>>,
    group_of: HashMap<Key, Key>,
}

impl Groups {
    pub fn of(&self, group: &Key) -> Vec<Key> {
        self.state.lock().members.get(group).into_iter().flatten().cloned().collect()
    }

    /// Takes in what group an object is in by now. It is asked for under the lock, so that of two who bring news
    /// the later one has the last word.
    fn put(&self, key: &Key, now: impl Fn() -> Option<Key>) {
        let mut state = self.state.lock();
        let now = now();
        if state.group_of.get(key) == now.as_ref() {
            return;
        }
        if let Some(before) = state.group_of.remove(key)
            && let Some(members) = state.members.get_mut(&before)
        {
            members.remove(key);
            if members.is_empty() {
                state.members.remove(&before);
            }
        }
        if let Some(now) = now {
            state.members.entry(now.clone()).or_default().insert(key.clone());
            state.group_of.insert(key.clone(), now);
        }
    }
}

/// The Service whose slice this is.
pub fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key::new(slice.metadata.namespace.clone().unwrap_or_default(), name))
}

pub fn listen(shared: &Arc<Shared>) {
    let own = Arc::downgrade(shared);
    shared.caches().slices.on_change(move |change| {
        let Some(own) = own.upgrade() else { return };
        own.slices.put(change.key, || service_of(own.caches().slices.get(change.key).as_deref()?));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_in_the_group_it_was_last_put_in() {
        let groups = Groups::default();
        let key = |name: &str| Key::new("ns", name);
        groups.put(&key("a"), || Some(key("web")));
        groups.put(&key("b"), || Some(key("web")));
        groups.put(&key("a"), || Some(key("db")));
        assert_eq!((groups.of(&key("web")), groups.of(&key("db"))), (vec![key("b")], vec![key("a")]));
        groups.put(&key("b"), || None);
        assert_eq!(groups.of(&key("web")), []);
        assert_eq!(groups.state.lock().members.len(), 1, "empty groups are forgotten");
    }
}
