//! Which requests a webhook or a policy is about.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, RuleWithOperations,
};

use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{fill, list, one_of, optional_one_of, required_one_of, shown, text, unique},
        labels, names,
    },
};

pub const MATCH_POLICIES: &[&str] = &["Equivalent", "Exact"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: &[&str] = &["*", "Cluster", "Namespaced"];
const MAX_CONDITIONS: usize = 64;

/// A rule, be it one that names objects or not.
pub struct Rule<'a> {
    operations: &'a [String],
    groups: &'a [String],
    versions: &'a [String],
    resources: &'a [String],
    scope: &'a Option<String>,
}

impl<'a> From<&'a RuleWithOperations> for Rule<'a> {
    fn from(rule: &'a RuleWithOperations) -> Self {
        Self {
            operations: list(&rule.operations),
            groups: list(&rule.api_groups),
            versions: list(&rule.api_versions),
            resources: list(&rule.resources),
            scope: &rule.scope,
        }
    }
}

impl<'a> From<&'a NamedRuleWithOperations> for Rule<'a> {
    fn from(rule: &'a NamedRuleWithOperations) -> Self {
        Self {
            operations: list(&rule.operations),
            groups: list(&rule.api_groups),
            versions: list(&rule.api_versions),
            resources: list(&rule.resources),
            scope: &rule.scope,
        }
    }
}

impl Rule<'_> {
    pub fn validate(&self, path: &Path, errors: &mut Errors) {
        not_beside_star(self.operations, "operations", &path.child("operations"), errors);
        for (i, operation) in self.operations.iter().enumerate() {
            one_of(operation, OPERATIONS, &path.child("operations").index(i), errors);
        }
        not_beside_star(self.groups, "API groups", &path.child("apiGroups"), errors);
        not_beside_star(self.versions, "API versions", &path.child("apiVersions"), errors);
        for (i, _) in self.versions.iter().enumerate().filter(|(_, version)| version.is_empty()) {
            errors.push(FieldError::required(&path.child("apiVersions").index(i), ""));
        }
        validate_resources(self.resources, &path.child("resources"), errors);
        optional_one_of(self.scope, SCOPES, &path.child("scope"), errors);
    }
}

/// At least one entry; one that means all is the only one.
fn not_beside_star(entries: &[String], what: &str, path: &Path, errors: &mut Errors) {
    if entries.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if entries.len() > 1 && entries.iter().any(|entry| entry == "*") {
        let words = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(path, shown(&entries), words));
    }
}

fn validate_resources(resources: &[String], path: &Path, errors: &mut Errors) {
    if resources.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut all_of, mut any_with) = (BTreeSet::new(), BTreeSet::new());
    for (i, resource) in resources.iter().enumerate() {
        let path = path.index(i);
        if resource.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        let Some((kind, sub)) = resource.split_once('/') else { continue };
        for (covered, by) in
            [(all_of.contains(kind), format!("{kind}/*")), (any_with.contains(sub), format!("*/{sub}"))]
        {
            if covered {
                let words = format!("if '{by}' is present, must not specify {resource}");
                errors.push(FieldError::invalid(&path, resource.as_str(), words));
            }
        }
        if sub == "*" {
            all_of.insert(kind);
        }
        if kind == "*" {
            any_with.insert(sub);
        }
    }
    let mut refuse = |words: &str| errors.push(FieldError::invalid(path, shown(&resources), words));
    if resources.len() > 1 && resources.iter().any(|resource| resource == "*/*") {
        refuse("if '*/*' is present, must not specify other resources");
    }
    let plain = |resource: &&String| *resource != "*" && !resource.contains('/');
    if resources.iter().any(|resource| resource == "*") && resources.iter().any(|resource| plain(&resource)) {
        refuse("if '*' is present, must not specify other resources without subresources");
    }
}

pub fn validate_conditions(conditions: &[MatchCondition], path: &Path, errors: &mut Errors) {
    if conditions.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(path, conditions.len(), MAX_CONDITIONS));
    }
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        if condition.expression.trim().is_empty() {
            errors.push(FieldError::required(&path.child("expression"), ""));
        }
        names::require(&condition.name, &path.child("name"), names::qualified_name, errors);
    }
    let named = conditions.iter().enumerate().filter(|(_, condition)| !condition.name.is_empty());
    unique(named.map(|(i, condition)| (path.index(i).child("name"), condition.name.as_str())), errors);
}

pub fn default_resources(resources: &mut MatchResources) {
    fill(&mut resources.match_policy, "Equivalent");
    resources.namespace_selector.get_or_insert_default();
    resources.object_selector.get_or_insert_default();
    let rules = resources.resource_rules.iter_mut().chain(&mut resources.exclude_resource_rules).flatten();
    for rule in rules {
        fill(&mut rule.scope, "*");
    }
}

pub fn validate_match(resources: &MatchResources, path: &Path, errors: &mut Errors) {
    required_one_of(text(&resources.match_policy), MATCH_POLICIES, &path.child("matchPolicy"), errors);
    for (name, selector) in
        [("namespaceSelector", &resources.namespace_selector), ("objectSelector", &resources.object_selector)]
    {
        if let Some(selector) = selector {
            labels::validate_selector(selector, &path.child(name), errors);
        }
    }
    for (name, rules) in
        [("resourceRules", &resources.resource_rules), ("excludeResourceRules", &resources.exclude_resource_rules)]
    {
        for (i, rule) in list(rules).iter().enumerate() {
            let path = path.child(name).index(i);
            let named = || list(&rule.resource_names).iter().enumerate();
            for (i, name) in named() {
                names::refuse(name, &path.child("resourceNames").index(i), names::path_segment_name, errors);
            }
            unique(named().map(|(i, name)| (path.child("resourceNames").index(i), name.as_str())), errors);
            Rule::from(rule).validate(&path, errors);
        }
    }
}
