//! Who owns what after which writes.

use super::*;
use crate::apply::managers::{ANCIENT_CHANGES, MAX_UPDATE_MANAGERS};

fn replicas(count: i32) -> Value {
    json!({"spec": {"replicas": count}})
}

fn containers(list: Value) -> Value {
    json!({"spec": {"template": {"spec": {"containers": list}}}})
}

#[test]
fn who_applies_owns_what_the_configuration_says() {
    let mut world = World::deployment();
    world.apply("a", json!({"metadata": {"labels": {"l": "1"}}, "spec": {"replicas": 1}}), false).unwrap();
    assert_eq!(
        world.managed(),
        json!({"a Apply": {"f:metadata": {"f:labels": {"f:l": {}}}, "f:spec": {"f:replicas": {}}}})
    );
}

#[test]
fn a_field_that_others_set_conflicts_and_names_them() {
    let mut world = World::deployment();
    world.apply("a", replicas(1), false).unwrap();
    assert_eq!(world.conflicts("b", replicas(2)), ["a: .spec.replicas"]);
    let error = world.apply("b", replicas(2), false).unwrap_err();
    assert_eq!(error.to_string(), r#"Apply failed with 1 conflict: conflict with "a": .spec.replicas"#);
    world.apply("b", replicas(1), false).unwrap();
    assert_eq!(world.managed()["b Apply"], world.managed()["a Apply"], "they agree, and own it together");
}

#[test]
fn conflicts_with_updates_say_which_version_and_subresource_they_used() {
    let mut world = World::deployment();
    world.create("a", json!({"spec": {"replicas": 1, "paused": true}}));
    world.update_through("hpa", "scale", |object| object["spec"]["replicas"] = json!(5));
    let error = world.apply("b", json!({"spec": {"replicas": 2, "paused": false}}), false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"a\" using apps/v1:\n- .spec.paused\n\
         conflicts with \"hpa\" with subresource \"scale\" using apps/v1:\n- .spec.replicas"
    );
}

#[test]
fn force_takes_the_field_away() {
    let mut world = World::deployment();
    world.apply("a", json!({"spec": {"replicas": 1, "paused": true}}), false).unwrap();
    world.apply("b", replicas(2), true).unwrap();
    assert_eq!(world.get("/spec/replicas"), 2);
    assert_eq!(
        world.managed(),
        json!({"a Apply": {"f:spec": {"f:paused": {}}}, "b Apply": {"f:spec": {"f:replicas": {}}}})
    );
}

#[test]
fn an_update_takes_what_it_changes_and_nothing_else() {
    let mut world = World::deployment();
    world.apply("a", json!({"spec": {"replicas": 1, "paused": true}}), false).unwrap();
    world.update("b", |object| object["spec"]["replicas"] = json!(3));
    assert_eq!(
        world.managed(),
        json!({"a Apply": {"f:spec": {"f:paused": {}}}, "b Update": {"f:spec": {"f:replicas": {}}}})
    );
    world.update("b", |object| drop(object["spec"].as_object_mut().unwrap().remove("replicas")));
    assert_eq!(world.managed(), json!({"a Apply": {"f:spec": {"f:paused": {}}}}), "who removes a field owns nothing");
}

#[test]
fn an_update_that_changes_nothing_keeps_the_times() {
    let mut world = World::deployment();
    world.create("a", replicas(1));
    let before = world.object.clone();
    world.update("b", |_| {});
    world.update("a", |object| drop(object["metadata"].as_object_mut().unwrap().remove("managedFields")));
    assert_eq!(world.object, before);
    world.apply("c", replicas(1), false).unwrap();
    let applied = world.object.clone();
    world.apply("c", replicas(1), false).unwrap();
    assert_eq!(world.object, applied);
}

#[test]
fn what_an_applier_no_longer_applies_is_removed_unless_others_own_it() {
    let mut world = World::config_map();
    world.apply("a", json!({"data": {"mine": "1", "ours": "1"}}), false).unwrap();
    world.apply("b", json!({"data": {"ours": "1", "theirs": "1"}}), false).unwrap();
    world.apply("a", json!({}), false).unwrap();
    assert_eq!(world.get("/data"), json!({"ours": "1", "theirs": "1"}));
    world.apply("b", json!({}), false).unwrap();
    assert_eq!(world.get("/data"), json!(null));
    assert_eq!(world.managed(), json!({}));
}

#[test]
fn what_nobody_owns_stays_within_an_item_that_stays() {
    let mut world = World::deployment();
    world.apply("a", containers(json!([{"name": "c", "image": "i", "tty": true}])), false).unwrap();
    // A default, as the server would add it.
    world.object.as_mut().unwrap()["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    world.apply("a", containers(json!([{"name": "c", "image": "i"}])), false).unwrap();
    assert_eq!(
        world.get("/spec/template/spec/containers"),
        json!([{"name": "c", "image": "i", "imagePullPolicy": "Always"}])
    );
    world.apply("a", containers(json!([{"name": "d", "image": "i"}])), false).unwrap();
    assert_eq!(
        world.get("/spec/template/spec/containers"),
        json!([{"name": "d", "image": "i"}]),
        "it goes with its item"
    );
}

#[test]
fn items_of_lists_are_owned_by_their_keys() {
    let mut world = World::deployment();
    let with_port = |port: Value| containers(json!([{"name": "c", "ports": [port]}]));
    world.apply("a", with_port(json!({"containerPort": 80, "name": "web"})), false).unwrap();
    world.apply("b", with_port(json!({"containerPort": 80, "protocol": "UDP"})), false).unwrap();
    let ports = world.get("/spec/template/spec/containers/0/ports");
    assert_eq!(ports, json!([{"containerPort": 80, "name": "web"}, {"containerPort": 80, "protocol": "UDP"}]));
    let key = r#"k:{"containerPort":80,"protocol":"TCP"}"#;
    let owned = &world.managed()["a Apply"]["f:spec"]["f:template"]["f:spec"]["f:containers"][r#"k:{"name":"c"}"#];
    assert_eq!(
        owned["f:ports"],
        json!({key: {".": {}, "f:containerPort": {}, "f:name": {}}}),
        "a key that is left out has its default"
    );
}

#[test]
fn the_owner_of_an_empty_map_owns_what_others_put_into_it() {
    let mut world = World::deployment();
    world.apply("a", json!({"metadata": {"labels": {}}}), false).unwrap();
    assert_eq!(world.managed(), json!({"a Apply": {"f:metadata": {"f:labels": {}}}}));
    world.update("b", |object| object["metadata"]["labels"] = json!({"l": "1"}));
    world.update("b", |_| {});
    let both = json!({"f:metadata": {"f:labels": {".": {}, "f:l": {}}}});
    assert_eq!(world.managed()["a Apply"], both, "as upstream has it: the whole map was its own");
}

#[test]
fn atomic_parts_are_owned_whole_and_sets_by_value() {
    let mut world = World::deployment();
    let config = json!({
        "metadata": {"finalizers": ["x/a"]},
        "spec": {"selector": {"matchLabels": {"l": "1"}}, "template": {"spec": {"nodeSelector": {"d": "1"}}}},
    });
    world.apply("a", config, false).unwrap();
    assert_eq!(
        world.managed()["a Apply"],
        json!({
            "f:metadata": {"f:finalizers": {"v:\"x/a\"": {}}},
            "f:spec": {"f:selector": {}, "f:template": {"f:spec": {"f:nodeSelector": {}}}},
        })
    );
    world.apply("b", json!({"metadata": {"finalizers": ["x/b"]}}), false).unwrap();
    assert_eq!(world.get("/metadata/finalizers"), json!(["x/a", "x/b"]));
    let other = json!({"spec": {"template": {"spec": {"nodeSelector": {"e": "1"}}}}});
    assert_eq!(world.conflicts("b", other), ["a: .spec.template.spec.nodeSelector"]);
}

#[test]
fn a_new_object_belongs_to_its_author_but_for_what_is_always_written() {
    let mut world = World::deployment();
    world.create(
        "a",
        json!({
            "metadata": {"labels": {"l": "1"}, "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1},
            "spec": {
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
                "template": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}},
            },
            "status": {},
        }),
    );
    assert_eq!(
        world.managed(),
        json!({"a Update": {
            "f:metadata": {"f:labels": {".": {}, "f:l": {}}},
            "f:spec": {
                "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
                "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:name": {}, "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
                }}}},
            },
        }})
    );
}

#[test]
fn a_status_has_managers_of_its_own() {
    let mut world = World::deployment();
    world.create("a", replicas(1));
    world.update_through("a", "status", |object| object["status"] = json!({"replicas": 1}));
    assert_eq!(
        world.managed(),
        json!({"a Update": {"f:spec": {"f:replicas": {}}}, "a Update/status": {"f:status": {"f:replicas": {}}}})
    );
}

#[test]
fn an_object_without_managers_is_tracked_from_its_first_apply_on() {
    let mut world = World::deployment();
    world.create("a", replicas(1));
    world.update("a", |object| object["metadata"]["managedFields"] = json!([{}]));
    assert_eq!(world.managed(), json!({}), "an empty entry clears them");
    world.update("b", |object| object["spec"]["paused"] = json!(true));
    assert_eq!(world.managed(), json!({}));
    assert_eq!(world.conflicts("c", replicas(2)), ["before-first-apply: .spec.replicas"]);
    world.apply("c", replicas(1), false).unwrap();
    assert_eq!(
        world.managed(),
        json!({
            "before-first-apply Update": {"f:spec": {"f:paused": {}, "f:replicas": {}}},
            "c Apply": {"f:spec": {"f:replicas": {}}},
        })
    );
}

#[test]
fn managed_fields_can_be_edited_and_nonsense_in_them_is_ignored() {
    let mut world = World::deployment();
    world.create("a", replicas(1));
    let edited = json!([{
        "manager": "z", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }]);
    world.update("a", |object| object["metadata"]["managedFields"] = edited.clone());
    assert_eq!(world.get("/metadata/managedFields"), edited);
    world.update("a", |object| object["metadata"]["managedFields"] = json!([{"manager": "m"}]));
    assert_eq!(world.get("/metadata/managedFields"), edited);
}

#[test]
fn managers_of_a_version_that_is_gone_are_forgotten() {
    let mut world = World::deployment();
    world.create("a", replicas(1));
    world.object.as_mut().unwrap()["metadata"]["managedFields"][0]["apiVersion"] = json!("extensions/v1beta1");
    world.apply("b", replicas(2), false).unwrap();
    assert_eq!(world.managed(), json!({"b Apply": {"f:spec": {"f:replicas": {}}}}));
}

#[test]
fn ten_thousand_updaters_leave_ten_entries() {
    let mut world = World::config_map();
    world.create("m0", json!({"data": {"k0": "v"}}));
    for at in 1..10_000 {
        let key = format!("k{}", at % 100);
        world.update(&format!("m{at}"), |object| object["data"][key] = json!(at.to_string()));
        let entries = world.get("/metadata/managedFields");
        assert!(entries.as_array().unwrap().len() <= MAX_UPDATE_MANAGERS, "after {at}");
    }
    let fields = &world.managed()[format!("{ANCIENT_CHANGES} Update")]["f:data"];
    assert_eq!(fields.as_object().unwrap().len(), 100 - 9 + 1, "all but the newest nine, and the map itself");
}

#[test]
fn a_client_side_apply_is_taken_over_by_kubectl_alone() {
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let last = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": {"replicas": 1, "paused": true}});
    let object =
        json!({"metadata": {"annotations": {annotation: last.to_string()}}, "spec": {"replicas": 1, "paused": true}});
    let mut world = World::deployment();
    world.create("kubectl-client-side-apply", object);
    assert_eq!(world.conflicts("other", replicas(2)), ["kubectl-client-side-apply: .spec.replicas"]);
    world.apply("kubectl", replicas(2), false).unwrap();
    assert_eq!(world.get("/spec/replicas"), 2);
    let now: Value = serde_json::from_str(
        world.get(&format!("/metadata/annotations/{}", annotation.replace('/', "~1"))).as_str().unwrap(),
    )
    .unwrap();
    assert_eq!(now["spec"], json!({"replicas": 2}), "the annotation follows");
    // What was changed since is not kubectl's to take.
    world.update("hand", |object| object["spec"]["replicas"] = json!(7));
    assert_eq!(world.conflicts("kubectl", replicas(3)), ["hand: .spec.replicas"]);
}

#[test]
fn configurations_that_make_no_sense_are_refused_in_upstreams_words() {
    for (config, expected) in [
        (json!({"spec": {"nonsense": 1}}), ".spec.nonsense: field not declared in schema"),
        (json!({"spec": {"replicas": "1"}}), ".spec.replicas: expected numeric (int or float), got string"),
        (json!({"spec": {"paused": "yes"}}), ".spec.paused: expected boolean, got &{yes}"),
        (
            json!({"metadata": {"labels": {"l": 1}}}),
            ".metadata.labels.l: expected string, got &value.valueUnstructured{Value:1}",
        ),
        (json!({"spec": {"template": 1}}), ".spec.template: expected map, got &{1}"),
        (
            containers(json!([{"image": "i"}])),
            ".spec.template.spec.containers: element 0: associative list with keys has an element that omits key field \
             \"name\" (and doesn't have default value)",
        ),
        (
            containers(json!([{"name": "c"}, {"name": "c"}])),
            ".spec.template.spec.containers: duplicate entries for key [name=\"c\"]",
        ),
        (
            json!({"metadata": {"finalizers": [{}]}}),
            ".metadata.finalizers: element 0: associative list without keys has an element that's a map type",
        ),
        (json!({"a": 1, "b": 1}), "errors:\n  .a: field not declared in schema\n  .b: field not declared in schema"),
        (json!({"metadata": {"managedFields": []}}), "metadata.managedFields must be nil"),
    ] {
        let error = World::deployment().apply("a", config.clone(), false).unwrap_err();
        assert_eq!(error.to_string(), expected, "{config}");
    }
}

/// Each manager owns the same long field: what an object of a megabyte can have many of.
#[test]
fn of_very_many_conflicts_some_are_listed_and_the_rest_counted() {
    let mut world = World::config_map();
    let key = "k".repeat(200);
    world.create("hand", json!({"data": {&*key: "0"}}));
    let managed = (0..10_000).map(|at| {
        json!({
            "manager": format!("m{at}"), "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {format!("f:{key}"): {}}},
        })
    });
    world.object.as_mut().unwrap()["metadata"]["managedFields"] = managed.collect();
    let Err(ApplyError::Conflicts(conflicts)) = world.apply("late", json!({"data": {&*key: "1"}}), false) else {
        panic!("no conflict");
    };
    assert_eq!(conflicts.listed.len() + conflicts.omitted, 10_000);
    assert!((1_000..2_000).contains(&conflicts.listed.len()), "{}", conflicts.listed.len());
    let text = conflicts.describe();
    assert!(text.starts_with("Apply failed with 10000 conflicts: conflicts with \"m0\":\n- .data.kkk"), "{text}");
    assert!(text.ends_with(&format!("and {} more conflicts", conflicts.omitted)) && text.len() < 512 << 10, "{text}");
    world.apply("late", json!({"data": {&*key: "1"}}), true).unwrap();
    assert_eq!(world.managed().as_object().unwrap().len(), 1, "force takes the field from all of them");
}

#[test]
fn what_is_wrong_below_a_long_key_is_told_a_few_times() {
    let labels = (0..50).map(|at| (format!("{at}{}", "k".repeat(100_000)), json!(1)));
    let labels: serde_json::Map<String, Value> = labels.collect();
    let error = World::deployment().apply("a", json!({"metadata": {"labels": labels}}), false).unwrap_err();
    assert!((100_000..300_000).contains(&error.to_string().len()), "{}", error.to_string().len());
}
