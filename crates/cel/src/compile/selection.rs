//! Fields and elements: `a.b`, `a.?b`, `has(a.b)`, `a[i]`, `a[?i]`.

use cel::common::ast::{Expr as Ast, IdedExpr, LiteralValue, SelectExpr};

use super::{Compiler, spelled_name};
use crate::{
    expr::{Expr, Kind},
    types::Type,
    value::Value,
};

impl Compiler<'_> {
    pub(super) fn selection(&mut self, id: u64, select: &SelectExpr) -> Expr {
        // The longest declared name wins: `variables.replicas` is one variable.
        if let Some(operand) = spelled_name(&select.operand) {
            let root = operand.split('.').next().unwrap_or(&operand);
            if self.find_local(root).is_none() {
                let name = format!("{operand}.{}", select.field);
                if let Some(found) = self.qualified(id, &name) {
                    return if select.test {
                        self.expr(id, Type::Bool, Kind::Literal(Value::Bool(true)))
                    } else {
                        found
                    };
                }
                if !self.environment.variables.contains_key(&*operand) && self.environment.is_namespace(&operand) {
                    self.report(id, format!("undefined field '{}'", select.field));
                    return self.invalid(id);
                }
            }
        }
        let operand = self.expression(&select.operand);
        let Some(ty) = self.field_type(id, &operand.ty, &select.field) else { return self.invalid(id) };
        let (operand, field) = (Box::new(operand), select.field.as_str().into());
        if select.test {
            return self.expr(id, Type::Bool, Kind::Test { operand, field });
        }
        self.expr(id, ty, Kind::Select { operand, field, optional: false })
    }

    /// `a.?b`, whose field comes as a string literal.
    pub(super) fn optional_selection(&mut self, id: u64, args: &[IdedExpr]) -> Expr {
        let [operand, IdedExpr { expr: Ast::Literal(LiteralValue::String(field)), .. }] = args else {
            self.report(id, "unsupported optional field selection");
            return self.invalid(id);
        };
        let operand = self.expression(operand);
        let Some(ty) = self.field_type(id, &operand.ty, field.inner()) else { return self.invalid(id) };
        let kind = Kind::Select { operand: Box::new(operand), field: field.inner().into(), optional: true };
        self.expr(id, make_optional(ty), kind)
    }

    fn field_type(&mut self, id: u64, operand: &Type, field: &str) -> Option<Type> {
        match operand {
            Type::Dyn => Some(Type::Dyn),
            Type::Map(map) => Some(map.value.clone()),
            Type::Object(_) => {
                let found = operand.field(field).map(|field| field.ty.clone());
                if found.is_none() {
                    self.report(id, format!("undefined field '{field}'"));
                }
                found
            }
            // A field of an optional is optional.
            Type::Optional(inner) => self.field_type(id, inner, field).map(make_optional),
            Type::Named(name) if self.environment.builds_objects && is_buildable(name) => Some(Type::Dyn),
            other => {
                self.report(id, format!("type '{other}' does not support field selection"));
                None
            }
        }
    }

    pub(super) fn index(&mut self, id: u64, args: &[IdedExpr], optional: bool) -> Expr {
        let [operand, index] = args else { return self.invalid(id) };
        let operand = self.expression(operand);
        let index = self.expression(index);
        let name = if optional { "_[?_]" } else { "_[_]" };
        let Some(ty) = element_type(&operand.ty, &index.ty) else {
            let types = format!("({}, {})", operand.ty, index.ty);
            self.report(id, format!("found no matching overload for '{name}' applied to '{types}'"));
            return self.invalid(id);
        };
        let ty = if optional { make_optional(ty) } else { ty };
        self.expr(id, ty, Kind::Index { operand: Box::new(operand), index: Box::new(index), optional })
    }
}

pub(super) fn is_buildable(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

fn make_optional(ty: Type) -> Type {
    match ty {
        optional @ Type::Optional(_) => optional,
        ty => Type::optional(ty),
    }
}

fn element_type(operand: &Type, index: &Type) -> Option<Type> {
    match operand {
        Type::Dyn => Some(Type::Dyn),
        Type::List(list) if index.is_dyn() || index.is_numeric() => Some(list.element.clone()),
        Type::Map(map) if map.key.accepts(index) || (map.key.is_numeric() && index.is_numeric()) => {
            Some(map.value.clone())
        }
        Type::Optional(inner) => element_type(inner, index).map(make_optional),
        _ => None,
    }
}
