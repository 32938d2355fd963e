//! ResourceQuotas.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaSpec, ScopedResourceSelectorRequirement};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{IMMUTABLE, list, shown},
        resources::{self, ResourceList},
    },
};

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// The kind `ResourceQuota`.
pub struct ResourceQuotaRules;

impl Rules for ResourceQuotaRules {
    type Object = ResourceQuota;

    fn default(quota: &mut ResourceQuota) {
        resources::canonicalize(&mut quota.spec.get_or_insert_default().hard);
        if let Some(status) = &mut quota.status {
            resources::canonicalize(&mut status.hard);
            resources::canonicalize(&mut status.used);
        }
    }

    fn prepare_create(quota: &mut ResourceQuota) {
        quota.status = Some(Default::default());
    }

    fn validate(quota: &ResourceQuota, errors: &mut Errors) {
        let Some(spec) = &quota.spec else { return };
        let path = Path::new("spec");
        validate_amounts(&spec.hard, &path.child("hard"), errors);
        validate_scopes(spec, &path.child("scopes"), errors);
        if spec.scope_selector.is_some() {
            validate_selector(spec, &path.child("scopeSelector").child("matchExpressions"), errors);
        }
    }

    fn validate_update(quota: &ResourceQuota, old: &ResourceQuota, errors: &mut Errors) {
        let scopes = |quota: &ResourceQuota| -> BTreeSet<String> {
            quota.spec.iter().flat_map(|spec| list(&spec.scopes)).cloned().collect()
        };
        if scopes(quota) != scopes(old) {
            let at = Path::new("spec").child("scopes");
            errors.push(FieldError::invalid(&at, shown(&scopes(quota)), IMMUTABLE));
        }
    }

    fn validate_status(quota: &ResourceQuota, _: &ResourceQuota, errors: &mut Errors) {
        let Some(status) = &quota.status else { return };
        validate_amounts(&status.hard, &Path::new("status").child("hard"), errors);
        validate_amounts(&status.used, &Path::new("status").child("used"), errors);
    }
}

fn validate_amounts(amounts: &Option<ResourceList>, path: &Path, errors: &mut Errors) {
    for (name, quantity) in amounts.iter().flatten() {
        let at = path.key(name);
        resources::quota_resource_name(name, &at, errors);
        resources::validate_quantity(name, quantity, &at, errors);
    }
}

/// A scope picks pods, so only what pods use can be limited in it.
fn applies(scope: &str, resource: &str) -> bool {
    let compute =
        ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"].contains(&resource);
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
                || resource.contains(".storageclass.storage.k8s.io/")
        }
        _ if SCOPES.contains(&scope) => resource == "pods" || compute,
        _ => true,
    }
}

fn misapplied<'a>(spec: &'a ResourceQuotaSpec, scope: &'a str) -> impl Iterator<Item = &'a String> {
    let limited = spec.hard.iter().flat_map(|hard| hard.keys());
    limited.filter(move |name| resources::is_quota(name) && !applies(scope, name))
}

fn validate_scopes(spec: &ResourceQuotaSpec, path: &Path, errors: &mut Errors) {
    let scopes = list(&spec.scopes);
    let mut refuse = |detail: &str| errors.push(FieldError::invalid(path, shown(&scopes), detail));
    for scope in scopes {
        if !SCOPES.contains(&scope.as_str()) {
            refuse("unsupported scope");
        }
        for _ in misapplied(spec, scope) {
            refuse("unsupported scope applied to resource");
        }
    }
    let all: Vec<_> = scopes.iter().map(String::as_str).collect();
    for _ in 0..conflicts(&all) {
        refuse("conflicting scopes");
    }
}

/// How many pairs of scopes exclude each other.
fn conflicts(scopes: &[&str]) -> usize {
    let pairs = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];
    pairs.iter().filter(|pair| pair.iter().all(|scope| scopes.contains(scope))).count()
}

fn validate_selector(spec: &ResourceQuotaSpec, path: &Path, errors: &mut Errors) {
    let requirements = spec.scope_selector.as_ref().map_or(&[][..], |selector| list(&selector.match_expressions));
    for requirement in requirements {
        let scope = requirement.scope_name.as_str();
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(&path.child("scopeName"), scope, "unsupported scope"));
        }
        for _ in misapplied(spec, scope) {
            let detail = "unsupported scope applied to resource";
            errors.push(FieldError::invalid(path, shown(&spec.scope_selector), detail));
        }
        validate_requirement(requirement, path, errors);
    }
    let all: Vec<_> = requirements.iter().map(|requirement| requirement.scope_name.as_str()).collect();
    for _ in 0..conflicts(&all) {
        errors.push(FieldError::invalid(path, shown(&list(&spec.scopes)), "conflicting scopes"));
    }
}

fn validate_requirement(requirement: &ScopedResourceSelectorRequirement, path: &Path, errors: &mut Errors) {
    let operator = requirement.operator.as_str();
    let values = list(&requirement.values);
    if !matches!(requirement.scope_name.as_str(), "PriorityClass" | "VolumeAttributesClass")
        && SCOPES.contains(&requirement.scope_name.as_str())
        && operator != "Exists"
    {
        errors.push(FieldError::invalid(
            &path.child("operator"),
            operator,
            "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
             ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
             ResourceQuotaScopeCrossNamespacePodAffinity",
        ));
    }
    match operator {
        "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
            &path.child("values"),
            "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        )),
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::invalid(
            &path.child("values"),
            shown(&values),
            "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
        )),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(FieldError::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
}
