//! The status of a claim: what was allocated to it, and who uses it.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimStatus};

use super::{MAX_LIST, at_most, request::RequestNames, validate_configuration, validate_driver, validate_pool};
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod::scheduling::validate_node_selector,
    validation::{
        check::{immutable, list, present, required_one_of, unique},
        names,
    },
};

const MAX_CONSUMERS: usize = 256;

pub fn validate_status(object: &ResourceClaim, old: &ResourceClaim, errors: &mut Errors) {
    let (empty, path) = (ResourceClaimStatus::default(), Path::new("status"));
    let status = object.status.as_ref().unwrap_or(&empty);
    let old_status = old.status.as_ref().unwrap_or(&empty);
    let (consumers, at) = (list(&status.reserved_for), path.child("reservedFor"));
    at_most(consumers, MAX_CONSUMERS, &at, errors);
    for (i, consumer) in consumers.iter().enumerate() {
        let at = at.index(i);
        for (field, value) in [("resource", &consumer.resource), ("name", &consumer.name), ("uid", &consumer.uid)] {
            present(value, &at.child(field), errors);
        }
    }
    unique(consumers.iter().enumerate().map(|(i, consumer)| (at.index(i), consumer.uid.as_str())), errors);
    if !consumers.is_empty() && status.allocation.is_none() {
        errors.push(FieldError::forbidden(&at, "may not be specified when `allocated` is not set"));
    } else if object.metadata.deletion_timestamp.is_some() {
        let before: BTreeSet<_> = list(&old_status.reserved_for).iter().map(|consumer| &consumer.uid).collect();
        if consumers.iter().any(|consumer| !before.contains(&consumer.uid)) {
            let words = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(FieldError::forbidden(&at, words));
        }
    }
    let at = path.child("allocation");
    match (&status.allocation, &old_status.allocation) {
        (Some(_), Some(_)) => immutable(&status.allocation, &old_status.allocation, &at, errors),
        (Some(allocation), None) => {
            let devices = object.spec.as_ref().and_then(|spec| spec.devices.clone()).unwrap_or_default();
            validate_allocation(allocation, &RequestNames::of_claim(&devices), &at, errors);
        }
        (None, _) => {}
    }
    validate_device_statuses(status, &path.child("devices"), errors);
}

fn validate_allocation(allocation: &AllocationResult, known: &RequestNames, path: &Path, errors: &mut Errors) {
    let devices = allocation.devices.clone().unwrap_or_default();
    let (results, at) = (list(&devices.results), path.child("devices").child("results"));
    at_most(results, MAX_LIST, &at, errors);
    for (i, result) in results.iter().enumerate() {
        let at = at.index(i);
        known.validate_reference(&result.request, &at.child("request"), errors);
        validate_driver(&result.driver, &at.child("driver"), errors);
        validate_pool(&result.pool, &at.child("pool"), errors);
        names::refuse(&result.device, &at.child("device"), names::dns1123_label, errors);
    }
    let (configurations, at) = (list(&devices.config), path.child("devices").child("config"));
    at_most(configurations, 2 * MAX_LIST, &at, errors);
    for (i, configuration) in configurations.iter().enumerate() {
        let at = at.index(i);
        required_one_of(&configuration.source, &["FromClaim", "FromClass"], &at.child("source"), errors);
        known.validate_references(list(&configuration.requests), &at.child("requests"), errors);
        validate_configuration(configuration.opaque.as_ref(), &at, errors);
    }
    if let Some(selector) = &allocation.node_selector {
        validate_node_selector(selector, &path.child("nodeSelector"), errors);
    }
}

/// What drivers report is about devices that are allocated.
fn validate_device_statuses(status: &ResourceClaimStatus, path: &Path, errors: &mut Errors) {
    let results = status.allocation.iter().filter_map(|allocation| allocation.devices.as_ref());
    let allocated: BTreeSet<_> = results
        .flat_map(|devices| list(&devices.results))
        .map(|result| (result.driver.as_str(), result.pool.as_str(), result.device.as_str()))
        .collect();
    let mut seen = BTreeSet::new();
    for (i, device) in list(&status.devices).iter().enumerate() {
        let (at, id) = (path.index(i), (device.driver.as_str(), device.pool.as_str(), device.device.as_str()));
        if !seen.insert((id, &device.share_id)) {
            errors.push(FieldError::duplicate(&at, format!("{}/{}/{}", id.0, id.1, id.2)));
        }
        if !allocated.contains(&id) {
            let words = "must be an allocated device in the claim";
            errors.push(FieldError::invalid(&at, format!("{}/{}/{}", id.0, id.1, id.2), words));
        }
    }
}
