//! Where a container sees the pod's volumes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, VolumeDevice, VolumeMount};

use super::volumes::{self, Volumes};
use crate::{
    field::{Errors, FieldError, Path},
    validation::check::{self, list, text},
};

pub(super) fn validate(container: &Container, volumes: &Volumes, path: &Path, errors: &mut Errors) {
    let (mounts, devices) = (list(&container.volume_mounts), list(&container.volume_devices));
    let privileged = container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    validate_mounts(mounts, devices, volumes, privileged, &path.child("volumeMounts"), errors);
    validate_devices(devices, mounts, volumes, &path.child("volumeDevices"), errors);
}

fn validate_mounts(
    mounts: &[VolumeMount],
    devices: &[VolumeDevice],
    volumes: &Volumes,
    privileged: bool,
    path: &Path,
    errors: &mut Errors,
) {
    let mut taken = BTreeSet::new();
    for (i, mount) in mounts.iter().enumerate() {
        let at = path.index(i);
        let (name_at, path_at) = (at.child("name"), at.child("mountPath"));
        check::present(&mount.name, &name_at, errors);
        if !volumes.contains_key(mount.name.as_str()) {
            errors.push(FieldError::not_found(&name_at, mount.name.as_str()));
        }
        check::present(&mount.mount_path, &path_at, errors);
        if !taken.insert(&mount.mount_path) {
            errors.push(FieldError::invalid(&path_at, mount.mount_path.as_str(), "must be unique"));
        }
        if devices.iter().any(|device| device.name == mount.name) {
            let detail = "must not already exist in volumeDevices";
            errors.push(FieldError::invalid(&name_at, mount.name.as_str(), detail));
        }
        if devices.iter().any(|device| device.device_path == mount.mount_path) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(&path_at, mount.mount_path.as_str(), detail));
        }
        validate_sub_paths(mount, path, &at, errors);
        validate_propagation(mount, privileged, &path.child("mountPropagation"), errors);
        validate_recursive_read_only(mount, &path.child("recursiveReadOnly"), errors);
    }
}

fn validate_sub_paths(mount: &VolumeMount, path: &Path, at: &Path, errors: &mut Errors) {
    for (field, value) in [("subPath", text(&mount.sub_path)), ("subPathExpr", text(&mount.sub_path_expr))] {
        if value.is_empty() {
            continue;
        }
        if field == "subPathExpr" && !text(&mount.sub_path).is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(&at.child(field), value, detail));
        }
        volumes::validate_descending(value, &path.child(field), errors);
    }
}

fn validate_propagation(mount: &VolumeMount, privileged: bool, path: &Path, errors: &mut Errors) {
    let supported = &["Bidirectional", "HostToContainer", "None"];
    check::optional_one_of(&mount.mount_propagation, supported, path, errors);
    if text(&mount.mount_propagation) == "Bidirectional" && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(path, detail));
    }
}

fn validate_recursive_read_only(mount: &VolumeMount, path: &Path, errors: &mut Errors) {
    let supported = &["Disabled", "Enabled", "IfPossible"];
    check::optional_one_of(&mount.recursive_read_only, supported, path, errors);
    if matches!(text(&mount.recursive_read_only), "Enabled" | "IfPossible") {
        if mount.read_only != Some(true) {
            errors.push(FieldError::forbidden(path, "may only be specified when readOnly is true"));
        }
        if !matches!(text(&mount.mount_propagation), "" | "None") {
            let detail = "may only be specified when mountPropagation is None or not specified";
            errors.push(FieldError::forbidden(path, detail));
        }
    }
}

fn validate_devices(
    devices: &[VolumeDevice],
    mounts: &[VolumeMount],
    volumes: &Volumes,
    path: &Path,
    errors: &mut Errors,
) {
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in devices.iter().enumerate() {
        let at = path.index(i);
        let (name_at, path_at) = (at.child("name"), at.child("devicePath"));
        let (name, device_path) = (device.name.as_str(), device.device_path.as_str());
        let mut bad_name = |detail: &str| errors.push(FieldError::invalid(&name_at, name, detail));
        if name.is_empty() {
            errors.push(FieldError::required(&name_at, ""));
        } else if !names.insert(name) {
            bad_name("must be unique");
        }
        match volumes.get(name) {
            None => errors.push(FieldError::not_found(&name_at, name)),
            Some(volume) if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() => {
                errors.push(FieldError::invalid(
                    &name_at,
                    name,
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                ));
            }
            Some(_) => {}
        }
        let mut bad_path = |detail: &str| errors.push(FieldError::invalid(&path_at, device_path, detail));
        if !paths.insert(device_path) {
            bad_path("must be unique");
        }
        if volumes::steps_back(device_path) {
            bad_path("can not contain backsteps ('..')");
        }
        if mounts.iter().any(|mount| mount.mount_path == device_path) {
            bad_path("must not already exist as a path in volumeMounts");
        }
        check::present(device_path, &path_at, errors);
        if mounts.iter().any(|mount| mount.name == name) {
            errors.push(FieldError::invalid(&name_at, name, "must not already exist in volumeMounts"));
        }
    }
}
