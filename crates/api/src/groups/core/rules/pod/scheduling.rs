//! Where a pod may run: selectors, affinities, tolerations, spreading, gates.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{
        NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration,
        TopologySpreadConstraint, WeightedPodAffinityTerm,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, NOT_POSITIVE, list, text},
        labels, names,
    },
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn validate_node_selector_labels(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if let Some(selector) = &spec.node_selector {
        labels::validate_labels(selector, path, errors);
    }
}

pub(super) fn validate_affinity(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let Some(affinity) = &spec.affinity else { return };
    if let Some(nodes) = &affinity.node_affinity {
        validate_node_affinity(nodes, &path.child("nodeAffinity"), errors);
    }
    if let Some(pods) = &affinity.pod_affinity {
        let at = path.child("podAffinity");
        validate_terms(list(&pods.required_during_scheduling_ignored_during_execution), &at, errors);
        validate_weighted(list(&pods.preferred_during_scheduling_ignored_during_execution), &at, errors);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let at = path.child("podAntiAffinity");
        validate_terms(list(&pods.required_during_scheduling_ignored_during_execution), &at, errors);
        validate_weighted(list(&pods.preferred_during_scheduling_ignored_during_execution), &at, errors);
    }
}

fn validate_node_affinity(affinity: &NodeAffinity, path: &Path, errors: &mut Errors) {
    if let Some(selector) = &affinity.required_during_scheduling_ignored_during_execution {
        validate_node_selector(selector, &path.child(REQUIRED), errors);
    }
    let preferred = list(&affinity.preferred_during_scheduling_ignored_during_execution);
    for (i, term) in preferred.iter().enumerate() {
        let at = path.child(PREFERRED).index(i);
        validate_weight(term.weight, &at, errors);
        validate_node_term(&term.preference, false, &at.child("preference"), errors);
    }
}

/// Terms of which a node has to satisfy one.
pub(crate) fn validate_node_selector(selector: &NodeSelector, path: &Path, errors: &mut Errors) {
    let at = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        errors.push(FieldError::required(&at, "must have at least one node selector term"));
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        validate_node_term(term, true, &at.index(i), errors);
    }
}

fn validate_node_term(term: &NodeSelectorTerm, strict: bool, path: &Path, errors: &mut Errors) {
    for (i, requirement) in list(&term.match_expressions).iter().enumerate() {
        validate_node_label(requirement, strict, &path.child("matchExpressions").index(i), errors);
    }
    for (i, requirement) in list(&term.match_fields).iter().enumerate() {
        validate_node_field(requirement, &path.child("matchFields").index(i), errors);
    }
}

/// `strict` asks for values that labels can have; a preference may wish for others.
fn validate_node_label(requirement: &NodeSelectorRequirement, strict: bool, path: &Path, errors: &mut Errors) {
    let values = list(&requirement.values);
    let at = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(FieldError::required(&at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => errors
            .push(FieldError::forbidden(&at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")),
        "Gt" | "Lt" if values.len() != 1 => {
            errors.push(FieldError::required(&at, "must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.push(FieldError::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    names::refuse(&requirement.key, &path.child("key"), names::qualified_name, errors);
    if strict {
        for (i, value) in values.iter().enumerate() {
            names::refuse(value, &at.index(i), names::label_value, errors);
        }
    }
}

fn validate_node_field(requirement: &NodeSelectorRequirement, path: &Path, errors: &mut Errors) {
    let values = list(&requirement.values);
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => errors.push(FieldError::required(
            &path.child("values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        )),
        "In" | "NotIn" => {}
        other => errors.push(FieldError::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    if requirement.key == "metadata.name" {
        for (i, value) in values.iter().enumerate() {
            names::refuse(value, &path.child("values").index(i), names::dns1123_subdomain, errors);
        }
    } else {
        let key = requirement.key.as_str();
        errors.push(FieldError::invalid(&path.child("key"), key, "not a valid field selector key"));
    }
}

fn validate_terms(terms: &[PodAffinityTerm], path: &Path, errors: &mut Errors) {
    for (i, term) in terms.iter().enumerate() {
        validate_term(term, &path.child(REQUIRED).index(i), errors);
    }
}

fn validate_weighted(terms: &[WeightedPodAffinityTerm], path: &Path, errors: &mut Errors) {
    for (i, term) in terms.iter().enumerate() {
        let at = path.child(PREFERRED).index(i);
        validate_weight(term.weight, &at, errors);
        validate_term(&term.pod_affinity_term, &at.child("podAffinityTerm"), errors);
    }
}

fn validate_weight(weight: i32, path: &Path, errors: &mut Errors) {
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(&path.child("weight"), weight, "must be in the range 1-100"));
    }
}

fn validate_term(term: &PodAffinityTerm, path: &Path, errors: &mut Errors) {
    for (field, selector) in [("labelSelector", &term.label_selector), ("namespaceSelector", &term.namespace_selector)]
    {
        if let Some(selector) = selector {
            labels::validate_selector(selector, &path.child(field), errors);
        }
    }
    for namespace in list(&term.namespaces) {
        names::refuse(namespace, &path.child("namespace"), names::dns1123_label, errors);
    }
    validate_label_keys(term, path, errors);
    if term.topology_key.is_empty() {
        errors.push(FieldError::required(&path.child("topologyKey"), "can not be empty"));
    }
    names::refuse(&term.topology_key, &path.child("topologyKey"), names::qualified_name, errors);
}

/// Keys whose values are taken from the pod itself. By now they stand in the selector once; a
/// second time means that the author put them there as well.
fn validate_label_keys(term: &PodAffinityTerm, path: &Path, errors: &mut Errors) {
    let (matching, mismatching) = (list(&term.match_label_keys), list(&term.mismatch_label_keys));
    for (field, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", mismatching)] {
        if keys.is_empty() {
            continue;
        }
        if term.label_selector.is_none() {
            let detail = "must not be specified when labelSelector is not set";
            errors.push(FieldError::forbidden(&path.child(field), detail));
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            names::refuse(key, &path.child(field).index(i), names::qualified_name, errors);
        }
    }
    if let Some(selector) = &term.label_selector {
        for (i, key) in matching.iter().enumerate() {
            if selector_keys(selector).filter(|used| *used == key).count() > 1 {
                let detail = "exists in both matchLabelKeys and labelSelector";
                errors.push(FieldError::invalid(&path.index(i), key.as_str(), detail));
            }
        }
    }
    for (i, key) in matching.iter().enumerate().filter(|(_, key)| mismatching.contains(key)) {
        errors.push(FieldError::invalid(
            &path.child("matchLabelKeys").index(i),
            key.as_str(),
            "exists in both matchLabelKeys and mismatchLabelKeys",
        ));
    }
}

fn selector_keys(selector: &LabelSelector) -> impl Iterator<Item = &String> {
    let labels = selector.match_labels.iter().flat_map(|labels| labels.keys());
    labels.chain(selector.match_expressions.iter().flatten().map(|requirement| &requirement.key))
}

pub(super) fn validate_tolerations(tolerations: &[Toleration], path: &Path, errors: &mut Errors) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let at = path.index(i);
        let (key, operator, value) = (text(&toleration.key), text(&toleration.operator), text(&toleration.value));
        let effect = text(&toleration.effect);
        if !key.is_empty() {
            names::refuse(key, &at.child("key"), names::qualified_name, errors);
        } else if operator != "Exists" {
            errors.push(FieldError::invalid(
                &at.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(&at.child("effect"), effect, detail));
        }
        match operator {
            "Equal" | "" => {
                let complaints = names::label_value(value);
                if !complaints.is_empty() {
                    errors.push(FieldError::invalid(&at.child("operator"), value, complaints.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(&at.child("operator"), value, detail));
            }
            "Exists" => {}
            other => errors.push(FieldError::not_supported(&at.child("operator"), other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            check::one_of(effect, EFFECTS, &at.child("effect"), errors);
        }
    }
}

/// What a taint does to pods that do not tolerate it.
pub(crate) fn validate_taint_effect(effect: &str, path: &Path, errors: &mut Errors) {
    check::required_one_of(effect, EFFECTS, path, errors);
}

pub(super) fn validate_gates(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    for (i, gate) in list(&spec.readiness_gates).iter().enumerate() {
        let at = path.child("readinessGates").index(i).child("conditionType");
        names::refuse(&gate.condition_type, &at, names::qualified_name, errors);
    }
    let mut seen = BTreeSet::new();
    for (i, gate) in list(&spec.scheduling_gates).iter().enumerate() {
        let at = path.child("schedulingGates").index(i);
        names::refuse(&gate.name, &at, names::qualified_name, errors);
        if !seen.insert(&gate.name) {
            errors.push(FieldError::duplicate(&at, gate.name.as_str()));
        }
    }
}

pub(super) fn validate_topology_spread(constraints: &[TopologySpreadConstraint], path: &Path, errors: &mut Errors) {
    for (i, constraint) in constraints.iter().enumerate() {
        let at = path.index(i);
        if constraint.max_skew <= 0 {
            errors.push(FieldError::invalid(&at.child("maxSkew"), constraint.max_skew, NOT_POSITIVE));
        }
        if constraint.topology_key.is_empty() {
            errors.push(FieldError::required(&at.child("topologyKey"), "can not be empty"));
        }
        let action = constraint.when_unsatisfiable.as_str();
        check::one_of(action, &["DoNotSchedule", "ScheduleAnyway"], &at.child("whenUnsatisfiable"), errors);
        let same = |other: &&TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key && other.when_unsatisfiable == action
        };
        if constraints[i + 1..].iter().find(same).is_some() {
            errors.push(FieldError::duplicate(
                &at.child("{topologyKey, whenUnsatisfiable}"),
                format!("{{{}, {action}}}", constraint.topology_key),
            ));
        }
        if let Some(domains) = constraint.min_domains {
            if domains <= 0 {
                errors.push(FieldError::invalid(&at.child("minDomains"), domains, NOT_POSITIVE));
            }
            if action != "DoNotSchedule" {
                let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.push(FieldError::invalid(&at.child("minDomains"), domains, detail));
            }
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            check::optional_one_of(policy, &["Honor", "Ignore"], &at.child(field), errors);
        }
        validate_spread_keys(constraint, &at.child("matchLabelKeys"), errors);
        if let Some(selector) = &constraint.label_selector {
            labels::validate_selector(selector, &at.child("labelSelector"), errors);
        }
    }
}

fn validate_spread_keys(constraint: &TopologySpreadConstraint, path: &Path, errors: &mut Errors) {
    let keys = list(&constraint.match_label_keys);
    if !keys.is_empty() && constraint.label_selector.is_none() {
        errors.push(FieldError::forbidden(path, "must not be specified when labelSelector is not set"));
    }
    for (i, key) in keys.iter().enumerate() {
        names::refuse(key, &path.index(i), names::qualified_name, errors);
        if constraint.label_selector.iter().flat_map(selector_keys).any(|used| used == key) {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(&path.index(i), key.as_str(), detail));
        }
    }
}
