//! Literals of lists, maps and objects.

use cel::common::ast::{EntryExpr, ListExpr, MapExpr, StructExpr};

use super::{Compiler, selection::is_buildable};
use crate::{
    expr::{Element, Entry, Expr, Kind, StructField},
    types::{ListKind, ListType, MapType, Type},
};

impl Compiler<'_> {
    pub(super) fn list(&mut self, id: u64, list: &ListExpr) -> Expr {
        let mut elements = Vec::with_capacity(list.elements.len());
        let mut element_type: Option<Type> = None;
        for (index, element) in list.elements.iter().enumerate() {
            let optional = list.optional_indices.contains(&index);
            let value = self.expression(element);
            let ty = if optional { self.value_of_optional(&value) } else { value.ty.clone() };
            element_type = Some(self.common_type(element_type, ty, value.offset));
            elements.push(Element { value, optional });
        }
        let ty = Type::List(
            ListType {
                element: element_type.unwrap_or(Type::Dyn),
                kind: ListKind::Atomic,
                max_items: Some(elements.len() as u64),
            }
            .into(),
        );
        self.expr(id, ty, Kind::List(elements))
    }

    pub(super) fn map(&mut self, id: u64, map: &MapExpr) -> Expr {
        let mut entries = Vec::with_capacity(map.entries.len());
        let (mut key_type, mut value_type) = (None, None);
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
            let key = self.expression(&entry.key);
            let value = self.expression(&entry.value);
            if !matches!(key.ty, Type::Dyn | Type::Bool | Type::Int | Type::Uint | Type::String(_)) {
                self.report_at(key.offset, format!("unsupported map key type: {}", key.ty));
            }
            key_type = Some(self.common_type(key_type, key.ty.clone(), key.offset));
            let ty = if entry.optional { self.value_of_optional(&value) } else { value.ty.clone() };
            value_type = Some(self.common_type(value_type, ty, value.offset));
            entries.push(Entry { key, value, optional: entry.optional });
        }
        let ty = Type::Map(
            MapType {
                key: key_type.unwrap_or(Type::Dyn),
                value: value_type.unwrap_or(Type::Dyn),
                max_properties: Some(entries.len() as u64),
            }
            .into(),
        );
        self.expr(id, ty, Kind::Map(entries))
    }

    pub(super) fn structure(&mut self, id: u64, structure: &StructExpr) -> Expr {
        let name = structure.type_name.trim_start_matches('.');
        if !self.environment.builds_objects || !is_buildable(name) {
            self.report(id, format!("undeclared reference to '{name}' (in container '')"));
            return self.invalid(id);
        }
        let mut fields = Vec::with_capacity(structure.entries.len());
        for entry in &structure.entries {
            let EntryExpr::StructField(field) = &entry.expr else { continue };
            let value = self.expression(&field.value);
            if name == "JSONPatch" {
                self.check_patch_field(entry.id, &field.field, &value);
            }
            fields.push(StructField { name: field.field.as_str().into(), value, optional: field.optional });
        }
        self.expr(id, Type::named(name), Kind::Struct { name: name.into(), fields })
    }

    fn check_patch_field(&mut self, id: u64, field: &str, value: &Expr) {
        match field {
            "op" | "path" | "from" if Type::STRING.accepts(&value.ty) => {}
            "value" => {}
            "op" | "path" | "from" => self.report(
                id,
                format!("expected type of field '{field}' is 'string' but provided type is '{}'", value.ty),
            ),
            _ => self.report(id, format!("undefined field '{field}'")),
        }
    }

    fn value_of_optional(&mut self, value: &Expr) -> Type {
        match &value.ty {
            Type::Optional(inner) => (**inner).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                self.report_at(value.offset, format!("expected type 'optional_type({other})' but found '{other}'"));
                Type::Dyn
            }
        }
    }

    /// The type of all elements so far; elements of a literal have one type, as upstream demands.
    fn common_type(&mut self, so_far: Option<Type>, next: Type, offset: u32) -> Type {
        match so_far {
            None => next,
            Some(so_far) => {
                if !self.mixed_literals && !so_far.accepts(&next) {
                    self.report_at(offset, format!("expected type '{so_far}' but found '{next}'"));
                }
                join_types(so_far, next)
            }
        }
    }
}

/// A type for values of either type, with the larger size.
pub(super) fn join_types(a: Type, b: Type) -> Type {
    match (a, b) {
        (Type::Dyn, _) | (_, Type::Dyn) => Type::Dyn,
        (Type::Null, other) | (other, Type::Null) => other,
        (Type::String(a), Type::String(b)) => Type::String(a.zip(b).map(|(a, b)| a.max(b))),
        (Type::Bytes(a), Type::Bytes(b)) => Type::Bytes(a.zip(b).map(|(a, b)| a.max(b))),
        (Type::List(a), Type::List(b)) => Type::List(
            ListType {
                element: join_types(a.element.clone(), b.element.clone()),
                kind: if a.kind == b.kind { a.kind.clone() } else { ListKind::Atomic },
                max_items: a.max_items.zip(b.max_items).map(|(a, b)| a.max(b)),
            }
            .into(),
        ),
        (Type::Map(a), Type::Map(b)) => Type::Map(
            MapType {
                key: join_types(a.key.clone(), b.key.clone()),
                value: join_types(a.value.clone(), b.value.clone()),
                max_properties: a.max_properties.zip(b.max_properties).map(|(a, b)| a.max(b)),
            }
            .into(),
        ),
        (a, b) if a.accepts(&b) => a,
        _ => Type::Dyn,
    }
}
