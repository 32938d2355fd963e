//! IPAddress: an address that is taken, and by whom.

use k8s_openapi::api::networking::v1::{IPAddress, ParentReference};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{immutable, text},
        names,
    },
};

pub struct IPAddressRules;

impl Rules for IPAddressRules {
    type Object = IPAddress;

    fn default(_: &mut IPAddress) {}

    fn validate(object: &IPAddress, errors: &mut Errors) {
        let (name, at) = (text(&object.metadata.name), Path::new("metadata").child("name"));
        names::refuse(name, &at, names::ip, errors);
        if let Some(canonical) = names::parse_ip(name).map(|ip| ip.to_string()).filter(|ip| ip != name) {
            errors.push(FieldError::invalid(&at, name, format!("must be in canonical form ({canonical:?})")));
        }
        let path = Path::new("spec").child("parentRef");
        let parent = &object.spec.parent_ref;
        if *parent == ParentReference::default() {
            errors.push(FieldError::required(&path, ""));
            return;
        }
        for (name, value, rule) in [
            ("group", &parent.group, names::dns1123_subdomain as fn(&str) -> Vec<String>),
            ("namespace", &parent.namespace, names::path_segment_name),
        ] {
            if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
                names::refuse(value, &path.child(name), rule, errors);
            }
        }
        names::require(&parent.resource, &path.child("resource"), names::path_segment_name, errors);
        names::require(&parent.name, &path.child("name"), names::path_segment_name, errors);
    }

    fn validate_update(object: &IPAddress, old: &IPAddress, errors: &mut Errors) {
        immutable(&object.spec.parent_ref, &old.spec.parent_ref, &Path::new("spec").child("parentRef"), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    #[test]
    fn an_address_belongs_to_one_object() {
        let address = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.96.0.7"},
            "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}},
        });
        assert_completes::<IPAddressRules>(address.clone(), address.clone());
        assert_refused::<IPAddressRules>(
            with(&address, json!({"metadata": {"name": "FD00::1"}, "spec": null})),
            &[
                r#"metadata.name: Invalid value: "FD00::1": must be in canonical form ("fd00::1")"#,
                "spec.parentRef: Required value",
            ],
        );
        assert_update::<IPAddressRules>(
            &address,
            json!({"spec": {"parentRef": {"name": "api"}}}),
            &[
                r#"spec.parentRef: Invalid value: {"name":"api","namespace":"default","resource":"services"}: field is immutable"#,
            ],
        );
    }
}
