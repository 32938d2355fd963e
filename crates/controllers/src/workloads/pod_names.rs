//! Remembers which pod names an owner has used, so that a new pod does not get the name of one that was deleted.
//!
//! While a controller runs, it sees every pod of its owners come and go, and no name is given twice. What survives a
//! restart is what can be read from pods that are still there, terminating ones included:
//!
//! * of pods that are all alike (ReplicaSet, Job), no number up to the highest one present is given again. A number
//!   beyond it may be, if its pod was created, deleted and gone before the restart, and no later one is there.
//! * of pods with a place of their own (DaemonSet, indexed Job), the name follows from the newest pod present there. If
//!   there is none, the first name of the place is given again.
//!
//! Two servers that overlap collide in the same gap if they know the same pods. If one of them has just started, both
//! may create a pod; one of them is surplus then and deleted, as upstream's would be. StatefulSets name their pods by
//! ordinal and do not need this.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    names::{self, Predecessor, UsedNumbers},
    objects::pod::Pod,
    runtime::{Cache, CachedObject, Caches, ObjectKey},
};

#[derive(Default)]
pub struct PodNameHistory {
    /// By the owner's uid.
    owners: Mutex<HashMap<String, OwnerHistory>>,
}

#[derive(Default)]
struct OwnerHistory {
    numbers: UsedNumbers,
    places: HashMap<String, Predecessor>,
}

/// The place of its own that a pod has, if it has one.
pub type PlaceOf = fn(&Pod) -> Option<String>;

impl PodNameHistory {
    /// Follows the pods of all owners of a kind.
    pub fn follow<K: CachedObject>(caches: &Caches, owners: &Arc<Cache<K>>, place_of: PlaceOf) -> Arc<Self> {
        let history = Arc::<Self>::default();
        caches.pods.on_change({
            let (history, owners, pods) = (history.clone(), owners.clone(), Arc::downgrade(&caches.pods));
            move |change| {
                let Some(pod) = change.after else { return };
                let mut references = pod.metadata.owner_references.iter().flatten();
                let owner = references.find(|owner| owner.controller == Some(true) && owner.kind == K::kind(&()));
                let Some(owner) = owner else { return };
                let known = owners.get(&ObjectKey::new(&change.key.namespace, &owner.name));
                let is_owner = known.is_some_and(|known| known.meta().uid.as_ref() == Some(&owner.uid));
                if is_owner || !owners.is_synced() {
                    let started = pods.upgrade().is_some_and(|pods| pods.is_synced());
                    history.record(&owner.name, &owner.uid, pod, place_of(pod), started);
                }
            }
        });
        owners.on_change({
            let history = history.clone();
            move |change| {
                let uid = |object: Option<&K>| object.and_then(|object| object.meta().uid.clone());
                if let Some(gone) = uid(change.before).filter(|gone| Some(gone) != uid(change.after).as_ref()) {
                    history.owners.lock().remove(&gone);
                }
            }
        });
        history
    }

    /// A pod was seen; before `started`, in the first list.
    fn record(&self, owner: &str, uid: &str, pod: &Pod, place: Option<String>, started: bool) {
        let mut owners = self.owners.lock();
        let history = owners.entry(uid.to_owned()).or_default();
        if let Some(place) = place {
            let (created, uid, name) = (pod.created(), pod.uid().to_owned(), pod.name().to_owned());
            let pod = Predecessor { created, uid, name };
            let newest = history.places.entry(place).or_insert_with(|| pod.clone());
            *newest = newest.clone().max(pod);
        } else if let Some(number) = names::number_of(owner, uid, pod.name()) {
            match started {
                true => history.numbers.insert(number),
                false => history.numbers.insert_with_all_before(number),
            }
        }
    }

    pub fn used_numbers(&self, owner_uid: &str) -> UsedNumbers {
        self.owners.lock().get(owner_uid).map(|history| history.numbers.clone()).unwrap_or_default()
    }

    /// The newest pod that was ever seen in a place.
    pub fn predecessor(&self, owner_uid: &str, place: &str) -> Option<Predecessor> {
        self.owners.lock().get(owner_uid)?.places.get(place).cloned()
    }

    /// The same for all places that are numbers.
    pub fn predecessors(&self, owner_uid: &str) -> HashMap<usize, Predecessor> {
        let owners = self.owners.lock();
        let places = owners.get(owner_uid).into_iter().flat_map(|history| &history.places);
        places.filter_map(|(place, pod)| Some((place.parse().ok()?, pod.clone()))).collect()
    }

    /// A place is gone for good.
    pub fn forget_place(&self, place: &str) {
        self.owners.lock().values_mut().for_each(|history| drop(history.places.remove(place)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, second: i64) -> Pod {
        let created = jiff::Timestamp::from_second(second).unwrap().to_string();
        let meta =
            json!({ "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "creationTimestamp": created });
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    #[test]
    fn a_deleted_pods_number_stays_used_and_a_gap_below_is_filled() {
        let history = PodNameHistory::default();
        let name = |number| names::numbered("web", "u", number);
        for number in [0, 1, 3] {
            history.record("web", "u", &pod(&name(number), 0), None, true);
        }
        let next: Vec<String> = names::fresh("web", "u", &history.used_numbers("u"), |_| false).take(2).collect();
        assert_eq!(next, [name(2), name(4)]);
    }

    #[test]
    fn a_first_list_uses_up_all_numbers_before_those_it_contains() {
        let history = PodNameHistory::default();
        let name = |number| names::numbered("web", "u", number);
        history.record("web", "u", &pod(&name(7), 0), None, false);
        let next = names::fresh("web", "u", &history.used_numbers("u"), |_| false).next();
        assert_eq!(next, Some(name(8)));
    }

    #[test]
    fn the_newest_pod_of_a_place_is_the_predecessor() {
        let history = PodNameHistory::default();
        for (name, second) in [("log-a", 5), ("log-b", 9), ("log-c", 7)] {
            history.record("log", "u", &pod(name, second), Some("node-1".into()), true);
        }
        assert_eq!(history.predecessor("u", "node-1").unwrap().name, "log-b");
        history.forget_place("node-1");
        assert_eq!(history.predecessor("u", "node-1"), None);
    }
}
