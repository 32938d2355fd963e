//! APIService.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{check::text, names},
};

pub struct ApiServiceRules;

const DEFAULT_PORT: i32 = 443;
const MAX_GROUP_PRIORITY: i32 = 20_000;
const MAX_VERSION_PRIORITY: i32 = 1000;

impl Rules for ApiServiceRules {
    type Object = APIService;

    fn default(object: &mut APIService) {
        if let Some(service) = object.spec.as_mut().and_then(|spec| spec.service.as_mut()) {
            service.port.get_or_insert(DEFAULT_PORT);
        }
    }

    fn prepare_create(object: &mut APIService) {
        object.status = None;
    }

    fn prepare_update(object: &mut APIService, old: &APIService) {
        object.status.clone_from(&old.status);
    }

    fn validate(object: &APIService, errors: &mut Errors) {
        let unset = Default::default();
        let spec = object.spec.as_ref().unwrap_or(&unset);
        let (group, version) = (text(&spec.group), text(&spec.version));
        let name = text(&object.metadata.name);
        let required = format!("{version}.{group}");
        if name != required {
            let words = format!("must be `spec.version+\".\"+spec.group`: {required:?}");
            errors.push(FieldError::invalid(&Path::new("metadata").child("name"), name, words));
        }
        let path = Path::new("spec");
        if group.is_empty() && version != "v1" {
            let words = "only v1 may have an empty group and it better be legacy kube";
            errors.push(FieldError::required(&path.child("group"), words));
        }
        if !group.is_empty() {
            for complaint in names::dns1123_subdomain(group) {
                errors.push(FieldError::invalid(&path.child("group"), group, complaint));
            }
        }
        for complaint in names::dns1035_label(version) {
            errors.push(FieldError::invalid(&path.child("version"), version, complaint));
        }
        let mut within = |value: i32, most: i32, field: &str| {
            if value <= 0 || value > most {
                let words = format!("must be positive and less than {most}");
                errors.push(FieldError::invalid(&path.child(field), value, words));
            }
        };
        within(spec.group_priority_minimum, MAX_GROUP_PRIORITY, "groupPriorityMinimum");
        within(spec.version_priority, MAX_VERSION_PRIORITY, "versionPriority");
        let ca_bundle = spec.ca_bundle.as_ref().map_or(0, |bundle| bundle.0.len());
        let is_insecure = spec.insecure_skip_tls_verify == Some(true);
        let insecure = path.child("insecureSkipTLSVerify");
        let Some(service) = &spec.service else {
            if ca_bundle > 0 {
                let given = format!("{ca_bundle} bytes");
                let words = "local APIServices may not have a caBundle";
                errors.push(FieldError::invalid(&path.child("caBundle"), given, words));
            }
            if is_insecure {
                errors.push(FieldError::invalid(
                    &insecure,
                    true,
                    "local APIServices may not have insecureSkipTLSVerify",
                ));
            }
            return;
        };
        let at = path.child("service");
        for (field, given) in [("namespace", &service.namespace), ("name", &service.name)] {
            if text(given).is_empty() {
                errors.push(FieldError::required(&at.child(field), ""));
            }
        }
        let port = service.port.unwrap_or(0);
        if !(1..=65535).contains(&port) {
            let words = "port is not valid: must be between 1 and 65535, inclusive";
            errors.push(FieldError::invalid(&at.child("port"), port, words));
        }
        if is_insecure && ca_bundle > 0 {
            errors.push(FieldError::invalid(&insecure, true, "may not be true if caBundle is present"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    fn remote() -> Value {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.example.com"},
            "spec": {
                "group": "example.com", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 10,
                "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "api"},
            },
        })
    }

    #[test]
    fn a_service_is_called_at_the_usual_port() {
        assert_completes::<ApiServiceRules>(remote(), with(&remote(), json!({"spec": {"service": {"port": 443}}})));
    }

    #[test]
    fn what_upstream_refuses_is_refused_in_its_words() {
        assert_refused::<ApiServiceRules>(
            with(&remote(), json!({"metadata": {"name": "v2.example.com"}, "spec": {"groupPriorityMinimum": 0}})),
            &[
                r#"metadata.name: Invalid value: "v2.example.com": must be `spec.version+"."+spec.group`: "v1.example.com""#,
                "spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
            ],
        );
        assert_refused::<ApiServiceRules>(
            with(&remote(), json!({"spec": {"caBundle": "YQ==", "service": {"name": "", "port": 70000}}})),
            &[
                "spec.service.name: Required value",
                "spec.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive",
                "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
            ],
        );
        assert_refused::<ApiServiceRules>(
            with(&remote(), json!({"spec": {"service": null, "caBundle": "YQ=="}})),
            &[
                r#"spec.caBundle: Invalid value: "1 bytes": local APIServices may not have a caBundle"#,
                "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify",
            ],
        );
    }
}
