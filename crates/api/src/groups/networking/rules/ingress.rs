//! Ingress.

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressServiceBackend, IngressSpec,
};

use super::validate_reference;
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{list, number, shown, text},
        names,
    },
};

pub struct IngressRules;

const NOT_AN_IP: &str = "must be a DNS name, not an IP address";

impl Rules for IngressRules {
    type Object = Ingress;

    fn default(_: &mut Ingress) {}

    fn prepare_create(object: &mut Ingress) {
        object.status.get_or_insert_default().load_balancer.get_or_insert_default();
    }

    fn validate(object: &Ingress, errors: &mut Errors) {
        validate_spec(object.spec.as_ref().unwrap_or(&IngressSpec::default()), &Path::new("spec"), errors);
    }

    fn validate_status(object: &Ingress, _: &Ingress, errors: &mut Errors) {
        let path = Path::new("status").child("loadBalancer").child("ingress");
        let status = object.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        for (i, ingress) in status.map_or(&[][..], |status| list(&status.ingress)).iter().enumerate() {
            let path = path.index(i);
            if let Some(ip) = ingress.ip.as_deref().filter(|ip| !ip.is_empty()) {
                names::refuse(ip, &path.child("ip"), names::ip, errors);
            }
            if let Some(host) = ingress.hostname.as_deref().filter(|host| !host.is_empty()) {
                let path = path.child("hostname");
                names::refuse(host, &path, names::dns1123_subdomain, errors);
                if names::parse_ip(host).is_some() {
                    errors.push(FieldError::invalid(&path, host, NOT_AN_IP));
                }
            }
        }
    }

    fn warnings(object: &Ingress) -> Vec<String> {
        let annotated = object.metadata.annotations.iter().any(|all| all.contains_key("kubernetes.io/ingress.class"));
        let words =
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead";
        if annotated { vec![words.to_owned()] } else { Vec::new() }
    }
}

fn validate_spec(spec: &IngressSpec, path: &Path, errors: &mut Errors) {
    if list(&spec.rules).is_empty() && spec.default_backend.is_none() {
        let words = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(path, shown(&spec.rules), words));
    }
    if let Some(backend) = &spec.default_backend {
        validate_backend(backend, &path.child("defaultBackend"), errors);
    }
    for (i, rule) in list(&spec.rules).iter().enumerate() {
        let path = path.child("rules").index(i);
        if let Some(host) = rule.host.as_deref().filter(|host| !host.is_empty()) {
            let path = path.child("host");
            if names::parse_ip(host).is_some() {
                errors.push(FieldError::invalid(&path, host, NOT_AN_IP));
            }
            validate_host(host, &path, errors);
        }
        if let Some(http) = &rule.http {
            validate_http(http, &path.child("http"), errors);
        }
    }
    for (i, tls) in list(&spec.tls).iter().enumerate() {
        let path = path.child("tls").index(i);
        for (i, host) in list(&tls.hosts).iter().enumerate() {
            validate_host(host, &path.child("hosts").index(i), errors);
        }
        if let Some(secret) = tls.secret_name.as_deref().filter(|name| !name.is_empty()) {
            names::refuse(secret, &path.child("secretName"), names::dns1123_subdomain, errors);
        }
    }
    if let Some(class) = &spec.ingress_class_name {
        names::refuse(class, &path.child("ingressClassName"), names::dns1123_subdomain, errors);
    }
}

fn validate_host(host: &str, path: &Path, errors: &mut Errors) {
    let rule = if host.contains('*') { names::wildcard_dns1123_subdomain } else { names::dns1123_subdomain };
    names::refuse(host, path, rule, errors);
}

fn validate_http(http: &HTTPIngressRuleValue, path: &Path, errors: &mut Errors) {
    let path = path.child("paths");
    if http.paths.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    for (i, http_path) in http.paths.iter().enumerate() {
        validate_path(http_path, &path.index(i), errors);
    }
}

fn validate_path(http: &HTTPIngressPath, path: &Path, errors: &mut Errors) {
    let (pattern, pattern_path) = (text(&http.path), path.child("path"));
    let mut refuse = |words: String| errors.push(FieldError::invalid(&pattern_path, pattern, words));
    match http.path_type.as_str() {
        "" => {
            errors.push(FieldError::required(&path.child("pathType"), "pathType must be specified"));
            return;
        }
        "Exact" | "Prefix" => {
            if !pattern.starts_with('/') {
                refuse("must be an absolute path".to_owned());
            }
            for sequence in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|part| pattern.contains(part)) {
                refuse(format!("must not contain '{sequence}'"));
            }
            for suffix in ["/..", "/."].into_iter().filter(|suffix| pattern.ends_with(suffix)) {
                refuse(format!("cannot end with '{suffix}'"));
            }
        }
        "ImplementationSpecific" => {
            if !pattern.is_empty() && !pattern.starts_with('/') {
                refuse("must be an absolute path".to_owned());
            }
        }
        other => errors.push(FieldError::not_supported(
            &path.child("pathType"),
            other,
            &["Exact", "ImplementationSpecific", "Prefix"],
        )),
    }
    validate_backend(&http.backend, &path.child("backend"), errors);
}

fn validate_backend(backend: &IngressBackend, path: &Path, errors: &mut Errors) {
    match (&backend.resource, &backend.service) {
        (Some(_), Some(_)) => {
            errors.push(FieldError::invalid(path, "", "cannot set both resource and service backends"));
        }
        (Some(resource), None) => validate_reference(resource, &path.child("resource"), errors),
        (None, Some(service)) => validate_service(service, path, errors),
        (None, None) => errors.push(FieldError::invalid(path, "", "resource or service backend is required")),
    }
}

fn validate_service(service: &IngressServiceBackend, path: &Path, errors: &mut Errors) {
    let at = path.child("service");
    names::require(&service.name, &at.child("name"), names::dns1035_label, errors);
    let port = service.port.as_ref();
    let name = port.and_then(|port| port.name.as_deref()).unwrap_or_default();
    let port_number = port.and_then(|port| port.number).unwrap_or(0);
    match (name, port_number) {
        ("", 0) => errors.push(FieldError::required(path, "port name or number is required")),
        ("", given) => {
            number(given.into(), names::is_valid_port_num(given), &at.child("port").child("number"), errors);
        }
        (name, 0) => names::refuse(name, &at.child("port").child("name"), names::port_name, errors),
        _ => errors.push(FieldError::invalid(path, "", "cannot set both port name & port number")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_status, with};

    fn site() -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "site"},
            "spec": {"rules": [{"host": "example.com", "http": {"paths": [{
                "path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}},
            }]}}]},
        })
    }

    #[test]
    fn an_ingress_stays_as_written() {
        assert_completes::<IngressRules>(site(), with(&site(), json!({"status": {"loadBalancer": {}}})));
    }

    #[test]
    fn bad_ingresses_are_refused_with_upstreams_messages() {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let path = |change: Value| {
            let path = with(&json!({"path": "/", "pathType": "Prefix", "backend": backend}), change);
            json!({"rules": [{"http": {"paths": [path]}}]})
        };
        let at = "spec.rules[0].http.paths[0]";
        let cases: Vec<(Value, Vec<String>)> = vec![
            (
                json!({"rules": null}),
                vec!["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified".to_owned()],
            ),
            (
                path(json!({"pathType": null})),
                vec![format!("{at}.pathType: Required value: pathType must be specified")],
            ),
            (
                path(json!({"pathType": "Regex"})),
                vec![format!(
                    r#"{at}.pathType: Unsupported value: "Regex": supported values: "Exact", "ImplementationSpecific", "Prefix""#
                )],
            ),
            (
                path(json!({"path": "a//b/.."})),
                vec![
                    format!(r#"{at}.path: Invalid value: "a//b/..": must be an absolute path"#),
                    format!(r#"{at}.path: Invalid value: "a//b/..": must not contain '//'"#),
                    format!(r#"{at}.path: Invalid value: "a//b/..": cannot end with '/..'"#),
                ],
            ),
            (
                path(json!({"backend": null})),
                vec![format!(r#"{at}.backend: Invalid value: "": resource or service backend is required"#)],
            ),
            (
                path(json!({"backend": {"service": {"port": {"name": "http"}}}})),
                vec![format!(r#"{at}.backend: Invalid value: "": cannot set both port name & port number"#)],
            ),
            (
                path(json!({"backend": {"service": {"name": null, "port": null}}})),
                vec![
                    format!("{at}.backend.service.name: Required value"),
                    format!("{at}.backend: Required value: port name or number is required"),
                ],
            ),
            (json!({"rules": [{"http": {"paths": []}}]}), vec!["spec.rules[0].http.paths: Required value".to_owned()]),
        ];
        for (change, expected) in &cases {
            let expected: Vec<_> = expected.iter().map(String::as_str).collect();
            assert_refused::<IngressRules>(with(&site(), json!({"spec": change})), &expected);
        }
        let numeric = with(&site(), json!({"spec": {"rules": [{"host": "1.2.3.4"}]}}));
        assert_refused::<IngressRules>(
            numeric,
            &[r#"spec.rules[0].host: Invalid value: "1.2.3.4": must be a DNS name, not an IP address"#],
        );
    }

    #[test]
    fn reported_addresses_are_addresses() {
        assert_status::<IngressRules>(
            &site(),
            json!({"status": {"loadBalancer": {"ingress": [{"hostname": "1.2.3.4"}]}}}),
            &[
                r#"status.loadBalancer.ingress[0].hostname: Invalid value: "1.2.3.4": must be a DNS name, not an IP address"#,
            ],
        );
    }
}
