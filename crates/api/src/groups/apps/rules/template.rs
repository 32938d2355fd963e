//! What every controller of pods asks of its selector and its template.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::PodTemplateSpec, apimachinery::pkg::apis::meta::v1::LabelSelector};

use crate::{
    field::{Errors, FieldError, Path},
    groups::core::rules::pod,
    validation::{
        check::{optional_one_of, shown},
        labels,
    },
};

/// Where the kinds differ, for the most part in words only.
pub struct Wording {
    pub selector_required: bool,
    pub empty_selector: &'static str,
    pub invalid_selector: Option<&'static str>,
    pub deadline: &'static str,
}

/// A selector that was left out, as far as the typed kinds can tell: `{}` looks the same.
fn absent(selector: &LabelSelector) -> bool {
    selector.match_labels.is_none() && selector.match_expressions.is_none()
}

pub fn validate(
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    wording: &Wording,
    spec: &Path,
    errors: &mut Errors,
) {
    let at = spec.child("selector");
    let before = errors.len();
    if absent(selector) {
        if wording.selector_required {
            errors.push(FieldError::required(&at, ""));
        }
    } else {
        labels::validate_selector(selector, &at, errors);
        if errors.len() > before
            && let Some(words) = wording.invalid_selector
        {
            errors.push(FieldError::invalid(&at, shown(selector), words));
            return;
        }
        if labels::selects_all(selector) {
            errors.push(FieldError::invalid(&at, shown(selector), wording.empty_selector));
        }
    }
    let path = spec.child("template");
    must_match(selector, template, &path, errors);
    pod::validate_template(template, &path, errors);
    must_run_forever(template, wording, &path, errors);
}

/// The pods made from the template must be pods that the selector finds. A missing selector finds
/// nothing; an empty one is complained about elsewhere.
pub fn must_match(selector: &LabelSelector, template: &PodTemplateSpec, path: &Path, errors: &mut Errors) {
    let found = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    let matches = !absent(selector)
        && found.map_or_else(|| labels::matches(selector, &BTreeMap::new()), |l| labels::matches(selector, l));
    if !matches {
        let at = path.child("metadata").child("labels");
        errors.push(FieldError::invalid(&at, shown(&found), "`selector` does not match template `labels`"));
    }
}

fn must_run_forever(template: &PodTemplateSpec, wording: &Wording, path: &Path, errors: &mut Errors) {
    let Some(pod) = &template.spec else { return };
    let spec = path.child("spec");
    optional_one_of(&pod.restart_policy, &["Always"], &spec.child("restartPolicy"), errors);
    if pod.active_deadline_seconds.is_some() {
        errors.push(FieldError::forbidden(&spec.child("activeDeadlineSeconds"), wording.deadline));
    }
}
