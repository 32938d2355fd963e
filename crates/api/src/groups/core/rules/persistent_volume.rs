//! PersistentVolumes.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, PersistentVolumeStatus, SecretReference,
    VolumeNodeAffinity,
};
use serde_json::Value;

use super::persistent_volume_claim::{VOLUME_MODES, validate_access_modes};
use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod::{
        scheduling::validate_node_selector,
        volumes::{
            sources::{self, Target},
            validate_no_backsteps,
        },
    },
    strategy::Rules,
    validation::{
        check::{self, ExactlyOne, fill, list, shown, text},
        diff, names, resources,
    },
    wellknown::kubernetes::{ARCH, INSTANCE_TYPE, OS, REGION, ZONE},
};

/// What a spec says besides where the data is.
const NOT_SOURCE: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

/// The kind `PersistentVolume`.
pub struct PersistentVolumeRules;

impl Rules for PersistentVolumeRules {
    type Object = PersistentVolume;

    fn default(volume: &mut PersistentVolume) {
        let spec = volume.spec.get_or_insert_default();
        fill(&mut spec.persistent_volume_reclaim_policy, "Retain");
        fill(&mut spec.volume_mode, "Filesystem");
        resources::canonicalize(&mut spec.capacity);
        default_source(spec);
    }

    fn prepare_create(volume: &mut PersistentVolume) {
        volume.status =
            Some(PersistentVolumeStatus { phase: Some("Pending".to_owned()), ..PersistentVolumeStatus::default() });
    }

    fn validate(volume: &PersistentVolume, errors: &mut Errors) {
        let missing = PersistentVolumeSpec::default();
        let name = text(&volume.metadata.name);
        validate_spec(volume.spec.as_ref().unwrap_or(&missing), name, &Path::new("spec"), errors);
    }

    fn validate_update(volume: &PersistentVolume, old: &PersistentVolume, errors: &mut Errors) {
        let (Some(new), Some(before)) = (&volume.spec, &old.spec) else { return };
        let (source, retained) = (source_of(new, before), source_of(before, before));
        if !diff::same(&retained, &source) {
            errors.push(FieldError::forbidden(
                &Path::new("spec").child("persistentvolumesource"),
                format!(
                    "spec.persistentvolumesource is immutable after creation\n{}",
                    diff::describe(&retained, &source)
                ),
            ));
        }
        check::immutable(&new.volume_mode, &before.volume_mode, &Path::new("volumeMode"), errors);
        validate_affinity_update(&new.node_affinity, &before.node_affinity, errors);
        if new.volume_attributes_class_name.is_none() && before.volume_attributes_class_name.is_some() {
            let at = Path::new("spec").child("volumeAttributesClassName");
            errors.push(FieldError::forbidden(&at, "update from non-nil value to nil is forbidden"));
        }
    }
}

fn default_source(spec: &mut PersistentVolumeSpec) {
    if let Some(source) = &mut spec.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut spec.iscsi {
        fill(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut spec.rbd {
        fill(&mut source.pool, "rbd");
        fill(&mut source.user, "admin");
        fill(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut spec.azure_disk {
        fill(&mut source.caching_mode, "ReadWrite");
        fill(&mut source.kind, "Shared");
        fill(&mut source.fs_type, "ext4");
        source.read_only.get_or_insert(false);
    }
    if let Some(source) = &mut spec.scale_io {
        fill(&mut source.storage_mode, "ThinProvisioned");
        fill(&mut source.fs_type, "xfs");
    }
}

/// Where the data is, as JSON. A secret for expansion may be added later: what `old` lacks is
/// left out.
fn source_of(spec: &PersistentVolumeSpec, old: &PersistentVolumeSpec) -> Value {
    let mut source = shown(spec);
    if let Value::Object(fields) = &mut source {
        fields.retain(|field, _| !NOT_SOURCE.contains(&field.as_str()));
    }
    let had_secret = old.csi.as_ref().is_some_and(|csi| csi.controller_expand_secret_ref.is_some());
    if let Some(Value::Object(csi)) = source.get_mut("csi").filter(|_| !had_secret) {
        csi.remove("controllerExpandSecretRef");
    }
    source
}

fn validate_affinity_update(new: &Option<VolumeNodeAffinity>, old: &Option<VolumeNodeAffinity>, errors: &mut Errors) {
    if old.is_some() && renamed(shown(old)) != renamed(shown(new)) {
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.push(FieldError::invalid(&Path::new("nodeAffinity"), shown(new), detail));
    }
}

/// Well-known labels under the names they have today.
fn renamed(mut affinity: Value) -> Value {
    const TODAY: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", ZONE),
        ("failure-domain.beta.kubernetes.io/region", REGION),
        ("beta.kubernetes.io/os", OS),
        ("beta.kubernetes.io/arch", ARCH),
        ("beta.kubernetes.io/instance-type", INSTANCE_TYPE),
    ];
    let terms = affinity.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    for term in terms.into_iter().flatten() {
        let requirements = term.get_mut("matchExpressions").and_then(Value::as_array_mut);
        for requirement in requirements.into_iter().flatten() {
            if let Some((_, today)) = TODAY.iter().find(|(before, _)| requirement["key"] == *before) {
                requirement["key"] = Value::from(*today);
            }
        }
    }
    affinity
}

fn validate_spec(spec: &PersistentVolumeSpec, name: &str, path: &Path, errors: &mut Errors) {
    if list(&spec.access_modes).is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    validate_access_modes(list(&spec.access_modes), &path.child("accessModes"), errors);
    validate_capacity(spec, &path.child("capacity"), errors);
    let reclaim_at = path.child("persistentVolumeReclaimPolicy");
    check::optional_one_of(
        &spec.persistent_volume_reclaim_policy,
        &["Delete", "Recycle", "Retain"],
        &reclaim_at,
        errors,
    );
    if let Some(affinity) = &spec.node_affinity {
        let at = path.child("nodeAffinity").child("required");
        match &affinity.required {
            Some(selector) => validate_node_selector(selector, &at, errors),
            None => errors.push(FieldError::required(&at, "must specify required node constraints")),
        }
    }
    validate_source(spec, name, path, errors);
    let at_root = spec.host_path.as_ref().is_some_and(|source| source.path.trim_matches('/').is_empty());
    if at_root && text(&spec.persistent_volume_reclaim_policy) == "Recycle" {
        errors.push(FieldError::forbidden(&reclaim_at, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    if !text(&spec.storage_class_name).is_empty() {
        let at = path.child("storageClassName");
        names::refuse(text(&spec.storage_class_name), &at, names::dns1123_subdomain, errors);
    }
    check::optional_one_of(&spec.volume_mode, VOLUME_MODES, &path.child("volumeMode"), errors);
    if let Some(class) = &spec.volume_attributes_class_name {
        let at = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.push(FieldError::required(&at, "an empty string is disallowed"));
        } else {
            names::refuse(class, &at, names::dns1123_subdomain, errors);
        }
        if spec.csi.is_none() {
            let detail = "has to be specified when using volumeAttributesClassName";
            errors.push(FieldError::required(&path.child("csi"), detail));
        }
    }
}

fn validate_capacity(spec: &PersistentVolumeSpec, path: &Path, errors: &mut Errors) {
    let capacity = spec.capacity.clone().unwrap_or_default();
    if capacity.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        errors.push(FieldError::not_supported(path, shown(&capacity), &["storage"]));
    }
    for (name, quantity) in &capacity {
        resources::validate_positive(quantity, &path.key(name), errors);
    }
}

fn validate_source(spec: &PersistentVolumeSpec, name: &str, path: &Path, errors: &mut Errors) {
    ExactlyOne::new("volume type", path, errors)
        .or("hostPath", &spec.host_path, sources::host_path)
        .or("gcePersistentDisk", &spec.gce_persistent_disk, sources::gce_disk)
        .or("awsElasticBlockStore", &spec.aws_elastic_block_store, sources::aws_disk)
        .or("glusterfs", &spec.glusterfs, |source, path, errors| {
            check::present(&source.endpoints, &path.child("endpoints"), errors);
            check::present(&source.path, &path.child("path"), errors);
            if let Some(namespace) = &source.endpoints_namespace {
                names::refuse(namespace, &path.child("endpointsNamespace"), names::dns1123_label, errors);
            }
        })
        .or("flocker", &spec.flocker, sources::flocker)
        .or("nfs", &spec.nfs, sources::nfs)
        .or("rbd", &spec.rbd, |source, path, errors| sources::rbd(&source.monitors, &source.image, path, errors))
        .or("quobyte", &spec.quobyte, sources::quobyte)
        .or("cephfs", &spec.cephfs, |source, path, errors| sources::monitors(&source.monitors, path, errors))
        .or("iscsi", &spec.iscsi, |source, path, errors| {
            let asks_auth = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
            let target = Target {
                portal: &source.target_portal,
                iqn: &source.iqn,
                lun: source.lun,
                initiator: source.initiator_name.as_deref(),
                misses_secret: asks_auth && source.secret_ref.is_none(),
            };
            target.validate(name, path, errors);
            if let Some(secret) = &source.secret_ref {
                check::present(text(&secret.name), &path.child("secretRef").child("name"), errors);
            }
        })
        .or("cinder", &spec.cinder, |source, path, errors| {
            check::present(&source.volume_id, &path.child("volumeID"), errors);
            if let Some(secret) = &source.secret_ref {
                check::present(text(&secret.name), &path.child("secretRef").child("name"), errors);
                check::present(text(&secret.namespace), &path.child("secretRef").child("namespace"), errors);
            }
        })
        .or("fc", &spec.fc, sources::fc)
        .or("flexVolume", &spec.flex_volume, |source, path, errors| {
            sources::flex(&source.driver, &source.options, path, errors);
        })
        .or("azureFile", &spec.azure_file, |source, path, errors| {
            check::present(&source.secret_name, &path.child("secretName"), errors);
            check::present(&source.share_name, &path.child("shareName"), errors);
            if let Some(namespace) = &source.secret_namespace {
                check::present(namespace, &path.child("secretNamespace"), errors);
            }
        })
        .or("vsphereVolume", &spec.vsphere_volume, sources::vsphere)
        .or("photonPersistentDisk", &spec.photon_persistent_disk, sources::photon)
        .or("portworxVolume", &spec.portworx_volume, sources::portworx)
        .or("azureDisk", &spec.azure_disk, sources::azure_disk)
        .or("scaleIO", &spec.scale_io, |source, path, errors| {
            sources::scale_io(&source.gateway, &source.system, &source.volume_name, path, errors);
        })
        .or("local", &spec.local, |source, at, errors| {
            if source.path.is_empty() {
                errors.push(FieldError::required(&at.child("path"), ""));
            } else {
                validate_no_backsteps(&source.path, &at.child("path"), errors);
            }
            if spec.node_affinity.is_none() {
                let detail = "Local volume requires node affinity";
                errors.push(FieldError::required(&path.child("nodeAffinity"), detail));
            }
        })
        .or("storageos", &spec.storageos, |source, path, errors| {
            sources::storage_os(&source.volume_name, &source.volume_namespace, path, errors);
            if let Some(secret) = &source.secret_ref {
                check::present(text(&secret.name), &path.child("secretRef").child("name"), errors);
                check::present(text(&secret.namespace), &path.child("secretRef").child("namespace"), errors);
            }
        })
        .or("csi", &spec.csi, validate_csi)
        .required();
}

fn validate_csi(source: &CSIPersistentVolumeSource, path: &Path, errors: &mut Errors) {
    sources::csi_driver(&source.driver, &path.child("driver"), errors);
    check::present(&source.volume_handle, &path.child("volumeHandle"), errors);
    for (field, secret) in [
        ("controllerPublishSecretRef", &source.controller_publish_secret_ref),
        ("controllerExpandSecretRef", &source.controller_expand_secret_ref),
        ("nodePublishSecretRef", &source.node_publish_secret_ref),
        ("nodeExpandSecretRef", &source.node_expand_secret_ref),
    ] {
        if let Some(secret) = secret {
            validate_secret(secret, &path.child(field), errors);
        }
    }
}

fn validate_secret(secret: &SecretReference, path: &Path, errors: &mut Errors) {
    names::require(text(&secret.name), &path.child("name"), names::dns1123_subdomain, errors);
    names::require(text(&secret.namespace), &path.child("namespace"), names::dns1123_label, errors);
}
