//! CEL's sets extension: `sets.contains`, `sets.equivalent`, `sets.intersects`.

use super::{Function, equals, no_such_overload};
use crate::{
    error::EvalError,
    evaluate::Context,
    value::{List, Value},
};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "sets.contains", signatures: &["(list(A), list(A)) -> bool"], call: contains },
    Function { name: "sets.equivalent", signatures: &["(list(A), list(A)) -> bool"], call: equivalent },
    Function { name: "sets.intersects", signatures: &["(list(A), list(A)) -> bool"], call: intersects },
];

fn has_element<'a>(context: &mut Context<'_, 'a>, list: &List<'a>, wanted: &Value<'a>) -> Result<bool, EvalError> {
    for element in list.iter() {
        context.meter.charge(1)?;
        if equals(&mut context.meter, &element?, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn contains_all<'a>(context: &mut Context<'_, 'a>, list: &List<'a>, part: &List<'a>) -> Result<bool, EvalError> {
    for element in part.iter() {
        if !has_element(context, list, &element?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn contains<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::List(list), Value::List(part)] = args else { return no_such_overload() };
    contains_all(context, list, part).map(Value::Bool)
}

fn equivalent<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::List(a), Value::List(b)] = args else { return no_such_overload() };
    Ok(Value::Bool(contains_all(context, a, b)? && contains_all(context, b, a)?))
}

fn intersects<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::List(a), Value::List(b)] = args else { return no_such_overload() };
    for element in a.iter() {
        if has_element(context, b, &element?)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
