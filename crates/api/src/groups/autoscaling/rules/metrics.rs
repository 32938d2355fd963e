//! What an autoscaler goes by.

use k8s_openapi::{
    api::autoscaling::v2::{MetricIdentifier, MetricSpec, MetricTarget},
    apimachinery::pkg::api::resource::Quantity,
};

use super::validate_target;
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{one_of, shown},
        labels, names,
        resources::amount,
    },
};

const TYPES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];

pub fn validate(metric: &MetricSpec, path: &Path, errors: &mut Errors) {
    let sources = [
        ("Object", "object", metric.object.is_some()),
        ("External", "external", metric.external.is_some()),
        ("Pods", "pods", metric.pods.is_some()),
        ("Resource", "resource", metric.resource.is_some()),
        ("ContainerResource", "containerResource", metric.container_resource.is_some()),
    ];
    if metric.type_.is_empty() {
        errors.push(FieldError::required(&path.child("type"), "must specify a metric source type"));
    }
    one_of(&metric.type_, TYPES, &path.child("type"), errors);
    if let Some((_, first, _)) = sources.iter().find(|(.., given)| *given) {
        validate_source(metric, first, &path.child(first), errors);
    }
    for (type_, name, given) in sources {
        if type_ == metric.type_ && !given {
            let words = "must populate information for the given metric source";
            errors.push(FieldError::required(&path.child(name), words));
        }
    }
    for (type_, name, given) in sources {
        if type_ != metric.type_ && given && TYPES.contains(&metric.type_.as_str()) {
            errors.push(FieldError::forbidden(&path.child(name), "must populate the given metric source only"));
        }
    }
}

fn validate_source(metric: &MetricSpec, name: &str, path: &Path, errors: &mut Errors) {
    let target_path = path.child("target");
    if let ("object", Some(source)) = (name, &metric.object) {
        let object = &source.described_object;
        validate_target(&object.kind, &object.name, &path.child("describedObject"), errors);
        validate_identifier(&source.metric, &path.child("metric"), errors);
        validate_amounts(&source.target, &target_path, errors);
        if source.target.value.is_none() && source.target.average_value.is_none() {
            let words = "must set either a target value or averageValue";
            errors.push(FieldError::required(&target_path.child("averageValue"), words));
        }
    }
    if let ("external", Some(source)) = (name, &metric.external) {
        validate_identifier(&source.metric, &path.child("metric"), errors);
        validate_amounts(&source.target, &target_path, errors);
        match (&source.target.value, &source.target.average_value) {
            (None, None) => errors.push(FieldError::required(
                &target_path.child("averageValue"),
                "must set either a target value for metric or a per-pod target",
            )),
            (Some(_), Some(_)) => errors.push(FieldError::forbidden(
                &target_path.child("value"),
                "may not set both a target value for metric and a per-pod target",
            )),
            _ => {}
        }
    }
    if let ("pods", Some(source)) = (name, &metric.pods) {
        validate_identifier(&source.metric, &path.child("metric"), errors);
        validate_amounts(&source.target, &target_path, errors);
        if !source.target.average_value.as_ref().is_some_and(is_positive) {
            let words = "must specify a positive target averageValue";
            errors.push(FieldError::required(&target_path.child("averageValue"), words));
        }
    }
    if let ("resource", Some(source)) = (name, &metric.resource) {
        validate_resource(&source.name, &source.target, path, errors);
    }
    if let ("containerResource", Some(source)) = (name, &metric.container_resource) {
        if source.container.is_empty() {
            errors.push(FieldError::required(&path.child("container"), "must specify a container"));
        }
        validate_resource(&source.name, &source.target, path, errors);
    }
}

fn validate_resource(name: &str, target: &MetricTarget, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "must specify a resource name"));
    }
    let path = path.child("target");
    validate_amounts(target, &path, errors);
    match (target.average_utilization, &target.average_value) {
        (None, None) => errors.push(FieldError::required(
            &path.child("averageUtilization"),
            "must set either a target raw value or a target utilization",
        )),
        (Some(_), Some(_)) => errors.push(FieldError::forbidden(
            &path.child("averageValue"),
            "may not set both a target raw value and a target utilization",
        )),
        _ => {}
    }
}

fn validate_identifier(metric: &MetricIdentifier, path: &Path, errors: &mut Errors) {
    if metric.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "must specify a metric name"));
    } else {
        names::refuse(&metric.name, &path.child("name"), names::path_segment_name, errors);
    }
    if let Some(selector) = &metric.selector {
        labels::validate_selector(selector, &path.child("selector"), errors);
    }
}

fn validate_amounts(target: &MetricTarget, path: &Path, errors: &mut Errors) {
    let type_path = path.child("type");
    match target.type_.as_str() {
        "" => errors.push(FieldError::required(&type_path, "must specify a metric target type")),
        "Utilization" | "Value" | "AverageValue" => {}
        other => {
            let words = "must be either Utilization, Value, or AverageValue";
            errors.push(FieldError::invalid(&type_path, other, words));
        }
    }
    for (name, value) in [("value", &target.value), ("averageValue", &target.average_value)] {
        if let Some(value) = value.as_ref().filter(|value| !is_positive(value)) {
            errors.push(FieldError::invalid(&path.child(name), shown(value), "must be positive"));
        }
    }
    if let Some(percent) = target.average_utilization.filter(|percent| *percent < 1) {
        errors.push(FieldError::invalid(&path.child("averageUtilization"), percent, "must be greater than 0"));
    }
}

fn is_positive(quantity: &Quantity) -> bool {
    let amount = amount(quantity);
    !amount.is_negative() && !amount.is_zero()
}
