//! `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy`: four fields that say one thing.

use k8s_openapi::api::core::v1::ServiceSpec;

use super::{NONE, family, is_headless};
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{list, one_of, optional_one_of, shown, text, unique},
        names,
    },
};

const FAMILIES: &[&str] = &["IPv4", "IPv6"];
const POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];

pub fn validate(spec: &ServiceSpec, path: &Path, errors: &mut Errors) {
    let (ips, ips_path) = (list(&spec.cluster_ips), path.child("clusterIPs"));
    let (ip, whole) = (text(&spec.cluster_ip), shown(&ips));
    match ips.first() {
        None if !ip.is_empty() => errors.push(FieldError::required(&ips_path, "")),
        Some(_) if ip.is_empty() => {
            errors.push(FieldError::invalid(&ips_path, whole, "must be empty when `clusterIP` is not specified"));
        }
        Some(first) if first != ip => {
            errors.push(FieldError::invalid(&ips_path, whole, "first value must match `clusterIP`"));
        }
        _ => {}
    }
    let families =
        || list(&spec.ip_families).iter().enumerate().map(|(i, f)| (path.child("ipFamilies").index(i), f.as_str()));
    families().for_each(|(path, family)| one_of(family, FAMILIES, &path, errors));
    unique(families(), errors);
    optional_one_of(&spec.ip_family_policy, POLICIES, &path.child("ipFamilyPolicy"), errors);
    if validate_list(ips, &ips_path, errors) {
        validate_stack(spec, &ips_path, errors);
    }
}

/// Whether every entry is an address (or the one that says there is none).
fn validate_list(ips: &[String], path: &Path, errors: &mut Errors) -> bool {
    let before = errors.len();
    for (i, ip) in ips.iter().enumerate() {
        if i > 0 || ip != NONE {
            names::refuse(ip, &path.index(i), names::ip, errors);
        } else if ips.len() > 1 {
            errors.push(FieldError::invalid(path, shown(&ips), "'None' must be the first and only value"));
        }
    }
    let sound = errors.len() == before;
    if ips.len() > 2 {
        errors.push(FieldError::invalid(path, shown(&ips), "may only hold up to 2 values"));
    }
    sound
}

fn validate_stack(spec: &ServiceSpec, path: &Path, errors: &mut Errors) {
    let ips = list(&spec.cluster_ips);
    if ips.len() > 1 && ips.iter().map(|ip| family(ip)).collect::<std::collections::BTreeSet<_>>().len() < 2 {
        errors.push(FieldError::invalid(path, shown(&ips), "may specify no more than one IP for each IP family"));
    }
    if is_headless(spec) {
        return;
    }
    for (i, (ip, wanted)) in ips.iter().zip(list(&spec.ip_families)).enumerate() {
        if family(ip).is_some_and(|family| family != wanted) && FAMILIES.contains(&wanted.as_str()) {
            let words = format!("expected an {wanted} value as indicated by `ipFamilies[{i}]`");
            errors.push(FieldError::invalid(&path.index(i), ip.as_str(), words));
        }
    }
}
