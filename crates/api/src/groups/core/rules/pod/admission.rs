//! What upstream's default admission plugins do to every pod without looking anything up: a priority, a service account,
//! selectors completed from the pod's labels. Tolerations, whose time is a setting, are the server's.

use k8s_openapi::{
    api::core::v1::{Pod, PodAffinityTerm, PodSpec},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};

use crate::{
    validation::{
        check::{list, text},
        labels::Map,
    },
    wellknown::{
        DEFAULT_SERVICE_ACCOUNT,
        kubernetes::{MIRROR_POD, system_priority},
    },
};

pub(super) fn admit_create(pod: &mut Pod) {
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let mirror = pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_POD));
    let Some(spec) = &mut pod.spec else { return };
    prioritize(spec);
    if !mirror && text(&spec.service_account_name).is_empty() {
        spec.service_account_name = Some(DEFAULT_SERVICE_ACCOUNT.to_owned());
        spec.service_account.clone_from(&spec.service_account_name);
    }
    complete_selectors(spec, &labels);
}

pub(super) fn admit_update(pod: &mut Pod, old: &Pod) {
    let (Some(spec), Some(old)) = (&mut pod.spec, &old.spec) else { return };
    // Whoever replaces a pod from a manifest need not know what was computed.
    spec.priority = spec.priority.or(old.priority);
    if spec.preemption_policy.is_none() {
        spec.preemption_policy.clone_from(&old.preemption_policy);
    }
}

/// The numbers behind the classes that always exist. Other classes are objects, which somebody
/// with access to them has to look up.
fn prioritize(spec: &mut PodSpec) {
    let class = text(&spec.priority_class_name);
    let Some(priority) = (if class.is_empty() { Some(0) } else { system_priority(class) }) else { return };
    spec.priority.get_or_insert(priority);
    spec.preemption_policy.get_or_insert_with(|| "PreemptLowerPriority".to_owned());
}

/// Turns `matchLabelKeys` into the requirements they stand for.
fn complete_selectors(spec: &mut PodSpec, labels: &Map) {
    let Some(affinity) = &mut spec.affinity else { return };
    let (near, far) = (&mut affinity.pod_affinity, &mut affinity.pod_anti_affinity);
    let near = near.iter_mut().map(|a| {
        (
            &mut a.required_during_scheduling_ignored_during_execution,
            &mut a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let far = far.iter_mut().map(|a| {
        (
            &mut a.required_during_scheduling_ignored_during_execution,
            &mut a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    for (required, preferred) in near.chain(far) {
        let preferred = preferred.iter_mut().flatten().map(|weighted| &mut weighted.pod_affinity_term);
        required.iter_mut().flatten().chain(preferred).for_each(|term| complete_selector(term, labels));
    }
}

fn complete_selector(term: &mut PodAffinityTerm, labels: &Map) {
    let Some(selector) = &mut term.label_selector else { return };
    for (keys, operator) in [(&term.match_label_keys, "In"), (&term.mismatch_label_keys, "NotIn")] {
        for (key, value) in list(keys).iter().filter_map(|key| Some((key, labels.get(key)?))) {
            add_requirement(selector, key, operator, value);
        }
    }
}

fn add_requirement(selector: &mut LabelSelector, key: &str, operator: &str, value: &str) {
    selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: Some(vec![value.to_owned()]),
    });
}
