//! The columns `kubectl get` shows: what groups build their tables of.
//!
//! Cells are read from the JSON as served: no kind is decoded whole, so an object that a newer
//! client wrote, or one that is half empty, still has its row. Names, types, order and contents are
//! upstream's.

pub(crate) mod column;
pub mod duration;
pub mod generic;
pub(crate) mod labels;
pub(crate) mod read;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::crd::CustomColumns;

/// One column, as in `meta.k8s.io/v1` `TableColumnDefinition`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `number`, `boolean`, `date`.
    pub kind: &'static str,
    /// `name` for the name column, otherwise mostly empty.
    pub format: &'static str,
    pub description: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// A kind's columns and how an object (in its served form) fills them.
pub struct Columns {
    pub definitions: &'static [Column],
    pub cells: fn(&Value, Timestamp) -> Vec<Value>,
}

/// The columns of a kind, built in or from its definition.
#[derive(Clone)]
pub enum PrinterColumns {
    Builtin(&'static Columns),
    Custom(Arc<CustomColumns>),
}

impl PrinterColumns {
    /// The column definitions, as a table carries them.
    pub fn definitions(&self) -> Vec<Value> {
        match self {
            Self::Builtin(columns) => columns.definitions.iter().map(Column::definition).collect(),
            Self::Custom(columns) => columns.definitions(),
        }
    }

    /// The cells of one object, as many as there are definitions.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match self {
            Self::Builtin(columns) => (columns.cells)(object, now),
            Self::Custom(columns) => columns.cells(object, now),
        }
    }
}

impl Column {
    pub(crate) fn definition(&self) -> Value {
        json!({
            "name": self.name, "type": self.kind, "format": self.format,
            "description": self.description, "priority": self.priority,
        })
    }
}
