//! Defaulting and validation of the objects of a custom kind, as the generic verbs call them.

use std::sync::Arc;

use serde_json::Value;

use super::{
    cel,
    default::{TooManyDefaults, apply_defaults},
    embedded,
    structural::Structural,
    validate::validate,
    walk_path::WalkPath,
};
use crate::{
    descriptor::{FieldPath, Scale},
    field::{Errors, FieldError, Path},
    strategy::Strategy,
};

pub struct CustomStrategy {
    pub schema: Arc<Structural>,
    pub has_status: bool,
    pub scale: Option<Scale>,
    /// Whether the schema has embedded resources: most have none and need no walk.
    pub has_embedded: bool,
    /// Whether it has rules.
    pub has_rules: bool,
}

impl CustomStrategy {
    fn complete(&self, object: &mut Value, errors: &mut Errors) -> Result<(), TooManyDefaults> {
        apply_defaults(&self.schema, object)?;
        if self.has_embedded {
            embedded::complete(&self.schema, object, &WalkPath::Root, errors);
        }
        Ok(())
    }

    fn judge(&self, object: &Value, old: Option<&Value>, errors: &mut Errors) {
        validate(&self.schema, object, old, &WalkPath::Root, errors);
        if let Some(scale) = &self.scale {
            replicas(&scale.spec_replicas, object, errors);
            replicas(&scale.status_replicas, object, errors);
            if let Some(selector) = &scale.selector {
                selector_is_text(selector, object, errors);
            }
        }
        // Rules rely on types: they run over what is right otherwise.
        if self.has_rules && errors.is_empty() {
            cel::evaluate(&self.schema, object, old, errors);
        }
    }
}

impl Strategy for CustomStrategy {
    fn create(&self, object: &mut Value) -> Errors {
        let mut errors = Errors::new();
        if let Err(why) = self.complete(object, &mut errors) {
            return too_large(why);
        }
        if self.has_status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status"); // a default of it comes with the first status
        }
        self.judge(object, None, &mut errors);
        errors
    }

    fn update(&self, object: &mut Value, old: &Value) -> Errors {
        let mut errors = Errors::new();
        if let Err(why) = self.complete(object, &mut errors) {
            return too_large(why);
        }
        self.judge(object, Some(old), &mut errors);
        errors
    }

    fn update_status(&self, object: &mut Value, old: &Value) -> Errors {
        self.update(object, old)
    }
}

/// Nothing else is said of an object that is not complete.
fn too_large(why: TooManyDefaults) -> Errors {
    FieldError::forbidden(&Path::ROOT, why.to_string()).into()
}

/// A number of replicas, where there is one.
fn replicas(path: &FieldPath, object: &Value, errors: &mut Errors) {
    let Some(value) = path.find(object).filter(|value| !value.is_null()) else { return };
    let mut refuse = |shown: Value, detail: String| errors.push(FieldError::invalid(&dotted(path), shown, detail));
    match value.as_i64() {
        None => refuse(
            0.into(),
            format!("{} accessor error: {value} is of the type {}, expected int64", dotted(path), go_type(value)),
        ),
        Some(count) if count < 0 => refuse(count.into(), "should be a non-negative integer".to_owned()),
        Some(count) if count > i64::from(i32::MAX) => {
            refuse(count.into(), format!("should be less than or equal to {}", i32::MAX));
        }
        Some(_) => {}
    }
}

fn selector_is_text(path: &FieldPath, object: &Value, errors: &mut Errors) {
    if let Some(value) = path.find(object).filter(|value| !value.is_null() && !value.is_string()) {
        let detail =
            format!("{} accessor error: {value} is of the type {}, expected string", dotted(path), go_type(value));
        errors.push(FieldError::invalid(&dotted(path), "", detail));
    }
}

/// `.spec.replicas`, as definitions write it.
fn dotted(path: &FieldPath) -> Path {
    Path::new(&format!(".{}", path.steps().join(".")))
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::testing::schema;

    fn strategy() -> CustomStrategy {
        let path = |steps: &'static [&'static str]| FieldPath::Static(steps);
        let schema = schema(json!({"type": "object", "properties": {
            "spec": {"type": "object", "default": {}, "properties": {
                "replicas": {"type": "integer", "default": 1},
                "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
            }},
            "status": {"type": "object", "default": {"replicas": 0}, "properties": {
                "replicas": {"type": "integer"}, "selector": {"x-kubernetes-preserve-unknown-fields": true},
            }},
        }}));
        let scale = Scale {
            spec_replicas: path(&["spec", "replicas"]),
            status_replicas: path(&["status", "replicas"]),
            selector: Some(path(&["status", "selector"])),
        };
        CustomStrategy {
            schema: schema.into(),
            has_status: true,
            scale: Some(scale),
            has_embedded: true,
            has_rules: false,
        }
    }

    fn texts(errors: &Errors) -> Vec<String> {
        errors.iter().map(FieldError::to_string).collect()
    }

    #[test]
    fn a_new_object_is_completed_and_has_no_status() {
        let mut object = json!({"metadata": {"name": "x"}});
        assert_eq!(texts(&strategy().create(&mut object)), [""; 0]);
        assert_eq!(object, json!({"metadata": {"name": "x"}, "spec": {"replicas": 1}}));
    }

    #[test]
    fn replicas_and_selector_are_what_scale_reads() {
        let old = json!({"spec": {"replicas": 1}});
        let mut object =
            json!({"spec": {"replicas": -1}, "status": {"replicas": 2147483648i64, "selector": {"a": "b"}}});
        let expected = [
            ".spec.replicas: Invalid value: -1: should be a non-negative integer",
            ".status.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647",
            ".status.selector: Invalid value: \"\": .status.selector accessor error: {\"a\":\"b\"} is of the type \
             map[string]interface {}, expected string",
        ];
        assert_eq!(texts(&strategy().update_status(&mut object, &old)), expected);
    }

    #[test]
    fn an_embedded_resource_says_what_it_is() {
        let mut object = json!({"spec": {"template": {"kind": "Pod", "metadata": {"name": "p", "nonsense": 1}}}});
        let errors = texts(&strategy().create(&mut object));
        assert_eq!(errors, ["spec.template.apiVersion: Required value: must not be empty"]);
        assert_eq!(object["spec"]["template"]["metadata"], json!({"name": "p"}));
    }
}
