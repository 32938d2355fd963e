//! One row, at a fixed time, of an object that is five minutes old unless it says otherwise.

use serde_json::{Value, json};

use super::{Columns, PrinterColumns};
use crate::{groups as kinds, schema::Schema};

pub const NOW: &str = "2025-01-02T00:00:00Z";

/// Also proves that the fields the test writes, and so those the cells read, exist in the kind's schema.
pub fn row(columns: &Columns, object: Value) -> Value {
    if let Some(d) =
        kinds::all().iter().find(|d| matches!(d.columns, PrinterColumns::Builtin(own) if std::ptr::eq(own, columns)))
    {
        let unknown = Schema::builtin().conform(&d.schema, &mut object.clone()).expect("an object of its kind");
        assert!(unknown.is_empty(), "{unknown:?}");
    }
    odd_row(columns, object)
}

/// The same of an object that is none of its kind.
pub fn odd_row(columns: &Columns, mut object: Value) -> Value {
    let metadata = object.as_object_mut().unwrap().entry("metadata").or_insert_with(|| json!({}));
    let metadata = metadata.as_object_mut().unwrap();
    metadata.entry("name").or_insert_with(|| "x".into());
    metadata.entry("creationTimestamp").or_insert_with(|| "2025-01-01T23:55:00Z".into());
    let cells = (columns.cells)(&object, NOW.parse().unwrap());
    assert_eq!(cells.len(), columns.definitions.len());
    cells.into()
}

/// `Name:type`, with a `+` in front of those shown on `-o wide` only.
pub fn heads(columns: &Columns) -> String {
    let head = |c: &super::Column| format!("{}{}:{}", if c.priority > 0 { "+" } else { "" }, c.name, c.kind);
    columns.definitions.iter().map(head).collect::<Vec<_>>().join(" | ")
}
