//! PriorityClass.

use k8s_openapi::api::scheduling::v1::PriorityClass;

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::check::{fill, immutable, required_one_of, text},
    wellknown::kubernetes::system_priority,
};

pub struct PriorityClassRules;

const MAX_USER_PRIORITY: i32 = 1_000_000_000;

impl Rules for PriorityClassRules {
    type Object = PriorityClass;

    fn default(object: &mut PriorityClass) {
        object.value.get_or_insert_default();
        fill(&mut object.preemption_policy, "PreemptLowerPriority");
    }

    fn validate(object: &PriorityClass, errors: &mut Errors) {
        if text(&object.metadata.name).starts_with("system-") {
            if let Err(why) = is_system_class(object) {
                let words = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
                );
                errors.push(FieldError::forbidden(&Path::new("metadata").child("name"), words));
            }
        } else if object.value > Some(MAX_USER_PRIORITY) {
            let words = format!("maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}");
            errors.push(FieldError::forbidden(&Path::new("value"), words));
        }
        let policies = ["PreemptLowerPriority", "Never"];
        required_one_of(text(&object.preemption_policy), &policies, &Path::new("preemptionPolicy"), errors);
    }

    fn validate_update(object: &PriorityClass, old: &PriorityClass, errors: &mut Errors) {
        if object.value != old.value {
            errors.push(FieldError::forbidden(&Path::new("value"), "may not be changed in an update."));
        }
        immutable(&object.preemption_policy, &old.preemption_policy, &Path::new("preemptionPolicy"), errors);
    }
}

fn is_system_class(class: &PriorityClass) -> Result<(), String> {
    let name = text(&class.metadata.name);
    let value = system_priority(name).ok_or_else(|| format!("{name} is not a known system priority class"))?;
    if class.value != Some(value) {
        return Err(format!("value of {name} PriorityClass must be {value}"));
    }
    if class.global_default == Some(true) {
        return Err(format!("globalDefault of {name} PriorityClass must be false"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    fn class(name: &str, value: i64) -> Value {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
        })
    }

    #[test]
    fn a_class_preempts_unless_it_says_otherwise() {
        assert_completes::<PriorityClassRules>(
            class("high", 1000),
            with(&class("high", 1000), json!({"preemptionPolicy": "PreemptLowerPriority"})),
        );
        assert_refused::<PriorityClassRules>(class("system-node-critical", 2_000_001_000), &[]);
    }

    #[test]
    fn the_top_is_reserved() {
        assert_refused::<PriorityClassRules>(
            class("high", 1_000_000_001),
            &["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
        );
        assert_refused::<PriorityClassRules>(
            class("system-mine", 5),
            &[
                "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class",
            ],
        );
        assert_refused::<PriorityClassRules>(
            with(&class("high", 5), json!({"preemptionPolicy": "Always"})),
            &[r#"preemptionPolicy: Unsupported value: "Always": supported values: "PreemptLowerPriority", "Never""#],
        );
    }

    #[test]
    fn a_priority_is_for_life() {
        assert_update::<PriorityClassRules>(
            &class("high", 5),
            json!({"value": 6, "preemptionPolicy": "Never"}),
            &[
                "value: Forbidden: may not be changed in an update.",
                r#"preemptionPolicy: Invalid value: "Never": field is immutable"#,
            ],
        );
        assert_update::<PriorityClassRules>(&class("high", 5), json!({"description": "x", "globalDefault": true}), &[]);
    }
}
