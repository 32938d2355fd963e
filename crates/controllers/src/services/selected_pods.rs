//! The index of pods that a Service selects, kept up to date as either changes.
//!
//! A Service is by_label under one label that its selector asks for, so a pod finds its Services by its own labels,
//! however many others there are. Both directions are kept: who is behind a Service need not look through a namespace.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use mainstay_api::matching::{Labels, has_labels};
use parking_lot::Mutex;

use super::{ServiceContext, endpoint_node::EndpointNode};
use crate::{
    objects::pod::Pod,
    runtime::{Change, ObjectKey},
};

#[derive(Default)]
pub struct SelectedPods {
    state: Mutex<State>,
    subscribers: Mutex<Vec<Subscriber>>,
}

/// Called with a Service whose endpoints may change, and with how many pods it selects.
type Subscriber = Box<dyn Fn(ObjectKey, usize) + Send + Sync>;

#[derive(Default)]
struct State {
    selectors: HashMap<ObjectKey, Labels>,
    /// By namespace, label and value: the first pair of the selectors.
    by_label: HashMap<(String, String, String), BTreeSet<String>>,
    pods: HashMap<ObjectKey, BTreeSet<String>>,
    services: HashMap<ObjectKey, BTreeSet<String>>,
}

impl SelectedPods {
    /// Names of the pods that a Service selects.
    pub fn pods_of(&self, service: &ObjectKey) -> Vec<String> {
        self.state.lock().pods.get(service).into_iter().flatten().cloned().collect()
    }

    fn count(&self, service: &ObjectKey) -> usize {
        self.state.lock().pods.get(service).map_or(0, BTreeSet::len)
    }

    /// Calls `subscriber` whenever the endpoints of a Service may change.
    pub fn on_change(&self, subscriber: impl Fn(ObjectKey, usize) + Send + Sync + 'static) {
        self.subscribers.lock().push(Box::new(subscriber));
    }

    fn notify(&self, service: ObjectKey) {
        let count = self.count(&service);
        self.subscribers.lock().iter().for_each(|subscriber| subscriber(service.clone(), count));
    }

    /// Names of the Services that select a pod.
    pub fn services_of(&self, pod: &ObjectKey) -> Vec<String> {
        self.state.lock().services.get(pod).into_iter().flatten().cloned().collect()
    }
}

impl State {
    fn matching(&self, namespace: &str, labels: &Labels) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (label, value) in labels {
            let by_label = self.by_label.get(&(namespace.to_owned(), label.clone(), value.clone()));
            for name in by_label.into_iter().flatten() {
                let selector = self.selectors.get(&ObjectKey::new(namespace, name));
                if selector.is_some_and(|selector| has_labels(selector, labels)) {
                    found.insert(name.clone());
                }
            }
        }
        found
    }

    /// Takes in a pod's labels; nothing if it is gone. Says whose it was and whose it is.
    fn put_pod(&mut self, key: &ObjectKey, labels: Option<&Labels>) -> (BTreeSet<String>, BTreeSet<String>) {
        let now = labels.map(|labels| self.matching(&key.namespace, labels)).unwrap_or_default();
        let before = match now.is_empty() {
            true => self.services.remove(key).unwrap_or_default(),
            false => self.services.insert(key.clone(), now.clone()).unwrap_or_default(),
        };
        for name in before.difference(&now) {
            remove(&mut self.pods, &ObjectKey::new(&key.namespace, name), &key.name);
        }
        for name in now.difference(&before) {
            self.pods.entry(ObjectKey::new(&key.namespace, name)).or_default().insert(key.name.clone());
        }
        (before, now)
    }

    /// Takes in a Service's selector; nothing if it has none or is gone. `pods` are those of its namespace.
    fn put_service(
        &mut self,
        key: &ObjectKey,
        selector: Option<&Labels>,
        pods: impl FnOnce() -> Vec<Arc<Pod>>,
    ) -> bool {
        if self.selectors.get(key) == selector {
            return false;
        }
        if let Some(old) = self.selectors.remove(key)
            && let Some(label) = index_label(key, &old)
        {
            if let Some(names) = self.by_label.get_mut(&label) {
                names.remove(&key.name);
                if names.is_empty() {
                    self.by_label.remove(&label);
                }
            }
            for pod in self.pods.remove(key).unwrap_or_default() {
                remove(&mut self.services, &ObjectKey::new(&key.namespace, pod), &key.name);
            }
        }
        if let Some(selector) = selector
            && let Some(label) = index_label(key, selector)
        {
            self.by_label.entry(label).or_default().insert(key.name.clone());
            self.selectors.insert(key.clone(), selector.clone());
            for pod in pods() {
                if pod.metadata.labels.as_ref().is_some_and(|labels| has_labels(selector, labels)) {
                    let pod = ObjectKey::from_meta(&pod.metadata);
                    self.pods.entry(key.clone()).or_default().insert(pod.name.clone());
                    self.services.entry(pod).or_default().insert(key.name.clone());
                }
            }
        }
        true
    }
}

fn index_label(key: &ObjectKey, selector: &Labels) -> Option<(String, String, String)> {
    let (label, value) = selector.first_key_value()?;
    Some((key.namespace.clone(), label.clone(), value.clone()))
}

fn remove(sets: &mut HashMap<ObjectKey, BTreeSet<String>>, at: &ObjectKey, name: &str) {
    if let Some(set) = sets.get_mut(at) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(at);
        }
    }
}

/// Keeps the index up to date, and notifies of the Services that a change concerns.
pub fn keep(shared: &Arc<ServiceContext>) {
    let caches = shared.caches();
    caches.services.on_change({
        let shared = Arc::downgrade(shared);
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            {
                let mut state = shared.selected_pods.state.lock();
                let service = shared.caches().services.get(change.key);
                let selector = service.as_ref().filter(|service| service.selects()).map(|own| &own.spec.selector);
                state.put_service(change.key, selector, || shared.caches().pods.in_namespace(&change.key.namespace));
            }
            shared.selected_pods.notify(change.key.clone());
        }
    });
    caches.pods.on_change({
        let shared = Arc::downgrade(shared);
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            let (before, now) = {
                let mut state = shared.selected_pods.state.lock();
                let pod = shared.caches().pods.get(change.key);
                let none = Labels::new();
                state.put_pod(change.key, pod.as_ref().map(|pod| pod.metadata.labels.as_ref().unwrap_or(&none)))
            };
            let concerned: Vec<&String> = match matters(&change) {
                true => before.union(&now).collect(),
                false => before.symmetric_difference(&now).collect(),
            };
            for name in concerned {
                shared.selected_pods.notify(ObjectKey::new(&change.key.namespace, name));
            }
        }
    });
    caches.nodes.on_change({
        let shared = Arc::downgrade(shared);
        move |change| {
            let Some(shared) = shared.upgrade() else { return };
            if change.before.map(EndpointNode::from) != change.after.map(EndpointNode::from) {
                let on_it = |key: &ObjectKey| {
                    let pod = shared.caches().pods.get(key);
                    pod.is_some_and(|pod| pod.spec.node_name == change.key.name)
                };
                let all: Vec<(ObjectKey, BTreeSet<String>)> = {
                    let state = shared.selected_pods.state.lock();
                    let mine = state.services.iter().filter(|(pod, _)| on_it(pod));
                    mine.map(|(pod, services)| (pod.clone(), services.clone())).collect()
                };
                for (pod, services) in all {
                    for name in services {
                        shared.selected_pods.notify(ObjectKey::new(&pod.namespace, name));
                    }
                }
            }
        }
    });
}

/// Whether a change of a pod can change an endpoint.
fn matters(change: &Change<'_, Pod>) -> bool {
    let view = |pod: &Pod| {
        let names = (pod.spec.node_name.clone(), pod.spec.hostname.clone(), pod.spec.subdomain.clone());
        let addresses = (pod.status.pod_ip.clone(), pod.status.host_ip.clone());
        let ports: Vec<(String, String)> = super::ports::host_port_annotations(pod).collect();
        (pod.uid().to_owned(), pod.is_finished(), pod.is_being_deleted(), pod.is_ready(), names, addresses, ports)
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
                let key = ObjectKey::new("ns", format!("n{number}"));
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
                    let key = ObjectKey::new("ns", &name);
                    let theirs: BTreeSet<String> = services.get(&name).into_iter().flat_map(|selector| {
                        pods.iter().filter(|(_, labels)| has_labels(selector, labels)).map(|(name, _)| name.clone())
                    }).collect();
                    prop_assert_eq!(state.pods.get(&key).cloned().unwrap_or_default(), theirs);
                    let mine: BTreeSet<String> = pods.get(&name).into_iter().flat_map(|labels| {
                        services.iter().filter(|(_, selector)| has_labels(selector, labels)).map(|(name, _)| name.clone())
                    }).collect();
                    prop_assert_eq!(state.services.get(&key).cloned().unwrap_or_default(), mine);
                }
            }
            prop_assert_eq!(state.selectors.len(), services.len());
            prop_assert!(state.by_label.values().all(|names| !names.is_empty()));
        }
    }
}
