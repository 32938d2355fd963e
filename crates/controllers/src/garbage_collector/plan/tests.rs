use std::sync::Arc;

use kube::api::ApiResource;

use super::*;
use crate::runtime::discovery::ServerResource;

fn object(name: &str, owners: &[&str]) -> Object {
    let api = ApiResource {
        group: String::new(),
        version: "v1".into(),
        api_version: "v1".into(),
        kind: "Thing".into(),
        plural: "things".into(),
    };
    let resource = Arc::new(ServerResource { api, namespaced: true, verbs: Vec::new() });
    let reference = |uid: &&str| OwnerReference {
        uid: (*uid).to_owned(),
        block_owner_deletion: Some(true),
        ..OwnerReference::default()
    };
    Object {
        location: ObjectLocation { resource, namespace: Some("n".into()), name: name.into() },
        uid: name.into(),
        version: "1".into(),
        deletion: DeletionState::Alive,
        finalizers: Vec::new(),
        references: owners.iter().map(reference).collect(),
    }
}

const ABSENT: OwnerState = OwnerState::Absent { elsewhere: false };

fn planned(object: Object, owner_states: &[OwnerState], dependents: &[Dependent]) -> Vec<String> {
    let (owner_states, dependents) = (owner_states.to_vec(), dependents.to_vec());
    described(&plan(&World::Owned { object, owner_states, dependents, warned: false }))
}

fn described(actions: &[Action]) -> Vec<String> {
    let describe = |action: &Action| match action {
        Action::Delete { uid, policy, .. } => format!("delete {uid} {policy:?}"),
        Action::SetReferences { uid, references, .. } => {
            let show = |r: &OwnerReference| {
                format!(" {}{}", r.uid, if r.block_owner_deletion == Some(true) { "!" } else { "" })
            };
            format!("references of {uid}:{}", references.iter().map(show).collect::<String>())
        }
        Action::SetFinalizers { uid, finalizers, .. } => format!("finalizers of {uid}: {}", finalizers.join(" ")),
        Action::Requeue { uid } => format!("look at {uid}"),
        Action::Warn { uid, owner, .. } => format!("warn {uid} {}", owner.uid),
    };
    actions.iter().map(describe).collect()
}

fn dependent(uid: &str, blocks: bool, deletion: DeletionState) -> Dependent {
    Dependent { uid: uid.into(), blocks, deletion }
}

#[test]
fn an_object_goes_when_all_its_owners_are_gone() {
    assert_eq!(planned(object("x", &["a", "b"]), &[ABSENT, ABSENT], &[]), ["delete x Background"]);
}

#[test]
fn one_solid_owner_is_enough_and_the_others_are_dropped() {
    assert!(planned(object("x", &["a"]), &[OwnerState::Present], &[]).is_empty());
    let owner_states = [ABSENT, OwnerState::Present, OwnerState::AwaitsDependents];
    assert_eq!(planned(object("x", &["a", "b", "c"]), &owner_states, &[]), ["references of x: b!"]);
}

#[test]
fn doubt_keeps_an_object() {
    assert!(planned(object("x", &["a", "b"]), &[OwnerState::Unknown, ABSENT], &[]).is_empty());
    assert_eq!(planned(object("x", &["a"]), &[OwnerState::OutOfReach], &[]), ["warn x a"]);
    let owner_states = [OwnerState::Unknown, ABSENT, OwnerState::Present];
    assert_eq!(planned(object("x", &["a", "b", "c"]), &owner_states, &[]), ["references of x: a! c!"]);
}

#[test]
fn an_owner_in_another_namespace_counts_as_gone_and_is_mentioned() {
    let elsewhere = [OwnerState::Absent { elsewhere: true }];
    assert_eq!(planned(object("x", &["a"]), &elsewhere, &[]), ["warn x a", "delete x Background"]);
}

#[test]
fn what_an_owner_waits_for_goes_with_its_own_dependents_first() {
    assert_eq!(planned(object("x", &["a"]), &[OwnerState::AwaitsDependents], &[]), ["delete x Background"]);
    let child = [dependent("c", true, DeletionState::Alive)];
    assert_eq!(planned(object("x", &["a"]), &[OwnerState::AwaitsDependents], &child), ["delete x Foreground"]);
}

#[test]
fn a_circle_is_opened_before_it_locks() {
    let circle = [dependent("a", true, DeletionState::ForegroundDeletion)];
    let actions = planned(object("x", &["a"]), &[OwnerState::AwaitsDependents], &circle);
    assert_eq!(actions, ["references of x: a", "look at x"]);
    let mut opened = object("x", &["a"]);
    opened.references[0].block_owner_deletion = Some(false);
    assert_eq!(planned(opened, &[OwnerState::AwaitsDependents], &circle), ["delete x Foreground"]);
}

#[test]
fn an_object_keeps_the_way_it_asked_to_be_deleted() {
    let mut orphaning = object("x", &["a"]);
    orphaning.finalizers = vec!["orphan".into()];
    assert_eq!(planned(orphaning, &[ABSENT], &[]), ["delete x Orphan"]);
}

#[test]
fn an_object_that_is_ending_is_left_to_end() {
    let ending = Object { deletion: DeletionState::BackgroundDeletion, ..object("x", &["a"]) };
    assert!(planned(ending, &[ABSENT], &[]).is_empty());
}

#[test]
fn an_owner_waits_for_dependents_that_block_and_no_others() {
    let awaiting = |dependents: &[Dependent]| {
        let finalizers = vec!["foregroundDeletion".into(), "x/y".into()];
        let object = Object { deletion: DeletionState::ForegroundDeletion, finalizers, ..object("o", &[]) };
        described(&plan(&World::Awaiting { object, dependents: dependents.to_vec() }))
    };
    assert_eq!(awaiting(&[dependent("a", false, DeletionState::Alive)]), ["finalizers of o: x/y"]);
    let blocked =
        [dependent("a", true, DeletionState::BackgroundDeletion), dependent("b", false, DeletionState::Alive)];
    assert_eq!(awaiting(&blocked), ["look at b"]);
}

#[test]
fn dependents_are_released_before_the_owner_that_orphans_them() {
    let owner =
        Object { deletion: DeletionState::OrphaningDependents, finalizers: vec!["orphan".into()], ..object("o", &[]) };
    let dependents = vec![object("a", &["o", "b"]), object("c", &["o"])];
    assert_eq!(
        described(&plan(&World::Orphaning { object: owner, dependents })),
        ["references of a: b!", "references of c:", "finalizers of o: "]
    );
}
