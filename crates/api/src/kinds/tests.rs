use std::collections::{BTreeMap, BTreeSet};

use super::all;
use crate::descriptor::{Scope, StatusRule};

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
            facts.extend(d.scale.map(|_| "scale"));
            facts.extend(d.generation.then_some("generation"));
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
        let group = d.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core").to_owned();
        assert_eq!(d.schema, format!("io.k8s.api.{group}.{}.{}", d.version, d.kind));
    }
}

#[test]
fn columns_and_cells_are_of_one_length_whatever_the_object() {
    let now = "2025-01-01T00:00:00Z".parse().expect("a timestamp");
    for d in all() {
        for object in [serde_json::json!({}), serde_json::json!(null), serde_json::json!({"spec": 1, "status": []})] {
            assert_eq!((d.columns.cells)(&object, now).len(), d.columns.definitions.len(), "{}", d.qualified());
        }
    }
}
