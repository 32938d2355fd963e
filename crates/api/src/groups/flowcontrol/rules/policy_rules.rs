//! Who and what a FlowSchema matches.

use k8s_openapi::api::flowcontrol::v1::{
    NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, ServiceAccountSubject, Subject,
};

use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{list, present, shown},
        names,
    },
};

const ALL: &str = "*";
const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub fn validate_rules(rule: &PolicyRulesWithSubjects, path: &Path, errors: &mut Errors) {
    if rule.subjects.is_empty() {
        errors.push(FieldError::required(&path.child("subjects"), "subjects must contain at least one value"));
    }
    for (i, subject) in rule.subjects.iter().enumerate() {
        validate_subject(subject, &path.child("subjects").index(i), errors);
    }
    let (resources, others) = (list(&rule.resource_rules), list(&rule.non_resource_rules));
    if resources.is_empty() && others.is_empty() {
        let words = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, words));
    }
    for (i, rule) in resources.iter().enumerate() {
        validate_resource_rule(rule, &path.child("resourceRules").index(i), errors);
    }
    for (i, rule) in others.iter().enumerate() {
        validate_non_resource_rule(rule, &path.child("nonResourceRules").index(i), errors);
    }
}

fn validate_subject(subject: &Subject, path: &Path, errors: &mut Errors) {
    let kinds = [
        ("ServiceAccount", "serviceAccount", subject.service_account.is_some()),
        ("User", "user", subject.user.is_some()),
        ("Group", "group", subject.group.is_some()),
    ];
    if !kinds.iter().any(|(kind, ..)| *kind == subject.kind) {
        let supported = ["Group", "ServiceAccount", "User"];
        errors.push(FieldError::not_supported(&path.child("kind"), subject.kind.as_str(), &supported));
        return;
    }
    for (kind, field, is_set) in kinds {
        let at = path.child(field);
        match (kind == subject.kind, is_set) {
            (true, false) => {
                errors.push(FieldError::required(&at, format!("{field} is required when subject kind is '{kind}'")));
            }
            (false, true) => {
                let words = format!("{field} is forbidden when subject kind is not '{kind}'");
                errors.push(FieldError::forbidden(&at, words));
            }
            (true, true) | (false, false) => {}
        }
    }
    match (subject.kind.as_str(), &subject.service_account, &subject.user, &subject.group) {
        ("ServiceAccount", Some(account), ..) => validate_account(account, &path.child("serviceAccount"), errors),
        ("User", _, Some(user), _) => present(&user.name, &path.child("user").child("name"), errors),
        ("Group", _, _, Some(group)) => present(&group.name, &path.child("group").child("name"), errors),
        _ => {}
    }
}

fn validate_account(account: &ServiceAccountSubject, path: &Path, errors: &mut Errors) {
    if account.name != ALL {
        names::require(&account.name, &path.child("name"), names::dns1123_subdomain, errors);
    }
    if account.namespace.is_empty() {
        let words = "must specify namespace for service account";
        errors.push(FieldError::required(&path.child("namespace"), words));
    } else {
        names::refuse(&account.namespace, &path.child("namespace"), names::dns1123_label, errors);
    }
}

/// Whether a list has `*`; then it may have nothing else.
fn has_wildcard(items: &[String], what: &str, path: &Path, errors: &mut Errors) -> bool {
    let has = items.iter().any(|item| item == ALL);
    if has && items.len() > 1 {
        let words = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(path, shown(&items), words));
    }
    has
}

fn validate_verbs(verbs: &[String], path: &Path, errors: &mut Errors) {
    let path = path.child("verbs");
    if verbs.is_empty() {
        errors.push(FieldError::required(&path, "verbs must contain at least one value"));
    } else if !has_wildcard(verbs, "verbs", &path, errors) && !verbs.iter().all(|verb| VERBS.contains(&verb.as_str())) {
        errors.push(FieldError::not_supported(&path, shown(&verbs), VERBS));
    }
}

fn validate_resource_rule(rule: &ResourcePolicyRule, path: &Path, errors: &mut Errors) {
    validate_verbs(&rule.verbs, path, errors);
    for (field, items, one, others) in [
        ("apiGroups", &rule.api_groups, "api group", "api groups"),
        ("resources", &rule.resources, "resource", "resources"),
    ] {
        let at = path.child(field);
        if items.is_empty() {
            errors.push(FieldError::required(&at, format!("resource rules must supply at least one {one}")));
        }
        has_wildcard(items, others, &at, errors);
    }
    let (namespaces, at) = (list(&rule.namespaces), path.child("namespaces"));
    if namespaces.is_empty() && rule.cluster_scope != Some(true) {
        let words = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(FieldError::required(&at, words));
    } else if !has_wildcard(namespaces, "namespaces", &at, errors) {
        for (i, namespace) in namespaces.iter().enumerate() {
            for words in names::dns1123_label(namespace) {
                let words = format!("each member of this list must be '*' or a DNS-1123 label; {words}");
                errors.push(FieldError::invalid(&at.index(i), namespace.as_str(), words));
            }
        }
    }
}

fn validate_non_resource_rule(rule: &NonResourcePolicyRule, path: &Path, errors: &mut Errors) {
    validate_verbs(&rule.verbs, path, errors);
    let (urls, at) = (&rule.non_resource_urls, path.child("nonResourceURLs"));
    if urls.is_empty() {
        errors.push(FieldError::required(&at, "nonResourceURLs must contain at least one value"));
    } else if !has_wildcard(urls, "non-resource URLs", &at, errors) {
        for (i, url) in urls.iter().enumerate() {
            if let Some(words) = url_complaint(url) {
                errors.push(FieldError::invalid(&at.index(i), url.as_str(), words));
            }
        }
    }
}

fn url_complaint(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn complaints(rule: Value) -> Vec<String> {
        let mut errors = Errors::new();
        validate_rules(&serde_json::from_value(rule).unwrap(), &Path::new("r"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn subjects_are_of_the_kind_they_say() {
        let urls = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]);
        let subjects = |subject: Value| complaints(json!({"subjects": [subject], "nonResourceRules": urls}));
        assert_eq!(subjects(json!({"kind": "User", "user": {"name": "ann"}})), [""; 0]);
        assert_eq!(
            subjects(json!({"kind": "User", "group": {"name": "dev"}})),
            [
                "r.subjects[0].user: Required value: user is required when subject kind is 'User'",
                "r.subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
            ]
        );
        assert_eq!(
            subjects(json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": ""}})),
            ["r.subjects[0].serviceAccount.namespace: Required value: must specify namespace for service account"]
        );
        assert_eq!(
            subjects(json!({"kind": "Moon"})),
            [r#"r.subjects[0].kind: Unsupported value: "Moon": supported values: "Group", "ServiceAccount", "User""#]
        );
    }

    #[test]
    fn rules_say_what_they_match() {
        let dev = json!([{"kind": "Group", "group": {"name": "dev"}}]);
        assert_eq!(
            complaints(json!({"subjects": []})),
            [
                "r.subjects: Required value: subjects must contain at least one value",
                "r: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
            ]
        );
        let rule = json!({"verbs": ["*", "get"], "apiGroups": [], "resources": ["pods"]});
        assert_eq!(
            complaints(json!({"subjects": dev, "resourceRules": [rule]})),
            [
                r#"r.resourceRules[0].verbs: Invalid value: ["*","get"]: if '*' is present, must not specify other verbs"#,
                "r.resourceRules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "r.resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
            ]
        );
        for (url, words) in [
            ("healthz", "must start with slash"),
            ("/a b", "must not contain white-space"),
            ("/a//b", "must not contain double slash"),
            ("/a*", "wildcard can only do suffix matching"),
        ] {
            let rule = json!({"verbs": ["get"], "nonResourceURLs": [url]});
            let expected = format!("r.nonResourceRules[0].nonResourceURLs[0]: Invalid value: {url:?}: {words}");
            assert_eq!(complaints(json!({"subjects": dev, "nonResourceRules": [rule]})), [expected]);
        }
    }
}
