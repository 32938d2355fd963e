//! What is to be done about a claim, from who uses it. Pure.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};

use super::super::{PROTECTION, is_protected};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerState {
    Active,
    /// None of its containers runs, or ever will.
    Done,
    Gone,
    /// Not a pod: whoever wrote it has to take it away.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Consumer {
    pub reference: ResourceClaimConsumerReference,
    pub state: ConsumerState,
}

/// The pod that a claim was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    NoPod,
    MayRun,
    Ended,
}

pub struct World {
    pub claim: Arc<ResourceClaim>,
    pub consumers: Vec<Consumer>,
    pub owner: Owner,
}

/// All carry the version of the claim that was judged, or its uid.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// `unprotect`: then takes off the finalizer.
    WriteStatus {
        claim: Box<ResourceClaim>,
        unprotect: bool,
    },
    /// Takes off the finalizer of one that is being deleted.
    Unprotect {
        claim: Box<ResourceClaim>,
    },
    Delete {
        uid: String,
    },
}

pub fn plan(world: &World) -> Vec<Action> {
    let claim = &*world.claim;
    let stays = |consumer: &&Consumer| matches!(consumer.state, ConsumerState::Active | ConsumerState::Unknown);
    let valid: Vec<_> = world.consumers.iter().filter(stays).map(|consumer| consumer.reference.clone()).collect();
    let is_allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    let is_deleting = claim.metadata.deletion_timestamp.is_some();
    let is_unused = valid.is_empty();
    let mut actions = Vec::new();
    // An allocation ends when the last user leaves, or with the claim: one that nobody used yet is about to be used.
    let ends_allocation =
        is_unused && is_allocated && is_protected(claim) && (is_deleting || !world.consumers.is_empty());
    if valid.len() < world.consumers.len() || ends_allocation {
        let mut changed = claim.clone();
        let status = changed.status.get_or_insert_default();
        status.reserved_for = Some(valid).filter(|users| !users.is_empty());
        if ends_allocation {
            status.allocation = None;
            status.devices = None;
        }
        actions.push(Action::WriteStatus { claim: Box::new(changed), unprotect: ends_allocation });
    } else if is_deleting && is_unused && !is_allocated && is_protected(claim) {
        let mut changed = claim.clone();
        remove_finalizer(&mut changed);
        actions.push(Action::Unprotect { claim: Box::new(changed) });
    }
    if is_unused && world.owner == Owner::Ended && !is_deleting {
        actions.push(Action::Delete { uid: claim.metadata.uid.clone().unwrap_or_default() });
    }
    actions
}

pub fn remove_finalizer(claim: &mut ResourceClaim) {
    if let Some(finalizers) = &mut claim.metadata.finalizers {
        finalizers.retain(|own| own != PROTECTION);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn world(states: &[ConsumerState], owner: Owner, claim: Value) -> World {
        let consumers: Vec<Consumer> = states
            .iter()
            .enumerate()
            .map(|(nth, state)| Consumer {
                reference: ResourceClaimConsumerReference {
                    api_group: None,
                    resource: "pods".to_owned(),
                    name: format!("p{nth}"),
                    uid: format!("u{nth}"),
                },
                state: *state,
            })
            .collect();
        let mut claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        let users = consumers.iter().map(|consumer| consumer.reference.clone()).collect();
        claim.status.get_or_insert_default().reserved_for = Some(users);
        World { claim: Arc::new(claim), consumers, owner }
    }

    fn allocated(deleting: bool) -> Value {
        json!({
            "metadata": { "name": "c", "uid": "claim", "finalizers": [PROTECTION, "x/y"],
                          "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z") },
            "spec": {}, "status": { "allocation": { "devices": { "results": [] } } },
        })
    }

    fn described(world: &World) -> Vec<String> {
        let actions = plan(world);
        let describe = |action: &Action| match action {
            Action::WriteStatus { claim, unprotect } => {
                let status = claim.status.as_ref().unwrap();
                let users: Vec<&str> = status.reserved_for.iter().flatten().map(|user| &*user.name).collect();
                format!("users [{}] allocated {} unprotect {unprotect}", users.join(" "), status.allocation.is_some())
            }
            Action::Unprotect { claim } => format!("finalizers {:?}", claim.metadata.finalizers.as_ref().unwrap()),
            Action::Delete { uid } => format!("delete {uid}"),
        };
        actions.iter().map(describe).collect()
    }

    #[test]
    fn reservations_end_with_their_pods_and_the_allocation_with_the_last_of_them() {
        use ConsumerState::{Active, Done, Gone, Unknown};
        for (states, owner, deleting, expected) in [
            (&[Active, Active][..], Owner::NoPod, false, &[][..]),
            (&[Active, Done, Gone], Owner::NoPod, false, &["users [p0] allocated true unprotect false"]),
            (&[Done, Gone], Owner::NoPod, false, &["users [] allocated false unprotect true"]),
            (&[Gone, Unknown], Owner::NoPod, false, &["users [p1] allocated true unprotect false"]),
            (&[], Owner::NoPod, false, &[]),
            (&[], Owner::NoPod, true, &["users [] allocated false unprotect true"]),
            (&[Active], Owner::NoPod, true, &[]),
            (&[Done], Owner::Ended, false, &["users [] allocated false unprotect true", "delete claim"]),
            (&[], Owner::Ended, false, &["delete claim"]),
            (&[Active], Owner::Ended, false, &[]),
            (&[], Owner::MayRun, false, &[]),
        ] {
            assert_eq!(described(&world(states, owner, allocated(deleting))), expected, "{states:?} {owner:?}");
        }
    }

    #[test]
    fn the_finalizer_of_a_claim_that_is_not_allocated_goes_only_when_it_is_deleted() {
        let claim = |deleting: Value| json!({ "metadata": { "finalizers": [PROTECTION, "x/y"], "deletionTimestamp": deleting }, "spec": {} });
        assert!(described(&world(&[], Owner::NoPod, claim(Value::Null))).is_empty(), "it is about to be allocated");
        let deleting = world(&[], Owner::NoPod, claim(json!("2026-01-01T00:00:00Z")));
        assert_eq!(described(&deleting), [r#"finalizers ["x/y"]"#]);
    }
}
