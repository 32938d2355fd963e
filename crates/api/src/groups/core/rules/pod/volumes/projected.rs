//! Volumes that gather files from several places.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, KeyToPath, PodCertificateProjection, ProjectedVolumeSource,
    ServiceAccountTokenProjection, VolumeProjection,
};

use super::{validate_downward_file, validate_file, validate_local_path, validate_mode};
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, list, shown, text},
        labels, names,
    },
};

/// Tokens live at least ten minutes and at most 2^32 seconds.
const TOKEN_MIN: i64 = 600;
const TOKEN_MAX: i64 = 1 << 32;
/// Certificates of pods live from an hour to 91 days.
const CERTIFICATE_MIN: i32 = 60 * 60;
const CERTIFICATE_MAX: i32 = 91 * 24 * 60 * 60;
const KEY_TYPES: &[&str] = &["ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"];

pub(super) fn validate(source: &ProjectedVolumeSource, path: &Path, errors: &mut Errors) {
    validate_mode(source.default_mode, &path.child("defaultMode"), errors);
    let mut taken = TakenPaths { paths: BTreeSet::new(), at: path };
    for (i, projection) in list(&source.sources).iter().enumerate() {
        validate_one(projection, &mut taken, &path.child("sources").index(i), errors);
    }
}

/// The file names in use: sources share one directory.
struct TakenPaths<'a> {
    paths: BTreeSet<String>,
    at: &'a Path,
}

impl TakenPaths<'_> {
    /// Takes a file name; `culprit` is shown if another source has it.
    fn take(&mut self, path: &str, culprit: &str, errors: &mut Errors) {
        if !path.is_empty() && !self.paths.insert(path.to_owned()) {
            errors.push(FieldError::invalid(self.at, culprit, "conflicting duplicate paths"));
        }
    }
}

fn validate_one(projection: &VolumeProjection, taken: &mut TakenPaths, path: &Path, errors: &mut Errors) {
    if let Some(secret) = &projection.secret {
        validate_keys(&secret.name, list(&secret.items), taken, &path.child("secret"), errors);
    }
    if let Some(config) = &projection.config_map {
        validate_keys(&config.name, list(&config.items), taken, &path.child("configMap"), errors);
    }
    if let Some(downward) = &projection.downward_api {
        for file in list(&downward.items) {
            validate_downward_file(file, &path.child("downwardAPI"), errors);
            taken.take(&file.path, &file.path, errors);
        }
    }
    if let Some(token) = &projection.service_account_token {
        validate_token(token, taken, &path.child("serviceAccountToken"), errors);
    }
    if let Some(bundle) = &projection.cluster_trust_bundle {
        validate_bundle(bundle, &path.child("clusterTrustBundle"), errors);
        taken.take(&bundle.path, &bundle.path, errors);
    }
    if let Some(certificate) = &projection.pod_certificate {
        validate_certificate(certificate, taken, &path.child("podCertificate"), errors);
    }
    let sources = [
        projection.secret.is_some(),
        projection.config_map.is_some(),
        projection.downward_api.is_some(),
        projection.service_account_token.is_some(),
        projection.cluster_trust_bundle.is_some(),
        projection.pod_certificate.is_some(),
    ];
    if sources.iter().filter(|set| **set).count() > 1 {
        errors.push(FieldError::forbidden(path, "may not specify more than 1 volume type per source"));
    }
}

fn validate_keys(name: &str, items: &[KeyToPath], taken: &mut TakenPaths, path: &Path, errors: &mut Errors) {
    check::present(name, &path.child("name"), errors);
    for (i, item) in items.iter().enumerate() {
        validate_file(item, &path.child("items").index(i), errors);
        taken.take(&item.path, name, errors);
    }
}

fn validate_token(token: &ServiceAccountTokenProjection, taken: &TakenPaths, path: &Path, errors: &mut Errors) {
    let seconds = token.expiration_seconds.unwrap_or_default();
    let at = path.child("expirationSeconds");
    if seconds < TOKEN_MIN {
        errors.push(FieldError::invalid(&at, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > TOKEN_MAX {
        errors.push(FieldError::invalid(&at, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    let at = taken.at.child("path");
    check::present(&token.path, &at, errors);
    validate_local_path(&token.path, &at, errors);
}

fn validate_certificate(
    certificate: &PodCertificateProjection,
    taken: &mut TakenPaths,
    path: &Path,
    errors: &mut Errors,
) {
    check::present(&certificate.signer_name, &path.child("signerName"), errors);
    check::required_one_of(&certificate.key_type, KEY_TYPES, &path.child("keyType"), errors);
    if let Some(seconds) = certificate.max_expiration_seconds
        && !(CERTIFICATE_MIN..=CERTIFICATE_MAX).contains(&seconds)
    {
        let words = format!("must be between {CERTIFICATE_MIN} and {CERTIFICATE_MAX}");
        errors.push(FieldError::invalid(&path.child("maxExpirationSeconds"), seconds, words));
    }
    let files = [
        ("credentialBundlePath", &certificate.credential_bundle_path),
        ("keyPath", &certificate.key_path),
        ("certificateChainPath", &certificate.certificate_chain_path),
    ];
    if files.iter().all(|(_, file)| text(file).is_empty()) {
        let words = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(path, words));
    }
    for (field, file) in files.into_iter().filter(|(_, file)| !text(file).is_empty()) {
        validate_local_path(text(file), &path.child(field), errors);
        taken.take(text(file), text(file), errors);
    }
}

fn validate_bundle(bundle: &ClusterTrustBundleProjection, path: &Path, errors: &mut Errors) {
    match (&bundle.name, &bundle.signer_name) {
        (Some(_), Some(_)) => {
            let detail = "only one of name and signerName may be used";
            errors.push(FieldError::invalid(path, shown(bundle), detail));
        }
        (Some(name), None) => {
            if name.is_empty() {
                errors.push(FieldError::required(&path.child("name"), "must be a valid object name"));
            }
            // A bundle of a signer is named `signer:domain:name`.
            for complaint in names::dns1123_subdomain(name.rsplit(':').next().unwrap_or_default()) {
                let detail = format!("not a valid clustertrustbundlename: {complaint}");
                errors.push(FieldError::invalid(&path.child("name"), name.as_str(), detail));
            }
            if bundle.label_selector.is_some() {
                errors.push(FieldError::invalid(
                    &path.child("labelSelector"),
                    shown(&bundle.label_selector),
                    "labelSelector must be unset if name is specified",
                ));
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                errors.push(FieldError::required(&path.child("signerName"), "must be a valid signer name"));
            }
            if let Some(selector) = &bundle.label_selector {
                labels::validate_selector(selector, &path.child("labelSelector"), errors);
            }
        }
        (None, None) => {
            errors.push(FieldError::required(path, "either name or signerName must be specified"));
        }
    }
    check::present(&bundle.path, &path.child("path"), errors);
    validate_local_path(&bundle.path, &path.child("path"), errors);
}
