//! What may change about a pod that exists: hardly anything.

use k8s_openapi::api::core::v1::{Affinity, Container, NodeAffinity, NodeSelectorTerm, Pod, PodSpec, Toleration};

use super::{containers, os, qos, scheduling};
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{list, shown, text},
        diff, names,
        resources::ResourceList,
    },
    wellknown::kubernetes::MIRROR_POD,
};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
     `spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be \
     set to 1 if it was previously negative)";

pub(super) fn validate(pod: &Pod, old: &Pod, errors: &mut Errors) {
    let (Some(new), Some(old)) = (&pod.spec, &old.spec) else { return };
    let path = Path::new("spec");
    let lists = [
        ("containers", new.containers.len(), old.containers.len()),
        ("initContainers", list(&new.init_containers).len(), list(&old.init_containers).len()),
    ];
    for (field, new, old) in lists {
        if new != old {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(field), detail));
            return;
        }
    }
    if !validate_deadline(new, old, &path.child("activeDeadlineSeconds"), errors) {
        return;
    }
    let (tolerations, before) = (list(&new.tolerations), list(&old.tolerations));
    validate_added_tolerations(tolerations, before, &path.child("tolerations"), errors);
    validate_removed_gates(new, old, &path.child("schedulingGates"), errors);

    let mut allowed = with_changes_undone(new, old);
    if !list(&old.scheduling_gates).is_empty() {
        validate_gated(&mut allowed, old, &path, errors);
    }
    let (allowed, old) = (shown(&allowed), shown(old));
    if !diff::same(&old, &allowed) {
        errors.push(FieldError::forbidden(
            &path,
            format!("pod updates may not change fields other than {UPDATABLE}\n{}", diff::describe(&old, &allowed)),
        ));
    }
}

/// The new spec with the old values wherever a change is allowed, or has been judged already.
fn with_changes_undone(new: &PodSpec, old: &PodSpec) -> PodSpec {
    let mut spec = new.clone();
    let images = |new: &mut [Container], old: &[Container]| {
        for (new, old) in new.iter_mut().zip(old) {
            new.image.clone_from(&old.image);
        }
    };
    images(&mut spec.containers, &old.containers);
    images(spec.init_containers.as_deref_mut().unwrap_or_default(), list(&old.init_containers));
    spec.active_deadline_seconds = old.active_deadline_seconds;
    spec.scheduling_gates.clone_from(&old.scheduling_gates);
    spec.tolerations.clone_from(&old.tolerations);
    let (grace, before) = (new.termination_grace_period_seconds, old.termination_grace_period_seconds);
    if grace == Some(1) && before.is_some_and(|seconds| seconds < 0) {
        spec.termination_grace_period_seconds = before;
    }
    spec
}

/// A deadline may be set or drawn nearer. Says whether the rest is worth looking at.
fn validate_deadline(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut Errors) -> bool {
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(seconds), _) if !(0..=i64::from(i32::MAX)).contains(&seconds) => {
            errors.push(FieldError::invalid(path, seconds, names::inclusive_range(0, i32::MAX.into())));
            false
        }
        (Some(seconds), Some(before)) if before < seconds => {
            errors.push(FieldError::invalid(path, seconds, "must be less than or equal to previous value"));
            false
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(path, serde_json::Value::Null, detail));
            true
        }
        _ => true,
    }
}

fn validate_added_tolerations(new: &[Toleration], old: &[Toleration], path: &Path, errors: &mut Errors) {
    let same = |a: &Toleration, b: &Toleration| {
        [(&a.key, &b.key), (&a.operator, &b.operator), (&a.value, &b.value), (&a.effect, &b.effect)]
            .iter()
            .all(|(a, b)| text(a) == text(b))
    };
    if old.iter().all(|before| new.iter().any(|toleration| same(toleration, before))) {
        scheduling::validate_tolerations(new, path, errors);
    } else {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(path, detail));
    }
}

fn validate_removed_gates(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut Errors) {
    let before = list(&old.scheduling_gates);
    for (i, gate) in list(&new.scheduling_gates).iter().enumerate().filter(|(_, gate)| !before.contains(gate)) {
        let detail = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.name);
        errors.push(FieldError::forbidden(&path.index(i).child("name"), detail));
    }
}

/// While a pod is held back by gates, where it may go can be narrowed down. What is fine is
/// undone in `new`.
fn validate_gated(new: &mut PodSpec, old: &PodSpec, path: &Path, errors: &mut Errors) {
    let selected = |spec: &PodSpec| spec.node_selector.clone().unwrap_or_default();
    let (wanted, before) = (selected(new), selected(old));
    if before.iter().any(|(key, value)| wanted.get(key) != Some(value)) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid(&path.child("nodeSelector"), shown(&wanted), detail));
    }
    new.node_selector.clone_from(&old.node_selector);

    let nodes = |affinity: &Option<Affinity>| affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone());
    let (wanted, before) = (nodes(&new.affinity), nodes(&old.affinity));
    if wanted == before {
        return;
    }
    validate_narrowed(wanted.as_ref(), before.as_ref(), &path.child("affinity").child("nodeAffinity"), errors);
    match (&mut new.affinity, &old.affinity) {
        (None, _) => new.affinity = before.map(|nodes| Affinity { node_affinity: Some(nodes), ..Affinity::default() }),
        (Some(affinity), None) if affinity.pod_affinity.is_none() && affinity.pod_anti_affinity.is_none() => {
            new.affinity = None;
        }
        (Some(affinity), _) => affinity.node_affinity = before,
    }
}

fn validate_narrowed(new: Option<&NodeAffinity>, old: Option<&NodeAffinity>, path: &Path, errors: &mut Errors) {
    let terms = |affinity: Option<&NodeAffinity>| -> Vec<NodeSelectorTerm> {
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        required.map(|selector| selector.node_selector_terms.clone()).unwrap_or_default()
    };
    let (new, old) = (terms(new), terms(old));
    let at = path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
    if old.is_empty() {
        return;
    }
    if new.len() != old.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid(&at, shown(&new), detail));
        return;
    }
    for (i, (new, old)) in new.iter().zip(&old).enumerate() {
        let (labels, fields) = (list(&old.match_expressions), list(&old.match_fields));
        let (new_labels, new_fields) = (list(&new.match_expressions), list(&new.match_fields));
        let was_empty = labels.is_empty() && fields.is_empty();
        let grew = new_labels.starts_with(labels) && new_fields.starts_with(fields);
        if !grew || was_empty && !(new_labels.is_empty() && new_fields.is_empty()) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(&at.index(i), shown(new), detail));
        }
    }
}

/// Judges a write through `/ephemeralcontainers`: containers may be added, never changed.
pub fn validate_ephemeral_containers_update(pod: &Pod, old: &Pod, errors: &mut Errors) {
    if is_mirror(old) {
        errors.push(FieldError::forbidden(&Path::ROOT, "static pods do not support ephemeral containers"));
        return;
    }
    let (Some(new), Some(old)) = (&pod.spec, &old.spec) else { return };
    let path = Path::new("spec").child("ephemeralContainers");
    for before in list(&old.ephemeral_containers) {
        let name = &before.name;
        match list(&new.ephemeral_containers).iter().find(|container| container.name == *name) {
            None => {
                let detail = format!("existing ephemeral containers {name:?} may not be removed\n");
                errors.push(FieldError::forbidden(&path, detail));
            }
            Some(now) => {
                let (before, now) = (shown(before), shown(now));
                if !diff::same(&before, &now) {
                    let changes = diff::describe(&before, &now);
                    let detail = format!("existing ephemeral containers {name:?} may not be changed\n{changes}");
                    errors.push(FieldError::forbidden(&path, detail));
                }
            }
        }
    }
}

/// What a write through `/resize` may say: how much each container gets, and how it takes a change.
pub(super) fn take_resources(spec: &mut PodSpec, given: PodSpec) {
    let take = |containers: &mut [Container], given: Vec<Container>| {
        for given in given {
            if let Some(container) = containers.iter_mut().find(|container| container.name == given.name) {
                container.resources = given.resources;
                container.resize_policy = given.resize_policy;
            }
        }
    };
    take(&mut spec.containers, given.containers);
    take(spec.init_containers.as_deref_mut().unwrap_or_default(), given.init_containers.unwrap_or_default());
}

/// Judges a write through `/resize`: cpu and memory of containers, and nothing else.
pub fn validate_resize(pod: &Pod, old: &Pod, errors: &mut Errors) {
    let (Some(new), Some(before)) = (&pod.spec, &old.spec) else { return };
    let refusal = if has_pod_resources(new) || has_pod_resources(before) {
        Some("pods with pod-level resources cannot be resized")
    } else if is_mirror(old) {
        Some("static pods cannot be resized")
    } else if os::is_windows(before) {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(detail) = refusal {
        errors.push(FieldError::forbidden(&Path::ROOT, detail));
        return;
    }
    let path = Path::new("spec");
    if qos::qos_class(new) != qos::qos_class(before) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, qos::qos_class(new), detail));
    }
    let mut undone = new.clone();
    for (i, (now, then)) in undone.containers.iter_mut().zip(&before.containers).enumerate() {
        validate_container_resize(now, then, &path.child("containers").index(i).child("resources"), errors);
        keep_compute(now, then);
    }
    let sidecars = undone.init_containers.iter_mut().flatten().zip(list(&before.init_containers)).enumerate();
    for (i, (now, then)) in sidecars.filter(|(_, (_, then))| containers::is_sidecar(then)) {
        validate_container_resize(now, then, &path.child("initContainers").index(i).child("resources"), errors);
        keep_compute(now, then);
    }
    if !diff::same(&shown(before), &shown(&undone)) {
        errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
    }
}

fn has_pod_resources(spec: &PodSpec) -> bool {
    let any = |list: &Option<ResourceList>| list.as_ref().is_some_and(|list| !list.is_empty());
    spec.resources.as_ref().is_some_and(|resources| any(&resources.requests) || any(&resources.limits))
}

fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_POD))
}

fn validate_container_resize(new: &Container, old: &Container, path: &Path, errors: &mut Errors) {
    let (now, then) = (new.resources.clone().unwrap_or_default(), old.resources.clone().unwrap_or_default());
    for (field, now, then) in [("requests", &now.requests, &then.requests), ("limits", &now.limits, &then.limits)] {
        let missing = |name: &String| now.as_ref().is_none_or(|list| !list.contains_key(name));
        if then.iter().flat_map(|list| list.keys()).any(missing) {
            errors.push(FieldError::forbidden(&path.child(field), format!("resource {field} cannot be removed")));
        }
    }
}

/// Undoes changes of cpu and memory.
fn keep_compute(new: &mut Container, old: &Container) {
    let keep = |now: &mut Option<ResourceList>, then: Option<&ResourceList>| {
        for name in ["cpu", "memory"] {
            match then.and_then(|list| list.get(name)) {
                Some(before) => {
                    now.get_or_insert_default().insert(name.to_owned(), before.clone());
                }
                None => {
                    now.as_mut().and_then(|list| list.remove(name));
                }
            }
        }
    };
    let then = old.resources.as_ref();
    let now = new.resources.get_or_insert_default();
    keep(&mut now.limits, then.and_then(|resources| resources.limits.as_ref()));
    keep(&mut now.requests, then.and_then(|resources| resources.requests.as_ref()));
}
