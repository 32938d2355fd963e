//! ResourceSlice: devices that a driver offers on a node, or in the network.

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceTaint, ResourceSlice, ResourceSliceSpec};

use super::{at_most, validate_driver, validate_pool, validate_qualified_name};
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod::scheduling::validate_node_selector,
    strategy::Rules,
    validation::{
        check::{immutable, list, required_one_of, shown, text, unique},
        names,
    },
};

pub struct ResourceSliceRules;

const MAX_DEVICES: usize = 128;
/// Where devices have taints, counters or lists.
const MAX_RICH_DEVICES: usize = 64;
const MAX_PROPERTIES: usize = 32;
const MAX_TAINTS: usize = 16;
const MAX_VALUE: usize = 64;

impl Rules for ResourceSliceRules {
    type Object = ResourceSlice;

    fn default(_: &mut ResourceSlice) {}

    fn validate(object: &ResourceSlice, errors: &mut Errors) {
        validate_spec(&object.spec, &Path::new("spec"), errors);
    }

    fn validate_update(object: &ResourceSlice, old: &ResourceSlice, errors: &mut Errors) {
        let (path, new, old) = (Path::new("spec"), &object.spec, &old.spec);
        immutable(&new.pool.name, &old.pool.name, &path.child("pool").child("name"), errors);
        immutable(&new.driver, &old.driver, &path.child("driver"), errors);
        immutable(&new.node_name, &old.node_name, &path.child("nodeName"), errors);
    }
}

fn validate_spec(spec: &ResourceSliceSpec, path: &Path, errors: &mut Errors) {
    validate_driver(&spec.driver, &path.child("driver"), errors);
    let pool = path.child("pool");
    validate_pool(&spec.pool.name, &pool.child("name"), errors);
    if spec.pool.resource_slice_count <= 0 {
        let words = "must be greater than zero";
        errors.push(FieldError::invalid(&pool.child("resourceSliceCount"), spec.pool.resource_slice_count, words));
    }
    if spec.pool.generation < 0 {
        let words = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(&pool.child("generation"), spec.pool.generation, words));
    }
    validate_place(spec, path, errors);
    let (devices, at) = (list(&spec.devices), path.child("devices"));
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        errors.push(FieldError::invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let limit = if devices.iter().any(is_rich) { MAX_RICH_DEVICES } else { MAX_DEVICES };
    at_most(devices, limit, &at, errors);
    for (i, device) in devices.iter().enumerate() {
        validate_device(device, &at.index(i), errors);
    }
    unique(devices.iter().enumerate().map(|(i, device)| (at.index(i).child("name"), device.name.as_str())), errors);
}

/// Where the devices are: exactly one way to say it.
fn validate_place(spec: &ResourceSliceSpec, path: &Path, errors: &mut Errors) {
    let mut places = Vec::new();
    match spec.node_name.as_deref() {
        None => {}
        Some("") => {
            let words = "must be either unset or set to a non-empty string";
            errors.push(FieldError::invalid(&path.child("nodeName"), "", words));
        }
        Some(name) => {
            places.push("`nodeName`");
            names::refuse(name, &path.child("nodeName"), names::dns1123_subdomain, errors);
        }
    }
    if let Some(selector) = &spec.node_selector {
        places.push("`nodeSelector`");
        let at = path.child("nodeSelector");
        validate_node_selector(selector, &at, errors);
        if selector.node_selector_terms.len() != 1 {
            let words = "must have exactly one node selector term";
            let at = at.child("nodeSelectorTerms");
            errors.push(FieldError::invalid(&at, shown(&selector.node_selector_terms), words));
        }
    }
    for (field, quoted, value) in [
        ("allNodes", "`allNodes`", spec.all_nodes),
        ("perDeviceNodeSelection", "`perDeviceNodeSelection`", spec.per_device_node_selection),
    ] {
        match value {
            Some(true) => places.push(quoted),
            Some(false) => {
                errors.push(FieldError::invalid(&path.child(field), false, "must be either unset or set to true"));
            }
            None => {}
        }
    }
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match places.len() {
        0 => errors.push(FieldError::required(path, ONE)),
        1 => {}
        _ => {
            let words = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(path, format!("{{{}}}", places.join(", ")), words));
        }
    }
}

fn is_rich(device: &Device) -> bool {
    let has_lists = |attribute: &DeviceAttribute| {
        attribute.bools.is_some()
            || attribute.ints.is_some()
            || attribute.strings.is_some()
            || attribute.versions.is_some()
    };
    !list(&device.taints).is_empty()
        || !list(&device.consumes_counters).is_empty()
        || device.attributes.iter().flatten().any(|(_, attribute)| has_lists(attribute))
}

fn validate_device(device: &Device, path: &Path, errors: &mut Errors) {
    names::refuse(&device.name, &path.child("name"), names::dns1123_label, errors);
    let (attributes, capacities) = (device.attributes.iter().flatten(), device.capacity.iter().flatten());
    let count = attributes.clone().count() + capacities.clone().count();
    if count > MAX_PROPERTIES {
        let words = format!("the total number of attributes and capacities must not exceed {MAX_PROPERTIES}");
        errors.push(FieldError::invalid(path, i64::try_from(count).unwrap_or(i64::MAX), words));
    }
    for (name, attribute) in attributes {
        let at = path.child("attributes").key(name);
        validate_qualified_name(name, &at, errors);
        validate_attribute(attribute, &at, errors);
    }
    for (name, _) in capacities {
        validate_qualified_name(name, &path.child("capacity").key(name), errors);
    }
    let (taints, at) = (list(&device.taints), path.child("taints"));
    at_most(taints, MAX_TAINTS, &at, errors);
    for (i, taint) in taints.iter().enumerate() {
        validate_taint(taint, &at.index(i), errors);
    }
}

fn validate_taint(taint: &DeviceTaint, path: &Path, errors: &mut Errors) {
    names::require(&taint.key, &path.child("key"), names::qualified_name, errors);
    names::refuse(text(&taint.value), &path.child("value"), names::label_value, errors);
    required_one_of(&taint.effect, &["NoExecute", "NoSchedule", "None"], &path.child("effect"), errors);
}

fn validate_attribute(attribute: &DeviceAttribute, path: &Path, errors: &mut Errors) {
    let values = [
        attribute.bool.is_some(),
        attribute.bools.is_some(),
        attribute.int.is_some(),
        attribute.ints.is_some(),
        attribute.string.is_some(),
        attribute.strings.is_some(),
        attribute.version.is_some(),
        attribute.versions.is_some(),
    ];
    match values.into_iter().filter(|set| *set).count() {
        0 => errors.push(FieldError::required(path, "exactly one value must be specified")),
        1 => {}
        _ => errors.push(FieldError::invalid(path, shown(attribute), "exactly one value must be specified")),
    }
    for (field, value) in [("string", &attribute.string), ("version", &attribute.version)] {
        if text(value).len() > MAX_VALUE {
            errors.push(FieldError::too_long(&path.child(field), MAX_VALUE));
        }
    }
    if let Some(version) = &attribute.version
        && let Err(error) = semver::Version::parse(version)
    {
        let words = format!("must be a string compatible with semver.org spec 2.0.0: {error}");
        errors.push(FieldError::invalid(&path.child("version"), version.as_str(), words));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_update, with};

    fn slice() -> Value {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-gpu"},
            "spec": {
                "driver": "gpu.example.com", "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "a"}}, "capacity": {"memory": {"value": "1Gi"}}}],
            },
        })
    }

    #[test]
    fn bad_slices_are_refused_with_upstreams_messages() {
        assert_refused::<ResourceSliceRules>(slice(), &[]);
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"nodeName": null}),
                &[
                    "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
                ],
            ),
            (
                json!({"allNodes": true}),
                &[
                    r#"spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"#,
                ],
            ),
            (json!({"driver": ""}), &["spec.driver: Required value"]),
            (
                json!({"pool": {"resourceSliceCount": 0, "name": ""}}),
                &[
                    "spec.pool.name: Required value",
                    "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
                ],
            ),
            (
                json!({"devices": [{"name": "a", "attributes": {"x": {}}}, {"name": "a"}]}),
                &[
                    "spec.devices[0].attributes[x]: Required value: exactly one value must be specified",
                    r#"spec.devices[1].name: Duplicate value: "a""#,
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<ResourceSliceRules>(with(&slice(), json!({"spec": change})), expected);
        }
    }

    #[test]
    fn a_slice_stays_where_it_is() {
        assert_update::<ResourceSliceRules>(
            &slice(),
            json!({"spec": {"nodeName": "n2"}}),
            &[r#"spec.nodeName: Invalid value: "n2": field is immutable"#],
        );
    }
}
