//! Columns of `node.k8s.io/v1`.

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    read::{age, name, text},
};

pub static RUNTIME_CLASSES: Columns = Columns {
    definitions: &[NAME, column("Handler", "The runtime's own name for it."), AGE],
    cells: |object, now| vec![name(object), text(object, "/handler").into(), age(object, now)],
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn runtime_classes_show_their_handler() {
        assert_eq!(row(&RUNTIME_CLASSES, json!({"handler": "kata"})), json!(["x", "kata", "5m"]));
    }
}
