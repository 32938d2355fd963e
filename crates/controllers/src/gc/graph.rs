//! Who belongs to whom, as far as has been heard.
//!
//! Kept small: an object is remembered only if it names owners or is being deleted in a way that
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

use crate::{
    catalogue::Resource,
    meta::{Place, Uid},
};

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

/// How far an object's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Alive,
    /// Being deleted, and waiting for nothing of ours.
    Ending,
    /// Being deleted once its dependents are.
    AwaitsDependents,
    /// Being deleted once its dependents no longer name it.
    Orphans,
}

impl Life {
    pub fn of(meta: &ObjectMeta) -> Self {
        let holds = |finalizer| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        match meta.deletion_timestamp {
            None => Self::Alive,
            Some(_) if holds(ORPHAN) => Self::Orphans,
            Some(_) if holds(FOREGROUND) => Self::AwaitsDependents,
            Some(_) => Self::Ending,
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
    place: Place,
    references: Vec<Reference>,
    life: Life,
    /// The account of the resource that last mentioned it.
    account: u64,
    /// Whether a reference it may not have was complained about.
    warned: bool,
}

/// What is known of an object that others name as owner.
#[derive(Default)]
struct Owner {
    dependents: BTreeSet<Uid>,
    sighting: Sighting,
}

#[derive(Default)]
enum Sighting {
    /// Nothing: it may be there or not.
    #[default]
    None,
    Present {
        resource: (String, String),
        namespace: Option<Arc<str>>,
        account: u64,
    },
    /// It was seen to go. Uids are not used twice.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependent {
    pub uid: Uid,
    pub blocks: bool,
    pub life: Life,
}

/// What the graph believes about an object that may need something.
pub struct Sketch {
    pub place: Place,
    pub dependents: Vec<Dependent>,
    pub warned: bool,
}

#[derive(Default)]
pub struct Graph {
    nodes: HashMap<Uid, Node>,
    owners: HashMap<Uid, Owner>,
    /// How many accounts of a resource have begun.
    accounts: HashMap<(String, String), u64>,
}

/// Objects that need a look.
pub type Wake = Vec<Uid>;

fn id(resource: &Resource) -> (String, String) {
    (resource.api.group.clone(), resource.api.plural.clone())
}

impl Graph {
    pub fn begin(&mut self, resource: &Resource) {
        *self.accounts.entry(id(resource)).or_default() += 1;
    }

    /// An account is complete: what it did not mention is not there, and owners it did not
    /// mention are uncertain.
    pub fn end(&mut self, resource: &Resource) -> Wake {
        let current = self.account(resource);
        let stale =
            |node: &Node| node.account < current && node.place.resource.is(&resource.api.group, &resource.api.plural);
        let lost: Vec<Uid> = self.nodes.iter().filter(|(_, node)| stale(node)).map(|(uid, _)| uid.clone()).collect();
        let mut wake: Wake = lost.iter().flat_map(|uid| self.gone(uid)).collect();
        let resource = id(resource);
        for owner in self.owners.values_mut() {
            if matches!(&owner.sighting, Sighting::Present { resource: r, account, .. } if *account < current && *r == resource)
            {
                owner.sighting = Sighting::None;
                wake.extend(owner.dependents.iter().cloned());
            }
        }
        wake
    }

    /// The server no longer has a resource. Its objects are out of reach, which is not the same
    /// as gone: dependents keep their owners.
    pub fn dropped(&mut self, resource: &Resource) {
        let (group, plural) = id(resource);
        let out: Vec<Uid> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.place.resource.is(&group, &plural))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in out {
            self.forget(&uid);
        }
    }

    fn account(&self, resource: &Resource) -> u64 {
        self.accounts.get(&id(resource)).copied().unwrap_or_default()
    }

    /// An object is there, new or changed.
    pub fn present(&mut self, resource: &Arc<Resource>, meta: &ObjectMeta) -> Wake {
        let Some(uid) = meta.uid.as_deref() else { return Vec::new() };
        self.sighted(uid, resource, meta);
        let life = Life::of(meta);
        let references: Vec<Reference> = meta.owner_references.iter().flatten().map(reference).collect();
        let matters = !references.is_empty() || matches!(life, Life::AwaitsDependents | Life::Orphans);
        let known = self.nodes.get(uid);
        if !matters {
            return if known.is_some() { self.forget(uid) } else { Vec::new() };
        }
        if let Some(node) = known
            && node.references == references
            && node.life == life
        {
            let account = self.account(resource);
            if let Some(node) = self.nodes.get_mut(uid) {
                node.account = account;
            }
            return Vec::new();
        }
        let mut wake = self.forget(uid);
        let uid: Uid = uid.into();
        for reference in &references {
            self.owners.entry(reference.owner.clone()).or_default().dependents.insert(uid.clone());
        }
        let account = self.account(resource);
        let node = Node { place: Place::new(resource.clone(), meta), references, life, account, warned: false };
        self.nodes.insert(uid.clone(), node);
        if life == Life::AwaitsDependents {
            wake.extend(self.owners.get(&uid).into_iter().flat_map(|owner| owner.dependents.iter().cloned()));
        }
        wake.push(uid);
        wake
    }

    /// An object is gone.
    pub fn gone(&mut self, uid: &str) -> Wake {
        let mut wake = self.forget(uid);
        if let Some(owner) = self.owners.get_mut(uid) {
            owner.sighting = Sighting::Gone;
            wake.extend(owner.dependents.iter().cloned());
        }
        wake
    }

    /// Someone asked the API and found it there. What was seen to go stays gone: the answer is
    /// older than that.
    pub fn confirm(&mut self, resource: &Resource, meta: &ObjectMeta) {
        let Some(uid) = meta.uid.as_deref() else { return };
        if self.owners.get(uid).is_some_and(|owner| !matches!(owner.sighting, Sighting::Gone)) {
            self.sighted(uid, resource, meta);
        }
    }

    fn sighted(&mut self, uid: &str, resource: &Resource, meta: &ObjectMeta) {
        let account = self.account(resource);
        if let Some(owner) = self.owners.get_mut(uid) {
            let namespace = meta.namespace.as_deref().filter(|ns| !ns.is_empty()).map(Arc::from);
            owner.sighting = Sighting::Present { resource: id(resource), namespace, account };
        }
    }

    /// Forgets an object as a dependent; its owners may have waited for that.
    fn forget(&mut self, uid: &str) -> Wake {
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        let mut wake = Wake::new();
        for reference in node.references {
            if let Some(owner) = self.owners.get_mut(&reference.owner) {
                owner.dependents.remove(uid);
                if owner.dependents.is_empty() {
                    self.owners.remove(&reference.owner);
                }
            }
            let waits = |node: &Node| matches!(node.life, Life::AwaitsDependents | Life::Orphans);
            if self.nodes.get(&reference.owner).is_some_and(waits) {
                wake.push(reference.owner);
            }
        }
        wake
    }

    /// Whether an object was seen to go.
    pub fn seen_to_go(&self, uid: &str) -> bool {
        self.owners.get(uid).is_some_and(|owner| matches!(owner.sighting, Sighting::Gone))
    }

    /// Whether an object was seen in some other namespace than this.
    pub fn seen_elsewhere(&self, uid: &str, namespace: Option<&str>) -> bool {
        self.owners.get(uid).is_some_and(|owner| match &owner.sighting {
            Sighting::Present { namespace: Some(at), .. } => Some(&**at) != namespace,
            Sighting::Present { namespace: None, .. } | Sighting::None | Sighting::Gone => false,
        })
    }

    /// What is believed about an object, if it may need something.
    pub fn sketch(&self, uid: &str) -> Option<Sketch> {
        let node = self.nodes.get(uid)?;
        let needs = match node.life {
            Life::Alive => !node.references.iter().all(|reference| self.settled(node, &reference.owner)),
            Life::Ending => false,
            Life::AwaitsDependents | Life::Orphans => true,
        };
        let sketch = || Sketch { place: node.place.clone(), dependents: self.dependents(uid), warned: node.warned };
        needs.then(sketch)
    }

    /// Whether an owner is there to stay, where a dependent may have an owner.
    fn settled(&self, dependent: &Node, owner: &Uid) -> bool {
        let reaches = |namespace: &Option<Arc<str>>| namespace.is_none() || *namespace == dependent.place.namespace;
        match (self.nodes.get(owner), self.owners.get(owner).map(|owner| &owner.sighting)) {
            (Some(node), _) => node.life != Life::AwaitsDependents && reaches(&node.place.namespace),
            (None, Some(Sighting::Present { namespace, .. })) => reaches(namespace),
            (None, Some(Sighting::None | Sighting::Gone) | None) => false,
        }
    }

    fn dependents(&self, uid: &str) -> Vec<Dependent> {
        let dependents = self.owners.get(uid).into_iter().flat_map(|owner| &owner.dependents);
        let known = dependents.filter_map(|uid| Some((uid, self.nodes.get(uid)?)));
        let blocks = |node: &Node| node.references.iter().any(|r| &*r.owner == uid && r.blocks);
        known.map(|(uid, node)| Dependent { uid: uid.clone(), blocks: blocks(node), life: node.life }).collect()
    }

    pub fn warned(&mut self, uid: &str) {
        if let Some(node) = self.nodes.get_mut(uid) {
            node.warned = true;
        }
    }

    /// Everything that may need something.
    pub fn unsettled(&self) -> Wake {
        self.nodes.keys().filter(|uid| self.sketch(uid).is_some()).cloned().collect()
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
