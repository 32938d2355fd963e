//! Which copies of ConfigMaps and Secrets there are and who owns them, from the metadata that is watched anyway.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use mainstay_api::config_versions::{COPY_OF_LABEL, ConfigKind};
use parking_lot::Mutex;

use super::plan::OwnedCopy;
use crate::runtime::{ObjectKey, discovery::ServerResource, metadata_watch::MetadataEvent};

const WATCHED: [(ConfigKind, &str); 2] = [(ConfigKind::ConfigMap, "configmaps"), (ConfigKind::Secret, "secrets")];

type Owners = Vec<OwnerReference>;

#[derive(Default)]
pub struct CopyIndex {
    by_kind: Mutex<HashMap<ConfigKind, KnownCopies>>,
}

#[derive(Default)]
struct KnownCopies {
    known: BTreeMap<ObjectKey, Owners>,
    /// What the list under way has shown so far.
    listing: Option<BTreeSet<ObjectKey>>,
}

/// An object that came, changed or went.
pub struct ConfigEvent {
    pub kind: ConfigKind,
    pub object: ObjectKey,
    /// Of a copy, before and after.
    pub owners: Owners,
}

impl CopyIndex {
    /// The copies of a namespace that an object owns.
    pub fn owned_by(&self, namespace: &str, uid: &str) -> BTreeSet<OwnedCopy> {
        let by_kind = self.by_kind.lock();
        let mut owned = BTreeSet::new();
        for (kind, copies) in by_kind.iter() {
            let in_namespace = copies.known.range(ObjectKey::new(namespace, "")..);
            let in_namespace = in_namespace.take_while(|(key, _)| key.namespace == namespace);
            let own = in_namespace.filter(|(_, owners)| owners.iter().any(|owner| owner.uid == uid));
            owned.extend(own.map(|(key, _)| OwnedCopy { kind: *kind, name: key.name.clone() }));
        }
        owned
    }

    /// Takes an event in; returns what happened, if it was to one object.
    pub fn observe(&self, resource: &ServerResource, event: &MetadataEvent) -> Option<ConfigEvent> {
        let (kind, _) = WATCHED.into_iter().find(|(_, plural)| resource.is_named("", plural))?;
        let mut by_kind = self.by_kind.lock();
        let copies = by_kind.entry(kind).or_default();
        match event {
            MetadataEvent::ListBegan => {
                copies.listing = Some(BTreeSet::new());
                None
            }
            MetadataEvent::ListEnded => {
                let listed = copies.listing.take().unwrap_or_default();
                copies.known.retain(|key, _| listed.contains(key));
                None
            }
            MetadataEvent::ResourceRemoved => {
                *copies = KnownCopies::default();
                None
            }
            MetadataEvent::Applied(meta) => {
                let object = ObjectKey::from_meta(meta);
                if let Some(listing) = &mut copies.listing {
                    listing.insert(object.clone());
                }
                let mut owners = copies.known.remove(&object).unwrap_or_default();
                if is_copy(meta) {
                    let now = meta.owner_references.clone().unwrap_or_default();
                    owners.extend(now.iter().cloned());
                    copies.known.insert(object.clone(), now);
                }
                Some(ConfigEvent { kind, object, owners })
            }
            MetadataEvent::Deleted(meta) => {
                let object = ObjectKey::from_meta(meta);
                let owners = copies.known.remove(&object).unwrap_or_default();
                Some(ConfigEvent { kind, object, owners })
            }
        }
    }
}

fn is_copy(meta: &ObjectMeta) -> bool {
    meta.labels.as_ref().is_some_and(|labels| labels.contains_key(COPY_OF_LABEL))
}

#[cfg(test)]
mod tests {
    use kube::api::ApiResource;
    use serde_json::json;

    use super::*;

    #[test]
    fn copies_are_known_by_their_owners_while_they_are_there() {
        let secrets = ServerResource {
            api: ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&()),
            namespaced: true,
            verbs: vec![],
        };
        let meta = |namespace: &str, name: &str, label: &str, owner: &str| -> ObjectMeta {
            let owners = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner}]);
            let labels = json!({label: "key"});
            serde_json::from_value(
                json!({"namespace": namespace, "name": name, "labels": labels, "ownerReferences": owners}),
            )
            .unwrap()
        };
        let index = CopyIndex::default();
        let owned = || index.owned_by("a", "u").into_iter().map(|copy| copy.name).collect::<Vec<_>>();
        let see = |event| index.observe(&secrets, &event).map(|event| event.owners.len());
        assert_eq!(see(MetadataEvent::Applied(meta("a", "key-1", COPY_OF_LABEL, "u"))), Some(1));
        assert_eq!(see(MetadataEvent::Applied(meta("a", "key-2", "other", "u"))), Some(0));
        assert_eq!(see(MetadataEvent::Applied(meta("a", "key-3", COPY_OF_LABEL, "v"))), Some(1));
        assert_eq!(see(MetadataEvent::Applied(meta("b", "key-4", COPY_OF_LABEL, "u"))), Some(1));
        assert_eq!(owned(), ["key-1"]);
        for event in [
            MetadataEvent::ListBegan,
            MetadataEvent::Applied(meta("a", "key-5", COPY_OF_LABEL, "u")),
            MetadataEvent::ListEnded,
        ] {
            see(event);
        }
        assert_eq!(owned(), ["key-5"], "the list did not show the others");
        assert_eq!(see(MetadataEvent::Deleted(meta("a", "key-5", COPY_OF_LABEL, "u"))), Some(1));
        assert!(owned().is_empty());
    }
}
