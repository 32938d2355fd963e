//! Lease.

use k8s_openapi::api::coordination::v1::Lease;

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::check::{NEGATIVE, text},
};

pub struct LeaseRules;

impl Rules for LeaseRules {
    type Object = Lease;

    fn default(_: &mut Lease) {}

    fn validate(object: &Lease, errors: &mut Errors) {
        let (path, Some(spec)) = (Path::new("spec"), &object.spec) else { return };
        if let Some(duration) = spec.lease_duration_seconds.filter(|duration| *duration <= 0) {
            let at = path.child("leaseDurationSeconds");
            errors.push(FieldError::invalid(&at, duration, "must be greater than 0"));
        }
        if let Some(transitions) = spec.lease_transitions.filter(|transitions| *transitions < 0) {
            errors.push(FieldError::invalid(&path.child("leaseTransitions"), transitions, NEGATIVE));
        }
        if !text(&spec.preferred_holder).is_empty() && text(&spec.strategy).is_empty() {
            let words = "may only be specified if `strategy` is defined";
            errors.push(FieldError::forbidden(&path.child("preferredHolder"), words));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    #[test]
    fn a_lease_lasts() {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "leader"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000001Z"},
        });
        assert_completes::<LeaseRules>(lease.clone(), lease.clone());
        assert_refused::<LeaseRules>(
            with(&lease, json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1, "preferredHolder": "b"}})),
            &[
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
                "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
            ],
        );
    }
}
