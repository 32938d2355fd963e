//! The `storage.k8s.io` group: what volumes are made of and where they are attached.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{fill, immutable, list, one_of, optional_one_of, shown, text, unique},
        names,
    },
};

pub struct StorageClassRules;
pub struct VolumeAttachmentRules;
pub struct CSIDriverRules;
pub struct CSINodeRules;
pub struct VolumeAttributesClassRules;

const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETERS_SIZE: usize = 256 * 1024;
const MAX_DRIVER_NAME: usize = 63;
const MAX_NODE_ID: usize = 192;

impl Rules for StorageClassRules {
    type Object = StorageClass;

    fn default(object: &mut StorageClass) {
        fill(&mut object.reclaim_policy, "Delete");
        fill(&mut object.volume_binding_mode, "Immediate");
    }

    fn validate(object: &StorageClass, errors: &mut Errors) {
        let path = Path::new("provisioner");
        names::require(&object.provisioner, &path, |name| names::qualified_name(&name.to_lowercase()), errors);
        if let Some(parameters) = &object.parameters {
            validate_parameters(parameters, &Path::new("parameters"), errors);
        }
        let (policy, mode) = (text(&object.reclaim_policy), text(&object.volume_binding_mode));
        one_of(policy, &["Delete", "Retain"], &Path::new("reclaimPolicy"), errors);
        one_of(mode, &["Immediate", "WaitForFirstConsumer"], &Path::new("volumeBindingMode"), errors);
    }

    fn validate_update(object: &StorageClass, old: &StorageClass, errors: &mut Errors) {
        let mut same = |name: &str, same: bool| {
            if !same {
                errors.push(FieldError::forbidden(&Path::new(name), format!("updates to {name} are forbidden.")));
            }
        };
        let nothing = BTreeMap::new();
        same(
            "parameters",
            object.parameters.as_ref().unwrap_or(&nothing) == old.parameters.as_ref().unwrap_or(&nothing),
        );
        same("provisioner", object.provisioner == old.provisioner);
        same("reclaimPolicy", object.reclaim_policy == old.reclaim_policy);
        immutable(&object.volume_binding_mode, &old.volume_binding_mode, &Path::new("volumeBindingMode"), errors);
    }
}

impl Rules for VolumeAttributesClassRules {
    type Object = VolumeAttributesClass;

    fn default(_: &mut VolumeAttributesClass) {}

    fn validate(object: &VolumeAttributesClass, errors: &mut Errors) {
        let path = Path::new("driverName");
        names::require(&object.driver_name, &path, |name| names::qualified_name(&name.to_lowercase()), errors);
        let (nothing, path) = (BTreeMap::new(), Path::new("parameters"));
        let parameters = object.parameters.as_ref().unwrap_or(&nothing);
        if parameters.is_empty() {
            errors.push(FieldError::required(&path, "must contain at least one key/value pair"));
        }
        validate_parameters(parameters, &path, errors);
    }

    fn validate_update(object: &VolumeAttributesClass, old: &VolumeAttributesClass, errors: &mut Errors) {
        if object.driver_name != old.driver_name {
            let words = "updates to driverName are forbidden.";
            errors.push(FieldError::forbidden(&Path::new("driverName"), words));
        }
        if object.parameters != old.parameters {
            let words = "updates to parameters are forbidden.";
            errors.push(FieldError::forbidden(&Path::new("parameters"), words));
        }
    }
}

fn validate_parameters(parameters: &BTreeMap<String, String>, path: &Path, errors: &mut Errors) {
    if parameters.len() > MAX_PARAMETERS {
        errors.push(FieldError::too_long(path, MAX_PARAMETERS));
        return;
    }
    if parameters.contains_key("") {
        errors.push(FieldError::invalid(path, "", "field can not be empty."));
    }
    if parameters.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_PARAMETERS_SIZE {
        errors.push(FieldError::too_long(path, MAX_PARAMETERS_SIZE));
    }
}

impl Rules for VolumeAttachmentRules {
    type Object = VolumeAttachment;

    fn default(_: &mut VolumeAttachment) {}

    fn prepare_create(object: &mut VolumeAttachment) {
        object.status = Some(Default::default());
    }

    fn validate(object: &VolumeAttachment, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        validate_driver_name(&spec.attacher, &path.child("attacher"), errors);
        let (source, inline) = (&spec.source, path.child("source"));
        let words = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        match (&source.inline_volume_spec, &source.persistent_volume_name) {
            (None, None) => errors.push(FieldError::required(&inline, words)),
            (Some(_), Some(_)) => errors.push(FieldError::forbidden(&inline, words)),
            (None, Some(name)) if name.is_empty() => {
                let words = "must specify non empty persistentVolumeName";
                errors.push(FieldError::required(&inline.child("persistentVolumeName"), words));
            }
            _ => {}
        }
        names::refuse(&spec.node_name, &path.child("nodeName"), names::dns1123_subdomain, errors);
    }

    fn validate_update(object: &VolumeAttachment, old: &VolumeAttachment, errors: &mut Errors) {
        immutable(&object.spec, &old.spec, &Path::new("spec"), errors);
    }
}

impl Rules for CSIDriverRules {
    type Object = CSIDriver;

    fn default(object: &mut CSIDriver) {
        let spec = &mut object.spec;
        spec.attach_required.get_or_insert(true);
        spec.pod_info_on_mount.get_or_insert(false);
        spec.storage_capacity.get_or_insert(false);
        spec.requires_republish.get_or_insert(false);
        spec.se_linux_mount.get_or_insert(false);
        fill(&mut spec.fs_group_policy, "ReadWriteOnceWithFSType");
        if list(&spec.volume_lifecycle_modes).is_empty() {
            spec.volume_lifecycle_modes = Some(vec!["Persistent".to_owned()]);
        }
    }

    fn validate(object: &CSIDriver, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        validate_driver_name(text(&object.metadata.name), &Path::new("metadata").child("name"), errors);
        let policies = ["ReadWriteOnceWithFSType", "File", "None"];
        optional_one_of(&spec.fs_group_policy, &policies, &path.child("fsGroupPolicy"), errors);
        for (i, mode) in list(&spec.volume_lifecycle_modes).iter().enumerate() {
            let path = path.child("volumeLifecycleModes").index(i);
            one_of(mode, &["Persistent", "Ephemeral"], &path, errors);
        }
        let path = path.child("tokenRequests");
        let audiences = || {
            list(&spec.token_requests)
                .iter()
                .enumerate()
                .map(|(i, r)| (path.index(i).child("audience"), r.audience.as_str()))
        };
        unique(audiences(), errors);
        for (i, request) in list(&spec.token_requests).iter().enumerate() {
            if let Some(seconds) = request.expiration_seconds.filter(|seconds| *seconds < 600) {
                let path = path.index(i).child("expirationSeconds");
                errors.push(FieldError::invalid(&path, seconds, "may not specify a duration less than 10 minutes"));
            }
        }
    }

    fn validate_update(object: &CSIDriver, old: &CSIDriver, errors: &mut Errors) {
        let (path, new, old) = (Path::new("spec"), &object.spec, &old.spec);
        immutable(&new.attach_required, &old.attach_required, &path.child("attachRequired"), errors);
        let modes = (&new.volume_lifecycle_modes, &old.volume_lifecycle_modes);
        immutable(modes.0, modes.1, &path.child("volumeLifecycleModes"), errors);
    }
}

impl Rules for CSINodeRules {
    type Object = CSINode;

    fn default(_: &mut CSINode) {}

    fn validate(object: &CSINode, errors: &mut Errors) {
        let path = Path::new("spec").child("drivers");
        for (i, driver) in object.spec.drivers.iter().enumerate() {
            let path = path.index(i);
            validate_driver_name(&driver.name, &path.child("name"), errors);
            let (id, at) = (driver.node_id.as_str(), path.child("nodeID"));
            if id.is_empty() {
                errors.push(FieldError::required(&at, ""));
            } else if id.len() > MAX_NODE_ID {
                let words = format!("must be {MAX_NODE_ID} characters or less");
                errors.push(FieldError::invalid(&at, id, words));
            }
            for key in list(&driver.topology_keys) {
                names::require(key, &path, names::qualified_name, errors);
            }
            if let Some(count) =
                driver.allocatable.as_ref().and_then(|allocatable| allocatable.count).filter(|c| *c < 0)
            {
                let words = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(&path.child("allocatable").child("count"), count, words));
            }
        }
        let drivers = object.spec.drivers.iter().enumerate();
        unique(drivers.map(|(i, driver)| (path.index(i).child("name"), driver.name.as_str())), errors);
    }

    /// A driver comes and goes; while it is there it stays as it announced itself.
    fn validate_update(object: &CSINode, old: &CSINode, errors: &mut Errors) {
        let path = Path::new("spec").child("drivers");
        for (i, driver) in object.spec.drivers.iter().enumerate() {
            let before = old.spec.drivers.iter().find(|before| before.name == driver.name);
            if before.is_some_and(|before| before != driver) {
                errors.push(FieldError::invalid(&path.index(i), shown(driver), "field is immutable"));
            }
        }
    }
}

pub(crate) fn validate_driver_name(name: &str, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > MAX_DRIVER_NAME {
        errors.push(FieldError::too_long(path, MAX_DRIVER_NAME));
    }
    errors.extend(
        names::dns1123_subdomain(&name.to_lowercase()).into_iter().map(|words| FieldError::invalid(path, name, words)),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    fn object(kind: &str, content: Value) -> Value {
        with(&json!({"apiVersion": "storage.k8s.io/v1", "kind": kind, "metadata": {"name": "x"}}), content)
    }

    #[test]
    fn a_class_is_for_life() {
        let class = object("StorageClass", json!({"provisioner": "example.com/nfs"}));
        assert_completes::<StorageClassRules>(
            class.clone(),
            with(&class, json!({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})),
        );
        assert_refused::<StorageClassRules>(
            with(&class, json!({"provisioner": null, "reclaimPolicy": "Recycle", "volumeBindingMode": "Late"})),
            &[
                "provisioner: Required value",
                r#"reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain""#,
                r#"volumeBindingMode: Unsupported value: "Late": supported values: "Immediate", "WaitForFirstConsumer""#,
            ],
        );
        assert_update::<StorageClassRules>(
            &class,
            json!({"parameters": {"a": "b"}, "provisioner": "c", "reclaimPolicy": "Retain", "volumeBindingMode": "WaitForFirstConsumer"}),
            &[
                "parameters: Forbidden: updates to parameters are forbidden.",
                "provisioner: Forbidden: updates to provisioner are forbidden.",
                "reclaimPolicy: Forbidden: updates to reclaimPolicy are forbidden.",
                r#"volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable"#,
            ],
        );
        assert_update::<StorageClassRules>(&class, json!({"allowVolumeExpansion": true}), &[]);
    }

    #[test]
    fn a_volume_is_attached_to_one_machine() {
        let spec = json!({"attacher": "csi.example.com", "nodeName": "a", "source": {"persistentVolumeName": "pv"}});
        let attachment = object("VolumeAttachment", json!({"spec": spec}));
        assert_completes::<VolumeAttachmentRules>(
            attachment.clone(),
            with(&attachment, json!({"status": {"attached": false}})),
        );
        assert_refused::<VolumeAttachmentRules>(
            with(&attachment, json!({"spec": {"attacher": null, "source": {"persistentVolumeName": null}}})),
            &[
                "spec.attacher: Required value",
                "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ],
        );
        let moved = with(&spec, json!({"nodeName": "b"}));
        let message = format!("spec: Invalid value: {moved}: field is immutable");
        assert_update::<VolumeAttachmentRules>(&attachment, json!({"spec": moved}), &[&message]);
    }

    #[test]
    fn a_driver_says_what_it_can() {
        let driver = object("CSIDriver", json!({"metadata": {"name": "csi.example.com"}, "spec": {}}));
        let spec = json!({
            "attachRequired": true, "podInfoOnMount": false, "storageCapacity": false, "requiresRepublish": false,
            "seLinuxMount": false, "fsGroupPolicy": "ReadWriteOnceWithFSType", "volumeLifecycleModes": ["Persistent"],
        });
        assert_completes::<CSIDriverRules>(driver.clone(), with(&driver, json!({"spec": spec})));
        assert_update::<CSIDriverRules>(
            &driver,
            json!({"spec": {"attachRequired": false, "volumeLifecycleModes": ["Inline"]}}),
            &[
                r#"spec.volumeLifecycleModes[0]: Unsupported value: "Inline": supported values: "Persistent", "Ephemeral""#,
                "spec.attachRequired: Invalid value: false: field is immutable",
                r#"spec.volumeLifecycleModes: Invalid value: ["Inline"]: field is immutable"#,
            ],
        );
    }

    #[test]
    fn a_machine_announces_each_driver_once() {
        let node = object("CSINode", json!({"spec": {"drivers": [{"name": "csi.example.com", "nodeID": "n"}]}}));
        assert_completes::<CSINodeRules>(node.clone(), node.clone());
        assert_refused::<CSINodeRules>(
            with(&node, json!({"spec": {"drivers": [{"name": "a", "nodeID": "n"}, {"name": "a", "nodeID": ""}]}})),
            &["spec.drivers[1].nodeID: Required value", r#"spec.drivers[1].name: Duplicate value: "a""#],
        );
        assert_update::<CSINodeRules>(
            &node,
            json!({"spec": {"drivers": [{"name": "csi.example.com", "nodeID": "m"}]}}),
            &[r#"spec.drivers[0]: Invalid value: {"name":"csi.example.com","nodeID":"m"}: field is immutable"#],
        );
    }

    #[test]
    fn a_class_of_attributes_is_for_one_driver_and_never_changes() {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "gold"},
            "driverName": "disk.example.com", "parameters": {"iops": "4000"},
        });
        assert_refused::<VolumeAttributesClassRules>(class.clone(), &[]);
        assert_refused::<VolumeAttributesClassRules>(
            with(&class, json!({"driverName": "", "parameters": null})),
            &["driverName: Required value", "parameters: Required value: must contain at least one key/value pair"],
        );
        assert_update::<VolumeAttributesClassRules>(
            &class,
            json!({"driverName": "other.example.com", "parameters": {"iops": "1"}}),
            &[
                "driverName: Forbidden: updates to driverName are forbidden.",
                "parameters: Forbidden: updates to parameters are forbidden.",
            ],
        );
    }
}
