use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::Resource;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::all;
use crate::{
    descriptor::{FieldPath, Scope, StatusRule, Volatile},
    offer::Offer,
    schema::{Schema, Type},
};

/// Everything a client or an etcd would notice, as text, so that a change is seen in review.
#[test]
fn the_kinds_are_those_of_the_golden_list() {
    let mut lines: Vec<_> = all()
        .iter()
        .map(|d| {
            let scope = if d.scope == Scope::Namespaced { "namespaced" } else { "cluster" };
            let mut facts = Vec::new();
            match d.status {
                StatusRule::Absent => {}
                StatusRule::Separate => facts.push("status"),
                StatusRule::SeparateAfterCreate => facts.push("status-from-create"),
            }
            facts.extend(d.scale.as_ref().map(|_| "scale"));
            facts.extend(d.subresources.iter().map(|own| own.name()));
            facts.extend((d.volatile != Volatile::None).then_some("volatile"));
            facts.extend(d.encrypted_at_rest.then_some("encrypted"));
            facts.extend(d.generation.then_some("generation"));
            facts.extend(d.is_review.then_some("question"));
            facts.extend(d.categories.iter().map(|name| name.as_ref()));
            let stored = if d.stored_as.is_some() { format!("@{}", d.stored_api_version()) } else { String::new() };
            format!(
                "{} {} {} {} {scope} {:?} {}{stored} {}",
                d.api_version(),
                d.plural,
                if d.short_names.is_empty() { "-".to_owned() } else { d.short_names.join(",") },
                d.kind,
                d.name_rule,
                d.storage,
                if facts.is_empty() { "-".to_owned() } else { facts.join(",") },
            )
        })
        .collect();
    lines.sort();
    let golden: Vec<_> = include_str!("tests/golden.txt").lines().collect();
    assert_eq!(lines, golden, "\n{}\n", lines.join("\n"));
}

#[test]
fn no_two_kinds_share_a_resource_a_kind_or_a_place() {
    let kinds = all();
    let resources: BTreeSet<_> = kinds.iter().map(|d| (d.api_version(), d.plural.clone())).collect();
    let names: BTreeSet<_> = kinds.iter().map(|d| (d.api_version(), d.kind.clone())).collect();
    assert_eq!((resources.len(), names.len()), (kinds.len(), kinds.len()));
    let stored: Vec<_> = kinds.iter().filter(|d| d.stored_as.is_none()).collect();
    let places: BTreeSet<_> = stored.iter().map(|d| d.storage.clone()).collect();
    assert_eq!(places.len(), stored.len());
}

#[test]
fn a_second_view_names_a_stored_kind_at_the_same_place() {
    let kinds = all();
    for view in kinds.iter().filter(|d| d.stored_as.is_some()) {
        assert!(view.conversion.is_some(), "{}", view.qualified());
        let stored = kinds.iter().find(|d| {
            d.stored_as.is_none() && d.api_version() == view.stored_api_version() && d.storage == view.storage
        });
        assert!(stored.is_some_and(|d| d.kind == view.kind), "{}", view.qualified());
    }
}

#[test]
fn a_short_name_means_one_kind() {
    let mut owners = BTreeMap::new();
    for d in all() {
        for short in &d.short_names {
            let owner = owners.entry(short.clone()).or_insert_with(|| d.kind.clone());
            assert_eq!(owner, &d.kind, "{short}");
        }
    }
}

#[test]
fn every_definition_name_is_that_of_its_group_version_and_kind() {
    for d in all() {
        if d.group == Offer::GROUP {
            assert_eq!(d.schema, format!("dev.mainstay.{}.{}", d.version, d.kind));
            continue;
        }
        if d.group == crate::cloud::kubernikus::GROUP {
            assert_eq!(d.schema, format!("cc.sap.kubernikus.{}.{}", d.version, d.kind));
            continue;
        }
        if d.group == crate::crd::GROUP {
            assert_eq!(
                d.schema,
                format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{}.{}", d.version, d.kind)
            );
            continue;
        }
        if d.group == "apiregistration.k8s.io" {
            assert_eq!(d.schema, format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{}.{}", d.version, d.kind));
            continue;
        }
        let group = d.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core").to_owned();
        assert_eq!(d.schema, format!("io.k8s.api.{group}.{}.{}", d.version, d.kind));
    }
}

#[test]
fn selectable_fields_compare_as_text() {
    let field = |kind: &str, label: &str| {
        let kinds = all();
        let d = kinds.iter().find(|d| d.kind == kind && d.stored_as.is_none()).expect("a kind");
        d.selectable.iter().find(|field| field.label == label).expect("a field").clone()
    };
    let cases = [
        ("Pod", "spec.nodeName", json!({"spec": {"nodeName": "n1"}}), "n1"),
        ("Pod", "spec.nodeName", json!({}), ""),
        ("Pod", "spec.hostNetwork", json!({"spec": {"hostNetwork": true}}), "true"),
        ("Pod", "spec.hostNetwork", json!({"spec": {}}), "false"),
        ("Job", "status.successful", json!({"status": {"succeeded": 3}}), "3"),
        ("Job", "status.successful", json!({"status": {"succeeded": null}}), "0"),
        ("Event", "source", json!({"source": {"component": "a"}, "reportingComponent": "b"}), "a"),
        ("Event", "source", json!({"source": {}, "reportingComponent": "b"}), "b"),
        ("Event", "source", json!({"source": {"component": ""}}), ""),
    ];
    for (kind, label, object, expected) in cases {
        assert_eq!(field(kind, label).value_in(&object), expected, "{kind} {label} {object}");
    }
}

#[test]
fn a_kind_has_a_status_subresource_if_it_has_a_status() {
    for d in all().into_iter().filter(|d| !d.is_review) {
        let definition = Schema::builtin().definition(&d.schema).expect("a definition");
        let has = definition.fields.iter().any(|field| field.name == "status");
        assert_eq!(d.status != StatusRule::Absent, has, "{}", d.qualified());
    }
}

/// Whether a definition has a field at a path.
fn has(definition: &str, path: &[&str]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    let schema = Schema::builtin();
    let fields = &schema.definition(definition).expect("a definition").fields;
    fields.iter().find(|field| field.name == *first).is_some_and(|field| match &field.ty {
        Type::Definition(id) => has(schema.get(*id).name, rest),
        _ => rest.is_empty(),
    })
}

#[test]
fn selectable_fields_and_replicas_are_in_the_schema() {
    for d in all() {
        let has_path = |path: &FieldPath| has(&d.schema, &path.steps());
        for field in d.selectable.iter() {
            assert!(has_path(&field.path) && has_path(&field.or), "{} {}", d.qualified(), field.label);
        }
        if let Some(scale) = &d.scale {
            let paths = [Some(&scale.spec_replicas), Some(&scale.status_replicas), scale.selector.as_ref()];
            assert!(paths.into_iter().flatten().all(has_path), "{}", d.qualified());
        }
    }
}

#[test]
fn no_field_is_selectable_twice() {
    for d in all() {
        let labels: BTreeSet<_> = d.selectable.iter().map(|field| &field.label).collect();
        assert_eq!(labels.len(), d.selectable.len(), "{}", d.qualified());
    }
}

/// Words that mean something to some table, so that odd values reach deep.
const WORDS: &[&str] = &[
    "metadata",
    "spec",
    "status",
    "name",
    "creationTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
    "controller",
    "containers",
    "initContainers",
    "template",
    "conditions",
    "type",
    "state",
    "terminated",
    "containerStatuses",
    "initContainerStatuses",
    "restartCount",
    "lastState",
    "finishedAt",
    "ports",
    "port",
    "subsets",
    "addresses",
    "endpoints",
    "rules",
    "host",
    "selector",
    "matchLabels",
    "matchExpressions",
    "operator",
    "values",
    "key",
    "metrics",
    "currentMetrics",
    "resource",
    "object",
    "target",
    "current",
    "averageValue",
    "hard",
    "used",
    "capacity",
    "storage",
    "series",
    "involvedObject",
    "regarding",
    "roleRef",
    "subjects",
    "completions",
    "parallelism",
    "startTime",
    "completionTime",
    "loadBalancer",
    "ingress",
    "behavior",
];

fn odd_value() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(WORDS);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        prop::sample::select(
            &["", "True", "In", "Resource", "Object", "LoadBalancer", "9999-12-31T23:59:59Z", "::", "ü"][..]
        )
        .prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 96, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(word.clone().prop_map(str::to_owned), inner, 0..8)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_object_has_a_row_of_the_right_length(object in odd_value()) {
        let now = "2025-01-01T00:00:00Z".parse().expect("a timestamp");
        for d in all() {
            prop_assert_eq!(d.columns.cells(&object, now).len(), d.columns.definitions().len(), "{}", d.qualified());
        }
    }

    #[test]
    fn any_object_can_be_converted_both_ways(object in odd_value()) {
        for d in all() {
            if let Some(conversion) = &d.conversion {
                let mut converted = object.clone();
                conversion.to_stored(&mut converted);
                conversion.to_served(&mut converted);
                prop_assert_eq!(object.is_object(), converted.is_object());
                if object.is_object() {
                    prop_assert_eq!(&converted["apiVersion"], &json!(d.api_version()));
                }
            }
        }
    }
}
