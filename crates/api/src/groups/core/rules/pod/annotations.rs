//! The annotations of a pod that the API itself understands.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::{
    field::{Errors, FieldError, Path},
    validation::check::{list, text},
    wellknown::kubernetes::{APPARMOR_PREFIX, MIRROR_POD, POD_DELETION_COST},
};

type Annotations = BTreeMap<String, String>;

pub(super) fn validate(annotations: &Annotations, spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if let Some(value) = annotations.get(MIRROR_POD)
        && text(&spec.node_name).is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(&path.key(MIRROR_POD), value.as_str(), detail));
    }
    if let Some(value) = annotations.get(POD_DELETION_COST)
        && !is_plain_integer(value)
    {
        errors.push(FieldError::invalid(&path.key(POD_DELETION_COST), value.as_str(), "must be a 32bit integer"));
    }
    for (key, profile) in annotations {
        let Some(container) = key.strip_prefix(APPARMOR_PREFIX) else { continue };
        if !has_container(spec, container) {
            errors.push(FieldError::invalid(&path.key(key), container, "container not found"));
        }
        let known = matches!(profile.as_str(), "" | "runtime/default" | "unconfined");
        if !known && !profile.starts_with("localhost/") {
            let detail = format!("invalid AppArmor profile name: {profile:?}");
            errors.push(FieldError::invalid(&path.key(key), profile.as_str(), detail));
        }
    }
}

/// Mirror pods stay mirror pods, and profiles stay what they were.
pub(super) fn validate_update(pod: &Pod, old: &Pod, errors: &mut Errors) {
    let none = Annotations::new();
    let new = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let old = old.metadata.annotations.as_ref().unwrap_or(&none);
    let path = Path::new("metadata").child("annotations");
    let kind = |key: &str| match key {
        MIRROR_POD => Some("mirror pod annotation"),
        _ if key.starts_with(APPARMOR_PREFIX) => Some("AppArmor annotations"),
        _ => None,
    };
    for (key, what) in
        old.iter().filter(|(key, value)| new.get(*key) != Some(value)).filter_map(|(k, _)| Some((k, kind(k)?)))
    {
        errors.push(FieldError::forbidden(&path.key(key), format!("may not remove or update {what}")));
    }
    for (key, what) in new.keys().filter(|key| !old.contains_key(*key)).filter_map(|k| Some((k, kind(k)?))) {
        errors.push(FieldError::forbidden(&path.key(key), format!("may not add {what}")));
    }
}

fn has_container(spec: &PodSpec, name: &str) -> bool {
    let ephemeral = list(&spec.ephemeral_containers).iter().map(|container| &container.name);
    spec.containers
        .iter()
        .chain(list(&spec.init_containers))
        .map(|container| &container.name)
        .chain(ephemeral)
        .any(|known| known == name)
}

/// An `i32` without a plus sign or leading zeros.
fn is_plain_integer(value: &str) -> bool {
    value.parse::<i32>().is_ok_and(|number| number.to_string() == value)
}
