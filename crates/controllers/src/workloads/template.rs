//! Pods made from a template, and the names they get.
//!
//! Names follow from owner and slot, so that two who look at the same gap give its pod the same
//! name, and the second is refused instead of making one too many. They look like everybody
//! else's: the owner's name and five letters. Within an owner every slot has its own letters (the
//! mapping is one to one), and two owners have different ones.

use serde_json::{Map, Value, json};

use super::owner::Owner;

/// No vowels and nothing that looks like them: no words by accident.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: u32 = 5;
const NAMES: u64 = (LETTERS.len() as u64).pow(SUFFIX);
/// The longest name that is a host name too.
const LONGEST: usize = 63;

/// The name of an owner's pod in a slot.
pub fn name(owner: &str, uid: &str, slot: u64) -> String {
    let seed = hash(uid.as_bytes());
    // Multiplying by what shares no factor with the number of names (a power of three) is one to one.
    let (stride, shift) = (seed % NAMES * 3 % NAMES + 1, (seed >> 32) % NAMES);
    joined(owner, (slot % NAMES * stride + shift) % NAMES)
}

/// The name of an owner's pod for something that has a name of its own, such as a machine.
pub fn name_for(owner: &str, uid: &str, whom: &str, attempt: u32) -> String {
    joined(owner, hash(format!("{uid}/{whom}/{attempt}").as_bytes()) % NAMES)
}

/// The first names, in the order of slots, that are not taken.
pub fn vacant(owner: &str, uid: &str, taken: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    (0..NAMES).map(move |slot| name(owner, uid, slot)).filter(move |name| !taken(name))
}

fn joined(owner: &str, number: u64) -> String {
    let longest = LONGEST - SUFFIX as usize;
    let mut prefix = format!("{owner}-");
    if prefix.len() > longest {
        prefix.truncate(longest); // names are ASCII
    }
    prefix + &letters(number)
}

/// A number as letters, the same for ever.
pub fn letters(mut number: u64) -> String {
    let next = || {
        let letter = LETTERS[(number % LETTERS.len() as u64) as usize];
        number /= LETTERS.len() as u64;
        char::from(letter)
    };
    std::iter::repeat_with(next).take(SUFFIX as usize).collect()
}

/// FNV-1a, which stays the same for ever, mixed so that all of its bits are good.
pub fn hash(bytes: &[u8]) -> u64 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

/// A pod as the template of its owner has it, ready to be posted.
pub fn pod(owner: &Owner, template: &Value, name: &str) -> Value {
    let given = &template["metadata"];
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("namespace".to_owned(), json!(owner.key.namespace));
    metadata.insert("generateName".to_owned(), json!(format!("{}-", owner.key.name)));
    metadata.insert("ownerReferences".to_owned(), json!([owner.reference()]));
    for field in ["labels", "annotations", "finalizers"] {
        if !given[field].is_null() {
            metadata.insert(field.to_owned(), given[field].clone());
        }
    }
    if let Some(finalizer) = owner.kind.finalizer {
        let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
        let there = finalizers.as_array().is_some_and(|all| all.iter().any(|one| one == finalizer));
        if let Some(all) = finalizers.as_array_mut().filter(|_| !there) {
            all.push(json!(finalizer));
        }
    }
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use k8s_openapi::api::{apps::v1::ReplicaSet, batch::v1::Job};
    use kube::api::ObjectMeta;
    use proptest::prelude::*;

    use super::*;
    use crate::workloads::owner::Kind;

    fn meta() -> ObjectMeta {
        let meta = json!({ "name": "web", "namespace": "ns", "uid": "u" });
        serde_json::from_value(meta).unwrap()
    }

    #[test]
    fn a_pod_is_its_template_with_a_name_and_an_owner() {
        let owner = Owner::new(&Kind::new::<ReplicaSet>("replicaset-controller"), &meta());
        let template = json!({
            "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" }, "name": "ignored" },
            "spec": { "containers": [{ "name": "c" }] },
        });
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-x", "namespace": "ns", "generateName": "web-",
                "labels": { "a": "b" }, "annotations": { "c": "d" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": { "containers": [{ "name": "c" }] },
        });
        assert_eq!(pod(&owner, &template, "web-x"), expected);
    }

    #[test]
    fn those_who_count_their_pods_hold_on_to_them() {
        let owner = Owner::new(&Kind::counting::<Job>("job-controller", Some("tracking")), &meta());
        let template = json!({ "metadata": { "finalizers": ["own"] }, "spec": {} });
        assert_eq!(pod(&owner, &template, "web-x")["metadata"]["finalizers"], json!(["own", "tracking"]));
    }

    #[test]
    fn names_stay_short_enough() {
        let long = name(&"a".repeat(253), "u", 0);
        assert_eq!((long.len(), &long[..58]), (63, "a".repeat(58).as_str()));
        let short = name("web", "u", 0);
        assert_eq!((short.len(), &short[..4]), (9, "web-"));
        assert_ne!(name_for("web", "u", "m1", 0), name_for("web", "u", "m2", 0));
        assert_ne!(name_for("web", "u", "m1", 0), name_for("web", "u", "m1", 1));
    }

    #[test]
    fn taken_names_are_passed_over() {
        let all: Vec<String> = vacant("web", "u", |_| false).take(3).collect();
        let some: Vec<String> = vacant("web", "u", |name| name == all[1]).take(2).collect();
        assert_eq!(some, [all[0].clone(), all[2].clone()]);
    }

    proptest! {
        #[test]
        fn every_slot_has_a_name_of_its_own(uid in "[0-9a-f]{8}", from in 0..NAMES - 2000) {
            let names: HashSet<String> = (from..from + 2000).map(|slot| name("web", &uid, slot)).collect();
            prop_assert_eq!(names.len(), 2000);
        }
    }
}
