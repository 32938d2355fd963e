//! Nodes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};

use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod::scheduling::validate_taint_effect,
    strategy::Rules,
    validation::{
        check::{list, shown, text},
        names, resources,
    },
};

/// The kind `Node`.
pub struct NodeRules;

impl Rules for NodeRules {
    type Object = Node;

    fn default(node: &mut Node) {
        if let Some(spec) = &mut node.spec {
            agree_on_ranges(spec);
        }
        if let Some(status) = &mut node.status {
            resources::canonicalize(&mut status.capacity);
            resources::canonicalize(&mut status.allocatable);
            if status.allocatable.is_none() {
                status.allocatable.clone_from(&status.capacity);
            }
        }
    }

    fn validate(node: &Node, errors: &mut Errors) {
        if let Some(spec) = &node.spec {
            validate_taints(list(&spec.taints), &Path::new("metadata").child("taints"), errors);
            validate_ranges(list(&spec.pod_cidrs), &Path::new("spec").child("podCIDRs"), errors);
        }
        validate_resources(node, errors);
    }

    fn validate_update(node: &Node, old: &Node, errors: &mut Errors) {
        validate_addresses(node, errors);
        let none = NodeSpec::default();
        let (new, old) = (node.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
        let path = Path::new("spec");
        if !list(&old.pod_cidrs).is_empty() && list(&new.pod_cidrs) != list(&old.pod_cidrs) {
            let detail = "node updates may not change podCIDR except from \"\" to valid";
            errors.push(FieldError::forbidden(&path.child("podCIDRs"), detail));
        }
        if !text(&old.provider_id).is_empty() && text(&new.provider_id) != text(&old.provider_id) {
            let detail = "node updates may not change providerID except from \"\" to valid";
            errors.push(FieldError::forbidden(&path.child("providerID"), detail));
        }
        if text(&new.external_id) != text(&old.external_id) {
            errors.push(FieldError::forbidden(&path.child("externalID"), "may not be updated"));
        }
    }

    fn validate_status(node: &Node, _: &Node, errors: &mut Errors) {
        validate_resources(node, errors);
        validate_addresses(node, errors);
    }
}

/// The pods' addresses go by two fields: one range, and one for each family.
fn agree_on_ranges(spec: &mut NodeSpec) {
    match list(&spec.pod_cidrs).first() {
        Some(first) => spec.pod_cidr = Some(first.clone()),
        None if !text(&spec.pod_cidr).is_empty() => spec.pod_cidrs = spec.pod_cidr.clone().map(|range| vec![range]),
        None => {}
    }
}

pub fn validate_taints(taints: &[Taint], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let at = path.index(i);
        names::refuse(&taint.key, &at.child("key"), names::qualified_name, errors);
        let complaints = names::label_value(text(&taint.value));
        if !complaints.is_empty() {
            errors.push(FieldError::invalid(&at.child("value"), text(&taint.value), complaints.join(";")));
        }
        validate_taint_effect(&taint.effect, &at.child("effect"), errors);
        if !seen.insert((&taint.key, &taint.effect)) {
            let mut error = FieldError::duplicate(&at, shown(taint));
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
    }
}

fn validate_ranges(ranges: &[String], path: &Path, errors: &mut Errors) {
    for (i, range) in ranges.iter().enumerate() {
        names::refuse(range, &path.index(i), names::cidr, errors);
        if ranges[..i].contains(range) {
            errors.push(FieldError::duplicate(&path.index(i), range.as_str()));
        }
    }
    let of_v4 = |v4: bool| {
        ranges.iter().filter(|range| names::parse_cidr(range).is_some_and(|(ip, _)| ip.is_ipv4() == v4)).count()
    };
    if of_v4(true) > 1 || of_v4(false) > 1 {
        let detail = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(path, shown(&ranges), detail));
    }
}

fn validate_resources(node: &Node, errors: &mut Errors) {
    let Some(status) = &node.status else { return };
    for (field, list) in [("capacity", &status.capacity), ("allocatable", &status.allocatable)] {
        for (name, quantity) in list.iter().flatten() {
            let at = Path::new("status").child(field).child(name);
            resources::validate_quantity(name, quantity, &at, errors);
        }
    }
}

fn validate_addresses(node: &Node, errors: &mut Errors) {
    let addresses = node.status.as_ref().map_or(&[][..], |status| list(&status.addresses));
    for (i, address) in addresses.iter().enumerate() {
        if addresses[..i].contains(address) {
            let at = Path::new("status").child("addresses").index(i);
            errors.push(FieldError::duplicate(&at, shown(address)));
        }
    }
}
