//! The pods that a template has to look at: its consumers, those that were, and those that read a copy of its output.
//!
//! A namespace may have thousands of pods and thousands of templates, each with a few of them. A template looks through the pods of its namespace once; from then on
//! changes of pods keep its candidates up to date. A candidate need not be a consumer any longer, so whoever looks at one judges it anew.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use super::render_cache::TemplateVersion;
use crate::{
    objects::pod::Pod,
    runtime::{Cache, ObjectKey},
};

#[derive(Default)]
pub struct CandidateIndex(Mutex<HashMap<ObjectKey, Candidates>>);

struct Candidates {
    template: TemplateVersion,
    pods: BTreeSet<ObjectKey>,
}

impl CandidateIndex {
    /// The candidates of a template, in the order of their names; all pods of its namespace for which `is_candidate` if they are not known yet.
    ///
    /// Changes of pods are in the cache before they are told of ([`CandidateIndex::add`]). Since the cache is read under the lock, none falls in between.
    pub fn pods(
        &self,
        key: &ObjectKey,
        template: TemplateVersion,
        pods: &Cache<Pod>,
        is_candidate: impl Fn(&Pod) -> bool,
    ) -> Vec<Arc<Pod>> {
        let mut all = self.0.lock();
        if let Some(known) = all.get_mut(key).filter(|known| known.template == template) {
            let mut found = Vec::with_capacity(known.pods.len());
            known.pods.retain(|key| pods.get(key).map(|pod| found.push(pod)).is_some());
            return found;
        }
        let mut found = pods.in_namespace(&key.namespace);
        found.retain(|pod| is_candidate(pod));
        let keys = found.iter().map(|pod| ObjectKey::from_meta(&pod.metadata)).collect();
        all.insert(key.clone(), Candidates { template, pods: keys });
        found
    }

    /// A pod changed that is something to the template. What is not known yet is looked for anyway.
    pub fn add(&self, template: &ObjectKey, pod: &ObjectKey) {
        if let Some(known) = self.0.lock().get_mut(template) {
            known.pods.insert(pod.clone());
        }
    }

    /// The template is gone.
    pub fn forget(&self, template: &ObjectKey) {
        self.0.lock().remove(template);
    }

    /// All are looked for anew.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, version: u64) -> Pod {
        serde_json::from_value(json!({ "metadata": {
            "name": name, "namespace": "shop", "uid": format!("{name}-{version}"), "resourceVersion": version.to_string(),
        } }))
        .unwrap()
    }

    #[test]
    fn a_namespace_is_looked_through_once_and_changes_are_added() {
        let (index, pods) = (CandidateIndex::default(), Cache::new());
        let key = |name: &str| ObjectKey::new("shop", name);
        let names_for = |generation: i64, is_candidate: fn(&Pod) -> bool| -> Vec<String> {
            let version = TemplateVersion { uid: "u".to_owned(), generation: Some(generation) };
            let found = index.pods(&key("zones"), version, &pods, is_candidate);
            found.iter().map(|pod| pod.name().to_owned()).collect()
        };
        let names = |is_candidate: fn(&Pod) -> bool| names_for(1, is_candidate);
        pods.wrote(pod("web-1", 1));
        pods.wrote(pod("db-1", 2));
        index.add(&key("zones"), &key("db-1"));
        assert_eq!(names(|pod| pod.name().starts_with("web")), ["web-1"], "what nobody asked for is not kept");
        pods.wrote(pod("web-0", 3));
        assert_eq!(names(|_| panic!("they are known")), ["web-1"]);
        index.add(&key("zones"), &key("web-0"));
        assert_eq!(names(|_| panic!("they are known")), ["web-0", "web-1"]);
        pods.removed(&key("web-1"), "web-1-1");
        assert_eq!(names(|_| panic!("they are known")), ["web-0"]);
        assert_eq!(names_for(2, |_| true), ["db-1", "web-0"], "the template has other consumers by now");
        index.forget(&key("zones"));
        assert_eq!(names_for(2, |_| false), Vec::<String>::new());
        index.clear();
        assert_eq!(names_for(2, |_| true), ["db-1", "web-0"]);
    }
}
