//! What validating and mutating policies have in common: what they are about, when they run, and their variables.

use k8s_openapi::api::admissionregistration::v1::{MatchCondition, MatchResources, ParamKind, Variable};

use super::{
    expressions::PolicyExpressions,
    matching::{default_resources, validate_conditions, validate_match},
};
use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{fill, list, required_one_of, text},
        names,
    },
};

pub struct PolicyScope<'a> {
    pub failure_policy: &'a Option<String>,
    pub param_kind: Option<&'a ParamKind>,
    pub constraints: Option<&'a MatchResources>,
    pub conditions: &'a [MatchCondition],
    pub variables: &'a [Variable],
}

/// The scope of the spec of either kind of policy: their fields have the same names and types.
macro_rules! policy_scope {
    ($spec:expr) => {
        PolicyScope {
            failure_policy: &$spec.failure_policy,
            param_kind: $spec.param_kind.as_ref(),
            constraints: $spec.match_constraints.as_ref(),
            conditions: list(&$spec.match_conditions),
            variables: list(&$spec.variables),
        }
    };
}
pub(super) use policy_scope;

/// Fills in what a policy of either kind may leave out.
pub fn default_scope(failure_policy: &mut Option<String>, constraints: &mut Option<MatchResources>) {
    fill(failure_policy, "Fail");
    if let Some(constraints) = constraints {
        default_resources(constraints);
    }
}

impl PolicyScope<'_> {
    /// Judges it; what remains are the expressions that may use its variables.
    pub fn validate(&self, path: &Path, errors: &mut Errors) -> PolicyExpressions {
        required_one_of(text(self.failure_policy), &["Fail", "Ignore"], &path.child("failurePolicy"), errors);
        if let Some(kind) = self.param_kind {
            validate_param_kind(kind, &path.child("paramKind"), errors);
        }
        let at = path.child("matchConstraints");
        match self.constraints {
            None => errors.push(FieldError::required(&at, "")),
            Some(constraints) => {
                validate_match(constraints, &at, errors);
                if list(&constraints.resource_rules).is_empty() {
                    errors.push(FieldError::required(&at.child("resourceRules"), ""));
                }
            }
        }
        let mut expressions = PolicyExpressions::new(self.param_kind.is_some());
        let at = path.child("matchConditions");
        validate_conditions(self.conditions, &at, errors);
        for (i, condition) in self.conditions.iter().enumerate() {
            expressions.check_bool(&condition.expression, &at.index(i).child("expression"), errors);
        }
        for (i, variable) in self.variables.iter().enumerate() {
            let path = path.child("variables").index(i);
            for (name, value) in [("name", &variable.name), ("expression", &variable.expression)] {
                if value.trim().is_empty() {
                    errors.push(FieldError::required(&path.child(name), format!("{name} is not specified")));
                }
            }
            if !variable.name.trim().is_empty() && !names::c_identifier(&variable.name).is_empty() {
                let words = "must be a valid CEL identifier";
                errors.push(FieldError::invalid(&path.child("name"), variable.name.as_str(), words));
            }
            expressions.add_variable(&variable.name, &variable.expression, &path.child("expression"), errors);
        }
        expressions
    }
}

fn validate_param_kind(kind: &ParamKind, path: &Path, errors: &mut Errors) {
    let (version, at) = (text(&kind.api_version), path.child("apiVersion"));
    match version.split('/').collect::<Vec<_>>()[..] {
        [""] => errors.push(FieldError::required(&at, "")),
        [version] => names::refuse(version, &at, names::dns1035_label, errors),
        [group, version] => {
            names::refuse(group, &at, names::dns1123_subdomain, errors);
            names::refuse(version, &at, names::dns1035_label, errors);
        }
        _ => errors.push(FieldError::invalid(&at, version, format!("unexpected GroupVersion string: {version}"))),
    }
    let (kind, at) = (text(&kind.kind), path.child("kind"));
    let complaints = names::dns1035_label(&kind.to_lowercase());
    if kind.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else if !complaints.is_empty() {
        let words = format!("may have mixed case, but should otherwise match: {}", complaints.join(","));
        errors.push(FieldError::invalid(&at, kind, words));
    }
}
