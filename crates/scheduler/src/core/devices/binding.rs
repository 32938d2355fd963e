//! Binding conditions: pods that use a device are bound when its driver says that the device is there.
//!
//! A device may be attached to its node only after it was allocated, by something that takes its time. Its conditions are
//! written by the driver into `status.devices` of the claim, for the devices that the allocation names; a device without an entry there is not ready yet.

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaimStatus};

/// How far the devices of an allocated claim are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BindingProgress {
    /// All binding conditions are true, or there are none.
    #[default]
    Ready,
    Pending,
    /// A condition is true that means failure: the devices have to be given back.
    Failed {
        message: String,
    },
}

impl BindingProgress {
    pub fn new(status: &ResourceClaimStatus) -> Self {
        let allocation = status.allocation.as_ref().and_then(|allocation| allocation.devices.as_ref());
        let results = allocation.into_iter().flat_map(|devices| devices.results.iter().flatten());
        let mut progress = Self::Ready;
        for result in results {
            let reported = status.devices.iter().flatten().find(|own| is_about(own, result));
            match device_progress(result, reported) {
                Self::Ready => {}
                Self::Pending => progress = Self::Pending,
                failed @ Self::Failed { .. } => return failed,
            }
        }
        progress
    }

    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

/// As upstream's: shares of a device are not told apart.
fn is_about(status: &AllocatedDeviceStatus, result: &DeviceRequestAllocationResult) -> bool {
    (&status.driver, &status.pool, &status.device) == (&result.driver, &result.pool, &result.device)
}

fn device_progress(
    result: &DeviceRequestAllocationResult,
    reported: Option<&AllocatedDeviceStatus>,
) -> BindingProgress {
    let wanted = result.binding_conditions.as_deref().unwrap_or_default();
    if wanted.is_empty() {
        return BindingProgress::Ready;
    }
    let Some(reported) = reported else { return BindingProgress::Pending };
    let find_true = |kind: &String| {
        let conditions = reported.conditions.iter().flatten();
        conditions.into_iter().find(|condition| condition.type_ == *kind && condition.status == "True")
    };
    if let Some(failed) = result.binding_failure_conditions.iter().flatten().find_map(find_true) {
        let device = format!("{}/{}/{}", result.driver, result.pool, result.device);
        let message =
            format!("device {device}: {}, reason={}, message={:?}", failed.type_, failed.reason, failed.message);
        return BindingProgress::Failed { message };
    }
    match wanted.iter().all(|kind| find_true(kind).is_some()) {
        true => BindingProgress::Ready,
        false => BindingProgress::Pending,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn progress(conditions: Option<&[(&str, &str)]>) -> BindingProgress {
        let result = |device: &str, wanted: Value, failures: Value| {
            json!({ "request": "r", "driver": "d", "pool": "p", "device": device,
                    "bindingConditions": wanted, "bindingFailureConditions": failures })
        };
        let condition = |(kind, status): &(&str, &str)| {
            json!({ "type": kind, "status": status, "reason": "Why", "message": "so",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let devices = conditions.map(|all| {
            let conditions: Vec<Value> = all.iter().map(condition).collect();
            json!([{ "driver": "d", "pool": "p", "device": "other" },
                   { "driver": "d", "pool": "p", "device": "a", "conditions": conditions }])
        });
        let status = json!({
            "allocation": { "devices": { "results": [
                result("plain", json!(null), json!(["Broken"])), result("a", json!(["Attached", "Tested"]), json!(["Broken"])),
            ] } },
            "devices": devices,
        });
        BindingProgress::new(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_device_is_ready_when_all_its_conditions_are_true_and_failed_when_one_says_so() {
        for (conditions, expected) in [
            (None, "pending"),
            (Some(&[][..]), "pending"),
            (Some(&[("Attached", "True")]), "pending"),
            (Some(&[("Attached", "True"), ("Tested", "False")]), "pending"),
            (Some(&[("Attached", "True"), ("Tested", "Unknown"), ("Broken", "False")]), "pending"),
            (Some(&[("Attached", "True"), ("Tested", "True")]), "ready"),
            (Some(&[("Attached", "True"), ("Tested", "True"), ("Broken", "True")]), "failed"),
            (Some(&[("Broken", "True")]), "failed"),
        ] {
            let found = match progress(conditions) {
                BindingProgress::Ready => "ready",
                BindingProgress::Pending => "pending",
                BindingProgress::Failed { message } => {
                    assert_eq!(message, "device d/p/a: Broken, reason=Why, message=\"so\"");
                    "failed"
                }
            };
            assert_eq!(found, expected, "{conditions:?}");
        }
    }

    #[test]
    fn a_claim_without_allocation_waits_for_nothing() {
        assert_eq!(BindingProgress::new(&ResourceClaimStatus::default()), BindingProgress::Ready);
    }
}
