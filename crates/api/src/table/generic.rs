//! Columns of kinds that have none of their own.

use jiff::Timestamp;
use serde_json::Value;

use super::{
    Column, Columns,
    column::{AGE, NAME},
    read::{age, name, text},
};

/// Name and age.
pub static NAME_AGE: Columns = Columns { definitions: &[NAME, AGE], cells: name_age };

/// What upstream shows of the built-in kinds for which it has no columns: roles, limit ranges.
pub static NAME_CREATED: Columns = Columns { definitions: &[NAME, CREATED], cells: name_created };

const CREATED: Column = Column {
    name: "Created At",
    kind: "date",
    format: "",
    description: "When the object was created, in UTC.",
    priority: 0,
};

fn name_age(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

fn name_created(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/metadata/creationTimestamp").into()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::{heads, row};

    #[test]
    fn name_and_age_or_name_and_date() {
        assert_eq!(row(&NAME_AGE, json!({"metadata": {"name": "a"}})), json!(["a", "5m"]));
        assert_eq!(row(&NAME_CREATED, json!({"metadata": {"name": "a"}})), json!(["a", "2025-01-01T23:55:00Z"]));
        assert_eq!(heads(&NAME_CREATED), "Name:string | Created At:date");
    }
}
