//! Literals of the grammar as values.

use cel::common::ast::LiteralValue;

use super::Compiler;
use crate::{
    expr::{Expr, Kind},
    types::Type,
    value::Value,
};

impl Compiler<'_> {
    pub(super) fn literal(&mut self, id: u64, literal: &LiteralValue) -> Expr {
        let (ty, value) = match literal {
            LiteralValue::Null => (Type::Null, Value::Null),
            LiteralValue::Boolean(value) => (Type::Bool, Value::Bool(*value.inner())),
            LiteralValue::Int(value) => (Type::Int, Value::Int(*value.inner())),
            LiteralValue::UInt(value) => (Type::Uint, Value::Uint(*value.inner())),
            LiteralValue::Double(value) => (Type::Double, Value::Double(*value.inner())),
            LiteralValue::String(text) => {
                (Type::String(Some(text.inner().len() as u64)), Value::string(text.inner().to_owned()))
            }
            LiteralValue::Bytes(bytes) => {
                (Type::Bytes(Some(bytes.inner().len() as u64)), Value::Bytes(bytes.inner().into()))
            }
        };
        self.expr(id, ty, Kind::Literal(value))
    }
}
