//! Rules of `resource.k8s.io/v1`.

mod allocation;
mod claim;
mod class;
mod request;
mod slice;

pub use claim::{ResourceClaimRules, ResourceClaimTemplateRules};
pub use class::DeviceClassRules;
pub use slice::ResourceSliceRules;

use k8s_openapi::{api::resource::v1::OpaqueDeviceConfiguration, apimachinery::pkg::runtime::RawExtension};
use serde_json::Value;

use crate::{
    field::{Errors, FieldError, Path},
    groups::storage::rules::validate_driver_name as validate_driver,
    validation::names,
};

/// The most requests, constraints, configurations and selectors of a claim, each.
const MAX_LIST: usize = 32;
const MAX_POOL: usize = 253;
const MAX_DOMAIN: usize = 63;
const MAX_IDENTIFIER: usize = 32;
const MAX_PARAMETERS: usize = 10 * 1024;

fn validate_pool(pool: &str, path: &Path, errors: &mut Errors) {
    if pool.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if pool.len() > MAX_POOL {
        errors.push(FieldError::too_long(path, MAX_POOL));
    }
    for part in pool.split('/') {
        names::refuse(part, path, names::dns1123_subdomain, errors);
    }
}

/// The name of an attribute or a capacity, with its domain unless that is the driver's.
fn validate_qualified_name(name: &str, path: &Path, errors: &mut Errors) {
    let (domain, identifier) = match name.split_once('/') {
        Some((domain, identifier)) => (Some(domain), identifier),
        None => (None, name),
    };
    match domain {
        Some("") => errors.push(FieldError::invalid(path, "", "the domain must not be empty")),
        Some(domain) if domain.len() > MAX_DOMAIN => errors.push(FieldError::too_long(path, MAX_DOMAIN)),
        Some(domain) => names::refuse(domain, path, names::dns1123_subdomain, errors),
        None => {}
    }
    if identifier.is_empty() {
        errors.push(FieldError::invalid(path, "", "the name must not be empty"));
    } else if identifier.len() > MAX_IDENTIFIER {
        errors.push(FieldError::too_long(path, MAX_IDENTIFIER));
    } else {
        names::refuse(identifier, path, names::c_identifier, errors);
    }
}

/// As [`validate_qualified_name`], and the domain has to be there.
fn validate_fully_qualified_name(name: &str, path: &Path, errors: &mut Errors) {
    validate_qualified_name(name, path, errors);
    if !name.contains('/') {
        errors.push(FieldError::invalid(path, name, "must include a domain"));
    }
}

fn validate_configuration(opaque: Option<&OpaqueDeviceConfiguration>, path: &Path, errors: &mut Errors) {
    let path = path.child("opaque");
    match opaque {
        None => errors.push(FieldError::required(&path, "")),
        Some(opaque) => {
            validate_driver(&opaque.driver, &path.child("driver"), errors);
            validate_parameters(&opaque.parameters, &path.child("parameters"), errors);
        }
    }
}

fn validate_parameters(parameters: &RawExtension, path: &Path, errors: &mut Errors) {
    match &parameters.0 {
        Value::Null => errors.push(FieldError::required(path, "")),
        object @ Value::Object(_) => {
            let length = object.to_string().len();
            if length > MAX_PARAMETERS {
                errors.push(FieldError::too_long(path, MAX_PARAMETERS));
            }
        }
        other => errors.push(FieldError::invalid(path, other.clone(), "must be a valid JSON object")),
    }
}

fn at_most<T>(items: &[T], limit: usize, path: &Path, errors: &mut Errors) {
    if items.len() > limit {
        errors.push(FieldError::too_many(path, items.len(), limit));
    }
}
