//! Optional values: `optional.of(x)`, `o.orValue(y)`. The operators `?.` and `[?]` are the evaluator's.

use super::{Function, no_such_overload};
use crate::{error::EvalError, evaluate::Context, value::Value};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "optional.of",
        signatures: &["(A) -> optional(A)"],
        call: |_, args| Ok(Value::some(args[0].clone())),
    },
    Function { name: "optional.ofNonZeroValue", signatures: &["(A) -> optional(A)"], call: of_non_zero_value },
    Function { name: "optional.none", signatures: &["() -> optional(A)"], call: |_, _| Ok(Value::Optional(None)) },
    Function { name: "hasValue", signatures: &["optional(A).() -> bool"], call: has_value },
    Function { name: "value", signatures: &["optional(A).() -> A"], call: value },
    Function { name: "or", signatures: &["optional(A).(optional(A)) -> optional(A)"], call: or },
    Function { name: "orValue", signatures: &["optional(A).(A) -> A"], call: or_value },
];

fn of_non_zero_value<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let zero = match &args[0] {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Duration(duration) => duration.is_zero(),
        _ => false,
    };
    Ok(if zero { Value::Optional(None) } else { Value::some(args[0].clone()) })
}

fn has_value<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::Optional(value)] = args else { return no_such_overload() };
    Ok(Value::Bool(value.is_some()))
}

fn value<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => Err(EvalError::message("optional.none() dereference")),
        _ => no_such_overload(),
    }
}

fn or<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Optional(None), other @ Value::Optional(_)] => Ok(other.clone()),
        [some @ Value::Optional(_), Value::Optional(_)] => Ok(some.clone()),
        _ => no_such_overload(),
    }
}

fn or_value<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Optional(Some(value)), _] => Ok((**value).clone()),
        [Value::Optional(None), other] => Ok(other.clone()),
        _ => no_such_overload(),
    }
}
