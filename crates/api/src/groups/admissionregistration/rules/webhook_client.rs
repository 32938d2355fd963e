//! Where a webhook is called.

use k8s_openapi::api::admissionregistration::v1::{ServiceReference, WebhookClientConfig};

use crate::{
    field::{Errors, FieldError, Path},
    validation::names,
};

const FORM: &str = "; desired format: https://host[/path]";

pub fn default(client: &mut WebhookClientConfig) {
    if let Some(service) = &mut client.service {
        service.port.get_or_insert(443);
    }
}

pub fn validate(client: &WebhookClientConfig, path: &Path, errors: &mut Errors) {
    match (&client.url, &client.service) {
        (Some(url), None) => validate_url(url, &path.child("url"), errors),
        (None, Some(service)) => validate_service(service, &path.child("service"), errors),
        _ => errors.push(FieldError::required(path, "exactly one of url or service is required")),
    }
}

fn validate_url(url: &str, path: &Path, errors: &mut Errors) {
    let mut refuse = |value: &str, words: String| errors.push(FieldError::invalid(path, value, words));
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        refuse(scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() || scheme.is_empty() {
        refuse("", format!("host must be specified{FORM}"));
    }
    for (value, what) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !value.is_empty() {
            refuse(value, what.to_owned());
        }
    }
}

fn validate_service(service: &ServiceReference, path: &Path, errors: &mut Errors) {
    if service.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "service name is required"));
    }
    if service.namespace.is_empty() {
        errors.push(FieldError::required(&path.child("namespace"), "service namespace is required"));
    }
    if let Some(port) = service.port {
        let complaints = names::is_valid_port_num(port);
        if !complaints.is_empty() {
            let words = format!("port is not valid: {}", complaints.join(","));
            errors.push(FieldError::invalid(&path.child("port"), port, words));
        }
    }
    if let Some(url_path) = service.path.as_deref().filter(|path| !path.is_empty() && *path != "/") {
        validate_path(url_path, &path.child("path"), errors);
    }
}

fn validate_path(url_path: &str, path: &Path, errors: &mut Errors) {
    let mut refuse = |words: String| errors.push(FieldError::invalid(path, url_path, words));
    if url_path.contains("//") {
        refuse("segment[0] may not be empty".to_owned());
        return;
    }
    let Some(rest) = url_path.strip_prefix('/') else {
        refuse("must start with a '/'".to_owned());
        return;
    };
    for (i, segment) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        for words in names::dns1123_subdomain(segment) {
            refuse(format!("segment[{i}]: {words}"));
        }
    }
}
