//! Resource lists: `{cpu: 500m, memory: 1Gi}`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{ResourceClaim, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    check::{NEGATIVE, NOT_POSITIVE, list},
    names,
};
use crate::{
    field::{Errors, FieldError, Path},
    quantity::Quantity as Amount,
};

pub type ResourceList = BTreeMap<String, Quantity>;

const HUGE_PAGES: &str = "hugepages-";
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
/// The resources of which there are only whole ones.
const INTEGERS: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Reads a quantity that is known to be valid; anything else counts as nothing.
pub fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or_default()
}

/// The amount of one resource in a list, if it is there.
pub fn find(resources: &Option<ResourceList>, name: &str) -> Option<Amount> {
    resources.as_ref()?.get(name).map(amount)
}

/// Writes quantities as the API shows them: rounded up to a thousandth, in the shortest form.
pub fn canonicalize(resources: &mut Option<ResourceList>) {
    for quantity in resources.iter_mut().flat_map(BTreeMap::values_mut) {
        canonicalize_one(quantity);
    }
}

pub fn canonicalize_one(quantity: &mut Quantity) {
    if let Ok(amount) = Amount::parse(&quantity.0) {
        quantity.0 = amount.rounded_to_milli().canonical();
    }
}

/// [`canonicalize`] for requests and limits.
pub fn canonicalize_requirements(requirements: &mut ResourceRequirements) {
    canonicalize(&mut requirements.limits);
    canonicalize(&mut requirements.requests);
}

/// Gives every limited resource that is not asked for a request as large as its limit.
pub fn request_limits(requirements: &mut ResourceRequirements) {
    if let Some(limits) = &requirements.limits {
        let requests = requirements.requests.get_or_insert_default();
        for (name, limit) in limits {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
}

/// What a container asks for and may use.
pub fn validate_container(
    requirements: &ResourceRequirements,
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    validate_requirements(requirements, container_resource_name, claims, path, errors);
}

/// What all containers of a pod ask for and may use together.
pub fn validate_pod(requirements: &ResourceRequirements, path: &Path, errors: &mut Errors) {
    if requirements.claims.is_some() {
        errors.push(FieldError::forbidden(&path.child("claims"), "claims cannot be set for Resources at pod-level"));
    }
    let without_claims = ResourceRequirements { claims: None, ..requirements.clone() };
    validate_requirements(&without_claims, pod_resource_name, &BTreeSet::new(), path, errors);
}

fn validate_requirements(
    requirements: &ResourceRequirements,
    check_name: impl Fn(&str, &Path, &mut Errors),
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    let (limits_at, requests_at) = (path.child("limits"), path.child("requests"));
    let (limits, requests) = (&requirements.limits, &requirements.requests);
    for (name, quantity) in limits.iter().flatten() {
        let at = limits_at.key(name);
        check_name(name, &at, errors);
        validate_quantity(name, quantity, &at, errors);
        validate_huge_pages(name, quantity, &at, errors);
    }
    for (name, quantity) in requests.iter().flatten() {
        let at = requests_at.key(name);
        check_name(name, &at, errors);
        validate_quantity(name, quantity, &at, errors);
        let wanted = amount(quantity);
        match limits.as_ref().and_then(|limits| limits.get(name)) {
            Some(limit) if wanted != amount(limit) && !may_overcommit(name) => errors.push(FieldError::invalid(
                &requests_at,
                quantity.0.as_str(),
                format!("must be equal to {name} limit of {}", limit.0),
            )),
            Some(limit) if wanted > amount(limit) => errors.push(FieldError::invalid(
                &requests_at,
                quantity.0.as_str(),
                format!("must be less than or equal to {name} limit of {}", limit.0),
            )),
            None if !may_overcommit(name) => {
                errors.push(FieldError::required(&limits_at, "Limit must be set for non overcommitable resources"));
            }
            _ => {}
        }
        validate_huge_pages(name, quantity, &at, errors);
    }
    let mut all = limits.iter().chain(requests).flat_map(BTreeMap::keys);
    let computes = |name: &String| matches!(name.as_str(), "cpu" | "memory");
    if all.clone().any(|name| is_huge_pages(name)) && !all.any(computes) {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
    validate_claims(list(&requirements.claims), claims, &path.child("claims"), errors);
}

fn validate_claims(claims: &[ResourceClaim], known: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    let mut seen: Vec<(&str, Option<&str>)> = Vec::new();
    for (i, claim) in claims.iter().enumerate() {
        let at = path.index(i);
        if claim.name.is_empty() {
            errors.push(FieldError::required(&at, ""));
            continue;
        }
        let name = claim.name.as_str();
        let request = claim.request.as_deref().filter(|request| !request.is_empty());
        if let Some(request) = request {
            names::refuse(request, &at.child("request"), names::dns1123_label, errors);
        }
        // A claim as a whole overlaps with each of its requests.
        if seen.iter().any(|(n, r)| *n == name && (r.is_none() || request.is_none() || *r == request)) {
            errors.push(FieldError::duplicate(&at, name));
        }
        seen.push((name, request));
        if !known.contains(name) {
            let mut error = FieldError::not_found(&at, name);
            error.detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if known.is_empty() {
                error.detail += " which is empty";
            } else {
                error.detail += &format!(": {}", known.iter().copied().collect::<Vec<_>>().join(", "));
            }
            errors.push(error);
        }
    }
}

/// A quantity of the named resource: readable, not negative, whole where halves make no sense.
pub fn validate_quantity(name: &str, quantity: &Quantity, path: &Path, errors: &mut Errors) {
    let Some(amount) = readable(quantity, path, errors) else { return };
    if amount.is_negative() {
        errors.push(FieldError::invalid(path, quantity.0.as_str(), NEGATIVE));
    }
    if (INTEGERS.contains(&name) || is_extended(name)) && amount.as_milli() % 1000 != 0 {
        errors.push(FieldError::invalid(path, quantity.0.as_str(), "must be an integer"));
    }
}

pub fn validate_positive(quantity: &Quantity, path: &Path, errors: &mut Errors) {
    let Some(amount) = readable(quantity, path, errors) else { return };
    if amount.is_negative() || amount.is_zero() {
        errors.push(FieldError::invalid(path, quantity.0.as_str(), NOT_POSITIVE));
    }
}

fn readable(quantity: &Quantity, path: &Path, errors: &mut Errors) -> Option<Amount> {
    Amount::parse(&quantity.0)
        .inspect_err(|error| errors.push(FieldError::invalid(path, quantity.0.as_str(), error.to_string())))
        .ok()
}

fn validate_huge_pages(name: &str, quantity: &Quantity, path: &Path, errors: &mut Errors) {
    let Some(page) = name.strip_prefix(HUGE_PAGES) else { return };
    if !Amount::parse(page).is_ok_and(|page| amount(quantity).is_multiple_of(&page)) {
        let words = format!("{} is not positive integer multiple of {name}", quantity.0);
        errors.push(FieldError::invalid(path, quantity.0.as_str(), words));
    }
}

/// A resource of any kind of list: known, or qualified by a domain.
pub fn resource_name(name: &str, path: &Path, errors: &mut Errors) {
    let before = errors.len();
    names::refuse(name, path, names::qualified_name, errors);
    if errors.len() == before && !name.contains('/') && !is_standard(name) {
        errors.push(FieldError::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
}

/// A resource that a container can use.
pub fn container_resource_name(name: &str, path: &Path, errors: &mut Errors) {
    resource_name(name, path, errors);
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_pages(name) {
            errors.push(FieldError::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(FieldError::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

fn pod_resource_name(name: &str, path: &Path, errors: &mut Errors) {
    let before = errors.len();
    resource_name(name, path, errors);
    if errors.len() == before && !matches!(name, "cpu" | "memory") && !is_huge_pages(name) {
        errors.push(FieldError::not_supported(path, name, &["cpu", "hugepages-", "memory"]));
    }
}

/// A resource that a quota can count.
pub fn quota_resource_name(name: &str, path: &Path, errors: &mut Errors) {
    resource_name(name, path, errors);
    if !name.contains('/') && !is_quota(name) {
        errors.push(FieldError::invalid(path, name, "must be a standard resource for quota"));
    }
}

pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// Known to the API itself: no domain, or one of its own.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Offered by a device plugin: somebody else's domain, and a name that a quota could count too.
pub fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Whether more may be requested than there is.
pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name) || is_huge_pages(name) || name.starts_with("requests.hugepages-")
}

/// Something a quota can limit by a plain name.
pub fn is_quota(name: &str) -> bool {
    is_standard(name) && name != "storage"
}

#[cfg(test)]
mod tests;
