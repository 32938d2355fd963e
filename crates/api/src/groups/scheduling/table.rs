//! Columns of `scheduling.k8s.io/v1`.

use crate::table::{
    Columns,
    column::{AGE, NAME, boolean, integer, text as column},
    read::{age, flag, int, name, text},
};

pub static PRIORITY_CLASSES: Columns = Columns {
    definitions: &[
        NAME,
        integer("Value", "The priority of its pods; more is more important."),
        boolean("Global-Default", "Whether pods without a class get it."),
        AGE,
        column("PreemptionPolicy", "Whether its pods may displace others."),
    ],
    cells: |object, now| {
        vec![
            name(object),
            int(object, "/value").into(),
            flag(object, "/globalDefault").into(),
            age(object, now),
            text(object, "/preemptionPolicy").into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn priority_classes_show_their_value() {
        let object = json!({"value": 1000, "globalDefault": true, "preemptionPolicy": "Never"});
        assert_eq!(row(&PRIORITY_CLASSES, object), json!(["x", 1000, true, "5m", "Never"]));
        assert_eq!(row(&PRIORITY_CLASSES, json!({"value": -1})), json!(["x", -1, false, "5m", ""]));
    }
}
