//! What a claim asks for: requests, their selectors, constraints between them, and configuration.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceConstraint, DeviceRequest, DeviceSelector, DeviceToleration, ExactDeviceRequest,
};
use mainstay_cel::{Program, Type, device_environment};

use super::{MAX_LIST, at_most, validate_configuration, validate_fully_qualified_name};
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{fill, list, one_of, optional_one_of, required_one_of, text, unique},
        names,
    },
};

const MAX_ALTERNATIVES: usize = 8;
const MAX_TOLERATIONS: usize = 16;
const MAX_EXPRESSION: usize = 10 * 1024;
const MAX_COST: u64 = 1_000_000;
const EXACT_COUNT: &str = "ExactCount";
const ALL: &str = "All";

/// The names of a claim's requests: `gpu`, and `gpu/large` of one with alternatives.
pub struct RequestNames(BTreeSet<String>);

impl RequestNames {
    pub fn of_claim(claim: &DeviceClaim) -> Self {
        let mut all = BTreeSet::new();
        for request in list(&claim.requests) {
            all.insert(request.name.clone());
            all.extend(list(&request.first_available).iter().map(|sub| format!("{}/{}", request.name, sub.name)));
        }
        Self(all)
    }

    /// Judges references to requests.
    pub fn validate_references(&self, references: &[String], path: &Path, errors: &mut Errors) {
        at_most(references, MAX_LIST, path, errors);
        for (i, name) in references.iter().enumerate() {
            self.validate_reference(name, &path.index(i), errors);
        }
        unique(references.iter().enumerate().map(|(i, name)| (path.index(i), name.as_str())), errors);
    }

    pub fn validate_reference(&self, name: &str, path: &Path, errors: &mut Errors) {
        const WORDS: &str =
            "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        let parts: Vec<_> = name.split('/').collect();
        if parts.len() <= 2 {
            parts.into_iter().for_each(|part| names::refuse(part, path, names::dns1123_label, errors));
        }
        if !self.0.contains(name) {
            errors.push(FieldError::invalid(path, name, WORDS));
        }
    }
}

/// What the author of a claim left out.
pub fn default_claim(claim: &mut DeviceClaim) {
    let fill_mode = |mode: &mut Option<String>, count: &mut Option<i64>| {
        fill(mode, EXACT_COUNT);
        if mode.as_deref() == Some(EXACT_COUNT) && count.unwrap_or_default() == 0 {
            *count = Some(1);
        }
    };
    let fill_tolerations = |tolerations: &mut Option<Vec<DeviceToleration>>| {
        tolerations.iter_mut().flatten().for_each(|toleration| fill(&mut toleration.operator, "Equal"));
    };
    for request in claim.requests.iter_mut().flatten() {
        if let Some(exact) = &mut request.exactly {
            fill_mode(&mut exact.allocation_mode, &mut exact.count);
            fill_tolerations(&mut exact.tolerations);
        }
        for sub in request.first_available.iter_mut().flatten() {
            fill_mode(&mut sub.allocation_mode, &mut sub.count);
            fill_tolerations(&mut sub.tolerations);
        }
    }
}

pub fn validate_claim(claim: &DeviceClaim, path: &Path, errors: &mut Errors) {
    let known = RequestNames::of_claim(claim);
    let (requests, at) = (list(&claim.requests), path.child("requests"));
    at_most(requests, MAX_LIST, &at, errors);
    for (i, request) in requests.iter().enumerate() {
        validate_request(request, &at.index(i), errors);
    }
    unique(requests.iter().enumerate().map(|(i, request)| (at.index(i).child("name"), request.name.as_str())), errors);
    let (constraints, at) = (list(&claim.constraints), path.child("constraints"));
    at_most(constraints, MAX_LIST, &at, errors);
    for (i, constraint) in constraints.iter().enumerate() {
        validate_constraint(constraint, &known, &at.index(i), errors);
    }
    let (configurations, at) = (list(&claim.config), path.child("config"));
    at_most(configurations, MAX_LIST, &at, errors);
    for (i, configuration) in configurations.iter().enumerate() {
        let at = at.index(i);
        known.validate_references(list(&configuration.requests), &at.child("requests"), errors);
        validate_configuration(configuration.opaque.as_ref(), &at, errors);
    }
}

fn validate_request(request: &DeviceRequest, path: &Path, errors: &mut Errors) {
    names::refuse(&request.name, &path.child("name"), names::dns1123_label, errors);
    let alternatives = list(&request.first_available);
    match (&request.exactly, alternatives) {
        (None, []) => {
            errors.push(FieldError::required(path, "exactly one of `exactly` or `firstAvailable` is required"));
        }
        (Some(exact), []) => validate_exact(exact, &path.child("exactly"), errors),
        (Some(_), _) => {
            let words = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(FieldError::invalid(path, serde_json::Value::Null, words));
        }
        (None, alternatives) => {
            let at = path.child("firstAvailable");
            at_most(alternatives, MAX_ALTERNATIVES, &at, errors);
            for (i, sub) in alternatives.iter().enumerate() {
                let at = at.index(i);
                names::refuse(&sub.name, &at.child("name"), names::dns1123_label, errors);
                let exact = ExactDeviceRequest {
                    allocation_mode: sub.allocation_mode.clone(),
                    count: sub.count,
                    device_class_name: sub.device_class_name.clone(),
                    selectors: sub.selectors.clone(),
                    tolerations: sub.tolerations.clone(),
                    ..ExactDeviceRequest::default()
                };
                validate_exact(&exact, &at, errors);
            }
            let named = alternatives.iter().enumerate().map(|(i, sub)| (at.index(i).child("name"), sub.name.as_str()));
            unique(named, errors);
        }
    }
}

fn validate_exact(request: &ExactDeviceRequest, path: &Path, errors: &mut Errors) {
    names::require(&request.device_class_name, &path.child("deviceClassName"), names::dns1123_subdomain, errors);
    validate_selectors(list(&request.selectors), &path.child("selectors"), errors);
    let (count, at) = (request.count.unwrap_or_default(), path.child("count"));
    match text(&request.allocation_mode) {
        ALL if count != 0 => {
            errors.push(FieldError::invalid(&at, count, "must not be specified when allocationMode is 'All'"));
        }
        EXACT_COUNT if count <= 0 => errors.push(FieldError::invalid(&at, count, "must be greater than zero")),
        mode => one_of(mode, &[ALL, EXACT_COUNT], &path.child("allocationMode"), errors),
    }
    let (tolerations, at) = (list(&request.tolerations), path.child("tolerations"));
    at_most(tolerations, MAX_TOLERATIONS, &at, errors);
    for (i, toleration) in tolerations.iter().enumerate() {
        validate_toleration(toleration, &at.index(i), errors);
    }
}

fn validate_toleration(toleration: &DeviceToleration, path: &Path, errors: &mut Errors) {
    let key = text(&toleration.key);
    if !key.is_empty() {
        names::refuse(key, &path.child("key"), names::qualified_name, errors);
    }
    let (operator, at) = (text(&toleration.operator), path.child("operator"));
    required_one_of(operator, &["Equal", "Exists"], &at, errors);
    match operator {
        "Exists" if !text(&toleration.value).is_empty() => {
            let words = "must be empty for operator `Exists`";
            errors.push(FieldError::invalid(&path.child("value"), text(&toleration.value), words));
        }
        "Equal" => {
            names::refuse(text(&toleration.value), &path.child("value"), names::label_value, errors);
            if key.is_empty() {
                errors.push(FieldError::required(&path.child("key"), ""));
            }
        }
        _ => {}
    }
    optional_one_of(&toleration.effect, &["NoExecute", "NoSchedule"], &path.child("effect"), errors);
}

/// Selectors of a request or of a class.
pub fn validate_selectors(selectors: &[DeviceSelector], path: &Path, errors: &mut Errors) {
    at_most(selectors, MAX_LIST, path, errors);
    for (i, selector) in selectors.iter().enumerate() {
        let at = path.index(i).child("cel");
        match &selector.cel {
            None => errors.push(FieldError::required(&at, "")),
            Some(cel) => validate_expression(&cel.expression, &at.child("expression"), errors),
        }
    }
}

fn validate_expression(expression: &str, path: &Path, errors: &mut Errors) {
    if expression.len() > MAX_EXPRESSION {
        errors.push(FieldError::too_long(path, MAX_EXPRESSION));
        return;
    }
    match Program::compile(&device_environment(), expression) {
        Err(error) => errors.push(FieldError::invalid(path, expression, format!("compilation failed: {error}"))),
        Ok(program) if !Type::Bool.accepts(program.result_type()) => {
            let words = format!("must evaluate to bool or the unknown type, not {}", program.result_type());
            errors.push(FieldError::invalid(path, expression, words));
        }
        Ok(program) if program.estimate_cost().max > MAX_COST => {
            errors.push(FieldError::forbidden(path, "too complex, exceeds cost limit"));
        }
        Ok(_) => {}
    }
}

fn validate_constraint(constraint: &DeviceConstraint, known: &RequestNames, path: &Path, errors: &mut Errors) {
    known.validate_references(list(&constraint.requests), &path.child("requests"), errors);
    match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(name), _) => validate_fully_qualified_name(name, &path.child("matchAttribute"), errors),
        (None, Some(name)) => validate_fully_qualified_name(name, &path.child("distinctAttribute"), errors),
        (None, None) => {
            let words =
                r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#;
            errors.push(FieldError::required(path, words));
        }
    }
}
