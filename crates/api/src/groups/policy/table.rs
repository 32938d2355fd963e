//! Columns of `policy/v1`.

use crate::table::{
    Columns,
    column::{AGE, NAME, integer, text as column},
    read::{age, int, name, scalar},
};

pub static POD_DISRUPTION_BUDGETS: Columns = Columns {
    definitions: &[
        NAME,
        column("Min Available", "Pods that must stay available."),
        column("Max Unavailable", "Pods that may be unavailable."),
        integer("Allowed Disruptions", "Pods that may be disrupted now."),
        AGE,
    ],
    cells: |object, now| {
        let count = |pointer| scalar(object, pointer).unwrap_or_else(|| "N/A".to_owned());
        vec![
            name(object),
            count("/spec/minAvailable").into(),
            count("/spec/maxUnavailable").into(),
            int(object, "/status/disruptionsAllowed").into(),
            age(object, now),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn budgets_show_numbers_and_percentages_as_written() {
        let object = json!({"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 2}});
        assert_eq!(row(&POD_DISRUPTION_BUDGETS, object), json!(["x", "50%", "N/A", 2, "5m"]));
        let object = json!({"spec": {"maxUnavailable": 1}});
        assert_eq!(row(&POD_DISRUPTION_BUDGETS, object), json!(["x", "N/A", "1", 0, "5m"]));
    }
}
