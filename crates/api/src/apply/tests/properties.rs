//! What holds for all sequences of writes by several managers.

use proptest::prelude::*;

use super::*;
use crate::apply::{field_set, fields_v1, managers::Managers};

const MANAGERS: [&str; 3] = ["a", "b", "c"];

fn config() -> impl Strategy<Value = Value> {
    let item = (prop_oneof!["x", "y"], prop::option::of(prop_oneof!["1", "2"]), prop::option::of(any::<bool>()));
    let items = prop::collection::vec(item, 0..3).prop_map(|items| {
        let mut list: Vec<Value> = Vec::new();
        for (name, image, tty) in items {
            if list.iter().all(|item| item["name"] != name) {
                let mut item = json!({"name": name});
                if let Some(image) = image {
                    item["image"] = json!(image);
                }
                if let Some(tty) = tty {
                    item["tty"] = json!(tty);
                }
                list.push(item);
            }
        }
        list
    });
    let labels = prop::collection::btree_map(prop_oneof!["l", "m"], prop_oneof!["1", "2"], 0..3);
    let finalizers = prop::sample::subsequence(vec!["x/a", "x/b"], 0..3);
    (prop::option::of(0..3), items, labels, finalizers).prop_map(|(replicas, items, labels, finalizers)| {
        let mut config = json!({"metadata": {}, "spec": {}});
        if let Some(replicas) = replicas {
            config["spec"]["replicas"] = json!(replicas);
        }
        if !items.is_empty() {
            config["spec"]["template"]["spec"]["containers"] = json!(items);
        }
        if !labels.is_empty() {
            config["metadata"]["labels"] = json!(labels);
        }
        if !finalizers.is_empty() {
            config["metadata"]["finalizers"] = json!(finalizers);
        }
        // An object that is applied empty is owned itself; it has a test of its own.
        if config["spec"] == json!({}) {
            config.as_object_mut().unwrap().remove("spec");
        }
        config
    })
}

#[derive(Clone, Debug)]
enum Write {
    Apply { manager: usize, config: Value, force: bool },
    Update { manager: usize, config: Value },
}

fn write() -> impl Strategy<Value = Write> {
    prop_oneof![
        3 => (0..MANAGERS.len(), config(), any::<bool>()).prop_map(|(manager, config, force)| Write::Apply { manager, config, force }),
        1 => (0..MANAGERS.len(), config()).prop_map(|(manager, config)| Write::Update { manager, config }),
    ]
}

fn play(writes: &[Write]) -> World {
    let mut world = World::deployment();
    world.create("author", json!({"metadata": {}, "spec": {"replicas": 1}}));
    for write in writes {
        match write {
            Write::Apply { manager, config, force } => drop(world.apply(MANAGERS[*manager], config.clone(), *force)),
            Write::Update { manager, config } => world.update(MANAGERS[*manager], |object| {
                for field in ["labels", "finalizers"] {
                    object["metadata"].as_object_mut().unwrap().remove(field);
                    if let Some(value) = config["metadata"].get(field) {
                        object["metadata"][field] = value.clone();
                    }
                }
                object["spec"] = config.get("spec").cloned().unwrap_or_else(|| json!({}));
            }),
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_owned_field_is_there(writes in prop::collection::vec(write(), 0..8)) {
        let world = play(&writes);
        let object = world.object.clone().unwrap();
        let managers = Managers::decode(&object["metadata"]["managedFields"]).unwrap();
        let there = field_set(deployment_type(), &object);
        for (id, own) in &managers.entries {
            for path in own.fields.paths() {
                let parent_or_leaf = there.contains(&path) || there_below(&there, &path);
                prop_assert!(parent_or_leaf, "{id:?} owns {:?} of {object}", path);
            }
        }
    }

    #[test]
    fn a_forced_apply_gets_all_it_asks_for_and_a_second_one_changes_nothing(
        writes in prop::collection::vec(write(), 0..6), config in config(),
    ) {
        let mut world = play(&writes);
        world.apply("a", config.clone(), true).unwrap();
        let object = world.object.clone().unwrap();
        let applied = world.managed();
        let mut whole = config.clone();
        whole["apiVersion"] = json!("apps/v1");
        for path in field_set(deployment_type(), &config).paths() {
            if path.len() > 1 {
                let managers = Managers::decode(&object["metadata"]["managedFields"]).unwrap();
                let owners: Vec<_> = managers.entries.iter().filter(|(_, own)| own.fields.contains(&path)).map(|(id, _)| id.name.as_str()).collect();
                prop_assert!(owners.contains(&"a"), "{path:?} of {applied}");
            }
        }
        let content = |world: &World| (world.get("/spec"), world.get("/metadata/labels"), world.get("/metadata/finalizers"));
        let applied = content(&world);
        world.apply("a", config.clone(), false).unwrap();
        prop_assert_eq!(content(&world), applied);
        // Who owned a map whole owns its new entries from then on; after that nothing is left to change.
        let settled = world.object.clone();
        world.apply("a", config, false).unwrap();
        prop_assert_eq!(world.object, settled);
    }

    #[test]
    fn an_apply_without_force_changes_no_field_of_others(
        writes in prop::collection::vec(write(), 0..6), config in config(),
    ) {
        let mut world = play(&writes);
        let before = world.managed();
        if world.apply("a", config, false).is_ok() {
            let after = world.managed();
            // An item that its only applier drops takes along what others set within it.
            let object = world.object.unwrap();
            let there = field_set(deployment_type(), &object);
            for (manager, fields) in before.as_object().unwrap().iter().filter(|(name, _)| !name.starts_with("a ")) {
                let left = fields_v1::decode(&after[manager]).unwrap();
                let lost = fields_v1::decode(fields).unwrap().difference(&left).intersection(&there);
                prop_assert!(lost.is_empty(), "{manager} lost {:?}", lost.paths());
            }
        } else {
            prop_assert_eq!(world.managed(), before);
        }
    }

    #[test]
    fn a_sole_owner_who_applies_nothing_leaves_nothing(config in config()) {
        let mut world = World::deployment();
        world.apply("a", config, false).unwrap();
        world.apply("a", json!({"metadata": {}}), false).unwrap();
        prop_assert!(world.get("/spec/replicas").is_null());
        prop_assert!(world.get("/spec/template").is_null());
        prop_assert!(world.get("/metadata/labels").is_null());
        prop_assert_eq!(world.managed(), json!({}));
    }
}

/// Whether the set has something below the path: objects with parts are owned by themselves too.
fn there_below(set: &super::super::set::FieldSet<'_>, path: &[super::super::path::PathElement<'_>]) -> bool {
    path.iter().try_fold(set, |set, step| set.get(step).map(|node| &node.children)).is_some()
}
