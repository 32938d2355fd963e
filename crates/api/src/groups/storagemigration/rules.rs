//! StorageVersionMigration: every object of a resource is to be written anew.

use k8s_openapi::{
    api::storagemigration::v1::StorageVersionMigration, apimachinery::pkg::apis::meta::v1::GroupResource,
};

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{immutable, list},
        names,
    },
};

pub struct StorageVersionMigrationRules;

impl Rules for StorageVersionMigrationRules {
    type Object = StorageVersionMigration;

    fn default(_: &mut StorageVersionMigration) {}

    fn prepare_create(object: &mut StorageVersionMigration) {
        object.status = Some(Default::default());
    }

    fn validate(object: &StorageVersionMigration, errors: &mut Errors) {
        let (nothing, path) = (GroupResource::default(), Path::new("spec").child("resource"));
        let resource = object.spec.as_ref().map_or(&nothing, |spec| &spec.resource);
        names::require(&resource.resource, &path.child("resource"), names::dns1035_label, errors);
        if !resource.group.is_empty() {
            names::refuse(&resource.group, &path.child("group"), names::dns1123_subdomain, errors);
        }
    }

    fn validate_update(object: &StorageVersionMigration, old: &StorageVersionMigration, errors: &mut Errors) {
        immutable(&object.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(object: &StorageVersionMigration, old: &StorageVersionMigration, errors: &mut Errors) {
        let is_true = |migration: &StorageVersionMigration, kind: &str| {
            let conditions = migration.status.iter().flat_map(|status| list(&status.conditions));
            conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == "True")
        };
        let path = Path::new("status").child("conditions");
        if is_true(object, "Succeeded") && is_true(object, "Failed") {
            let words = "Both success and failed conditions cannot be true at the same time";
            errors.push(FieldError::invalid(&path, "", words));
        }
        for kind in ["Succeeded", "Failed"] {
            if is_true(old, kind) && !is_true(object, kind) {
                let words = format!("{kind} condition cannot be set to false once it is true");
                errors.push(FieldError::invalid(&path, "", words));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_refused, assert_status, assert_update, with};

    #[test]
    fn a_migration_is_of_one_resource_and_ends_once() {
        let migration = json!({
            "apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration", "metadata": {"name": "m"},
            "spec": {"resource": {"group": "", "resource": "secrets"}},
        });
        assert_refused::<StorageVersionMigrationRules>(migration.clone(), &[]);
        assert_refused::<StorageVersionMigrationRules>(
            with(&migration, json!({"spec": {"resource": {"resource": ""}}})),
            &["spec.resource.resource: Required value"],
        );
        assert_update::<StorageVersionMigrationRules>(
            &migration,
            json!({"spec": {"resource": {"resource": "pods"}}}),
            &[r#"spec: Invalid value: {"resource":{"group":"","resource":"pods"}}: field is immutable"#],
        );
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        assert_status::<StorageVersionMigrationRules>(
            &migration,
            json!({"status": {"conditions": [condition("Succeeded"), condition("Failed")]}}),
            &[
                r#"status.conditions: Invalid value: "": Both success and failed conditions cannot be true at the same time"#,
            ],
        );
    }
}
