//! ServiceTable.

use crate::{
    field::{Errors, Path},
    service_table::ServiceTable,
    strategy::Rules,
    validation::check::version,
};

pub struct ServiceTableRules;

impl Rules for ServiceTableRules {
    type Object = ServiceTable;

    fn default(_: &mut ServiceTable) {}

    fn validate(object: &ServiceTable, errors: &mut Errors) {
        let path = Path::new("spec");
        version(&object.spec.endpoints, &path.child("endpoints"), errors);
        version(&object.spec.nodes, &path.child("nodes"), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused};

    #[test]
    fn a_table_names_versions_or_none_yet() {
        let table = |endpoints: &str, nodes: &str| {
            json!({
                "apiVersion": "mainstay.dev/v1", "kind": "ServiceTable", "metadata": {"name": "n1"},
                "spec": {"endpoints": endpoints, "nodes": nodes},
            })
        };
        assert_completes::<ServiceTableRules>(table("17", ""), table("17", ""));
        assert_refused::<ServiceTableRules>(
            table("-1", "x"),
            &[
                "spec.endpoints: Invalid value: \"-1\": must be a resourceVersion that a server gave",
                "spec.nodes: Invalid value: \"x\": must be a resourceVersion that a server gave",
            ],
        );
    }
}
