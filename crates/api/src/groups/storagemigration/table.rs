//! Columns of `storagemigration.k8s.io/v1`.

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    read::{age, condition, name, text},
};

pub static STORAGE_VERSION_MIGRATIONS: Columns = Columns {
    definitions: &[NAME, column("Resource", "What is written anew."), column("State", "How far it is."), AGE],
    cells: |object, now| {
        let resource = match (text(object, "/spec/resource/resource"), text(object, "/spec/resource/group")) {
            (resource, "") => resource.to_owned(),
            (resource, group) => format!("{resource}.{group}"),
        };
        let is_true = |kind: &&str| condition(object, kind) == Some("True");
        let state = ["Succeeded", "Failed", "Running"].into_iter().find(is_true).unwrap_or("Pending");
        vec![name(object), resource.into(), state.into(), age(object, now)]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn a_migration_tells_what_and_how_far() {
        let done = json!({
            "spec": {"resource": {"group": "apps", "resource": "deployments"}},
            "status": {"conditions": [{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}]},
        });
        assert_eq!(row(&STORAGE_VERSION_MIGRATIONS, done), json!(["x", "deployments.apps", "Succeeded", "5m"]));
        assert_eq!(row(&STORAGE_VERSION_MIGRATIONS, json!({})), json!(["x", "", "Pending", "5m"]));
    }
}
