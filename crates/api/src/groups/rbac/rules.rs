//! Roles and their bindings.
//!
//! Whether an author may grant what a role contains is authorization's business, not validation's.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{fill, list, one_of, shown, text},
        labels, names,
    },
};

pub struct RoleRules;
pub struct ClusterRoleRules;
pub struct RoleBindingRules;
pub struct ClusterRoleBindingRules;

const GROUP: &str = "rbac.authorization.k8s.io";

impl Rules for RoleRules {
    type Object = Role;

    fn default(_: &mut Role) {}

    fn validate(object: &Role, errors: &mut Errors) {
        validate_rules(list(&object.rules), true, errors);
    }
}

impl Rules for ClusterRoleRules {
    type Object = ClusterRole;

    fn default(_: &mut ClusterRole) {}

    fn validate(object: &ClusterRole, errors: &mut Errors) {
        validate_rules(list(&object.rules), false, errors);
        let Some(aggregation) = &object.aggregation_rule else { return };
        let path = Path::new("aggregationRule").child("clusterRoleSelectors");
        let selectors = list(&aggregation.cluster_role_selectors);
        if selectors.is_empty() {
            let words = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required(&path, words));
        }
        for (i, selector) in selectors.iter().enumerate() {
            labels::validate_selector(selector, &path.index(i), errors);
        }
    }
}

impl Rules for RoleBindingRules {
    type Object = RoleBinding;

    fn default(object: &mut RoleBinding) {
        default_binding(&mut object.role_ref, &mut object.subjects);
    }

    fn validate(object: &RoleBinding, errors: &mut Errors) {
        validate_role_ref(&object.role_ref, &["Role", "ClusterRole"], errors);
        validate_subjects(list(&object.subjects), true, errors);
    }

    fn validate_update(object: &RoleBinding, old: &RoleBinding, errors: &mut Errors) {
        same_role(&object.role_ref, &old.role_ref, errors);
    }
}

impl Rules for ClusterRoleBindingRules {
    type Object = ClusterRoleBinding;

    fn default(object: &mut ClusterRoleBinding) {
        default_binding(&mut object.role_ref, &mut object.subjects);
    }

    fn validate(object: &ClusterRoleBinding, errors: &mut Errors) {
        validate_role_ref(&object.role_ref, &["ClusterRole"], errors);
        validate_subjects(list(&object.subjects), false, errors);
    }

    fn validate_update(object: &ClusterRoleBinding, old: &ClusterRoleBinding, errors: &mut Errors) {
        same_role(&object.role_ref, &old.role_ref, errors);
    }
}

fn default_binding(role_ref: &mut RoleRef, subjects: &mut Option<Vec<Subject>>) {
    fill(&mut role_ref.api_group, GROUP);
    for subject in subjects.iter_mut().flatten() {
        if matches!(subject.kind.as_str(), "User" | "Group") && text(&subject.api_group).is_empty() {
            subject.api_group = Some(GROUP.to_owned());
        }
    }
}

fn validate_rules(rules: &[PolicyRule], namespaced: bool, errors: &mut Errors) {
    for (i, rule) in rules.iter().enumerate() {
        let path = Path::new("rules").index(i);
        if rule.verbs.is_empty() {
            errors.push(FieldError::required(&path.child("verbs"), "verbs must contain at least one value"));
        }
        let (groups, resources) = (list(&rule.api_groups), list(&rule.resources));
        let urls = list(&rule.non_resource_urls);
        if urls.is_empty() {
            if groups.is_empty() {
                let words = "resource rules must supply at least one api group";
                errors.push(FieldError::required(&path.child("apiGroups"), words));
            }
            if resources.is_empty() {
                let words = "resource rules must supply at least one resource";
                errors.push(FieldError::required(&path.child("resources"), words));
            }
            continue;
        }
        let mut refuse =
            |words: &str| errors.push(FieldError::invalid(&path.child("nonResourceURLs"), shown(&urls), words));
        if namespaced {
            refuse("namespaced rules cannot apply to non-resource URLs");
        }
        if !groups.is_empty() || !resources.is_empty() || !list(&rule.resource_names).is_empty() {
            refuse("rules cannot apply to both regular resources and non-resource URLs");
        }
    }
}

fn validate_role_ref(role_ref: &RoleRef, kinds: &[&str], errors: &mut Errors) {
    let path = Path::new("roleRef");
    one_of(text(&role_ref.api_group), &[GROUP], &path.child("apiGroup"), errors);
    one_of(&role_ref.kind, kinds, &path.child("kind"), errors);
    names::require(&role_ref.name, &path.child("name"), names::path_segment_name, errors);
}

fn validate_subjects(subjects: &[Subject], namespaced: bool, errors: &mut Errors) {
    for (i, subject) in subjects.iter().enumerate() {
        let path = Path::new("subjects").index(i);
        let (group, group_path) = (text(&subject.api_group), path.child("apiGroup"));
        if subject.name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        match subject.kind.as_str() {
            "ServiceAccount" => {
                if !subject.name.is_empty() {
                    names::refuse(&subject.name, &path.child("name"), names::dns1123_subdomain, errors);
                }
                one_of(group, &[""], &group_path, errors);
                if !namespaced && text(&subject.namespace).is_empty() {
                    errors.push(FieldError::required(&path.child("namespace"), ""));
                }
            }
            "User" | "Group" => one_of(group, &[GROUP], &group_path, errors),
            other => {
                let kinds = ["ServiceAccount", "User", "Group"];
                errors.push(FieldError::not_supported(&path.child("kind"), other, &kinds));
            }
        }
    }
}

fn same_role(new: &RoleRef, old: &RoleRef, errors: &mut Errors) {
    if new != old {
        errors.push(FieldError::invalid(&Path::new("roleRef"), shown(new), "cannot change roleRef"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    fn object(kind: &str, content: Value) -> Value {
        with(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "x"}}), content)
    }

    #[test]
    fn a_binding_names_groups_only_where_it_must() {
        let binding = object(
            "ClusterRoleBinding",
            json!({
                "roleRef": {"kind": "ClusterRole", "name": "admin"},
                "subjects": [{"kind": "User", "name": "eve"}, {"kind": "ServiceAccount", "name": "a", "namespace": "b"}],
            }),
        );
        let stored = with(
            &binding,
            json!({
                "roleRef": {"apiGroup": GROUP},
                "subjects": [
                    {"apiGroup": GROUP, "kind": "User", "name": "eve"},
                    {"kind": "ServiceAccount", "name": "a", "namespace": "b"},
                ],
            }),
        );
        assert_completes::<ClusterRoleBindingRules>(binding, stored);
    }

    #[test]
    fn a_binding_keeps_its_role() {
        let binding = object("RoleBinding", json!({"roleRef": {"kind": "Role", "name": "a"}}));
        assert_update::<RoleBindingRules>(
            &binding,
            json!({"roleRef": {"name": "b"}}),
            &[
                r#"roleRef: Invalid value: {"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"b"}: cannot change roleRef"#,
            ],
        );
        assert_update::<RoleBindingRules>(&binding, json!({"subjects": [{"kind": "Group", "name": "devs"}]}), &[]);
    }

    #[test]
    fn bad_bindings_are_refused_with_upstreams_messages() {
        assert_refused::<ClusterRoleBindingRules>(
            object(
                "ClusterRoleBinding",
                json!({
                    "roleRef": {"kind": "Role"},
                    "subjects": [{"kind": "ServiceAccount", "name": "a"}, {"kind": "Robot", "name": "r"}, {"kind": "User", "apiGroup": "x"}],
                }),
            ),
            &[
                r#"roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole""#,
                "roleRef.name: Required value",
                "subjects[0].namespace: Required value",
                r#"subjects[1].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group""#,
                "subjects[2].name: Required value",
                r#"subjects[2].apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io""#,
            ],
        );
    }

    #[test]
    fn rules_are_about_resources_or_about_urls() {
        let rules = json!({"rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""]},
            {"nonResourceURLs": ["/healthz"], "resources": ["pods"], "verbs": ["get"]},
        ]});
        assert_refused::<ClusterRoleRules>(
            object("ClusterRole", with(&rules, json!({"aggregationRule": {}}))),
            &[
                "rules[1].verbs: Required value: verbs must contain at least one value",
                "rules[1].resources: Required value: resource rules must supply at least one resource",
                r#"rules[2].nonResourceURLs: Invalid value: ["/healthz"]: rules cannot apply to both regular resources and non-resource URLs"#,
                "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil",
            ],
        );
        assert_refused::<RoleRules>(
            object("Role", json!({"rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]})),
            &[r#"rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs"#],
        );
    }
}
