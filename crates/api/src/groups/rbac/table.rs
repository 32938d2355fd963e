//! Columns of bindings, for namespaces and for the cluster. Roles have none of their own.

use jiff::Timestamp;
use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column, wide},
    read::{age, list, name, text},
};

pub static BINDINGS: Columns = Columns {
    definitions: &[
        NAME,
        column("Role", "What is granted."),
        AGE,
        wide(column("Users", "Users it is granted to.")),
        wide(column("Groups", "Groups it is granted to.")),
        wide(column("ServiceAccounts", "Service accounts it is granted to.")),
    ],
    cells: binding,
};

fn binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| -> Value {
        let of_kind = list(object, "/subjects").iter().filter(|subject| text(subject, "/kind") == kind);
        let names = of_kind.map(|subject| match (kind, text(subject, "/namespace")) {
            ("ServiceAccount", namespace) if !namespace.is_empty() => format!("{namespace}/{}", text(subject, "/name")),
            _ => text(subject, "/name").to_owned(),
        });
        names.collect::<Vec<_>>().join(", ").into()
    };
    vec![
        name(object),
        format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name")).into(),
        age(object, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn subjects_are_listed_by_their_kind() {
        let object = json!({
            "roleRef": {"kind": "ClusterRole", "name": "admin"},
            "subjects": [
                {"kind": "User", "name": "ann"},
                {"kind": "Group", "name": "ops"},
                {"kind": "User", "name": "bob"},
                {"kind": "ServiceAccount", "namespace": "kube-system", "name": "robot"},
            ],
        });
        assert_eq!(
            row(&BINDINGS, object),
            json!(["x", "ClusterRole/admin", "5m", "ann, bob", "ops", "kube-system/robot"])
        );
    }
}
