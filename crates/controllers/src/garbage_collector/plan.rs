//! What garbage collection does about an object, given its owners and dependents. Pure.
//!
//! Nothing is deleted on doubt: an owner that cannot be looked up, or that the object may not
//! have, keeps it. Every action names the uid and the version that was judged, so that an object
//! that changed meanwhile is looked at again instead.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::graph::{DeletionState, Dependent, FOREGROUND, ORPHAN};
use crate::runtime::{object_meta::ObjectLocation, object_meta::Uid};

/// An object as the API has it now.
#[derive(Clone, Debug)]
pub struct Object {
    pub location: ObjectLocation,
    pub uid: Uid,
    pub version: String,
    pub deletion: DeletionState,
    pub finalizers: Vec<String>,
    pub references: Vec<OwnerReference>,
}

/// What the API says about an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// There, and not about to take its dependents along.
    Present,
    /// There, and waiting for its dependents to be deleted.
    AwaitsDependents,
    /// Not there.
    Absent {
        /// But there is one with its uid in another namespace.
        elsewhere: bool,
    },
    /// Its kind is not served, so nobody can tell.
    Unknown,
    /// In a namespace, while the dependent is in none: no such reference can be followed.
    OutOfReach,
}

pub enum World {
    /// An object with owners; a owner_state for each of its references.
    Owned { object: Object, owner_states: Vec<OwnerState>, dependents: Vec<Dependent>, warned: bool },
    /// An object to be deleted after its dependents.
    Awaiting { object: Object, dependents: Vec<Dependent> },
    /// An object to be deleted after its dependents, freshly read, stopped naming it.
    Orphaning { object: Object, dependents: Vec<Object> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Background,
    Foreground,
    Orphan,
}

#[derive(Clone, Debug)]
pub enum Action {
    /// All its owners are gone or wait for it to go.
    Delete { location: ObjectLocation, uid: Uid, version: String, policy: Policy },
    /// Replaces an object's owner references.
    SetReferences { location: ObjectLocation, uid: Uid, version: String, references: Vec<OwnerReference> },
    /// Replaces an object's finalizers.
    SetFinalizers { location: ObjectLocation, uid: Uid, version: String, finalizers: Vec<String> },
    /// Looks at another object.
    Requeue { uid: Uid },
    /// Says, once, that an object names an owner it cannot have.
    Warn { location: ObjectLocation, uid: Uid, owner: Box<OwnerReference> },
}

pub fn plan(world: &World) -> Vec<Action> {
    match world {
        World::Owned { object, owner_states, dependents, warned } => {
            let mut actions = owned(object, owner_states, dependents);
            if !warned {
                let wrong = |owner_state: &OwnerState| {
                    matches!(owner_state, OwnerState::OutOfReach | OwnerState::Absent { elsewhere: true })
                };
                let owner = object.references.iter().zip(owner_states).find(|(_, owner_state)| wrong(owner_state));
                let warn = |owner: &OwnerReference| Action::Warn {
                    location: object.location.clone(),
                    uid: object.uid.clone(),
                    owner: Box::new(owner.clone()),
                };
                actions.splice(0..0, owner.map(|(owner, _)| warn(owner)));
            }
            actions
        }
        World::Awaiting { dependents, .. } if dependents.iter().any(|d| d.blocks) => {
            let alive = dependents.iter().filter(|d| d.deletion == DeletionState::Alive);
            alive.map(|d| Action::Requeue { uid: d.uid.clone() }).collect()
        }
        World::Awaiting { object, .. } => vec![without_finalizer(object, FOREGROUND)],
        World::Orphaning { object, dependents } => {
            let released = dependents.iter().map(|dependent| {
                let keep = |reference: &&OwnerReference| *reference.uid != *object.uid;
                set_references(dependent, dependent.references.iter().filter(keep).cloned().collect())
            });
            released.chain([without_finalizer(object, ORPHAN)]).collect()
        }
    }
}

fn owned(object: &Object, owner_states: &[OwnerState], dependents: &[Dependent]) -> Vec<Action> {
    if object.deletion != DeletionState::Alive || object.references.is_empty() {
        return Vec::new();
    }
    let has = |wanted: fn(&OwnerState) -> bool| owner_states.iter().any(wanted);
    let solid = |owner_state: &OwnerState| matches!(owner_state, OwnerState::Present);
    let doubtful = |owner_state: &OwnerState| matches!(owner_state, OwnerState::Unknown | OwnerState::OutOfReach);
    let waits = |owner_state: &OwnerState| matches!(owner_state, OwnerState::AwaitsDependents);
    if has(solid) {
        // One owner is enough to stay. The others must not wait for this dependent.
        let keep = object.references.iter().zip(owner_states).filter(|(_, s)| solid(s) || doubtful(s));
        let keep: Vec<_> = keep.map(|(reference, _)| reference.clone()).collect();
        let unchanged = keep.len() == object.references.len();
        return if unchanged { Vec::new() } else { vec![set_references(object, keep)] };
    }
    if has(doubtful) {
        return Vec::new();
    }
    if has(waits) && !dependents.is_empty() {
        let circle = dependents.iter().any(|d| d.deletion == DeletionState::ForegroundDeletion);
        let blocking = object.references.iter().any(|r| r.block_owner_deletion == Some(true));
        if circle && blocking {
            // Each would wait for the other. The version changes, so the delete is for the next look.
            let mut references = object.references.clone();
            references.iter_mut().for_each(|r| r.block_owner_deletion = Some(false));
            return vec![set_references(object, references), Action::Requeue { uid: object.uid.clone() }];
        }
        return vec![delete(object, Policy::Foreground)];
    }
    let holds = |finalizer| object.finalizers.iter().any(|f| f == finalizer);
    let policy = match (holds(ORPHAN), holds(FOREGROUND)) {
        (true, _) => Policy::Orphan,
        (false, true) => Policy::Foreground,
        (false, false) => Policy::Background,
    };
    vec![delete(object, policy)]
}

fn delete(object: &Object, policy: Policy) -> Action {
    let Object { location, uid, version, .. } = object.clone();
    Action::Delete { location, uid, version, policy }
}

fn set_references(object: &Object, references: Vec<OwnerReference>) -> Action {
    let Object { location, uid, version, .. } = object.clone();
    Action::SetReferences { location, uid, version, references }
}

fn without_finalizer(object: &Object, finalizer: &str) -> Action {
    let Object { location, uid, version, finalizers, .. } = object.clone();
    let finalizers = finalizers.into_iter().filter(|f| f != finalizer).collect();
    Action::SetFinalizers { location, uid, version, finalizers }
}

#[cfg(test)]
mod tests;
