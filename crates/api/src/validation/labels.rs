//! Labels, annotations and label selectors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::names;
pub use crate::matching::Labels as Map;
use crate::{
    field::{Errors, FieldError, Path},
    matching::{Requirement, has_labels},
};

/// What all annotations of an object may weigh together.
pub const ANNOTATIONS_MAX: usize = 256 * 1024;

pub fn validate_labels(labels: &Map, path: &Path, errors: &mut Errors) {
    check_labels(pairs(labels), path, errors);
}

pub fn validate_annotations(annotations: &Map, path: &Path, errors: &mut Errors) {
    check_annotations(pairs(annotations), path, errors);
}

fn pairs(map: &Map) -> impl Iterator<Item = (&str, &str)> {
    map.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}

/// [`validate_labels`] for labels held in any form.
pub fn check_labels<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>, path: &Path, errors: &mut Errors) {
    for (key, value) in labels {
        names::refuse(key, path, names::qualified_name, errors);
        names::refuse(value, path, names::label_value, errors);
    }
}

/// [`validate_annotations`] for annotations held in any form.
pub fn check_annotations<'a>(annotations: impl Iterator<Item = (&'a str, &'a str)>, path: &Path, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in annotations {
        // Case does not matter in annotation keys; the prefix rule alone would mind it.
        names::refuse(key, path, |key| names::qualified_name(&key.to_ascii_lowercase()), errors);
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
}

pub fn validate_selector(selector: &LabelSelector, path: &Path, errors: &mut Errors) {
    if let Some(labels) = &selector.match_labels {
        validate_labels(labels, &path.child("matchLabels"), errors);
    }
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        validate_requirement(requirement, &path.child("matchExpressions").index(i), errors);
    }
}

fn validate_requirement(requirement: &LabelSelectorRequirement, path: &Path, errors: &mut Errors) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let at = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(FieldError::required(&at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => errors
            .push(FieldError::forbidden(&at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => {
            errors.push(FieldError::invalid(&path.child("operator"), other, "not a valid selector operator"));
        }
    }
    names::refuse(&requirement.key, &path.child("key"), names::qualified_name, errors);
    for (i, value) in values.iter().enumerate() {
        names::refuse(value, &at.index(i), names::label_value, errors);
    }
}

/// Whether a selector selects every object.
pub fn selects_all(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(Map::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// Whether labels satisfy a selector. An operator nobody knows matches nothing.
pub fn matches(selector: &LabelSelector, labels: &Map) -> bool {
    selector.match_labels.as_ref().is_none_or(|asked| has_labels(asked, labels))
        && selector.match_expressions.iter().flatten().all(|requirement| requirement.holds(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector(value: serde_json::Value) -> LabelSelector {
        serde_json::from_value(value).expect("a selector")
    }

    fn judged(check: impl Fn(&Path, &mut Errors)) -> Vec<String> {
        let mut errors = Errors::new();
        check(&Path::new("spec").child("selector"), &mut errors);
        errors.iter().map(FieldError::to_string).collect()
    }

    #[test]
    fn selectors_are_refused_with_upstreams_messages() {
        let cases = [
            (json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}), vec![]),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                vec![
                    "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is \
                     'In' or 'NotIn'",
                ],
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
                vec![
                    "spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is \
                     'Exists' or 'DoesNotExist'",
                ],
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Near", "values": ["x"]}]}),
                vec![
                    r#"spec.selector.matchExpressions[0].operator: Invalid value: "Near": not a valid selector operator"#,
                ],
            ),
        ];
        for (value, expected) in cases {
            let selector = selector(value);
            assert_eq!(judged(|path, errors| validate_selector(&selector, path, errors)), expected);
        }
    }

    #[test]
    fn annotations_may_weigh_256_kib() {
        let fits = Map::from([("a".to_owned(), "x".repeat(ANNOTATIONS_MAX - 1))]);
        let bursts = Map::from([("A".to_owned(), "x".repeat(ANNOTATIONS_MAX))]);
        assert!(judged(|path, errors| validate_annotations(&fits, path, errors)).is_empty());
        assert_eq!(
            judged(|path, errors| validate_annotations(&bursts, path, errors)),
            ["spec.selector: Too long: may not be more than 262144 bytes"]
        );
    }

    #[test]
    fn matching_follows_the_operators() {
        let labels = Map::from([("app".to_owned(), "web".to_owned())]);
        let all =
            |expressions: serde_json::Value| matches(&selector(json!({"matchExpressions": expressions})), &labels);
        assert!(all(json!([{"key": "app", "operator": "In", "values": ["web"]}])));
        assert!(!all(json!([{"key": "app", "operator": "NotIn", "values": ["web"]}])));
        assert!(all(json!([{"key": "tier", "operator": "NotIn", "values": ["web"]}])));
        assert!(all(json!([{"key": "tier", "operator": "DoesNotExist"}, {"key": "app", "operator": "Exists"}])));
        assert!(!matches(&selector(json!({"matchLabels": {"app": "db"}})), &labels));
    }
}
