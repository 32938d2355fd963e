//! LimitRanges.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{LimitRange, LimitRangeItem},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        names,
        resources::{self, ResourceList},
    },
};

/// The kind `LimitRange`.
pub struct LimitRangeRules;

impl Rules for LimitRangeRules {
    type Object = LimitRange;

    fn default(range: &mut LimitRange) {
        range.spec.get_or_insert_default().limits.iter_mut().for_each(default_item);
    }

    fn validate(range: &LimitRange, errors: &mut Errors) {
        let Some(spec) = &range.spec else { return };
        let mut seen = BTreeSet::new();
        for (i, item) in spec.limits.iter().enumerate() {
            let at = Path::new("spec").child("limits").index(i);
            validate_type(&item.type_, &at.child("type"), errors);
            if !seen.insert(&item.type_) {
                errors.push(FieldError::duplicate(&at.child("type"), item.type_.as_str()));
            }
            validate_item(item, &at, errors);
        }
    }
}

fn default_item(item: &mut LimitRangeItem) {
    for list in
        [&mut item.max, &mut item.min, &mut item.default, &mut item.default_request, &mut item.max_limit_request_ratio]
    {
        resources::canonicalize(list);
    }
    if item.type_ != "Container" {
        return;
    }
    // Limits default to what is allowed at most; requests to limits, or to what is asked at least.
    complete(&mut item.default, &item.max);
    complete(&mut item.default_request, &item.default);
    complete(&mut item.default_request, &item.min);
}

fn complete(list: &mut Option<ResourceList>, from: &Option<ResourceList>) {
    let list = list.get_or_insert_default();
    for (name, quantity) in from.iter().flatten() {
        list.entry(name.clone()).or_insert_with(|| quantity.clone());
    }
}

fn validate_type(kind: &str, path: &Path, errors: &mut Errors) {
    let before = errors.len();
    names::refuse(kind, path, names::qualified_name, errors);
    let known = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
    if errors.len() == before && !kind.contains('/') && !known {
        errors.push(FieldError::invalid(path, kind, "must be a standard limit type or fully qualified"));
    }
}

fn validate_item(item: &LimitRangeItem, path: &Path, errors: &mut Errors) {
    let mut names = |field: &str, list: &Option<ResourceList>| {
        for name in list.iter().flat_map(|list| list.keys()) {
            let at = path.child(field).key(name);
            match item.type_.as_str() {
                "Pod" | "Container" => resources::container_resource_name(name, &at, errors),
                _ => resources::resource_name(name, &at, errors),
            }
        }
    };
    names("max", &item.max);
    names("min", &item.min);
    if item.type_ == "Pod" {
        for (field, list) in [("default", &item.default), ("defaultRequest", &item.default_request)] {
            if list.as_ref().is_some_and(|list| !list.is_empty()) {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(&path.child(field), detail));
            }
        }
    } else {
        names("default", &item.default);
        names("defaultRequest", &item.default_request);
    }
    if item.type_ == "PersistentVolumeClaim" && find(&item.min, "storage").or(find(&item.max, "storage")).is_none() {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(FieldError::required(&path.child("limits"), detail));
    }
    let mut names = |field: &str, list: &Option<ResourceList>| {
        for name in list.iter().flat_map(|list| list.keys()) {
            resources::resource_name(name, &path.child(field).key(name), errors);
        }
    };
    names("maxLimitRequestRatio", &item.max_limit_request_ratio);
    let lists = [&item.max, &item.min, &item.default, &item.default_request, &item.max_limit_request_ratio];
    let all: BTreeSet<_> = lists.into_iter().flatten().flat_map(|list| list.keys()).collect();
    for name in all {
        validate_order(item, name, path, errors);
    }
}

fn find<'a>(list: &'a Option<ResourceList>, name: &str) -> Option<&'a Quantity> {
    list.as_ref()?.get(name)
}

/// One resource: min ≤ default request ≤ default ≤ max, and a ratio that they can meet.
fn validate_order(item: &LimitRangeItem, name: &str, path: &Path, errors: &mut Errors) {
    let whole_pod = item.type_ == "Pod";
    let (min, max) = (find(&item.min, name), find(&item.max, name));
    let limit = find(&item.default, name).filter(|_| !whole_pod);
    let request = find(&item.default_request, name).filter(|_| !whole_pod);
    let ratio = find(&item.max_limit_request_ratio, name);
    let mut ordered =
        |small: Option<&Quantity>, what, large: Option<&Quantity>, than, field: &str, culprit: Option<&Quantity>| {
            if let (Some(small), Some(large), Some(culprit)) = (small, large, culprit)
                && resources::amount(small) > resources::amount(large)
            {
                let detail = format!("{what} value {} is greater than {than} value {}", small.0, large.0);
                errors.push(FieldError::invalid(&path.child(field).key(name), culprit.0.as_str(), detail));
            }
        };
    ordered(min, "min", max, "max", "min", min);
    ordered(min, "min", request, "default request", "defaultRequest", request);
    ordered(request, "default request", max, "max", "defaultRequest", request);
    ordered(request, "default request", limit, "default limit", "defaultRequest", request);
    ordered(min, "min", limit, "default", "default", min);
    ordered(limit, "default", max, "max", "default", max);
    if let Some(ratio) = ratio {
        validate_ratio(ratio, min, max, &path.child("maxLimitRequestRatio").key(name), errors);
    }
    if let (Some(limit), Some(request)) = (limit, request)
        && !resources::may_overcommit(name)
        && resources::amount(limit) != resources::amount(request)
    {
        let detail = format!("default value {} must equal to defaultRequest value {} in {name}", limit.0, request.0);
        errors.push(FieldError::invalid(&path.child("defaultRequest").key(name), request.0.as_str(), detail));
    }
}

fn validate_ratio(ratio: &Quantity, min: Option<&Quantity>, max: Option<&Quantity>, path: &Path, errors: &mut Errors) {
    let milli = |quantity: &Quantity| resources::amount(quantity).as_milli() as f64;
    if milli(ratio) < 1000.0 {
        errors.push(FieldError::invalid(path, ratio.0.as_str(), format!("ratio {} is less than 1", ratio.0)));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let possible = milli(max) / milli(min);
        if milli(ratio) / 1000.0 > possible {
            let detail = format!("ratio {} is greater than max/min = {possible:.6}", ratio.0);
            errors.push(FieldError::invalid(path, ratio.0.as_str(), detail));
        }
    }
}
