//! Environment variables, and the fields and resources that can be looked into.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector, ResourceFieldSelector,
};

use super::volumes::{self, Volumes};

use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, text},
        names,
    },
};

/// The fields of a pod that an environment variable can show.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The fields of a pod that a file can show.
pub(super) const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGES: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];
const BYTE_DIVISORS: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn validate(variables: &[EnvVar], volumes: &Volumes, path: &Path, errors: &mut Errors) {
    for (i, variable) in variables.iter().enumerate() {
        let at = path.index(i);
        names::require(&variable.name, &at.child("name"), names::env_var_name, errors);
        if let Some(source) = &variable.value_from {
            validate_source(source, text(&variable.value), volumes, &at.child("valueFrom"), errors);
        }
    }
}

fn validate_source(source: &EnvVarSource, value: &str, volumes: &Volumes, path: &Path, errors: &mut Errors) {
    let mut sources = 0;
    if let Some(reference) = &source.field_ref {
        sources += 1;
        validate_field(reference, ENV_FIELDS, &path.child("fieldRef"), errors);
    }
    if let Some(reference) = &source.resource_field_ref {
        sources += 1;
        validate_resource(reference, &path.child("resourceFieldRef"), errors);
    }
    if let Some(reference) = &source.config_map_key_ref {
        sources += 1;
        validate_key(&reference.name, &reference.key, &path.child("configMapKeyRef"), errors);
    }
    if let Some(reference) = &source.secret_key_ref {
        sources += 1;
        validate_key(&reference.name, &reference.key, &path.child("secretKeyRef"), errors);
    }
    if let Some(reference) = &source.file_key_ref {
        sources += 1;
        validate_file_key(reference, volumes, &path.child("fileKeyRef"), errors);
    }
    let complaint = match sources {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if !value.is_empty() => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(path, "", complaint));
}

/// A variable that another container wrote into a file of an emptyDir.
fn validate_file_key(reference: &FileKeySelector, volumes: &Volumes, path: &Path, errors: &mut Errors) {
    names::require(&reference.key, &path.child("key"), names::env_var_name, errors);
    let at = path.child("volumeName");
    match volumes.get(reference.volume_name.as_str()).map(|volume| volume.empty_dir.is_some()) {
        _ if reference.volume_name.is_empty() => errors.push(FieldError::required(&at, "")),
        None => errors.push(FieldError::not_found(&at, reference.volume_name.as_str())),
        Some(false) => {
            let words = "referenced volume must be of type emptyDir";
            errors.push(FieldError::invalid(&at, reference.volume_name.as_str(), words));
        }
        Some(true) => {}
    }
    let at = path.child("path");
    check::present(&reference.path, &at, errors);
    volumes::validate_local_path(&reference.path, &at, errors);
}

fn validate_key(name: &str, key: &str, path: &Path, errors: &mut Errors) {
    names::refuse(name, &path.child("name"), names::dns1123_subdomain, errors);
    names::require(key, &path.child("key"), names::config_map_key, errors);
}

pub(super) fn validate_from(sources: &[EnvFromSource], path: &Path, errors: &mut Errors) {
    for (i, source) in sources.iter().enumerate() {
        let at = path.index(i);
        if !text(&source.prefix).is_empty() {
            names::refuse(text(&source.prefix), &at.child("prefix"), names::env_var_name, errors);
        }
        let references = [
            ("configMapRef", source.config_map_ref.as_ref().map(|reference| &reference.name)),
            ("secretRef", source.secret_ref.as_ref().map(|reference| &reference.name)),
        ];
        for (field, name) in references {
            if let Some(name) = name {
                names::require(name, &at.child(field).child("name"), names::dns1123_subdomain_prefix, errors);
            }
        }
        match references.iter().filter(|(_, name)| name.is_some()).count() {
            0 => errors.push(FieldError::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => {
                errors.push(FieldError::invalid(path, "", "may not have more than one field specified at a time"));
            }
        }
    }
}

/// A field of the pod, `metadata.labels['app']` included.
pub(super) fn validate_field(reference: &ObjectFieldSelector, supported: &[&str], path: &Path, errors: &mut Errors) {
    let (version, field) = (text(&reference.api_version), reference.field_path.as_str());
    if version.is_empty() {
        errors.push(FieldError::required(&path.child("apiVersion"), ""));
        return;
    }
    if field.is_empty() {
        errors.push(FieldError::required(&path.child("fieldPath"), ""));
        return;
    }
    let refuse = |complaint: String| FieldError::invalid(&path.child("fieldPath"), field, complaint);
    if version != "v1" {
        errors.push(refuse(format!("error converting fieldPath: unsupported pod version: {version}")));
        return;
    }
    match subscripted(field) {
        Some(("metadata.annotations", key)) => {
            names::refuse(&key.to_ascii_lowercase(), path, names::qualified_name, errors);
        }
        Some(("metadata.labels", key)) => names::refuse(key, path, names::qualified_name, errors),
        Some((other, key)) => errors.push(refuse(format!(
            "error converting fieldPath: field label does not support subscript: {other}['{key}']"
        ))),
        None if supported.contains(&field) => {}
        None if ENV_FIELDS.contains(&field) || VOLUME_FIELDS.contains(&field) => {
            errors.push(FieldError::not_supported(&path.child("fieldPath"), field, supported));
        }
        None => errors.push(refuse(format!("error converting fieldPath: field label not supported: {field}"))),
    }
}

/// `a.b['c']` as `a.b` and `c`.
fn subscripted(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix("']")?.split_once("['").filter(|(path, _)| !path.is_empty())
}

/// A resource of the container itself.
fn validate_resource(reference: &ResourceFieldSelector, path: &Path, errors: &mut Errors) {
    let resource = reference.resource.as_str();
    if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !HUGE_PAGES.iter().any(|prefix| resource.starts_with(prefix)) {
        errors.push(FieldError::not_supported(&path.child("resource"), resource, RESOURCES));
    }
    validate_divisor(reference, path, errors);
}

/// A resource of a container that has to be named.
pub(super) fn validate_resource_of(reference: &ResourceFieldSelector, path: &Path, errors: &mut Errors) {
    if text(&reference.container_name).is_empty() {
        errors.push(FieldError::required(&path.child("containerName"), ""));
        validate_divisor(reference, path, errors);
    } else {
        validate_resource(reference, path, errors);
    }
}

fn validate_divisor(reference: &ResourceFieldSelector, path: &Path, errors: &mut Errors) {
    let divisor = reference.divisor.as_ref().map_or("0", |quantity| quantity.0.as_str());
    if divisor == "0" {
        return;
    }
    let resource = reference.resource.as_str();
    let bytes = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";
    let (supported, words) = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => (&["1m", "1"][..], "1m and 1 are supported with the cpu resource".to_owned()),
        "memory" => (BYTE_DIVISORS, format!("{bytes} are supported with the memory resource")),
        "ephemeral-storage" => {
            (BYTE_DIVISORS, format!("{bytes} are supported with the local ephemeral storage resource"))
        }
        name if name.starts_with("hugepages-") => {
            (BYTE_DIVISORS, format!("{bytes} are supported with the hugepages resource"))
        }
        _ => return,
    };
    if !supported.contains(&divisor) {
        errors.push(FieldError::invalid(&path.child("divisor"), resource, format!("only divisor's values {words}")));
    }
}
