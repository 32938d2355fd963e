//! ResourceClaim and ResourceClaimTemplate. What is claimed never changes; the scheduler writes what was allocated.

use k8s_openapi::api::resource::v1::{DeviceClaim, ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate};

use super::{
    allocation,
    request::{default_claim, validate_claim},
};
use crate::{
    field::{Errors, Path},
    strategy::Rules,
    validation::{check::immutable, labels},
};

pub struct ResourceClaimRules;
pub struct ResourceClaimTemplateRules;

impl Rules for ResourceClaimRules {
    type Object = ResourceClaim;

    fn default(object: &mut ResourceClaim) {
        default_spec(object.spec.get_or_insert_default());
    }

    fn prepare_create(object: &mut ResourceClaim) {
        object.status = Some(Default::default());
    }

    fn validate(_: &ResourceClaim, _: &mut Errors) {}

    fn validate_create(object: &ResourceClaim, errors: &mut Errors) {
        validate_spec(object.spec.as_ref(), &Path::new("spec"), errors);
    }

    fn validate_update(object: &ResourceClaim, old: &ResourceClaim, errors: &mut Errors) {
        immutable(&object.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(object: &ResourceClaim, old: &ResourceClaim, errors: &mut Errors) {
        allocation::validate_status(object, old, errors);
    }
}

impl Rules for ResourceClaimTemplateRules {
    type Object = ResourceClaimTemplate;

    fn default(object: &mut ResourceClaimTemplate) {
        default_spec(object.spec.get_or_insert_default().spec.get_or_insert_default());
    }

    fn validate(_: &ResourceClaimTemplate, _: &mut Errors) {}

    fn validate_create(object: &ResourceClaimTemplate, errors: &mut Errors) {
        let (path, Some(spec)) = (Path::new("spec"), &object.spec) else { return };
        if let Some(metadata) = &spec.metadata {
            let path = path.child("metadata");
            if let Some(all) = &metadata.annotations {
                labels::validate_annotations(all, &path.child("annotations"), errors);
            }
            if let Some(all) = &metadata.labels {
                labels::validate_labels(all, &path.child("labels"), errors);
            }
        }
        validate_spec(spec.spec.as_ref(), &path.child("spec"), errors);
    }

    fn validate_update(object: &ResourceClaimTemplate, old: &ResourceClaimTemplate, errors: &mut Errors) {
        immutable(&object.spec, &old.spec, &Path::new("spec"), errors);
    }
}

fn default_spec(spec: &mut ResourceClaimSpec) {
    default_claim(spec.devices.get_or_insert_default());
}

fn validate_spec(spec: Option<&ResourceClaimSpec>, path: &Path, errors: &mut Errors) {
    let nothing = DeviceClaim::default();
    let devices = spec.and_then(|spec| spec.devices.as_ref()).unwrap_or(&nothing);
    validate_claim(devices, &path.child("devices"), errors);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, completed, with};

    fn claim(devices: Value) -> Value {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gpu", "namespace": "a"},
            "spec": {"devices": devices},
        })
    }

    fn claim_for_one_device() -> Value {
        claim(json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}))
    }

    #[test]
    fn a_request_is_for_one_device_unless_it_says_otherwise() {
        let exact =
            completed::<ResourceClaimRules>(claim_for_one_device())["spec"]["devices"]["requests"][0]["exactly"].take();
        assert_eq!(exact, json!({"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1}));
    }

    #[test]
    fn bad_claims_are_refused_with_upstreams_messages() {
        let class = json!({"deviceClassName": "c"});
        let at = "spec.devices";
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"requests": [{"name": "gpu"}]}),
                &["spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required"],
            ),
            (
                json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "", "count": -1}}]}),
                &[
                    &format!("{at}.requests[0].exactly.deviceClassName: Required value"),
                    &format!("{at}.requests[0].exactly.count: Invalid value: -1: must be greater than zero"),
                ],
            ),
            (
                json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c", "allocationMode": "All", "count": 2}}]}),
                &[&format!(
                    "{at}.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'"
                )],
            ),
            (
                json!({"requests": [{"name": "a", "exactly": class}, {"name": "a", "exactly": class}]}),
                &[&format!(r#"{at}.requests[1].name: Duplicate value: "a""#)],
            ),
            (
                json!({"requests": [{"name": "a", "exactly": class}], "constraints": [{"requests": ["b"], "matchAttribute": "numa"}]}),
                &[
                    &format!(
                        r#"{at}.constraints[0].requests[0]: Invalid value: "b": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#
                    ),
                    &format!(r#"{at}.constraints[0].matchAttribute: Invalid value: "numa": must include a domain"#),
                ],
            ),
            (
                json!({"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "selectors": [{}, {"cel": {"expression": "device.driver"}}]}}]}),
                &[
                    &format!("{at}.requests[0].exactly.selectors[0].cel: Required value"),
                    &format!(
                        r#"{at}.requests[0].exactly.selectors[1].cel.expression: Invalid value: "device.driver": must evaluate to bool or the unknown type, not string"#
                    ),
                ],
            ),
            (
                json!({"requests": [{"name": "a", "exactly": class}], "config": [{"requests": ["a"]}]}),
                &[&format!("{at}.config[0].opaque: Required value")],
            ),
        ];
        for (devices, expected) in cases {
            assert_refused::<ResourceClaimRules>(claim(devices.clone()), expected);
        }
    }

    #[test]
    fn what_is_claimed_never_changes() {
        let devices = json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "other"}}]});
        let mut changed = completed::<ResourceClaimRules>(claim(devices.clone()))["spec"].take();
        changed["devices"]["requests"][0]["exactly"]["deviceClassName"] = json!("other");
        let expected = format!("spec: Invalid value: {changed}: field is immutable");
        assert_update::<ResourceClaimRules>(&claim_for_one_device(), json!({"spec": changed}), &[&expected]);
    }

    #[test]
    fn a_claim_is_reserved_only_while_something_is_allocated() {
        let consumer = json!({"resource": "pods", "name": "p", "uid": "1"});
        assert_status::<ResourceClaimRules>(
            &claim_for_one_device(),
            json!({"status": {"reservedFor": [consumer]}}),
            &["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"],
        );
        let result = json!({"request": "gpu", "driver": "d.example.com", "pool": "n1", "device": "gpu-0"});
        let allocated = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]});
        assert_status::<ResourceClaimRules>(&claim_for_one_device(), json!({"status": allocated}), &[]);
        let other =
            json!({"status": {"allocation": {"devices": {"results": [with(&result, json!({"request": "tpu"}))]}}}});
        assert_status::<ResourceClaimRules>(
            &claim_for_one_device(),
            other,
            &[
                r#"status.allocation.devices.results[0].request: Invalid value: "tpu": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#,
            ],
        );
    }
}
