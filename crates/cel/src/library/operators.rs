//! Arithmetic, `in`, `size`, `!`: the operators that need their operands' values. `&&`, `||` and `?:` are the evaluator's.

use std::sync::Arc;

use jiff::SignedDuration;

use super::{Function, equals, no_such_overload};
use crate::{
    error::EvalError,
    evaluate::Context,
    library::time::{checked_timestamp, within_duration_range},
    types::ListKind,
    value::{List, Value},
};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "_+_",
        signatures: &[
            "(int, int) -> int",
            "(uint, uint) -> uint",
            "(double, double) -> double",
            "(string, string) -> string",
            "(bytes, bytes) -> bytes",
            "(list(A), list(A)) -> list(A)",
            "(duration, duration) -> duration",
            "(timestamp, duration) -> timestamp",
            "(duration, timestamp) -> timestamp",
        ],
        call: add,
    },
    Function {
        name: "_-_",
        signatures: &[
            "(int, int) -> int",
            "(uint, uint) -> uint",
            "(double, double) -> double",
            "(duration, duration) -> duration",
            "(timestamp, duration) -> timestamp",
            "(timestamp, timestamp) -> duration",
        ],
        call: subtract,
    },
    Function {
        name: "_*_",
        signatures: &["(int, int) -> int", "(uint, uint) -> uint", "(double, double) -> double"],
        call: multiply,
    },
    Function {
        name: "_/_",
        signatures: &["(int, int) -> int", "(uint, uint) -> uint", "(double, double) -> double"],
        call: divide,
    },
    Function { name: "_%_", signatures: &["(int, int) -> int", "(uint, uint) -> uint"], call: modulo },
    Function {
        name: "-_",
        signatures: &["(int) -> int", "(double) -> double", "(duration) -> duration"],
        call: negate,
    },
    Function { name: "!_", signatures: &["(bool) -> bool"], call: not },
    Function { name: "@in", signatures: &["(A, list(A)) -> bool", "(A, map(A, B)) -> bool"], call: is_in },
    Function {
        name: "size",
        signatures: &[
            "(string) -> int",
            "(bytes) -> int",
            "(list(A)) -> int",
            "(map(A, B)) -> int",
            "string.() -> int",
            "bytes.() -> int",
            "list(A).() -> int",
            "map(A, B).() -> int",
        ],
        call: size,
    },
];

pub(crate) fn overflow(value: &Value<'_>) -> EvalError {
    EvalError::message(match value {
        Value::Uint(_) => "unsigned integer overflow",
        _ => "integer overflow",
    })
}

fn add<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Int(a), Value::Int(b)] => a.checked_add(*b).map(Value::Int).ok_or_else(|| overflow(&args[0])),
        [Value::Uint(a), Value::Uint(b)] => a.checked_add(*b).map(Value::Uint).ok_or_else(|| overflow(&args[0])),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a + b)),
        [Value::String(a), Value::String(b)] => {
            context.meter.charge_traversal(a.len() + b.len())?;
            let mut sum = String::with_capacity(a.len() + b.len());
            sum.push_str(a);
            sum.push_str(b);
            Ok(Value::string(sum))
        }
        [Value::Bytes(a), Value::Bytes(b)] => {
            context.meter.charge_traversal(a.len() + b.len())?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        [Value::List(a), Value::List(b)] => {
            context.meter.charge(a.len() as u64 + b.len() as u64)?;
            add_lists(context, a, b)
        }
        [Value::Duration(a), Value::Duration(b)] => within_duration_range(a.checked_add(*b)).map(Value::Duration),
        [Value::Timestamp(time), Value::Duration(duration)] | [Value::Duration(duration), Value::Timestamp(time)] => {
            checked_timestamp(time.checked_add(*duration).ok())
        }
        _ => no_such_overload(),
    }
}

/// Adds lists: of a schema's sets and maps, elements of the right side that are already there are left out or replace
/// those of the left side with the same keys.
fn add_lists<'a>(context: &mut Context<'_, 'a>, a: &List<'a>, b: &List<'a>) -> Result<Value<'a>, EvalError> {
    let mut sum: Vec<Value<'a>> = a.iter().collect::<Result<_, _>>()?;
    match a.kind() {
        ListKind::Atomic => {
            for value in b.iter() {
                sum.push(value?);
            }
        }
        ListKind::Set => {
            for value in b.iter() {
                let value = value?;
                if find_equal(context, &sum, &value)?.is_none() {
                    sum.push(value);
                }
            }
        }
        ListKind::Map(keys) => {
            for value in b.iter() {
                let value = value?;
                match find_by_keys(context, &sum, &value, keys)? {
                    Some(index) => sum[index] = value,
                    None => sum.push(value),
                }
            }
        }
    }
    Ok(Value::list(sum))
}

pub(crate) fn find_equal<'a>(
    context: &mut Context<'_, 'a>,
    values: &[Value<'a>],
    wanted: &Value<'a>,
) -> Result<Option<usize>, EvalError> {
    for (index, value) in values.iter().enumerate() {
        if equals(&mut context.meter, value, wanted)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn find_by_keys<'a>(
    context: &mut Context<'_, 'a>,
    values: &[Value<'a>],
    wanted: &Value<'a>,
    keys: &[String],
) -> Result<Option<usize>, EvalError> {
    for (index, value) in values.iter().enumerate() {
        if super::comparison::same_keys(&mut context.meter, value, wanted, keys)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn subtract<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Int(a), Value::Int(b)] => a.checked_sub(*b).map(Value::Int).ok_or_else(|| overflow(&args[0])),
        [Value::Uint(a), Value::Uint(b)] => a.checked_sub(*b).map(Value::Uint).ok_or_else(|| overflow(&args[0])),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a - b)),
        [Value::Duration(a), Value::Duration(b)] => within_duration_range(a.checked_sub(*b)).map(Value::Duration),
        [Value::Timestamp(time), Value::Duration(duration)] => {
            checked_timestamp(duration.checked_neg().and_then(|back| time.checked_add(back).ok()))
        }
        [Value::Timestamp(a), Value::Timestamp(b)] => {
            within_duration_range(Some(a.duration_since(*b))).map(Value::Duration)
        }
        _ => no_such_overload(),
    }
}

fn multiply<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Int(a), Value::Int(b)] => a.checked_mul(*b).map(Value::Int).ok_or_else(|| overflow(&args[0])),
        [Value::Uint(a), Value::Uint(b)] => a.checked_mul(*b).map(Value::Uint).ok_or_else(|| overflow(&args[0])),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a * b)),
        _ => no_such_overload(),
    }
}

fn divide<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(EvalError::message("division by zero"))
        }
        [Value::Int(a), Value::Int(b)] => a.checked_div(*b).map(Value::Int).ok_or_else(|| overflow(&args[0])),
        [Value::Uint(a), Value::Uint(b)] => Ok(Value::Uint(a / b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a / b)),
        _ => no_such_overload(),
    }
}

fn modulo<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => Err(EvalError::message("modulus by zero")),
        [Value::Int(a), Value::Int(b)] => a.checked_rem(*b).map(Value::Int).ok_or_else(|| overflow(&args[0])),
        [Value::Uint(a), Value::Uint(b)] => Ok(Value::Uint(a % b)),
        _ => no_such_overload(),
    }
}

fn negate<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Int(a)] => a.checked_neg().map(Value::Int).ok_or_else(|| overflow(&args[0])),
        [Value::Double(a)] => Ok(Value::Double(-a)),
        [Value::Duration(a)] => within_duration_range(SignedDuration::ZERO.checked_sub(*a)).map(Value::Duration),
        _ => no_such_overload(),
    }
}

fn not<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => no_such_overload(),
    }
}

fn is_in<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match args {
        [wanted, Value::List(list)] => {
            for value in list.iter() {
                context.meter.charge(1)?;
                if equals(&mut context.meter, &value?, wanted)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        [wanted, Value::Map(map)] => Ok(Value::Bool(map.get(wanted).is_some())),
        _ => no_such_overload(),
    }
}

fn size<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let size = match args {
        [Value::String(text)] => {
            context.meter.charge_traversal(text.len() / 16)?;
            text.chars().count()
        }
        [Value::Bytes(bytes)] => bytes.len(),
        [Value::List(list)] => list.len(),
        [Value::Map(map)] => map.len(),
        _ => return no_such_overload(),
    };
    Ok(Value::Int(size as i64))
}

/// Takes the vector of a list that nothing else refers to, or copies it.
pub(crate) fn into_vec<'a>(list: List<'a>) -> Result<Vec<Value<'a>>, EvalError> {
    match list {
        List::Values(values) => Ok(Arc::try_unwrap(values).unwrap_or_else(|shared| (*shared).clone())),
        list @ List::Json { .. } => list.iter().collect(),
    }
}
