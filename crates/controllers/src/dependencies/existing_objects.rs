//! Which ConfigMaps and Secrets exist, from the metadata that is watched anyway.
//!
//! There may be very many of them and few are needed by anybody, so only a hash of each name is kept.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use mainstay_api::needs::ObjectKind;
use parking_lot::Mutex;

use crate::runtime::{discovery::ServerResource, metadata_watch::MetadataEvent};

const WATCHED: [(ObjectKind, &str); 2] = [(ObjectKind::ConfigMap, "configmaps"), (ObjectKind::Secret, "secrets")];

#[derive(Default)]
pub struct ExistingObjects {
    by_kind: Mutex<HashMap<ObjectKind, Names>>,
}

#[derive(Default)]
struct Names {
    known: HashSet<u64>,
    /// What the list under way has shown so far.
    listing: Option<HashSet<u64>>,
}

impl ExistingObjects {
    pub fn contains(&self, kind: ObjectKind, namespace: &str, name: &str) -> bool {
        self.by_kind.lock().get(&kind).is_some_and(|names| names.known.contains(&hash(namespace, name)))
    }

    /// Takes an event in; returns the namespace in which an object came or went.
    pub fn observe<'a>(&self, resource: &ServerResource, event: &'a MetadataEvent) -> Option<&'a str> {
        let (kind, _) = WATCHED.into_iter().find(|(_, plural)| resource.is_named("", plural))?;
        let mut by_kind = self.by_kind.lock();
        let names = by_kind.entry(kind).or_default();
        let (meta, changed) = match event {
            MetadataEvent::ListBegan => {
                names.listing = Some(HashSet::new());
                return None;
            }
            MetadataEvent::ListEnded => {
                names.known = names.listing.take().unwrap_or_default();
                return None;
            }
            MetadataEvent::ResourceRemoved => {
                *names = Names::default();
                return None;
            }
            MetadataEvent::Applied(meta) => {
                let hash = hash(meta.namespace.as_deref()?, meta.name.as_deref()?);
                names.listing.as_mut().map(|listing| listing.insert(hash));
                (meta, names.known.insert(hash))
            }
            MetadataEvent::Deleted(meta) => {
                let hash = hash(meta.namespace.as_deref()?, meta.name.as_deref()?);
                (meta, names.known.remove(&hash))
            }
        };
        meta.namespace.as_deref().filter(|_| changed)
    }
}

fn hash(namespace: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, name).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::api::ApiResource;

    use super::*;

    #[test]
    fn objects_are_there_from_their_creation_until_they_are_deleted_or_not_listed() {
        let secrets = ServerResource {
            api: ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&()),
            namespaced: true,
            verbs: vec![],
        };
        let meta = |name: &str| ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("a".to_owned()),
            ..ObjectMeta::default()
        };
        let objects = ExistingObjects::default();
        let exists = |name: &str| objects.contains(ObjectKind::Secret, "a", name);
        let changes = |event: MetadataEvent| objects.observe(&secrets, &event).is_some();
        assert!(changes(MetadataEvent::Applied(meta("x"))));
        assert!(!changes(MetadataEvent::Applied(meta("x"))), "it was there");
        assert!(exists("x") && !exists("y") && !objects.contains(ObjectKind::ConfigMap, "a", "x"));
        for event in [MetadataEvent::ListBegan, MetadataEvent::Applied(meta("y")), MetadataEvent::ListEnded] {
            changes(event);
        }
        assert!(!exists("x") && exists("y"), "the list did not show it");
        assert!(changes(MetadataEvent::Deleted(meta("y"))));
        assert!(!exists("y"));
    }
}
