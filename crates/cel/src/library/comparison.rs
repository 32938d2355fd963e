//! Equality and order of values. Numbers of different types are compared by what they are; other values of different
//! types are unequal and have no order.

use std::cmp::Ordering;

use super::Function;
use crate::{
    budget::Meter,
    convert::from_json,
    error::EvalError,
    escape::escape_property,
    evaluate::Context,
    types::{DYN, ListKind, Type},
    value::{List, Map, Value},
};

const ORDERED: &[&str] = &[
    "(bool, bool) -> bool",
    "(int, int) -> bool",
    "(uint, uint) -> bool",
    "(double, double) -> bool",
    "(int, uint) -> bool",
    "(int, double) -> bool",
    "(uint, int) -> bool",
    "(uint, double) -> bool",
    "(double, int) -> bool",
    "(double, uint) -> bool",
    "(string, string) -> bool",
    "(bytes, bytes) -> bool",
    "(timestamp, timestamp) -> bool",
    "(duration, duration) -> bool",
];

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "_==_", signatures: &["(A, A) -> bool"], call: |context, args| equality(context, args, true) },
    Function { name: "_!=_", signatures: &["(A, A) -> bool"], call: |context, args| equality(context, args, false) },
    Function { name: "_<_", signatures: ORDERED, call: |context, args| ordered(context, args, Ordering::is_lt) },
    Function { name: "_<=_", signatures: ORDERED, call: |context, args| ordered(context, args, Ordering::is_le) },
    Function { name: "_>_", signatures: ORDERED, call: |context, args| ordered(context, args, Ordering::is_gt) },
    Function { name: "_>=_", signatures: ORDERED, call: |context, args| ordered(context, args, Ordering::is_ge) },
];

fn equality<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>], expected: bool) -> Result<Value<'a>, EvalError> {
    match args {
        [a, b] => Ok(Value::Bool(equals(&mut context.meter, a, b)? == expected)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn ordered<'a>(
    context: &mut Context<'_, 'a>,
    args: &[Value<'a>],
    test: fn(Ordering) -> bool,
) -> Result<Value<'a>, EvalError> {
    let [a, b] = args else { return Err(EvalError::NoSuchOverload) };
    context.meter.charge_traversal(a.traversal_size().min(b.traversal_size()))?;
    match compare(a, b)? {
        Some(order) => Ok(Value::Bool(test(order))),
        // Not a number: every comparison is false.
        None => Ok(Value::Bool(false)),
    }
}

/// The order of two values, nothing for NaN, an error for values that have none.
pub(crate) fn compare(a: &Value<'_>, b: &Value<'_>) -> Result<Option<Ordering>, EvalError> {
    Ok(match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Some(a.cmp(b)),
        _ => match compare_numbers(a, b) {
            Some(order) => order,
            None => return Err(EvalError::NoSuchOverload),
        },
    })
}

/// Nothing if either is no number; `Some(None)` if either is NaN.
fn compare_numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Option<Ordering>> {
    Some(match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Double(a), Value::Int(b)) => compare_double(*a, i128::from(*b)),
        (Value::Double(a), Value::Uint(b)) => compare_double(*a, i128::from(*b)),
        (Value::Int(a), Value::Double(b)) => compare_double(*b, i128::from(*a)).map(Ordering::reverse),
        (Value::Uint(a), Value::Double(b)) => compare_double(*b, i128::from(*a)).map(Ordering::reverse),
        _ => return None,
    })
}

/// Compares exactly: a double holds only some of the integers above 2^53.
fn compare_double(double: f64, integer: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    if double >= 1e30 || double <= -1e30 {
        return double.partial_cmp(&0.0);
    }
    let floor = double.floor();
    Some((floor as i128).cmp(&integer).then(if double > floor { Ordering::Greater } else { Ordering::Equal }))
}

/// Deep equality, charged for every node that is looked at.
pub(crate) fn equals(meter: &mut Meter, a: &Value<'_>, b: &Value<'_>) -> Result<bool, EvalError> {
    meter.charge_traversal(match (a, b) {
        (Value::List(_) | Value::Map(_), _) => 10,
        _ => a.traversal_size().min(b.traversal_size()),
    })?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => **a == **b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::Quantity(a), Value::Quantity(b)) => a == b,
        (Value::Url(a), Value::Url(b)) => a == b,
        (Value::Ip(a), Value::Ip(b)) => a == b,
        (Value::Cidr(a), Value::Cidr(b)) => a == b,
        (Value::Semver(a), Value::Semver(b)) => a.cmp_precedence(b).is_eq(),
        (Value::Format(a), Value::Format(b)) => a.name == b.name,
        (Value::Optional(a), Value::Optional(b)) => match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => equals(meter, a, b)?,
            _ => false,
        },
        (Value::List(a), Value::List(b)) => equal_lists(meter, a, b)?,
        (Value::Map(a), Value::Map(b)) => equal_maps(meter, a, b)?,
        (Value::Struct(a), Value::Struct(b)) => {
            if a.name != b.name || a.fields.len() != b.fields.len() {
                return Ok(false);
            }
            for (name, value) in &a.fields {
                match b.fields.get(name) {
                    Some(other) if equals(meter, value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        _ => compare_numbers(a, b) == Some(Some(Ordering::Equal)),
    })
}

fn equal_lists(meter: &mut Meter, a: &List<'_>, b: &List<'_>) -> Result<bool, EvalError> {
    if a.len() != b.len() {
        return Ok(false);
    }
    let kind = match (a.kind(), b.kind()) {
        (ListKind::Atomic, kind) | (kind, _) => kind,
    };
    match kind {
        ListKind::Atomic => {
            for (a, b) in a.iter().zip(b.iter()) {
                meter.charge(1)?;
                if !equals(meter, &a?, &b?)? {
                    return Ok(false);
                }
            }
        }
        ListKind::Set => {
            for a in a.iter() {
                if !any_other(meter, &a?, b, equals)? {
                    return Ok(false);
                }
            }
        }
        ListKind::Map(keys) => {
            for a in a.iter() {
                let same = |meter: &mut Meter, a: &Value<'_>, b: &Value<'_>| {
                    Ok(same_keys(meter, a, b, keys)? && equals(meter, a, b)?)
                };
                if !any_other(meter, &a?, b, same)? {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

fn any_other(
    meter: &mut Meter,
    wanted: &Value<'_>,
    list: &List<'_>,
    mut same: impl FnMut(&mut Meter, &Value<'_>, &Value<'_>) -> Result<bool, EvalError>,
) -> Result<bool, EvalError> {
    for value in list.iter() {
        meter.charge(1)?;
        if same(meter, wanted, &value?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether two elements of a list of maps have the same keys.
pub(crate) fn same_keys(meter: &mut Meter, a: &Value<'_>, b: &Value<'_>, keys: &[String]) -> Result<bool, EvalError> {
    let (Value::Map(a), Value::Map(b)) = (a, b) else { return Ok(false) };
    for key in keys {
        meter.charge(1)?;
        let name = escape_property(key).unwrap_or_else(|| key.clone());
        let same = match (a.get_field(&name), b.get_field(&name)) {
            (Some(a), Some(b)) => equals(meter, &a?, &b?)?,
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_maps(meter: &mut Meter, a: &Map<'_>, b: &Map<'_>) -> Result<bool, EvalError> {
    if a.len() != b.len() {
        return Ok(false);
    }
    meter.charge(a.len() as u64)?;
    // A schema's object is compared by its properties, whether expressions can name them or not.
    if let (Map::Json { entries: a, ty: ty @ Type::Object(_) }, Map::Json { entries: b, .. }) = (a, b) {
        for (name, a) in *a {
            let ty = escape_property(name).and_then(|name| ty.field(&name)).map_or(&DYN, |field| &field.ty);
            let Some(b) = b.get(name) else { return Ok(false) };
            if !equals(meter, &from_json(a, ty)?, &from_json(b, ty)?)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    for key in a.keys() {
        let (Some(a), Some(b)) = (a.get(&key), b.get(&key)) else { return Ok(false) };
        if !equals(meter, &a?, &b?)? {
            return Ok(false);
        }
    }
    Ok(true)
}
