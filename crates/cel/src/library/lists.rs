//! Kubernetes' functions of lists: `isSorted`, `sum`, `min`, `max`; `indexOf` is shared with strings.

use std::cmp::Ordering;

use super::{Function, compare, equals, find_function, no_such_overload};
use crate::{
    error::EvalError,
    evaluate::Context,
    value::{List, Value},
};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "isSorted",
        signatures: &[
            "list(bool).() -> bool",
            "list(int).() -> bool",
            "list(uint).() -> bool",
            "list(double).() -> bool",
            "list(string).() -> bool",
            "list(bytes).() -> bool",
            "list(duration).() -> bool",
            "list(timestamp).() -> bool",
        ],
        call: is_sorted,
    },
    Function {
        name: "sum",
        signatures: &[
            "list(int).() -> int",
            "list(uint).() -> uint",
            "list(double).() -> double",
            "list(duration).() -> duration",
        ],
        call: sum,
    },
    Function { name: "min", signatures: EXTREME, call: |context, args| extreme(context, args, "min", Ordering::Less) },
    Function {
        name: "max",
        signatures: EXTREME,
        call: |context, args| extreme(context, args, "max", Ordering::Greater),
    },
];

const EXTREME: &[&str] = &[
    "list(bool).() -> bool",
    "list(int).() -> int",
    "list(uint).() -> uint",
    "list(double).() -> double",
    "list(string).() -> string",
    "list(bytes).() -> bytes",
    "list(duration).() -> duration",
    "list(timestamp).() -> timestamp",
];

/// Compares two elements, charged for their length.
fn compare_elements(
    context: &mut Context<'_, '_>,
    a: &Value<'_>,
    b: &Value<'_>,
) -> Result<Option<Ordering>, EvalError> {
    context.meter.charge(1)?;
    context.meter.charge_traversal(a.traversal_size().min(b.traversal_size()))?;
    compare(a, b)
}

fn is_sorted<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::List(list)] = args else { return no_such_overload() };
    let mut previous: Option<Value<'a>> = None;
    for element in list.iter() {
        let element = element?;
        if let Some(previous) = &previous
            && compare_elements(context, previous, &element)? == Some(Ordering::Greater)
        {
            return Ok(Value::Bool(false));
        }
        previous = Some(element);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::List(list)] = args else { return no_such_overload() };
    let add = find_function("_+_").expect("addition is declared").function.call;
    let mut sum: Option<Value<'a>> = None;
    for element in list.iter() {
        context.meter.charge(1)?;
        let element = element?;
        if !matches!(element, Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_)) {
            return no_such_overload();
        }
        sum = Some(match sum {
            Some(sum) => add(context, &[sum, element])?,
            None => element,
        });
    }
    // Of which type the zero of an empty list is, only the checker could tell.
    Ok(sum.unwrap_or(Value::Int(0)))
}

fn extreme<'a>(
    context: &mut Context<'_, 'a>,
    args: &[Value<'a>],
    name: &str,
    wanted: Ordering,
) -> Result<Value<'a>, EvalError> {
    let [Value::List(list)] = args else { return no_such_overload() };
    let mut found: Option<Value<'a>> = None;
    for element in list.iter() {
        let element = element?;
        found = Some(match found {
            Some(found) if compare_elements(context, &element, &found)? != Some(wanted) => found,
            _ => element,
        });
    }
    found.ok_or_else(|| EvalError::message(format!("{name} called on empty list")))
}

pub(crate) fn index_of<'a>(
    context: &mut Context<'_, 'a>,
    list: &List<'a>,
    wanted: &Value<'a>,
) -> Result<Value<'a>, EvalError> {
    for (index, element) in list.iter().enumerate() {
        context.meter.charge(1)?;
        if equals(&mut context.meter, &element?, wanted)? {
            return Ok(Value::Int(index as i64));
        }
    }
    Ok(Value::Int(-1))
}

pub(crate) fn last_index_of<'a>(
    context: &mut Context<'_, 'a>,
    list: &List<'a>,
    wanted: &Value<'a>,
) -> Result<Value<'a>, EvalError> {
    for index in (0..list.len()).rev() {
        context.meter.charge(1)?;
        if let Some(element) = list.get(index)
            && equals(&mut context.meter, &element?, wanted)?
        {
            return Ok(Value::Int(index as i64));
        }
    }
    Ok(Value::Int(-1))
}
