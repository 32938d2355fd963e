//! Printer columns of a custom kind: the name, and what JSONPaths of the definition lead to.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::json_path::JsonPath;
use crate::table::{column, duration};

pub struct CustomColumns {
    columns: Box<[CustomColumn]>,
}

struct CustomColumn {
    name: Box<str>,
    kind: ColumnType,
    format: Box<str>,
    description: Box<str>,
    priority: i64,
    path: Option<JsonPath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnType {
    String,
    Integer,
    Number,
    Boolean,
    Date,
}

pub(crate) const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
pub(crate) const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

impl ColumnType {
    fn parse(name: &str) -> Self {
        match name {
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            "date" => Self::Date,
            _ => Self::String,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Date => "date",
        }
    }
}

impl CustomColumns {
    /// From `additionalPrinterColumns`; a version without any shows the age.
    pub fn parse(definitions: &Value) -> Self {
        let age = json!([{
            "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
            "description": "CreationTimestamp is a timestamp representing the server time when this object was created.",
        }]);
        let listed = definitions.as_array().filter(|listed| !listed.is_empty());
        let columns = listed.or(age.as_array()).into_iter().flatten().map(CustomColumn::parse);
        Self { columns: columns.collect() }
    }

    pub fn definitions(&self) -> Vec<Value> {
        let own = self.columns.iter().map(|column| {
            json!({
                "name": column.name, "type": column.kind.name(), "format": column.format,
                "description": column.description, "priority": column.priority,
            })
        });
        std::iter::once(column::NAME.definition()).chain(own).collect()
    }

    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        std::iter::once(name.into()).chain(self.columns.iter().map(|column| column.cell(object, now))).collect()
    }
}

impl CustomColumn {
    fn parse(definition: &Value) -> Self {
        let text = |name: &str| definition[name].as_str().unwrap_or_default();
        let path = text("jsonPath");
        let description = match text("description") {
            "" => format!("Custom resource definition column (in JSONPath format): {path}"),
            given => given.to_owned(),
        };
        Self {
            name: text("name").into(),
            kind: ColumnType::parse(text("type")),
            format: text("format").into(),
            description: description.into(),
            priority: definition["priority"].as_i64().unwrap_or(0),
            path: JsonPath::parse(path),
        }
    }

    /// What the path leads to, if it is of the column's type.
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(found) = self.path.as_ref().and_then(|path| path.first(object)) else { return Value::Null };
        match (self.kind, found) {
            (_, Value::Null) => Value::Null,
            (ColumnType::String, Value::String(_)) => found.clone(),
            (ColumnType::String, other) => other.to_string().into(),
            (ColumnType::Integer, Value::Number(number)) => match number.as_i64() {
                Some(whole) => whole.into(),
                None => number.as_f64().map_or(Value::Null, |number| (number as i64).into()),
            },
            (ColumnType::Number, Value::Number(_)) | (ColumnType::Boolean, Value::Bool(_)) => found.clone(),
            (ColumnType::Date, Value::String(_)) => match duration::time(Some(found)) {
                Some(time) => duration::between(time, now).into(),
                None => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_the_type_of_their_column() {
        let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
        let columns = CustomColumns::parse(&json!([
            column("S", "string", ".spec.s"),
            column("N", "string", ".spec.i"),
            column("O", "string", ".spec.o"),
            column("I", "integer", ".spec.i"),
            column("F", "number", ".spec.f"),
            column("B", "boolean", ".spec.b"),
            column("D", "date", ".spec.d"),
            column("Bad", "integer", ".spec.s"),
            column("None", "string", ".spec.none"),
        ]));
        let object = json!({"metadata": {"name": "x"}, "spec": {
            "s": "text", "i": 3, "f": 1.5, "b": true, "d": "2025-01-01T23:55:00Z", "o": {"a": 1},
        }});
        let now = "2025-01-02T00:00:00Z".parse().unwrap();
        let expected = json!(["x", "text", "3", "{\"a\":1}", 3, 1.5, true, "5m", null, null]);
        assert_eq!(Value::from(columns.cells(&object, now)), expected);
        assert_eq!(
            columns.definitions()[1]["description"],
            "Custom resource definition column (in JSONPath format): .spec.s"
        );
    }

    #[test]
    fn without_columns_the_age_is_shown() {
        let columns = CustomColumns::parse(&Value::Null);
        let names: Vec<Value> = columns.definitions().into_iter().map(|column| column["name"].clone()).collect();
        assert_eq!(names, ["Name", "Age"]);
    }
}
