//! Columns of `coordination.k8s.io/v1`.

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    read::{age, name, text},
};

pub static LEASES: Columns = Columns {
    definitions: &[NAME, column("Holder", "Who holds the lease."), AGE],
    cells: |object, now| vec![name(object), text(object, "/spec/holderIdentity").into(), age(object, now)],
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn leases_show_their_holder() {
        assert_eq!(row(&LEASES, json!({"spec": {"holderIdentity": "a"}})), json!(["x", "a", "5m"]));
        assert_eq!(row(&LEASES, json!({})), json!(["x", "", "5m"]));
    }
}
