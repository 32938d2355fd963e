//! RuntimeClass.

use k8s_openapi::api::node::v1::RuntimeClass;

use crate::{
    field::{Errors, Path},
    strategy::Rules,
    validation::{check::immutable, labels, names, resources},
};

pub struct RuntimeClassRules;

impl Rules for RuntimeClassRules {
    type Object = RuntimeClass;

    fn default(object: &mut RuntimeClass) {
        if let Some(overhead) = &mut object.overhead {
            resources::canonicalize(&mut overhead.pod_fixed);
        }
    }

    fn validate(object: &RuntimeClass, errors: &mut Errors) {
        names::refuse(&object.handler, &Path::new("handler"), names::dns1123_label, errors);
        let overhead = Path::new("overhead").child("podFixed");
        for (name, quantity) in object.overhead.iter().flat_map(|overhead| &overhead.pod_fixed).flatten() {
            resources::container_resource_name(name, &overhead.key(name), errors);
            resources::validate_quantity(name, quantity, &overhead.key(name), errors);
        }
        if let Some(selector) = object.scheduling.as_ref().and_then(|scheduling| scheduling.node_selector.as_ref()) {
            labels::validate_labels(selector, &Path::new("scheduling").child("nodeSelector"), errors);
        }
    }

    fn validate_update(object: &RuntimeClass, old: &RuntimeClass, errors: &mut Errors) {
        immutable(&object.handler, &old.handler, &Path::new("handler"), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    #[test]
    fn a_class_keeps_its_handler() {
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc",
        });
        assert_completes::<RuntimeClassRules>(class.clone(), class.clone());
        assert_refused::<RuntimeClassRules>(
            with(&class, json!({"overhead": {"podFixed": {"cpu": "-1"}}})),
            &[r#"overhead.podFixed[cpu]: Invalid value: "-1": must be greater than or equal to 0"#],
        );
        assert_update::<RuntimeClassRules>(
            &class,
            json!({"handler": "kata"}),
            &[r#"handler: Invalid value: "kata": field is immutable"#],
        );
    }
}
