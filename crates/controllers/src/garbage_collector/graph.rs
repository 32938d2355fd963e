//! The owner graph: which objects name which owners, as far as the metadata watch has delivered.
//!
//! CachedObject small: an object is remembered only if it names owners or is being deleted in a way that
//! waits for dependents, and of an owner only whether it was seen. Most objects of a cluster are
//! neither. The graph decides nothing; it says who needs a look. What it believes may be late,
//! and is checked against the API before anything is deleted.
//!
//! A reference counts as settled if something with the owner's uid was seen where the reference
//! can point to; a reference with the right uid and a wrong kind or name is left alone.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::runtime::{
    discovery::ServerResource,
    object_meta::{ObjectLocation, Uid},
};

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

/// How far an object's deletion has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionState {
    Alive,
    /// Being deleted, and waiting for nothing of ours.
    BackgroundDeletion,
    /// Being deleted once its dependents are.
    ForegroundDeletion,
    /// Being deleted once its dependents no longer name it.
    OrphaningDependents,
}

impl DeletionState {
    pub fn from_meta(meta: &ObjectMeta) -> Self {
        let holds = |finalizer| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        match meta.deletion_timestamp {
            None => Self::Alive,
            Some(_) if holds(ORPHAN) => Self::OrphaningDependents,
            Some(_) if holds(FOREGROUND) => Self::ForegroundDeletion,
            Some(_) => Self::BackgroundDeletion,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub owner: Uid,
    /// Whether the owner, deleted in the foreground, waits for this dependent.
    pub blocks: bool,
}

#[derive(Debug)]
struct Node {
    location: ObjectLocation,
    references: Vec<Reference>,
    deletion: DeletionState,
    /// The list of the resource that last mentioned it.
    list: u64,
    /// Whether a reference it may not have was complained about.
    warned: bool,
}

/// What is known of an object that others name as owner.
#[derive(Default)]
struct Owner {
    dependents: BTreeSet<Uid>,
    existence: Existence,
}

#[derive(Default)]
enum Existence {
    /// Nothing: it may be there or not.
    #[default]
    None,
    Present {
        resource: (String, String),
        namespace: Option<Arc<str>>,
        list: u64,
    },
    /// It was seen to go. Uids are not used twice.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependent {
    pub uid: Uid,
    pub blocks: bool,
    pub deletion: DeletionState,
}

/// What the graph believes about an object that may need something.
pub struct GraphEntry {
    pub location: ObjectLocation,
    pub dependents: Vec<Dependent>,
    pub warned: bool,
}

#[derive(Default)]
pub struct OwnerGraph {
    nodes: HashMap<Uid, Node>,
    owners: HashMap<Uid, Owner>,
    /// How many lists of a resource have begun.
    lists: HashMap<(String, String), u64>,
}

/// Objects that need a look.
pub type Affected = Vec<Uid>;

fn id(resource: &ServerResource) -> (String, String) {
    (resource.api.group.clone(), resource.api.plural.clone())
}

impl OwnerGraph {
    pub fn begin_list(&mut self, resource: &ServerResource) {
        *self.lists.entry(id(resource)).or_default() += 1;
    }

    /// An list is complete: what it did not mention is not there, and owners it did not
    /// mention are uncertain.
    pub fn end_list(&mut self, resource: &ServerResource) -> Affected {
        let current = self.list(resource);
        let stale = |node: &Node| {
            node.list < current && node.location.resource.is_named(&resource.api.group, &resource.api.plural)
        };
        let lost: Vec<Uid> = self.nodes.iter().filter(|(_, node)| stale(node)).map(|(uid, _)| uid.clone()).collect();
        let mut affected: Affected = lost.iter().flat_map(|uid| self.remove(uid)).collect();
        let resource = id(resource);
        for owner in self.owners.values_mut() {
            if matches!(&owner.existence, Existence::Present { resource: r, list, .. } if *list < current && *r == resource)
            {
                owner.existence = Existence::None;
                affected.extend(owner.dependents.iter().cloned());
            }
        }
        affected
    }

    /// The server no longer has a resource. Its objects are out of reach, which is not the same
    /// as gone: dependents keep their owners.
    pub fn drop_resource(&mut self, resource: &ServerResource) {
        let (group, plural) = id(resource);
        let out: Vec<Uid> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.location.resource.is_named(&group, &plural))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in out {
            self.forget(&uid);
        }
    }

    fn list(&self, resource: &ServerResource) -> u64 {
        self.lists.get(&id(resource)).copied().unwrap_or_default()
    }

    /// An object is there, new or changed.
    pub fn upsert(&mut self, resource: &Arc<ServerResource>, meta: &ObjectMeta) -> Affected {
        let Some(uid) = meta.uid.as_deref() else { return Vec::new() };
        self.set_present(uid, resource, meta);
        let deletion = DeletionState::from_meta(meta);
        let references: Vec<Reference> = meta.owner_references.iter().flatten().map(reference).collect();
        let matters = !references.is_empty()
            || matches!(deletion, DeletionState::ForegroundDeletion | DeletionState::OrphaningDependents);
        let known = self.nodes.get(uid);
        if !matters {
            return if known.is_some() { self.forget(uid) } else { Vec::new() };
        }
        if let Some(node) = known
            && node.references == references
            && node.deletion == deletion
        {
            let list = self.list(resource);
            if let Some(node) = self.nodes.get_mut(uid) {
                node.list = list;
            }
            return Vec::new();
        }
        let mut affected = self.forget(uid);
        let uid: Uid = uid.into();
        for reference in &references {
            self.owners.entry(reference.owner.clone()).or_default().dependents.insert(uid.clone());
        }
        let list = self.list(resource);
        let node =
            Node { location: ObjectLocation::new(resource.clone(), meta), references, deletion, list, warned: false };
        self.nodes.insert(uid.clone(), node);
        if deletion == DeletionState::ForegroundDeletion {
            affected.extend(self.owners.get(&uid).into_iter().flat_map(|owner| owner.dependents.iter().cloned()));
        }
        affected.push(uid);
        affected
    }

    /// An object is gone.
    pub fn remove(&mut self, uid: &str) -> Affected {
        let mut affected = self.forget(uid);
        if let Some(owner) = self.owners.get_mut(uid) {
            owner.existence = Existence::Gone;
            affected.extend(owner.dependents.iter().cloned());
        }
        affected
    }

    /// Someone asked the API and found it there. What was seen to go stays gone: the answer is
    /// older than that.
    pub fn confirm(&mut self, resource: &ServerResource, meta: &ObjectMeta) {
        let Some(uid) = meta.uid.as_deref() else { return };
        if self.owners.get(uid).is_some_and(|owner| !matches!(owner.existence, Existence::Gone)) {
            self.set_present(uid, resource, meta);
        }
    }

    fn set_present(&mut self, uid: &str, resource: &ServerResource, meta: &ObjectMeta) {
        let list = self.list(resource);
        if let Some(owner) = self.owners.get_mut(uid) {
            let namespace = meta.namespace.as_deref().filter(|ns| !ns.is_empty()).map(Arc::from);
            owner.existence = Existence::Present { resource: id(resource), namespace, list };
        }
    }

    /// Forgets an object as a dependent; its owners may have waited for that.
    fn forget(&mut self, uid: &str) -> Affected {
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        let mut affected = Affected::new();
        for reference in node.references {
            if let Some(owner) = self.owners.get_mut(&reference.owner) {
                owner.dependents.remove(uid);
                if owner.dependents.is_empty() {
                    self.owners.remove(&reference.owner);
                }
            }
            let waits = |node: &Node| {
                matches!(node.deletion, DeletionState::ForegroundDeletion | DeletionState::OrphaningDependents)
            };
            if self.nodes.get(&reference.owner).is_some_and(waits) {
                affected.push(reference.owner);
            }
        }
        affected
    }

    /// Whether an object was seen to go.
    pub fn was_seen_deleted(&self, uid: &str) -> bool {
        self.owners.get(uid).is_some_and(|owner| matches!(owner.existence, Existence::Gone))
    }

    /// Whether an object was seen in some other namespace than this.
    pub fn is_in_other_namespace(&self, uid: &str, namespace: Option<&str>) -> bool {
        self.owners.get(uid).is_some_and(|owner| match &owner.existence {
            Existence::Present { namespace: Some(at), .. } => Some(&**at) != namespace,
            Existence::Present { namespace: None, .. } | Existence::None | Existence::Gone => false,
        })
    }

    /// What is believed about an object, if it may need something.
    pub fn entry(&self, uid: &str) -> Option<GraphEntry> {
        let node = self.nodes.get(uid)?;
        let needs = match node.deletion {
            DeletionState::Alive => !node.references.iter().all(|reference| self.settled(node, &reference.owner)),
            DeletionState::BackgroundDeletion => false,
            DeletionState::ForegroundDeletion | DeletionState::OrphaningDependents => true,
        };
        let entry =
            || GraphEntry { location: node.location.clone(), dependents: self.dependents(uid), warned: node.warned };
        needs.then(entry)
    }

    /// Whether an owner is there to stay, where a dependent may have an owner.
    fn settled(&self, dependent: &Node, owner: &Uid) -> bool {
        let reaches = |namespace: &Option<Arc<str>>| namespace.is_none() || *namespace == dependent.location.namespace;
        match (self.nodes.get(owner), self.owners.get(owner).map(|owner| &owner.existence)) {
            (Some(node), _) => node.deletion != DeletionState::ForegroundDeletion && reaches(&node.location.namespace),
            (None, Some(Existence::Present { namespace, .. })) => reaches(namespace),
            (None, Some(Existence::None | Existence::Gone) | None) => false,
        }
    }

    fn dependents(&self, uid: &str) -> Vec<Dependent> {
        let dependents = self.owners.get(uid).into_iter().flat_map(|owner| &owner.dependents);
        let known = dependents.filter_map(|uid| Some((uid, self.nodes.get(uid)?)));
        let blocks = |node: &Node| node.references.iter().any(|r| &*r.owner == uid && r.blocks);
        known.map(|(uid, node)| Dependent { uid: uid.clone(), blocks: blocks(node), deletion: node.deletion }).collect()
    }

    pub fn set_warned(&mut self, uid: &str) {
        if let Some(node) = self.nodes.get_mut(uid) {
            node.warned = true;
        }
    }

    /// Everything that may need something.
    pub fn unsettled(&self) -> Affected {
        self.nodes.keys().filter(|uid| self.entry(uid).is_some()).cloned().collect()
    }

    /// How much is remembered: objects, and owners.
    #[cfg(test)]
    pub fn size(&self) -> (usize, usize) {
        (self.nodes.len(), self.owners.len())
    }
}

fn reference(given: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference) -> Reference {
    Reference { owner: given.uid.as_str().into(), blocks: given.block_owner_deletion.unwrap_or(false) }
}
