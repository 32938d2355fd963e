//! Which pods a Service selects, kept as either changes.
//!
//! A Service is filed under one label that its selector asks for, so a pod finds its Services by its own labels,
//! however many others there are. Both directions are kept: who is behind a Service need not look through a namespace.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use mainstay_api::matching::{Labels, equal};
use parking_lot::Mutex;

use super::{Shared, Waker, machine::Machine};
use crate::{
    cache::{Change, Key},
    workloads::pod::Pod,
};

#[derive(Default)]
pub struct Members {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    selectors: HashMap<Key, Labels>,
    /// By namespace, label and value: the first pair of the selectors.
    filed: HashMap<(String, String, String), BTreeSet<String>>,
    pods: HashMap<Key, BTreeSet<String>>,
    services: HashMap<Key, BTreeSet<String>>,
}

impl Members {
    /// Names of the pods that a Service selects.
    pub fn pods_of(&self, service: &Key) -> Vec<String> {
        self.state.lock().pods.get(service).into_iter().flatten().cloned().collect()
    }

    pub fn count(&self, service: &Key) -> usize {
        self.state.lock().pods.get(service).map_or(0, BTreeSet::len)
    }

    /// Names of the Services that select a pod.
    pub fn services_of(&self, pod: &Key) -> Vec<String> {
        self.state.lock().services.get(pod).into_iter().flatten().cloned().collect()
    }
}

impl State {
    fn matching(&self, namespace: &str, labels: &Labels) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (label, value) in labels {
            let filed = self.filed.get(&(namespace.to_owned(), label.clone(), value.clone()));
            for name in filed.into_iter().flatten() {
                let selector = self.selectors.get(&Key::new(namespace, name));
                if selector.is_some_and(|selector| equal(selector, labels)) {
                    found.insert(name.clone());
                }
            }
        }
        found
    }

    /// Takes in a pod's labels; nothing if it is gone. Says whose it was and whose it is.
    fn put_pod(&mut self, key: &Key, labels: Option<&Labels>) -> (BTreeSet<String>, BTreeSet<String>) {
        let now = labels.map(|labels| self.matching(&key.namespace, labels)).unwrap_or_default();
        let before = match now.is_empty() {
            true => self.services.remove(key).unwrap_or_default(),
            false => self.services.insert(key.clone(), now.clone()).unwrap_or_default(),
        };
        for name in before.difference(&now) {
            remove(&mut self.pods, &Key::new(&key.namespace, name), &key.name);
        }
        for name in now.difference(&before) {
            self.pods.entry(Key::new(&key.namespace, name)).or_default().insert(key.name.clone());
        }
        (before, now)
    }

    /// Takes in a Service's selector; nothing if it has none or is gone. `pods` are those of its namespace.
    fn put_service(&mut self, key: &Key, selector: Option<&Labels>, pods: impl FnOnce() -> Vec<Arc<Pod>>) -> bool {
        if self.selectors.get(key) == selector {
            return false;
        }
        if let Some(old) = self.selectors.remove(key)
            && let Some(place) = place(key, &old)
        {
            if let Some(names) = self.filed.get_mut(&place) {
                names.remove(&key.name);
                if names.is_empty() {
                    self.filed.remove(&place);
                }
            }
            for pod in self.pods.remove(key).unwrap_or_default() {
                remove(&mut self.services, &Key::new(&key.namespace, pod), &key.name);
            }
        }
        if let Some(selector) = selector
            && let Some(place) = place(key, selector)
        {
            self.filed.entry(place).or_default().insert(key.name.clone());
            self.selectors.insert(key.clone(), selector.clone());
            for pod in pods() {
                if pod.metadata.labels.as_ref().is_some_and(|labels| equal(selector, labels)) {
                    let pod = Key::of(&pod.metadata);
                    self.pods.entry(key.clone()).or_default().insert(pod.name.clone());
                    self.services.entry(pod).or_default().insert(key.name.clone());
                }
            }
        }
        true
    }
}

fn place(key: &Key, selector: &Labels) -> Option<(String, String, String)> {
    let (label, value) = selector.first_key_value()?;
    Some((key.namespace.clone(), label.clone(), value.clone()))
}

fn remove(sets: &mut HashMap<Key, BTreeSet<String>>, at: &Key, name: &str) {
    if let Some(set) = sets.get_mut(at) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(at);
        }
    }
}

/// Keeps the index, and wakes the Services that a change concerns.
pub fn listen(shared: &Arc<Shared>, wakers: [Waker; 2]) {
    let wakers = Arc::new(wakers);
    let caches = shared.caches();
    caches.services.on_change({
        let (shared, wakers) = (Arc::downgrade(shared), wakers.clone());
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            {
                let mut state = shared.members.state.lock();
                let service = shared.caches().services.get(change.key);
                let selector = service.as_ref().filter(|service| service.selects()).map(|own| &own.spec.selector);
                state.put_service(change.key, selector, || shared.caches().pods.in_namespace(&change.key.namespace));
            }
            wake(&shared, &*wakers, change.key.clone());
        }
    });
    caches.pods.on_change({
        let (shared, wakers) = (Arc::downgrade(shared), wakers.clone());
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            let (before, now) = {
                let mut state = shared.members.state.lock();
                let pod = shared.caches().pods.get(change.key);
                let none = Labels::new();
                state.put_pod(change.key, pod.as_ref().map(|pod| pod.metadata.labels.as_ref().unwrap_or(&none)))
            };
            let concerned: Vec<&String> = match matters(&change) {
                true => before.union(&now).collect(),
                false => before.symmetric_difference(&now).collect(),
            };
            for name in concerned {
                wake(&shared, &*wakers, Key::new(&change.key.namespace, name));
            }
        }
    });
    caches.nodes.on_change({
        let shared = Arc::downgrade(shared);
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            if change.before.map(Machine::of) != change.after.map(Machine::of) {
                let on_it = |key: &Key| {
                    let pod = shared.caches().pods.get(key);
                    pod.is_some_and(|pod| pod.spec.node_name == change.key.name)
                };
                let all: Vec<(Key, BTreeSet<String>)> = {
                    let state = shared.members.state.lock();
                    let mine = state.services.iter().filter(|(pod, _)| on_it(pod));
                    mine.map(|(pod, services)| (pod.clone(), services.clone())).collect()
                };
                for (pod, services) in all {
                    services.iter().for_each(|name| wake(&shared, &*wakers, Key::new(&pod.namespace, name)));
                }
            }
        }
    });
}

fn wake(shared: &Shared, wakers: &[Waker], service: Key) {
    let count = shared.members.count(&service);
    wakers.iter().for_each(|waker| waker(service.clone(), count));
}

/// Whether a change of a pod can change an endpoint.
fn matters(change: &Change<'_, Pod>) -> bool {
    let view = |pod: &Pod| {
        let names = (pod.spec.node_name.clone(), pod.spec.hostname.clone(), pod.spec.subdomain.clone());
        let addresses = (pod.status.pod_ip.clone(), pod.status.host_ip.clone());
        let ports: Vec<(String, String)> = super::ports::annotated(pod).collect();
        (pod.uid().to_owned(), pod.is_over(), pod.is_leaving(), pod.is_ready(), names, addresses, ports)
    };
    change.before.map(view) != change.after.map(view)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, labels: &Labels) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "labels": labels}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn labels() -> impl Strategy<Value = Labels> {
        proptest::collection::btree_map("[ab]", "[xy]", 0..3)
    }

    proptest! {
        #[test]
        fn the_index_is_what_a_look_through_everything_would_find(
            changes in proptest::collection::vec((any::<bool>(), 0..4usize, proptest::option::of(labels())), 0..40),
        ) {
            let (mut state, mut pods, mut services) = (State::default(), BTreeMap::new(), BTreeMap::new());
            for (is_pod, number, now) in changes {
                let key = Key::new("ns", format!("n{number}"));
                if is_pod {
                    state.put_pod(&key, now.as_ref());
                    match now {
                        Some(now) => drop(pods.insert(key.name, now)),
                        None => drop(pods.remove(&key.name)),
                    }
                } else {
                    let now = now.filter(|selector| !selector.is_empty());
                    let all = || pods.iter().map(|(name, labels)| pod(name, labels)).collect();
                    state.put_service(&key, now.as_ref(), all);
                    match now {
                        Some(now) => drop(services.insert(key.name, now)),
                        None => drop(services.remove(&key.name)),
                    }
                }
                for name in (0..4).map(|number| format!("n{number}")) {
                    let key = Key::new("ns", &name);
                    let theirs: BTreeSet<String> = services.get(&name).into_iter().flat_map(|selector| {
                        pods.iter().filter(|(_, labels)| equal(selector, labels)).map(|(name, _)| name.clone())
                    }).collect();
                    prop_assert_eq!(state.pods.get(&key).cloned().unwrap_or_default(), theirs);
                    let mine: BTreeSet<String> = pods.get(&name).into_iter().flat_map(|labels| {
                        services.iter().filter(|(_, selector)| equal(selector, labels)).map(|(name, _)| name.clone())
                    }).collect();
                    prop_assert_eq!(state.services.get(&key).cloned().unwrap_or_default(), mine);
                }
            }
            prop_assert_eq!(state.selectors.len(), services.len());
            prop_assert!(state.filed.values().all(|names| !names.is_empty()));
        }
    }
}
