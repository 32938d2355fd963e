//! What fields the kinds have: types, list semantics, patch strategies.
//!
//! The facts live in one text table (`table.txt`, written by `tools/generate-schema`, and behind it `own.txt`,
//! written by hand, for the kinds of our own group) that is parsed once, on first use. Names are slices of the table's own text, so that all the kinds cost
//! a few hundred kilobytes; descriptions are not kept at all (OpenAPI takes them from k8s-openapi
//! when asked). [`Schema::conform`] makes a JSON object what the API's decoder would make of it.

mod conform;
mod scalar;
mod table;

use std::{collections::HashMap, sync::LazyLock};

pub use conform::{ConformError, MAX_ITEMS};
use serde_json::Value;
pub use table::TableError;

/// The built-in kinds, in the format that `tools/generate-schema` documents.
pub(crate) const TABLE: &str = concat!(include_str!("table.txt"), include_str!("own.txt"));

/// The definitions of one table.
pub struct Schema {
    definitions: Vec<Definition>,
    by_name: HashMap<&'static str, Id>,
}

/// A definition's place in its [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(u32);

/// One named type: `io.k8s.api.core.v1.PodSpec`.
#[derive(Debug)]
pub struct Definition {
    pub name: &'static str,
    pub shape: Shape,
    /// Sorted by name; empty unless the shape is an object.
    pub fields: Box<[Field]>,
    pub kinds: Box<[GroupVersionKind]>,
    /// Owned and replaced as a whole by server-side apply.
    pub atomic: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupVersionKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
}

/// What a definition's values look like in JSON.
#[derive(Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    /// Anything, kept as it is.
    Any,
    Quantity,
    IntOrString,
    Time,
    MicroTime,
    /// One of two types, told apart by how the JSON looks.
    Either(Type, Type),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Type {
    String,
    Bytes,
    Boolean,
    Int32,
    Int64,
    Double,
    Any,
    List(Box<Type>),
    Map(Box<Type>),
    Definition(Id),
}

/// How server-side apply sees a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub ty: Type,
    pub required: bool,
    /// `None` where the API does not say (then it is atomic).
    pub list_type: Option<ListType>,
    /// The fields that tell items of a [`ListType::Map`] apart.
    pub keys: Box<[&'static str]>,
    /// `merge`, `replace`, `retainKeys` or `merge,retainKeys`.
    pub patch_strategy: Option<&'static str>,
    pub merge_key: Option<&'static str>,
    pub map_type: Option<&'static str>,
    /// Whether upstream's types write the field even if nobody set it.
    pub always_written: bool,
    /// As JSON text.
    pub default: Option<&'static str>,
}

impl Schema {
    /// The built-in kinds.
    pub fn builtin() -> &'static Schema {
        static BUILTIN: LazyLock<Schema> =
            LazyLock::new(|| Schema::parse(TABLE).expect("the generated table is well formed: a test reads it"));
        &BUILTIN
    }

    /// Reads a table in the format that `tools/generate-schema` documents.
    pub fn parse(text: &'static str) -> Result<Self, TableError> {
        table::parse(text)
    }

    pub fn definition(&self, name: &str) -> Option<&Definition> {
        self.by_name.get(name).map(|id| self.get(*id))
    }

    /// The definition that a [`Type::Definition`] of this schema refers to.
    pub fn get(&self, id: Id) -> &Definition {
        &self.definitions[id.0 as usize]
    }

    /// In the table's order.
    pub fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.definitions.iter()
    }

    /// The definition of a kind, by its group, version and kind.
    pub fn of_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Definition> {
        self.definitions().find(|d| d.kinds.iter().any(|k| k.group == group && k.version == version && k.kind == kind))
    }

    /// Makes `object` what decoding it into the kind's type would: unknown fields are removed and
    /// their paths returned, nulls and empty optional lists are dropped, quantities and times take
    /// their canonical form. Of very many unknown fields only the first are returned. A definition this schema does not have leaves the object as it is.
    pub fn conform(&self, definition: &str, object: &mut Value) -> Result<Vec<String>, ConformError> {
        match self.by_name.get(definition) {
            Some(id) => conform::conform(self, *id, object),
            None => Ok(Vec::new()),
        }
    }

    /// `v1.PodSpec`, `[]string`: the type as messages of the API name it.
    pub(crate) fn type_name(&self, ty: &Type) -> String {
        match ty {
            Type::String => "string".to_owned(),
            Type::Bytes => "[]uint8".to_owned(),
            Type::Boolean => "bool".to_owned(),
            Type::Int32 => "int32".to_owned(),
            Type::Int64 => "int64".to_owned(),
            Type::Double => "float64".to_owned(),
            Type::Any => "interface {}".to_owned(),
            Type::List(item) => format!("[]{}", self.type_name(item)),
            Type::Map(item) => match &**item {
                Type::Definition(id) if self.get(*id).shape == Shape::Quantity => "v1.ResourceList".to_owned(),
                item => format!("map[string]{}", self.type_name(item)),
            },
            Type::Definition(id) => self.get(*id).type_name().to_owned(),
        }
    }
}

impl Definition {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|field| field.name.cmp(name)).ok().map(|i| &self.fields[i])
    }

    /// `PodSpec`.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// `v1.PodSpec`.
    fn type_name(&self) -> &'static str {
        let dots = self.name.rmatch_indices('.').nth(1);
        dots.map_or(self.name, |(at, _)| &self.name[at + 1..])
    }
}

impl Field {
    /// Whether lists (and the maps of `retainKeys`) are merged rather than replaced.
    pub fn merges(&self) -> bool {
        self.has_strategy("merge")
    }

    pub fn replaces(&self) -> bool {
        self.has_strategy("replace")
    }

    fn has_strategy(&self, name: &str) -> bool {
        self.patch_strategy.is_some_and(|strategy| strategy.split(',').any(|s| s == name))
    }
}

#[cfg(test)]
mod tests;
