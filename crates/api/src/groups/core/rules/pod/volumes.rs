//! The volumes of a pod: each has one source.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, DownwardAPIVolumeSource, EphemeralVolumeSource, ImageVolumeSource, KeyToPath,
    PersistentVolumeClaimTemplate, ProjectedVolumeSource, Volume,
};

use super::{Owner, containers, env};
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::persistent_volume_claim,
    validation::{
        check::{self, ExactlyOne, list, text},
        labels, names, resources,
    },
};

pub(crate) mod projected;
pub(crate) mod sources;

/// The volumes that are in order, by name.
pub(super) type Volumes<'a> = BTreeMap<&'a str, &'a Volume>;

pub(super) fn validate<'a>(volumes: &'a [Volume], owner: Owner, path: &Path, errors: &mut Errors) -> Volumes<'a> {
    let mut sound = Volumes::new();
    let made = claims_made(volumes, owner);
    for (i, volume) in volumes.iter().enumerate() {
        let at = path.index(i);
        let before = errors.len();
        validate_source(volume, owner, &at, errors);
        names::require(&volume.name, &at.child("name"), names::dns1123_label, errors);
        if sound.contains_key(volume.name.as_str()) {
            errors.push(FieldError::duplicate(&at.child("name"), volume.name.as_str()));
        }
        if errors.len() == before {
            sound.insert(&volume.name, volume);
        }
        if let Some(claim) = volume.persistent_volume_claim.as_ref().filter(|claim| made.contains(&claim.claim_name)) {
            errors.push(FieldError::invalid(
                &at.child("persistentVolumeClaim").child("claimName"),
                claim.claim_name.as_str(),
                "must not reference a PVC that gets created for an ephemeral volume",
            ));
        }
    }
    sound
}

/// The claims that will be made for the pod's ephemeral volumes, as far as its name is known.
fn claims_made(volumes: &[Volume], owner: Owner) -> BTreeSet<String> {
    match owner {
        Owner::Pod(pod) if !pod.is_empty() => {
            let ephemeral = volumes.iter().filter(|volume| volume.ephemeral.is_some());
            ephemeral.map(|volume| format!("{pod}-{}", volume.name)).collect()
        }
        Owner::Pod(_) | Owner::Template => BTreeSet::new(),
    }
}

fn validate_source(volume: &Volume, owner: Owner, path: &Path, errors: &mut Errors) {
    ExactlyOne::new("volume type", path, errors)
        .or("emptyDir", &volume.empty_dir, |source, path, errors| {
            if source.size_limit.as_ref().is_some_and(|limit| resources::amount(limit).is_negative()) {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(&path.child("sizeLimit"), detail));
            }
        })
        .or("hostPath", &volume.host_path, sources::host_path)
        .or("gitRepo", &volume.git_repo, sources::git_repo)
        .or("gcePersistentDisk", &volume.gce_persistent_disk, sources::gce_disk)
        .or("awsElasticBlockStore", &volume.aws_elastic_block_store, sources::aws_disk)
        .or("secret", &volume.secret, |source, path, errors| {
            check::present(text(&source.secret_name), &path.child("secretName"), errors);
            validate_files(list(&source.items), source.default_mode, path, errors);
        })
        .or("nfs", &volume.nfs, sources::nfs)
        .or("iscsi", &volume.iscsi, |source, path, errors| sources::iscsi(source, &volume.name, path, errors))
        .or("glusterfs", &volume.glusterfs, |source, path, errors| {
            check::present(&source.endpoints, &path.child("endpoints"), errors);
            check::present(&source.path, &path.child("path"), errors);
        })
        .or("flocker", &volume.flocker, sources::flocker)
        .or("persistentVolumeClaim", &volume.persistent_volume_claim, |source, path, errors| {
            check::present(&source.claim_name, &path.child("claimName"), errors);
        })
        .or("rbd", &volume.rbd, |source, path, errors| {
            sources::rbd(&source.monitors, &source.image, path, errors);
        })
        .or("cinder", &volume.cinder, |source, path, errors| {
            check::present(&source.volume_id, &path.child("volumeID"), errors);
            sources::local_secret(&source.secret_ref, path, errors);
        })
        .or("cephfs", &volume.cephfs, |source, path, errors| {
            sources::monitors(&source.monitors, path, errors);
        })
        .or("quobyte", &volume.quobyte, sources::quobyte)
        .or("downwardAPI", &volume.downward_api, validate_downward)
        .or("fc", &volume.fc, sources::fc)
        .or("flexVolume", &volume.flex_volume, |source, path, errors| {
            sources::flex(&source.driver, &source.options, path, errors);
        })
        .or("configMap", &volume.config_map, |source, path, errors| {
            check::present(&source.name, &path.child("name"), errors);
            validate_files(list(&source.items), source.default_mode, path, errors);
        })
        .or("azureFile", &volume.azure_file, |source, path, errors| {
            check::present(&source.secret_name, &path.child("secretName"), errors);
            check::present(&source.share_name, &path.child("shareName"), errors);
        })
        .or("vsphereVolume", &volume.vsphere_volume, sources::vsphere)
        .or("photonPersistentDisk", &volume.photon_persistent_disk, sources::photon)
        .or("portworxVolume", &volume.portworx_volume, sources::portworx)
        .or("azureDisk", &volume.azure_disk, sources::azure_disk)
        .or("storageos", &volume.storageos, |source, path, errors| {
            sources::storage_os(&source.volume_name, &source.volume_namespace, path, errors);
            sources::local_secret(&source.secret_ref, path, errors);
        })
        .or("projected", &volume.projected, |source: &ProjectedVolumeSource, path, errors| {
            projected::validate(source, path, errors);
        })
        .or("scaleIO", &volume.scale_io, |source, path, errors| {
            sources::scale_io(&source.gateway, &source.system, &source.volume_name, path, errors);
        })
        .or("csi", &volume.csi, sources::csi)
        .or("ephemeral", &volume.ephemeral, |source, path, errors| {
            validate_ephemeral(source, &volume.name, owner, path, errors);
        })
        .or("image", &volume.image, |source, path, errors| validate_image(source, owner, path, errors))
        .required();
}

fn validate_image(source: &ImageVolumeSource, owner: Owner, path: &Path, errors: &mut Errors) {
    if matches!(owner, Owner::Pod(_)) {
        check::present(text(&source.reference), &path.child("reference"), errors);
    }
    containers::validate_pull_policy(text(&source.pull_policy), &path.child("pullPolicy"), errors);
}

fn validate_ephemeral(source: &EphemeralVolumeSource, name: &str, owner: Owner, path: &Path, errors: &mut Errors) {
    let Some(template) = &source.volume_claim_template else {
        errors.push(FieldError::required(&path.child("volumeClaimTemplate"), ""));
        return;
    };
    validate_claim_template(template, &path.child("volumeClaimTemplate"), errors);
    if let Owner::Pod(pod) = owner
        && !pod.is_empty()
        && !name.is_empty()
    {
        let claim = format!("{pod}-{name}");
        for complaint in names::dns1123_subdomain(&claim) {
            let detail = format!("PVC name {claim:?}: {complaint}");
            errors.push(FieldError::invalid(&path.child("name"), name, detail));
        }
    }
}

fn validate_claim_template(template: &PersistentVolumeClaimTemplate, path: &Path, errors: &mut Errors) {
    if let Some(meta) = &template.metadata {
        let at = path.child("metadata");
        if let Some(map) = &meta.annotations {
            labels::validate_annotations(map, &at.child("annotations"), errors);
        }
        if let Some(map) = &meta.labels {
            labels::validate_labels(map, &at.child("labels"), errors);
        }
        let others = [
            ("name", meta.name.is_some()),
            ("generateName", meta.generate_name.is_some()),
            ("namespace", meta.namespace.is_some()),
            ("uid", meta.uid.is_some()),
            ("ownerReferences", meta.owner_references.is_some()),
            ("finalizers", meta.finalizers.is_some()),
        ];
        for (field, _) in others.iter().filter(|(_, set)| *set) {
            errors.push(FieldError::forbidden(&at.child(field), "cannot be set"));
        }
    }
    persistent_volume_claim::validate_spec(&template.spec, &path.child("spec"), errors);
}

fn validate_downward(source: &DownwardAPIVolumeSource, path: &Path, errors: &mut Errors) {
    validate_mode(source.default_mode, &path.child("defaultMode"), errors);
    for file in list(&source.items) {
        validate_downward_file(file, path, errors);
    }
}

fn validate_downward_file(file: &DownwardAPIVolumeFile, path: &Path, errors: &mut Errors) {
    check::present(&file.path, &path.child("path"), errors);
    validate_local_path(&file.path, &path.child("path"), errors);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            env::validate_field(field, env::VOLUME_FIELDS, &path.child("fieldRef"), errors);
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(path, "resource", detail));
            }
        }
        (None, Some(resource)) => env::validate_resource_of(resource, &path.child("resourceFieldRef"), errors),
        (None, None) => {
            errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
    }
    validate_mode(file.mode, &path.child("mode"), errors);
}

fn validate_files(items: &[KeyToPath], default_mode: Option<i32>, path: &Path, errors: &mut Errors) {
    validate_mode(default_mode, &path.child("defaultMode"), errors);
    for (i, item) in items.iter().enumerate() {
        validate_file(item, &path.child("items").index(i), errors);
    }
}

fn validate_file(item: &KeyToPath, path: &Path, errors: &mut Errors) {
    check::present(&item.key, &path.child("key"), errors);
    check::present(&item.path, &path.child("path"), errors);
    validate_local_path(&item.path, &path.child("path"), errors);
    validate_mode(item.mode, &path.child("mode"), errors);
}

fn validate_mode(mode: Option<i32>, path: &Path, errors: &mut Errors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(path, mode, detail));
    }
}

/// Whether a path has a `..` in it.
pub(super) fn steps_back(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

pub(crate) fn validate_no_backsteps(value: &str, path: &Path, errors: &mut Errors) {
    if steps_back(value) {
        errors.push(FieldError::invalid(path, value, "must not contain '..'"));
    }
}

/// A path that stays below where it starts.
pub(super) fn validate_descending(value: &str, path: &Path, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.push(FieldError::invalid(path, value, "must be a relative path"));
    }
    validate_no_backsteps(value, path, errors);
}

/// As [`validate_descending`], and not among the names that volumes keep for themselves.
pub(super) fn validate_local_path(value: &str, path: &Path, errors: &mut Errors) {
    validate_descending(value, path, errors);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.push(FieldError::invalid(path, value, "must not start with '..'"));
    }
}
