//! Sources that volumes of pods and persistent volumes have in common.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIVolumeSource, FCVolumeSource, FlockerVolumeSource,
    GCEPersistentDiskVolumeSource, GitRepoVolumeSource, HostPathVolumeSource, ISCSIVolumeSource, LocalObjectReference,
    NFSVolumeSource, PhotonPersistentDiskVolumeSource, PortworxVolumeSource, QuobyteVolumeSource,
    VsphereVirtualDiskVolumeSource,
};

use super::{validate_descending, validate_no_backsteps};
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, list, shown, text},
        names,
    },
};

const CSI_DRIVER_MAX: usize = 63;
const ISCSI_NAME_MAX: usize = 64;

pub(crate) fn host_path(source: &HostPathVolumeSource, path: &Path, errors: &mut Errors) {
    if source.path.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
        return;
    }
    validate_no_backsteps(&source.path, &path.child("path"), errors);
    let types = &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    check::optional_one_of(&source.type_, types, &path.child("type"), errors);
}

pub(crate) fn git_repo(source: &GitRepoVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.repository, &path.child("repository"), errors);
    validate_descending(text(&source.directory), &path.child("directory"), errors);
}

pub(crate) fn gce_disk(source: &GCEPersistentDiskVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.pd_name, &path.child("pdName"), errors);
    partition(source.partition, path, errors);
}

pub(crate) fn aws_disk(source: &AWSElasticBlockStoreVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.volume_id, &path.child("volumeID"), errors);
    partition(source.partition, path, errors);
}

fn partition(partition: Option<i32>, path: &Path, errors: &mut Errors) {
    let partition = partition.unwrap_or_default();
    if !(0..=255).contains(&partition) {
        errors.push(FieldError::invalid(&path.child("partition"), partition, names::inclusive_range(1, 255)));
    }
}

pub(crate) fn nfs(source: &NFSVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.server, &path.child("server"), errors);
    check::present(&source.path, &path.child("path"), errors);
    if !source.path.starts_with('/') {
        errors.push(FieldError::invalid(&path.child("path"), source.path.as_str(), "must be an absolute path"));
    }
}

pub(crate) fn iscsi(source: &ISCSIVolumeSource, volume: &str, path: &Path, errors: &mut Errors) {
    let asks_auth = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    let target = Target {
        portal: &source.target_portal,
        iqn: &source.iqn,
        lun: source.lun,
        initiator: source.initiator_name.as_deref(),
        misses_secret: asks_auth && source.secret_ref.is_none(),
    };
    target.validate(volume, path, errors);
}

/// What iSCSI sources of both kinds of volumes have in common.
pub(crate) struct Target<'a> {
    pub portal: &'a str,
    pub iqn: &'a str,
    pub lun: i32,
    pub initiator: Option<&'a str>,
    pub misses_secret: bool,
}

impl Target<'_> {
    pub(crate) fn validate(&self, volume: &str, path: &Path, errors: &mut Errors) {
        check::present(self.portal, &path.child("targetPortal"), errors);
        if self.iqn.is_empty() {
            errors.push(FieldError::required(&path.child("iqn"), ""));
        } else {
            qualified(self.iqn, &path.child("iqn"), errors);
        }
        if !(0..=255).contains(&self.lun) {
            errors.push(FieldError::invalid(&path.child("lun"), self.lun, names::inclusive_range(0, 255)));
        }
        if self.misses_secret {
            errors.push(FieldError::required(&path.child("secretRef"), ""));
        }
        if let Some(initiator) = self.initiator {
            qualified(initiator, &path.child("initiatorname"), errors);
            if volume.len() + 1 + self.portal.len() > ISCSI_NAME_MAX {
                errors.push(FieldError::invalid(
                    &path.child("targetportal"),
                    self.portal,
                    "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                     iscsi.initiatorName is specified.",
                ));
            }
        }
    }
}

/// A name such as `iqn.2001-04.com.example:storage`, `eui.…` or `naa.…`.
fn qualified(name: &str, path: &Path, errors: &mut Errors) {
    let hex = |digits: &str, length| digits.len() == length && digits.bytes().all(|b| b.is_ascii_alphanumeric());
    let good = match name.split_once('.') {
        Some(("iqn", rest)) => rest.split_once('.').is_some_and(|(date, rest)| {
            let dated = date.len() == 7
                && date.bytes().enumerate().all(|(i, b)| if i == 4 { b == b'-' } else { b.is_ascii_digit() });
            dated && rest.split_once(':').is_none_or(|(authority, _)| !authority.is_empty())
        }),
        Some(("eui", rest)) => hex(rest, 16),
        Some(("naa", rest)) => hex(rest, 32),
        _ if ["iqn", "eui", "naa"].iter().any(|prefix| name.starts_with(prefix)) => false,
        _ => {
            let detail = "must be valid format starting with iqn, eui, or naa";
            errors.push(FieldError::invalid(path, name, detail));
            return;
        }
    };
    if !good {
        errors.push(FieldError::invalid(path, name, "must be valid format"));
    }
}

pub(crate) fn flocker(source: &FlockerVolumeSource, path: &Path, errors: &mut Errors) {
    let (name, uuid) = (text(&source.dataset_name), text(&source.dataset_uuid));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => {
            errors.push(FieldError::required(path, "one of datasetName and datasetUUID is required"));
        }
        (false, false) => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            errors.push(FieldError::invalid(path, "resource", detail));
        }
        _ => {}
    }
    if name.contains('/') {
        errors.push(FieldError::invalid(&path.child("datasetName"), name, "must not contain '/'"));
    }
}

pub(crate) fn monitors(monitors: &[String], path: &Path, errors: &mut Errors) {
    if monitors.is_empty() {
        errors.push(FieldError::required(&path.child("monitors"), ""));
    }
}

pub(crate) fn rbd(hosts: &[String], image: &str, path: &Path, errors: &mut Errors) {
    monitors(hosts, path, errors);
    check::present(image, &path.child("image"), errors);
}

pub(crate) fn local_secret(secret: &Option<LocalObjectReference>, path: &Path, errors: &mut Errors) {
    if let Some(secret) = secret {
        check::present(&secret.name, &path.child("secretRef").child("name"), errors);
    }
}

pub(crate) fn quobyte(source: &QuobyteVolumeSource, path: &Path, errors: &mut Errors) {
    let pairs = "must be a host:port pair or multiple pairs separated by commas";
    if source.registry.is_empty() {
        errors.push(FieldError::required(&path.child("registry"), pairs));
    } else if text(&source.tenant).len() >= 65 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(&path.child("tenant"), detail));
    } else {
        for pair in source.registry.split(',') {
            if !pair.contains(':') {
                errors.push(FieldError::invalid(&path.child("registry"), source.registry.as_str(), pairs));
            }
        }
    }
    check::present(&source.volume, &path.child("volume"), errors);
}

pub(crate) fn fc(source: &FCVolumeSource, path: &Path, errors: &mut Errors) {
    let (wwns, wwids) = (list(&source.target_wwns), list(&source.wwids));
    let at = path.child("targetWWNs");
    match (wwns.is_empty(), wwids.is_empty()) {
        (true, true) => {
            errors.push(FieldError::required(&at, "must specify either targetWWNs or wwids, but not both"));
        }
        (false, false) => {
            let detail = "targetWWNs and wwids can not be specified simultaneously";
            errors.push(FieldError::invalid(&at, shown(&wwns), detail));
        }
        _ => {}
    }
    if !wwns.is_empty() {
        match source.lun {
            None => errors.push(FieldError::required(&path.child("lun"), "lun is required if targetWWNs is specified")),
            Some(lun) => check::number(lun.into(), names::in_range(lun.into(), 0, 255), &path.child("lun"), errors),
        }
    }
}

pub(crate) fn flex(driver: &str, options: &Option<BTreeMap<String, String>>, path: &Path, errors: &mut Errors) {
    check::present(driver, &path.child("driver"), errors);
    for key in options.iter().flat_map(BTreeMap::keys) {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_ascii_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            errors.push(FieldError::invalid(
                &path.child("options").key(key),
                key.as_str(),
                "kubernetes.io and k8s.io namespaces are reserved",
            ));
        }
    }
}

pub(crate) fn vsphere(source: &VsphereVirtualDiskVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.volume_path, &path.child("volumePath"), errors);
}

pub(crate) fn photon(source: &PhotonPersistentDiskVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.pd_id, &path.child("pdID"), errors);
}

pub(crate) fn portworx(source: &PortworxVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.volume_id, &path.child("volumeID"), errors);
}

pub(crate) fn azure_disk(source: &AzureDiskVolumeSource, path: &Path, errors: &mut Errors) {
    check::present(&source.disk_name, &path.child("diskName"), errors);
    check::present(&source.disk_uri, &path.child("diskURI"), errors);
    let modes = &["None", "ReadOnly", "ReadWrite"];
    check::optional_one_of(&source.caching_mode, modes, &path.child("cachingMode"), errors);
    check::optional_one_of(&source.kind, &["Dedicated", "Managed", "Shared"], &path.child("kind"), errors);
    let (prefix, form) = match text(&source.kind) {
        "" => return,
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"),
    };
    if !source.disk_uri.starts_with(prefix) {
        errors.push(FieldError::not_supported(&path.child("diskURI"), source.disk_uri.as_str(), &[form]));
    }
}

pub(crate) fn storage_os(name: &Option<String>, namespace: &Option<String>, path: &Path, errors: &mut Errors) {
    names::require(text(name), &path.child("volumeName"), names::dns1123_label, errors);
    if !text(namespace).is_empty() {
        names::refuse(text(namespace), &path.child("volumeNamespace"), names::dns1123_label, errors);
    }
}

pub(crate) fn scale_io(gateway: &str, system: &str, volume: &Option<String>, path: &Path, errors: &mut Errors) {
    check::present(gateway, &path.child("gateway"), errors);
    check::present(system, &path.child("system"), errors);
    check::present(text(volume), &path.child("volumeName"), errors);
}

pub(crate) fn csi(source: &CSIVolumeSource, path: &Path, errors: &mut Errors) {
    csi_driver(&source.driver, &path.child("driver"), errors);
    if let Some(secret) = &source.node_publish_secret_ref {
        let at = path.child("nodePublishSecretRef").child("name");
        names::require(&secret.name, &at, names::dns1123_subdomain, errors);
    }
}

/// The name of a CSI driver; case does not matter.
pub(crate) fn csi_driver(driver: &str, path: &Path, errors: &mut Errors) {
    check::present(driver, path, errors);
    if driver.len() > CSI_DRIVER_MAX {
        errors.push(FieldError::too_long(path, CSI_DRIVER_MAX));
    }
    names::refuse(driver, path, |driver| names::dns1123_subdomain(&driver.to_ascii_lowercase()), errors);
}
