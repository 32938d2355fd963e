//! Constructors of the columns that many kinds share.

use super::Column;

pub const NAME: Column = Column {
    name: "Name",
    kind: "string",
    format: "name",
    description: "Unique within a namespace, or within the cluster for kinds without one.",
    priority: 0,
};

/// Time since `metadata.creationTimestamp`.
pub const AGE: Column = text("Age", "How long ago the object was created.");

pub const CONTAINERS: Column = text("Containers", "Names of the containers in the template.");
pub const IMAGES: Column = text("Images", "Images of the containers in the template.");
pub const SELECTOR: Column = text("Selector", "The pods that belong to the object, by their labels.");

pub const fn text(name: &'static str, description: &'static str) -> Column {
    Column { name, kind: "string", format: "", description, priority: 0 }
}

pub const fn integer(name: &'static str, description: &'static str) -> Column {
    Column { name, kind: "integer", format: "", description, priority: 0 }
}

pub const fn boolean(name: &'static str, description: &'static str) -> Column {
    Column { name, kind: "boolean", format: "", description, priority: 0 }
}

/// Shown with `-o wide` only.
pub const fn wide(column: Column) -> Column {
    Column { priority: 1, ..column }
}
