//! Which templates read an object, kept up to date as templates change, so that a change renders only those that read it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use mainstay_api::{
    config_template::{ConfigTemplate, OutputKind},
    validation::labels,
};
use parking_lot::Mutex;

use crate::runtime::ObjectKey;

/// Something that templates read by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    Service(ObjectKey),
    ConfigMap(ObjectKey),
    Secret(ObjectKey),
    Nodes,
}

#[derive(Default)]
pub struct InputIndex(Mutex<Indexed>);

#[derive(Default)]
struct Indexed {
    readers: HashMap<Source, BTreeSet<ObjectKey>>,
    writers: HashMap<Source, BTreeSet<ObjectKey>>,
    /// Those that read Services by labels.
    selecting: BTreeMap<ObjectKey, Vec<ServiceSelector>>,
    /// Those with a consumer that has this label.
    by_consumer: HashMap<ConsumerLabel, BTreeSet<ObjectKey>>,
    /// By namespace: those with consumers that no label tells.
    by_other_consumer: HashMap<String, BTreeSet<ObjectKey>>,
    /// Those whose output machines have as a file.
    with_machines: BTreeSet<ObjectKey>,
    entries: HashMap<ObjectKey, Entry>,
}

struct Entry {
    reads: Vec<Source>,
    writes: Option<Source>,
    consumers: Vec<ConsumerLabel>,
}

/// A label that every consumer by one entry of a template has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ConsumerLabel {
    namespace: String,
    key: String,
    value: String,
}

struct ServiceSelector {
    /// All of them without one.
    namespace: Option<String>,
    selector: LabelSelector,
}

impl InputIndex {
    /// Takes in what a template reads by now; nothing if it is gone.
    pub fn set(&self, key: &ObjectKey, template: Option<&ConfigTemplate>) {
        let mut indexed = self.0.lock();
        indexed.remove(key);
        let Some(template) = template else { return };
        let (mut reads, mut selecting) = (Vec::new(), Vec::new());
        for input in &template.spec.inputs {
            let own = |name: &str| ObjectKey::new(key.namespace.clone(), name);
            if let Some(service) = &input.service {
                let namespace = service.namespace.clone().unwrap_or_else(|| key.namespace.clone());
                if let Some(name) = &service.name {
                    reads.push(Source::Service(ObjectKey::new(namespace, name)));
                } else if let Some(selector) = &service.selector {
                    let namespace = Some(namespace).filter(|namespace| namespace != "*");
                    selecting.push(ServiceSelector { namespace, selector: selector.clone() });
                }
            }
            reads.extend(input.config_map.as_ref().map(|map| Source::ConfigMap(own(&map.name))));
            reads.extend(input.secret.as_ref().map(|secret| Source::Secret(own(&secret.name))));
            reads.extend(input.nodes.as_ref().map(|_| Source::Nodes));
        }
        let writes = template.spec.output.target().map(|(output, kind)| {
            let key = ObjectKey::new(key.namespace.clone(), output.name.clone());
            match kind {
                OutputKind::ConfigMap => Source::ConfigMap(key),
                OutputKind::Secret => Source::Secret(key),
            }
        });
        for source in &reads {
            indexed.readers.entry(source.clone()).or_default().insert(key.clone());
        }
        if let Some(output) = &writes {
            indexed.writers.entry(output.clone()).or_default().insert(key.clone());
        }
        if !selecting.is_empty() {
            indexed.selecting.insert(key.clone(), selecting);
        }
        let (mut consumers, mut has_others) = (Vec::new(), false);
        for consumer in template.spec.consumers.iter().filter(|consumer| consumer.machines.is_none()) {
            let labels = consumer.selector.as_ref().and_then(|selector| selector.match_labels.as_ref());
            match labels.and_then(|labels| labels.first_key_value()) {
                Some((label, value)) => {
                    let (namespace, value) = (key.namespace.clone(), value.clone());
                    consumers.push(ConsumerLabel { namespace, key: label.clone(), value });
                }
                None => has_others = true,
            }
        }
        for label in &consumers {
            indexed.by_consumer.entry(label.clone()).or_default().insert(key.clone());
        }
        if has_others {
            indexed.by_other_consumer.entry(key.namespace.clone()).or_default().insert(key.clone());
        }
        if template.spec.has_machines() {
            indexed.with_machines.insert(key.clone());
        }
        indexed.entries.insert(key.clone(), Entry { reads, writes, consumers });
    }

    pub fn readers(&self, source: &Source) -> Vec<ObjectKey> {
        self.0.lock().readers.get(source).into_iter().flatten().cloned().collect()
    }

    /// Those whose output it is.
    pub fn writers(&self, source: &Source) -> Vec<ObjectKey> {
        self.0.lock().writers.get(source).into_iter().flatten().cloned().collect()
    }

    /// Those that read a Service by name, or select it by any of these sets of labels.
    pub fn readers_of_service(&self, service: &ObjectKey, all: &[&BTreeMap<String, String>]) -> Vec<ObjectKey> {
        let mut readers: BTreeSet<ObjectKey> = self.readers(&Source::Service(service.clone())).into_iter().collect();
        let indexed = self.0.lock();
        let selects = |own: &ServiceSelector| {
            own.namespace.as_ref().is_none_or(|namespace| *namespace == service.namespace)
                && all.iter().any(|found| labels::matches(&own.selector, found))
        };
        let selecting = indexed.selecting.iter().filter(|(_, selectors)| selectors.iter().any(selects));
        readers.extend(selecting.map(|(key, _)| key.clone()));
        readers.into_iter().collect()
    }

    /// Those whose output machines have as a file.
    pub fn with_machines(&self) -> Vec<ObjectKey> {
        self.0.lock().with_machines.iter().cloned().collect()
    }

    /// Those that may have a pod with one of these sets of labels as a consumer, and those that are named.
    pub fn templates_of_pod<'l>(
        &self,
        namespace: &str,
        all: impl Iterator<Item = &'l BTreeMap<String, String>>,
        named: Vec<String>,
    ) -> BTreeSet<ObjectKey> {
        let indexed = self.0.lock();
        let mut found: BTreeSet<ObjectKey> =
            indexed.by_other_consumer.get(namespace).into_iter().flatten().cloned().collect();
        for (key, value) in all.flatten() {
            let (namespace, key, value) = (namespace.to_owned(), key.clone(), value.clone());
            let label = ConsumerLabel { namespace, key, value };
            found.extend(indexed.by_consumer.get(&label).into_iter().flatten().cloned());
        }
        found.extend(named.into_iter().map(|name| ObjectKey::new(namespace, name)));
        found
    }
}

impl Indexed {
    fn remove(&mut self, key: &ObjectKey) {
        fn remove_from<S: std::hash::Hash + Eq>(
            groups: &mut HashMap<S, BTreeSet<ObjectKey>>,
            group: &S,
            key: &ObjectKey,
        ) {
            if let Some(members) = groups.get_mut(group) {
                members.remove(key);
                if members.is_empty() {
                    groups.remove(group);
                }
            }
        }
        let Some(Entry { reads, writes, consumers }) = self.entries.remove(key) else { return };
        reads.iter().for_each(|source| remove_from(&mut self.readers, source, key));
        writes.iter().for_each(|source| remove_from(&mut self.writers, source, key));
        consumers.iter().for_each(|label| remove_from(&mut self.by_consumer, label, key));
        remove_from(&mut self.by_other_consumer, &key.namespace, key);
        self.selecting.remove(key);
        self.with_machines.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_finds_the_templates_that_read_it_and_no_others() {
        let index = InputIndex::default();
        let key = |name: &str| ObjectKey::new("shop", name);
        let set = |name: &str, input: serde_json::Value| {
            let spec = json!({ "inputs": [input], "output": { "configMap": { "name": name, "key": "k" } } });
            let template: ConfigTemplate = serde_json::from_value(json!({ "spec": spec })).unwrap();
            index.set(&key(name), Some(&template));
        };
        set("by-name", json!({ "name": "a", "service": { "name": "mysql" } }));
        set("elsewhere", json!({ "name": "a", "service": { "name": "mysql", "namespace": "data" } }));
        set(
            "by-label",
            json!({ "name": "a", "service": { "selector": { "matchLabels": { "role": "db" } }, "namespace": "*" } }),
        );
        set("map", json!({ "name": "a", "configMap": { "name": "settings" } }));
        set("secret", json!({ "name": "a", "secret": { "name": "settings" } }));
        set("nodes", json!({ "name": "a", "nodes": {} }));
        let db = BTreeMap::from([("role".to_owned(), "db".to_owned())]);
        let of_service = |namespace: &str, labels: &BTreeMap<String, String>| {
            index.readers_of_service(&ObjectKey::new(namespace, "mysql"), &[labels])
        };
        assert_eq!(of_service("shop", &BTreeMap::new()), [key("by-name")]);
        assert_eq!(of_service("data", &db), [key("by-label"), key("elsewhere")]);
        assert_eq!(index.readers(&Source::ConfigMap(key("settings"))), [key("map")]);
        assert_eq!(index.readers(&Source::Secret(key("settings"))), [key("secret")]);
        assert_eq!(index.readers(&Source::Nodes), [key("nodes")]);
        assert_eq!(index.writers(&Source::ConfigMap(key("map"))), [key("map")]);
        set("map", json!({ "name": "a", "nodes": {} }));
        index.set(&key("nodes"), None);
        assert_eq!(index.readers(&Source::ConfigMap(key("settings"))), []);
        assert_eq!(index.readers(&Source::Nodes), [key("map")]);
    }

    #[test]
    fn a_pod_finds_the_templates_that_it_may_be_a_consumer_of_and_no_others() {
        let index = InputIndex::default();
        let key = |name: &str| ObjectKey::new("shop", name);
        let set = |name: &str, consumers: serde_json::Value| {
            let template = serde_json::from_value(json!({ "spec": { "consumers": consumers } })).unwrap();
            index.set(&key(name), Some(&template));
        };
        for number in 0..100 {
            let app = format!("app-{number}");
            set(&app, json!([{ "selector": { "matchLabels": { "app": app, "tier": "web" } } }]));
        }
        let exists = json!({ "matchExpressions": [{ "key": "app", "operator": "Exists" }] });
        set("by-expression", json!([{ "selector": exists }]));
        set("by-workload", json!([{ "workload": { "kind": "Deployment", "name": "web" } }]));
        set("machines", json!([{ "machines": { "path": "/etc/x" } }]));
        let labels = BTreeMap::from([("app".to_owned(), "app-7".to_owned()), ("x".to_owned(), "y".to_owned())]);
        let of_pod = |namespace: &str, named: &[&str]| -> Vec<ObjectKey> {
            let named = named.iter().map(|name| (*name).to_owned()).collect();
            index.templates_of_pod(namespace, [&labels].into_iter(), named).into_iter().collect()
        };
        assert_eq!(of_pod("shop", &[]), [key("app-7"), key("by-expression"), key("by-workload")]);
        assert_eq!(of_pod("elsewhere", &[]), []);
        assert_eq!(of_pod("shop", &["app-9", "gone"]).len(), 5, "those that had it as a consumer before");
        set("app-7", json!([]));
        assert_eq!(of_pod("shop", &[]), [key("by-expression"), key("by-workload")]);
    }
}
