//! DeviceClass: which devices a name stands for.

use k8s_openapi::api::resource::v1::DeviceClass;

use super::{MAX_LIST, at_most, request::validate_selectors, validate_configuration};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{check::list, names},
};

pub struct DeviceClassRules;

impl Rules for DeviceClassRules {
    type Object = DeviceClass;

    fn default(object: &mut DeviceClass) {
        object.spec.get_or_insert_default();
    }

    fn validate(object: &DeviceClass, errors: &mut Errors) {
        let (path, Some(spec)) = (Path::new("spec"), &object.spec) else { return };
        validate_selectors(list(&spec.selectors), &path.child("selectors"), errors);
        let (configurations, at) = (list(&spec.config), path.child("config"));
        at_most(configurations, MAX_LIST, &at, errors);
        for (i, configuration) in configurations.iter().enumerate() {
            validate_configuration(configuration.opaque.as_ref(), &at.index(i), errors);
        }
        if let Some(name) = &spec.extended_resource_name
            && !is_extended_resource(name)
        {
            let words = "must be a valid extended resource name";
            errors.push(FieldError::invalid(&path.child("extendedResourceName"), name.as_str(), words));
        }
    }
}

/// `example.com/gpu`: a domain that is not Kubernetes' own.
fn is_extended_resource(name: &str) -> bool {
    let native = name.split_once('/').is_none_or(|(domain, _)| domain.ends_with("kubernetes.io"));
    !native && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_refused, with};

    #[test]
    fn selectors_have_to_compile() {
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.example.com"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]},
        });
        assert_refused::<DeviceClassRules>(class.clone(), &[]);
        let named = |name: &str| with(&class, json!({"spec": {"extendedResourceName": name}}));
        assert_refused::<DeviceClassRules>(named("example.com/gpu"), &[]);
        assert_refused::<DeviceClassRules>(
            named("gpu"),
            &[r#"spec.extendedResourceName: Invalid value: "gpu": must be a valid extended resource name"#],
        );
        let odd = with(&class, json!({"spec": {"selectors": [{"cel": {"expression": "device.price > 3"}}]}}));
        let mut errors = Errors::new();
        DeviceClassRules::validate(&serde_json::from_value(odd).unwrap(), &mut errors);
        let text = errors.iter().next().unwrap().to_string();
        assert!(text.contains("compilation failed") && text.contains("undefined field 'price'"), "{text}");
    }
}
