//! The copies of templates' outputs, by the template that they are versions of.
//!
//! Fed by the watch of metadata, and at once by what the controller makes and deletes itself: a reconcile sees its own writes, and does not ask the API for the
//! objects of all templates of a namespace to find its own few.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mainstay_api::config_template::{OutputKind, TEMPLATE_LABEL, template_label};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::versions::{Copy, VERSION_LABEL};
use crate::runtime::{ObjectKey, metadata_watch::MetadataEvent};

pub struct CopyIndex {
    state: Mutex<State>,
    /// The kinds that were listed once.
    listed: watch::Sender<HashSet<OutputKind>>,
}

/// The copies of one kind that a template has. Templates are known by the value of their label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CopyGroup {
    kind: OutputKind,
    namespace: String,
    template: String,
}

#[derive(Default)]
struct State {
    copies: HashMap<CopyGroup, BTreeMap<String, Copy>>,
    group_of: HashMap<(OutputKind, ObjectKey), CopyGroup>,
    /// What a list that is under way has shown.
    listing: HashMap<OutputKind, HashSet<ObjectKey>>,
}

impl Default for CopyIndex {
    fn default() -> Self {
        Self { state: Mutex::default(), listed: watch::Sender::new(HashSet::new()) }
    }
}

impl CopyIndex {
    /// Returns once ConfigMaps and Secrets have been listed.
    pub async fn synced(&self) {
        let all = |listed: &HashSet<OutputKind>| {
            listed.contains(&OutputKind::ConfigMap) && listed.contains(&OutputKind::Secret)
        };
        let _ = self.listed.subscribe().wait_for(all).await;
    }

    /// The copies of a template, by name.
    pub fn copies(&self, kind: OutputKind, namespace: &str, template: &str) -> Vec<Copy> {
        let group = CopyGroup { kind, namespace: namespace.to_owned(), template: template_label(template) };
        self.state.lock().copies.get(&group).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Takes in an object that is there.
    pub fn apply(&self, kind: OutputKind, meta: &ObjectMeta) {
        self.state.lock().apply(kind, meta);
    }

    /// Takes in that an object is gone, unless another one has its name by now.
    pub fn remove(&self, kind: OutputKind, key: &ObjectKey, uid: &str) {
        self.state.lock().remove_if(kind, key, |copy| copy.uid == uid);
    }

    pub fn take_event(&self, kind: OutputKind, event: &MetadataEvent) {
        match event {
            MetadataEvent::Applied(meta) => self.apply(kind, meta),
            MetadataEvent::Deleted(meta) => {
                self.remove(kind, &ObjectKey::from_meta(meta), meta.uid.as_deref().unwrap_or_default());
            }
            MetadataEvent::ListBegan => {
                self.state.lock().listing.insert(kind, HashSet::new());
            }
            MetadataEvent::ListEnded => {
                self.state.lock().end_list(kind);
                self.listed.send_modify(|listed| {
                    listed.insert(kind);
                });
            }
            MetadataEvent::ResourceRemoved => {}
        }
    }
}

impl State {
    fn apply(&mut self, kind: OutputKind, meta: &ObjectMeta) {
        let key = ObjectKey::from_meta(meta);
        self.remove_if(kind, &key, |_| true);
        let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
        let (Some(template), Some(version), Some(uid)) =
            (label(TEMPLATE_LABEL), label(VERSION_LABEL), meta.uid.clone())
        else {
            return;
        };
        if let Some(listing) = self.listing.get_mut(&kind) {
            listing.insert(key.clone());
        }
        let group = CopyGroup { kind, namespace: key.namespace.clone(), template };
        let is_shared = meta.owner_references.as_ref().is_some_and(|owners| owners.len() > 1);
        let copy = Copy { name: key.name.clone(), uid, version, is_shared };
        self.copies.entry(group.clone()).or_default().insert(key.name.clone(), copy);
        self.group_of.insert((kind, key), group);
    }

    fn remove_if(&mut self, kind: OutputKind, key: &ObjectKey, is_it: impl Fn(&Copy) -> bool) {
        let known = (kind, key.clone());
        let Some(group) = self.group_of.get(&known) else { return };
        let Some(copies) = self.copies.get_mut(group) else { return };
        if copies.get(&key.name).is_none_or(|copy| !is_it(copy)) {
            return;
        }
        copies.remove(&key.name);
        if copies.is_empty() {
            self.copies.remove(group);
        }
        self.group_of.remove(&known);
    }

    fn end_list(&mut self, kind: OutputKind) {
        let Some(listed) = self.listing.remove(&kind) else { return };
        let keys = self.group_of.keys().filter(|(own, key)| *own == kind && !listed.contains(key));
        let gone: Vec<ObjectKey> = keys.map(|(_, key)| key.clone()).collect();
        gone.iter().for_each(|key| self.remove_if(kind, key, |_| true));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KIND: OutputKind = OutputKind::ConfigMap;

    fn copy(name: &str, uid: &str, template: &str, version: &str) -> ObjectMeta {
        let labels = json!({ TEMPLATE_LABEL: template, VERSION_LABEL: version });
        serde_json::from_value(json!({ "name": name, "namespace": "shop", "uid": uid, "labels": labels })).unwrap()
    }

    fn names(index: &CopyIndex, template: &str) -> Vec<String> {
        index.copies(KIND, "shop", template).into_iter().map(|copy| format!("{}={}", copy.name, copy.version)).collect()
    }

    #[test]
    fn a_template_has_the_copies_with_its_label_until_they_are_gone() {
        let index = CopyIndex::default();
        index.apply(KIND, &copy("zones-1", "u1", "zones", "v1"));
        index.apply(KIND, &copy("zones-2", "u2", "zones", "v2"));
        index.apply(KIND, &copy("other-1", "u3", "other", "v1"));
        index.apply(OutputKind::Secret, &copy("zones-9", "u4", "zones", "v9"));
        let plain = ObjectMeta { name: Some("settings".to_owned()), ..ObjectMeta::default() };
        index.apply(KIND, &plain);
        assert_eq!(names(&index, "zones"), ["zones-1=v1", "zones-2=v2"]);
        index.remove(KIND, &ObjectKey::new("shop", "zones-1"), "another");
        assert_eq!(names(&index, "zones").len(), 2, "the name belongs to another object by now");
        index.remove(KIND, &ObjectKey::new("shop", "zones-1"), "u1");
        index.apply(KIND, &ObjectMeta { labels: None, ..copy("zones-2", "u2", "", "") });
        assert_eq!(names(&index, "zones"), Vec::<String>::new());
        assert_eq!(names(&index, "other"), ["other-1=v1"]);
    }

    #[tokio::test]
    async fn what_a_list_does_not_show_is_gone_and_what_is_made_meanwhile_stays() {
        let index = CopyIndex::default();
        index.apply(KIND, &copy("zones-1", "u1", "zones", "v1"));
        index.take_event(KIND, &MetadataEvent::ListBegan);
        index.take_event(KIND, &MetadataEvent::Applied(copy("zones-2", "u2", "zones", "v2")));
        index.apply(KIND, &copy("zones-3", "u3", "zones", "v3"));
        index.take_event(KIND, &MetadataEvent::ListEnded);
        assert_eq!(names(&index, "zones"), ["zones-2=v2", "zones-3=v3"]);
        index.take_event(OutputKind::Secret, &MetadataEvent::ListEnded);
        index.synced().await;
    }
}
