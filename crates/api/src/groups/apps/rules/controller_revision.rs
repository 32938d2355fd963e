//! ControllerRevision: a snapshot of a controller's template, never changed once taken.

use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::Value;

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::check::{count, immutable},
};

pub struct ControllerRevisionRules;

impl Rules for ControllerRevisionRules {
    type Object = ControllerRevision;

    fn default(object: &mut ControllerRevision) {
        object.revision.get_or_insert_default();
    }

    fn validate(object: &ControllerRevision, errors: &mut Errors) {
        let data = Path::new("data");
        count(object.revision, &Path::new("revision"), errors);
        match &object.data.0 {
            Value::Null => errors.push(FieldError::required(&data, "data is mandatory")),
            Value::Object(_) => {}
            _ => errors.push(FieldError::required(&data, "data must be a valid JSON object")),
        }
    }

    fn validate_update(object: &ControllerRevision, old: &ControllerRevision, errors: &mut Errors) {
        immutable(&object.data, &old.data, &Path::new("data"), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    #[test]
    fn a_revision_keeps_its_data() {
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": "web-1"},
            "data": {"spec": 1}, "revision": 1,
        });
        assert_completes::<ControllerRevisionRules>(revision.clone(), revision.clone());
        assert_refused::<ControllerRevisionRules>(
            with(&revision, json!({"data": null, "revision": -1})),
            &[
                "revision: Invalid value: -1: must be greater than or equal to 0",
                "data: Required value: data is mandatory",
            ],
        );
        assert_refused::<ControllerRevisionRules>(
            with(&revision, json!({"data": "x"})),
            &["data: Required value: data must be a valid JSON object"],
        );
        assert_update::<ControllerRevisionRules>(
            &revision,
            json!({"data": {"spec": 2}}),
            &[r#"data: Invalid value: {"spec":2}: field is immutable"#],
        );
        assert_update::<ControllerRevisionRules>(&revision, json!({"revision": 2}), &[]);
    }
}
