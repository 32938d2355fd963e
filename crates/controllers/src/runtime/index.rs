//! An index of objects by another object they name, kept up to date as they change: the slices of a Service, the
//! volumes of a claim.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;

use super::ObjectKey;

#[derive(Default)]
pub struct GroupIndex {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    group_of: HashMap<ObjectKey, ObjectKey>,
}

impl GroupIndex {
    pub fn members(&self, group: &ObjectKey) -> Vec<ObjectKey> {
        self.state.lock().members.get(group).into_iter().flatten().cloned().collect()
    }

    /// Takes in the group an object is in by now. It is asked for under the lock, so that of two changes the later one
    /// decides.
    pub fn set_group(&self, key: &ObjectKey, now: impl Fn() -> Option<ObjectKey>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_in_the_group_it_was_last_put_in() {
        let groups = GroupIndex::default();
        let key = |name: &str| ObjectKey::new("ns", name);
        groups.set_group(&key("a"), || Some(key("web")));
        groups.set_group(&key("b"), || Some(key("web")));
        groups.set_group(&key("a"), || Some(key("db")));
        assert_eq!((groups.members(&key("web")), groups.members(&key("db"))), (vec![key("b")], vec![key("a")]));
        groups.set_group(&key("b"), || None);
        assert_eq!(groups.members(&key("web")), []);
        assert_eq!(groups.state.lock().members.len(), 1, "empty groups are forgotten");
    }
}
