//! Controller references: which objects an owner controls, adopts and releases.
//!
//! An object belongs to the one owner that its controller reference names by uid. An owner keeps what it controls and
//! what matches its selector, releases what no longer matches, and adopts what matches and has no controller. What
//! another controls is never touched, whatever the selectors say. An owner that is being deleted changes nothing.
//!
//! Deciding ([`claim_objects`]) is apart from doing ([`apply_change`]). Both directions carry the uid and the version
//! that was judged. Before it adopts, the owner is read again, past every cache: one that was deleted meanwhile must not
//! take over objects that garbage collection would then delete.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use mainstay_api::selector::Labels;
use serde_json::{Value, json};

use crate::runtime::{ApiError, Cache, CachedObject, ObjectKey, controller_of, error, recorder::EventSubject};

/// The kind of an owner, and the controller that acts for it.
#[derive(Debug)]
pub struct OwnerKind {
    pub resource: ApiResource,
    /// Under which name its events are recorded.
    pub component: &'static str,
    /// What keeps its objects from vanishing before they were counted.
    pub finalizer: Option<&'static str>,
}

impl OwnerKind {
    pub fn new<K: Resource<DynamicType = ()>>(component: &'static str) -> Arc<Self> {
        Self::with_finalizer::<K>(component, None)
    }

    pub fn with_finalizer<K: Resource<DynamicType = ()>>(
        component: &'static str,
        finalizer: Option<&'static str>,
    ) -> Arc<Self> {
        Arc::new(Self { resource: ApiResource::erase::<K>(&()), component, finalizer })
    }
}

/// One object that owns others.
#[derive(Clone, Debug)]
pub struct Owner {
    pub kind: Arc<OwnerKind>,
    pub key: ObjectKey,
    pub uid: String,
    /// Being deleted.
    pub leaving: bool,
}

impl Owner {
    pub fn new(kind: &Arc<OwnerKind>, meta: &ObjectMeta) -> Self {
        Self {
            kind: kind.clone(),
            key: ObjectKey::from_meta(meta),
            uid: meta.uid.clone().unwrap_or_default(),
            leaving: meta.deletion_timestamp.is_some(),
        }
    }

    /// What its objects say of it.
    pub fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.kind.resource.api_version.clone(),
            kind: self.kind.resource.kind.clone(),
            name: self.key.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

impl EventSubject for Owner {
    fn component(&self) -> &'static str {
        self.kind.component
    }

    fn involved_object(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.kind.resource.api_version.clone()),
            kind: Some(self.kind.resource.kind.clone()),
            namespace: Some(self.key.namespace.clone()),
            name: Some(self.key.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// The selector of a spec. One that cannot be read, or is missing, selects nothing.
pub fn selector(selector: &LabelSelector) -> Labels {
    let selector = serde_json::to_value(selector).unwrap_or_default();
    Labels::from_selector(&selector).unwrap_or_else(|_| Labels::nothing())
}

pub fn selects(selector: &Labels, meta: &ObjectMeta) -> bool {
    selector.matches(|key| meta.labels.as_ref()?.get(key).map(String::as_str))
}

/// What an owner has, and what has to change about that.
#[derive(Debug)]
pub struct ClaimedObjects<K> {
    /// Its own that match, those being deleted included.
    pub held: Vec<Arc<K>>,
    pub claims: Vec<OwnershipChange>,
}

/// A change of ownership, fenced by what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnershipChange {
    /// It matches and belongs to nobody.
    Adopt { name: String, uid: String, version: String },
    /// It is ours and does not match any more.
    Release { name: String, uid: String, version: String },
}

/// Looks through what may concern an owner: all it controls, and the orphans of its namespace.
pub fn claim_objects<K: CachedObject>(owner: &Owner, cache: &Cache<K>, fits: impl Fn(&K) -> bool) -> ClaimedObjects<K> {
    let candidates = cache.controlled_by(&owner.uid).into_iter().chain(cache.orphans_in(&owner.key.namespace));
    claim_candidates(owner, candidates, fits)
}

/// The decision itself. `fits` says whether an object is such as the owner wants, by its selector at least.
pub fn claim_candidates<K: CachedObject>(
    owner: &Owner,
    candidates: impl IntoIterator<Item = Arc<K>>,
    fits: impl Fn(&K) -> bool,
) -> ClaimedObjects<K> {
    let mut claimed = ClaimedObjects { held: Vec::new(), claims: Vec::new() };
    for object in candidates {
        let meta = object.meta();
        let observed = || {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            (text(&meta.name), text(&meta.uid), text(&meta.resource_version))
        };
        match controller_of(meta) {
            Some(uid) if uid == owner.uid => {
                if fits(&object) {
                    claimed.held.push(object);
                } else if !owner.leaving {
                    let (name, uid, version) = observed();
                    claimed.claims.push(OwnershipChange::Release { name, uid, version });
                }
            }
            Some(_) => {}
            None => {
                let same_place = meta.namespace.as_deref().unwrap_or_default() == owner.key.namespace;
                if !owner.leaving && same_place && meta.deletion_timestamp.is_none() && fits(&object) {
                    let (name, uid, version) = observed();
                    claimed.claims.push(OwnershipChange::Adopt { name, uid, version });
                }
            }
        }
    }
    claimed
}

/// Makes one change of ownership come true, and lets the cache know.
pub async fn apply_change<K>(
    client: &Client,
    cache: &Cache<K>,
    owner: &Owner,
    change: OwnershipChange,
) -> Result<(), ApiError>
where
    K: CachedObject + Resource<Scope = NamespaceResourceScope>,
{
    let objects: Api<K> = Api::namespaced(client.clone(), &owner.key.namespace);
    let (name, doing, patch) = match change {
        OwnershipChange::Adopt { name, uid, version } => {
            if !may_adopt(client, owner).await? {
                return Ok(());
            }
            (name, "adopt", adoption(owner, &uid, &version))
        }
        OwnershipChange::Release { name, uid, version } => (name, "release", release(owner, &uid, &version)),
    };
    match objects.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(object) => {
            cache.wrote(object);
            Ok(())
        }
        Err(error) if error::is_not_found(&error, &name) => Ok(()),
        Err(error) => {
            let what = format!("{doing} {} {}/{name}", K::kind(&()).to_lowercase(), owner.key.namespace);
            Err(ApiError::new(what, error))
        }
    }
}

/// Whether the owner, as the API has it now, is still there and stays.
async fn may_adopt(client: &Client, owner: &Owner) -> Result<bool, ApiError> {
    let ObjectKey { namespace, name } = &owner.key;
    let owners: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &owner.kind.resource);
    let doing = || format!("read {} {namespace}/{name} again", owner.kind.resource.kind);
    let now = owners.get_metadata_opt(name).await.map_err(|error| ApiError::new(doing(), error))?;
    Ok(now.is_some_and(|now| {
        now.metadata.uid.as_deref() == Some(&owner.uid) && now.metadata.deletion_timestamp.is_none()
    }))
}

fn adoption(owner: &Owner, uid: &str, version: &str) -> Value {
    let mut metadata = json!({ "uid": uid, "resourceVersion": version, "ownerReferences": [owner.reference()] });
    if let Some(finalizer) = owner.kind.finalizer {
        metadata["finalizers"] = json!([finalizer]);
    }
    json!({ "metadata": metadata })
}

fn release(owner: &Owner, uid: &str, version: &str) -> Value {
    let reference = json!({ "$patch": "delete", "uid": owner.uid });
    let mut metadata = json!({ "uid": uid, "resourceVersion": version, "ownerReferences": [reference] });
    if let Some(finalizer) = owner.kind.finalizer {
        metadata["$deleteFromPrimitiveList/finalizers"] = json!([finalizer]);
    }
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::ConfigMap};

    use super::*;

    fn owner(leaving: bool) -> Owner {
        let gone = leaving.then_some("2026-01-01T00:00:00Z");
        let meta = json!({ "name": "web", "namespace": "ns", "uid": "me", "deletionTimestamp": gone });
        Owner::new(&OwnerKind::new::<ReplicaSet>("replicaset-controller"), &serde_json::from_value(meta).unwrap())
    }

    fn object(name: &str, label: &str, controller: Option<&str>, leaving: bool) -> Arc<ConfigMap> {
        let owners = controller
            .map(|uid| json!([{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true }]));
        let gone = leaving.then_some("2026-01-01T00:00:00Z");
        let object = json!({ "metadata": {
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "7", "labels": { "app": label },
            "ownerReferences": owners, "deletionTimestamp": gone,
        } });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn judged(owner: &Owner, object: Arc<ConfigMap>) -> (bool, Option<&'static str>) {
        let matches = selector(&LabelSelector {
            match_labels: Some([("app".to_owned(), "web".to_owned())].into()),
            ..LabelSelector::default()
        });
        let claimed = claim_candidates(owner, [object], |object: &ConfigMap| selects(&matches, &object.metadata));
        let change = claimed.claims.first().map(|change| match change {
            OwnershipChange::Adopt { .. } => "adopt",
            OwnershipChange::Release { .. } => "release",
        });
        (claimed.held.len() == 1, change)
    }

    #[test]
    fn ownership_follows_the_reference_first_and_the_selector_second() {
        let (mine, theirs) = (Some("me"), Some("they"));
        for (controller, label, leaving, owner_leaving, expected) in [
            (mine, "web", false, false, (true, None)),
            (mine, "web", true, false, (true, None)),
            (mine, "web", false, true, (true, None)),
            (mine, "db", false, false, (false, Some("release"))),
            (mine, "db", false, true, (false, None)),
            (None, "web", false, false, (false, Some("adopt"))),
            (None, "web", true, false, (false, None)),
            (None, "web", false, true, (false, None)),
            (None, "db", false, false, (false, None)),
            (theirs, "web", false, false, (false, None)),
            (theirs, "db", false, false, (false, None)),
        ] {
            let found = judged(&owner(owner_leaving), object("a", label, controller, leaving));
            assert_eq!(found, expected, "{controller:?} {label} {leaving} {owner_leaving}");
        }
    }

    #[test]
    fn what_is_in_another_namespace_is_not_adopted() {
        let mut elsewhere = (*object("a", "web", None, false)).clone();
        elsewhere.metadata.namespace = Some("other".to_owned());
        assert_eq!(judged(&owner(false), Arc::new(elsewhere)), (false, None));
    }

    #[test]
    fn changes_carry_what_was_judged() {
        let change = adoption(&owner(false), "u", "7");
        assert_eq!(change["metadata"]["uid"], "u");
        assert_eq!(change["metadata"]["resourceVersion"], "7");
        assert_eq!(change["metadata"]["ownerReferences"][0]["controller"], true);
        let change = release(&owner(false), "u", "7");
        assert_eq!(change["metadata"]["ownerReferences"][0], json!({ "$patch": "delete", "uid": "me" }));
    }

    #[test]
    fn no_selector_selects_nothing() {
        assert!(!selects(&Labels::nothing(), &ObjectMeta::default()));
        assert!(selects(&selector(&LabelSelector::default()), &ObjectMeta::default()));
    }
}
