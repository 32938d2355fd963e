use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::Schema;

const POD: &str = "io.k8s.api.core.v1.Pod";
const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";

fn patched(definition: &str, mut target: Value, patch: &Value) -> Result<Value, PatchError> {
    strategic(&mut target, patch, Schema::builtin(), definition).map(|()| target)
}

/// A pod with these containers.
fn pod(containers: Value) -> Value {
    json!({"spec": {"containers": containers}})
}

#[test]
fn merge_follows_the_examples_of_rfc_7386() {
    for (target, patch, result) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        let mut target = target;
        merge(&mut target, &patch);
        assert_eq!(target, result);
    }
}

#[test]
fn json_patches_apply_as_a_whole_or_not_at_all() {
    let mut target = json!({"a": [1, 2], "b": {"c": 1}});
    let patch = json!([
        {"op": "test", "path": "/a/0", "value": 1}, {"op": "add", "path": "/a/-", "value": 3},
        {"op": "remove", "path": "/a/0"}, {"op": "replace", "path": "/b/c", "value": 2},
        {"op": "copy", "from": "/b", "path": "/d"}, {"op": "move", "from": "/d/c", "path": "/e~1f"},
    ]);
    super::json(&mut target, &patch).unwrap();
    assert_eq!(target, json!({"a": [2, 3], "b": {"c": 2}, "d": {}, "e/f": 2}));

    let before = target.clone();
    let failing = json!([{"op": "remove", "path": "/a"}, {"op": "test", "path": "/b/c", "value": 5}]);
    assert!(matches!(super::json(&mut target, &failing), Err(PatchError::TestFailed(_))));
    assert_eq!(target, before);
    let missing = json!([{"op": "remove", "path": "/nope"}]);
    assert!(matches!(super::json(&mut target, &missing), Err(PatchError::Inapplicable(_))));
    for malformed in [json!({"op": "add"}), json!([{"op": "grow", "path": "/a"}]), json!([{"op": "add", "path": "a"}])]
    {
        assert!(matches!(super::json(&mut target, &malformed), Err(PatchError::Malformed(_))), "{malformed}");
    }
}

#[test]
fn json_patches_cannot_blow_up() {
    let mut target = json!({"a": {"x": "y".repeat(1000)}});
    let many = Value::Array(vec![json!({"op": "remove", "path": "/a"}); 10_001]);
    assert!(matches!(super::json(&mut target, &many), Err(PatchError::TooLarge(_))));
    let doubling =
        Value::Array((0..60).map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/{i}")})).collect());
    assert!(matches!(super::json(&mut target, &doubling), Err(PatchError::TooLarge(_))));
    let deepening = Value::Array(vec![json!({"op": "move", "from": "/a", "path": "/a/b"}); 3]);
    assert!(super::json(&mut target, &deepening).is_err());
}

#[test]
fn json_patches_cannot_move_long_lists_about_without_end() {
    let mut target = json!({"list": vec![0; 100_000]});
    let before = target.clone();
    let at_the_head = |count| Value::Array(vec![json!({"op": "add", "path": "/list/0", "value": 1}); count]);
    assert!(matches!(super::json(&mut target, &at_the_head(1_000)), Err(PatchError::TooLarge(_))));
    assert_eq!(target, before);
    assert_eq!(super::json(&mut target, &at_the_head(100)), Ok(()));
    assert_eq!(target["list"].as_array().unwrap().len(), 100_100);
}

/// Comparing each item with each, and that for each comparison of a sort, would take minutes here.
#[test]
fn long_lists_merge_in_bounded_time() {
    let names = |range: std::ops::Range<usize>| range.rev().map(|n| json!(format!("f{n}"))).collect::<Vec<_>>();
    let items = |range: std::ops::Range<usize>| range.map(|n| json!({"name": format!("c{n}")})).collect::<Vec<_>>();
    let target = json!({"metadata": {"finalizers": names(0..30_000)}, "spec": {"containers": items(0..30_000)}});
    let patch = json!({
        "metadata": {"finalizers": names(15_000..45_000), "$deleteFromPrimitiveList/finalizers": names(0..10)},
        "spec": {"containers": items(15_000..45_000), "$setElementOrder/containers": items(15_000..45_000)},
    });
    let merged = patched(POD, target, &patch).unwrap();
    assert_eq!(merged["spec"]["containers"], json!(items(0..45_000)));
    assert_eq!(merged["metadata"]["finalizers"].as_array().unwrap().len(), 45_000 - 10);
}

#[test]
fn lists_with_a_merge_key_merge_item_by_item() {
    for (containers, patch, result) in [
        (
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]),
            json!([{"name": "b", "image": "2"}]),
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]),
        ),
        (
            json!([{"name": "a"}]),
            json!([{"name": "b", "command": ["x"]}]),
            json!([{"name": "b", "command": ["x"]}, {"name": "a"}]),
        ),
        (json!([{"name": "a"}, {"name": "b"}]), json!([{"$patch": "delete", "name": "a"}]), json!([{"name": "b"}])),
        (
            json!([{"name": "a", "image": "1"}, {"name": "b"}]),
            json!([{"$patch": "replace"}, {"name": "c"}]),
            json!([{"name": "c"}]),
        ),
        (
            json!([{"name": "a", "image": "1", "tty": true}]),
            json!([{"name": "a", "tty": null}]),
            json!([{"name": "a", "image": "1"}]),
        ),
        (
            json!([{"name": "a", "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 81}]}]),
            json!([{"name": "a", "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 82}]}]),
            json!([{"name": "a", "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 82}, {"containerPort": 81}]}]),
        ),
        (
            json!([{"name": "a", "command": ["x", "y"], "args": ["z"]}]),
            json!([{"name": "a", "command": ["w"]}]),
            json!([{"name": "a", "command": ["w"], "args": ["z"]}]),
        ),
        (json!([{"name": "a"}]), json!([]), json!([{"name": "a"}])),
    ] {
        assert_eq!(patched(POD, pod(containers), &pod(patch)).unwrap(), pod(result));
    }
}

#[test]
fn the_patch_decides_the_order_and_server_only_items_keep_their_place() {
    let named = |names: &str| Value::Array(names.chars().map(|c| json!({"name": c.to_string()})).collect());
    for (live, patch, order, result) in [
        ("abc", "", "cba", "cba"),
        ("abc", "d", "dabc", "dabc"),
        ("abc", "d", "abcd", "abcd"),
        ("axbyc", "", "cba", "xycba"),
        ("xab", "", "ba", "xba"),
        ("abx", "", "ba", "bax"),
        ("axb", "c", "acb", "acxb"),
        ("", "ab", "ab", "ab"),
    ] {
        let patch = json!({"spec": {"containers": named(patch), "$setElementOrder/containers": named(order)}});
        assert_eq!(patched(POD, pod(named(live)), &patch).unwrap(), pod(named(result)), "{live} {order}");
    }
    // Without the directive the order of the patch's own items counts.
    assert_eq!(patched(POD, pod(named("abc")), &pod(named("cb"))).unwrap(), pod(named("acb")));

    let mismatch = json!({"spec": {"containers": named("ab"), "$setElementOrder/containers": named("ba")}});
    let error = patched(POD, pod(named("ab")), &mismatch).unwrap_err().to_string();
    assert!(error.starts_with("The order in patch list:\n[map[name:a] map[name:b]]\n doesn't match"), "{error}");
}

#[test]
fn primitive_lists_merge_as_sets() {
    let with = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    for (live, patch, result) in [
        (json!(["a", "b"]), json!({"finalizers": ["b", "c"]}), json!(["a", "b", "c"])),
        (json!(["a", "b", "c"]), json!({"$deleteFromPrimitiveList/finalizers": ["b"]}), json!(["a", "c"])),
        (
            json!(["a", "b"]),
            json!({"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "b"]}),
            json!(["c", "b"]),
        ),
        (json!(["a", "b"]), json!({"$setElementOrder/finalizers": ["b", "a"]}), json!(["b", "a"])),
    ] {
        assert_eq!(patched(POD, with(live), &json!({"metadata": patch})).unwrap(), with(result));
    }
    // Atomic lists are replaced.
    let live = json!({"spec": {"accessModes": ["ReadWriteOnce"]}});
    let patch = json!({"spec": {"accessModes": ["ReadOnlyMany"]}});
    assert_eq!(patched("io.k8s.api.core.v1.PersistentVolumeClaim", live, &patch).unwrap(), patch);
}

#[test]
fn maps_obey_their_directives() {
    for (live, patch, result) in [
        (json!({"a": "1", "b": "2"}), json!({"b": null, "c": "3"}), json!({"a": "1", "c": "3"})),
        (json!({"a": "1"}), json!({"$patch": "replace", "b": "2"}), json!({"b": "2"})),
        (json!({"a": "1"}), json!({"$patch": "delete"}), json!({})),
        (json!({"a": "1"}), json!({"$patch": "merge", "b": "2"}), json!({"a": "1", "b": "2"})),
    ] {
        let target = json!({"metadata": {"labels": live}});
        let patch = json!({"metadata": {"labels": patch}});
        assert_eq!(patched(POD, target, &patch).unwrap(), json!({"metadata": {"labels": result}}));
    }
    let error = patched(POD, json!({"metadata": {}}), &json!({"metadata": {"$patch": "explode"}})).unwrap_err();
    assert_eq!(error.to_string(), "unknown patch type: explode in map: map[$patch:explode]");
}

#[test]
fn retained_keys_push_out_the_others() {
    let live = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(patched(DEPLOYMENT, live.clone(), &patch).unwrap(), json!({"spec": {"strategy": {"type": "Recreate"}}}));

    let volumes = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}});
    let patch =
        json!({"spec": {"volumes": [{"$retainKeys": ["name", "configMap"], "name": "v", "configMap": {"name": "c"}}]}});
    assert_eq!(
        patched(POD, volumes, &patch).unwrap(),
        json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "w", "emptyDir": {}}]}})
    );

    let wrong = json!({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}}});
    assert_eq!(patched(DEPLOYMENT, live, &wrong).unwrap_err().to_string(), "invalid patch format of retainKeys");
}

#[test]
fn directives_never_reach_an_object_that_had_nothing_to_merge_with() {
    let patch = json!({"metadata": {"labels": {"a": "b", "c": null}}, "spec": {
        "$setElementOrder/containers": [{"name": "a"}],
        "containers": [{"name": "a", "env": [{"$patch": "delete", "name": "X"}, {"name": "Y", "value": "1"}],
            "$setElementOrder/env": [{"name": "Y"}]}],
        "securityContext": {"$retainKeys": ["runAsUser"], "runAsUser": 1},
        "affinity": {"$patch": "delete"},
    }});
    assert_eq!(
        patched(POD, json!({}), &patch).unwrap(),
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {
            "containers": [{"name": "a", "env": [{"name": "Y", "value": "1"}]}],
            "securityContext": {"runAsUser": 1},
        }})
    );
}

#[test]
fn what_cannot_be_merged_is_refused() {
    for (live, patch, message) in [
        (
            json!([{"name": "a"}]),
            json!([{"image": "x"}]),
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!([{"name": "a"}]),
            json!([{"$patch": "delete"}]),
            "map: map[$patch:delete] does not contain declared merge key: name",
        ),
        (
            json!([{"name": "a"}]),
            json!([{"$patch": "merge", "name": "a"}]),
            "merging lists cannot yet be specified in the patch",
        ),
    ] {
        assert_eq!(patched(POD, pod(live), &pod(patch)).unwrap_err().to_string(), message);
    }
    assert!(matches!(patched(POD, json!({}), &json!([])), Err(PatchError::Malformed(_))));
    let mut target = pod(json!([{"name": "a"}]));
    let before = target.clone();
    let patch = json!({"metadata": {"name": "x"}, "spec": {"containers": [{"image": "x"}]}});
    assert!(strategic(&mut target, &patch, Schema::builtin(), POD).is_err());
    assert_eq!(target, before);
}

#[test]
fn kubectl_set_image_changes_one_container() {
    let live = json!({"spec": {"replicas": 3, "template": {"spec": {
        "containers": [{"name": "web", "image": "nginx:1", "ports": [{"containerPort": 80}]}, {"name": "log", "image": "l:1"}],
    }}}});
    let patch = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "web"}, {"name": "log"}],
        "containers": [{"image": "nginx:2", "name": "web"}],
    }}}});
    let mut expected = live.clone();
    expected["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:2");
    assert_eq!(patched(DEPLOYMENT, live, &patch).unwrap(), expected);
}

#[test]
fn kubectl_apply_removes_a_container_and_keeps_an_injected_one() {
    let live = json!({"metadata": {"annotations": {"last": "1", "other": "x"}}, "spec": {"template": {"spec": {
        "containers": [{"name": "sidecar", "image": "s"}, {"name": "web", "image": "1"}, {"name": "old", "image": "1"}],
    }}}});
    let patch = json!({"metadata": {"annotations": {"last": "2"}}, "spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "web"}],
        "containers": [{"name": "web", "env": [{"name": "A", "value": "b"}]}, {"$patch": "delete", "name": "old"}],
    }}}});
    assert_eq!(
        patched(DEPLOYMENT, live, &patch).unwrap(),
        json!({"metadata": {"annotations": {"last": "2", "other": "x"}}, "spec": {"template": {"spec": {
            "containers": [{"name": "sidecar", "image": "s"}, {"name": "web", "image": "1", "env": [{"name": "A", "value": "b"}]}],
        }}}})
    );
}

#[test]
fn kubectl_edit_of_service_ports_merges_by_port() {
    let definition = "io.k8s.api.core.v1.Service";
    let live =
        json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "tls", "port": 443}]}});
    let patch = json!({"spec": {
        "$setElementOrder/ports": [{"port": 80}, {"port": 8443}],
        "ports": [{"port": 80, "targetPort": "web"}, {"name": "tls", "port": 8443}, {"$patch": "delete", "port": 443}],
    }});
    assert_eq!(
        patched(definition, live, &patch).unwrap(),
        json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "tls", "port": 8443}]}})
    );
}

#[test]
fn controllers_adopt_by_owner_uid_and_set_conditions_by_type() {
    let live = json!({"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]},
        "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "True"}]}});
    let patch = json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "1"}, {"uid": "3", "name": "c"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    assert_eq!(
        patched("io.k8s.api.core.v1.Node", live, &patch).unwrap(),
        json!({"metadata": {"ownerReferences": [{"uid": "3", "name": "c"}, {"uid": "2", "name": "b"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "True"}]}})
    );
}

#[test]
fn without_a_schema_a_strategic_patch_is_a_merge_patch() {
    let live = json!({"spec": {"list": [{"name": "a"}], "map": {"x": 1, "y": 2}}});
    let patch = json!({"spec": {"list": [{"name": "b"}], "map": {"y": null}}});
    let mut merged = live.clone();
    merge(&mut merged, &patch);
    assert_eq!(patched("dev.mainstay.Unknown", live, &patch).unwrap(), merged);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!(1)), Just(json!(true)), "[a-c]{0,2}".prop_map(Value::from)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![
            Just("metadata"),
            Just("spec"),
            Just("containers"),
            Just("name"),
            Just("ports"),
            Just("labels"),
            Just("finalizers"),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(name.prop_map(str::to_owned), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn an_empty_strategic_patch_changes_nothing(target in any_value()) {
        prop_assume!(target.is_object());
        prop_assert_eq!(patched(POD, target.clone(), &json!({})).unwrap(), target);
    }

    #[test]
    fn any_strategic_patch_is_answered(target in any_value(), patch in any_value()) {
        let _ = patched(POD, target, &patch);
    }

    #[test]
    fn patching_twice_is_patching_once(target in any_value(), patch in any_value()) {
        if let Ok(once) = patched(POD, target, &patch) {
            prop_assert_eq!(patched(POD, once.clone(), &patch).unwrap(), once);
        }
    }
}
