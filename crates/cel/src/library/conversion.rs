//! Type conversions: `int('3')`, `string(1.5)`, `type(x)`, `dyn(x)`.

use super::{Function, no_such_overload, time};
use crate::{error::EvalError, evaluate::Context, value::Value};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "int",
        signatures: &[
            "(int) -> int",
            "(uint) -> int",
            "(double) -> int",
            "(string) -> int",
            "(timestamp) -> int",
            "(duration) -> int",
        ],
        call: to_int,
    },
    Function {
        name: "uint",
        signatures: &["(uint) -> uint", "(int) -> uint", "(double) -> uint", "(string) -> uint"],
        call: to_uint,
    },
    Function {
        name: "double",
        signatures: &["(double) -> double", "(int) -> double", "(uint) -> double", "(string) -> double"],
        call: to_double,
    },
    Function {
        name: "string",
        signatures: &[
            "(string) -> string",
            "(bool) -> string",
            "(int) -> string",
            "(uint) -> string",
            "(double) -> string",
            "(bytes) -> string",
            "(timestamp) -> string",
            "(duration) -> string",
            "(net.IP) -> string",
            "(net.CIDR) -> string",
        ],
        call: to_string,
    },
    Function { name: "bytes", signatures: &["(bytes) -> bytes", "(string) -> bytes"], call: to_bytes },
    Function { name: "bool", signatures: &["(bool) -> bool", "(string) -> bool"], call: to_bool },
    Function {
        name: "timestamp",
        signatures: &["(timestamp) -> timestamp", "(string) -> timestamp", "(int) -> timestamp"],
        call: to_timestamp,
    },
    Function {
        name: "duration",
        signatures: &["(duration) -> duration", "(string) -> duration", "(int) -> duration"],
        call: to_duration,
    },
    Function { name: "type", signatures: &["(A) -> type"], call: type_of },
    Function { name: "dyn", signatures: &["(A) -> dyn"], call: |_, args| Ok(args[0].clone()) },
];

fn conversion_error(from: &str, to: &str) -> EvalError {
    EvalError::message(format!("type conversion error from '{from}' to '{to}'"))
}

fn range_error(to: &str) -> EvalError {
    EvalError::message(match to {
        "uint" => "unsigned integer overflow",
        _ => "integer overflow",
    })
}

fn to_int<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(Value::Int(match &args[0] {
        Value::Int(value) => *value,
        Value::Uint(value) => i64::try_from(*value).map_err(|_| range_error("int"))?,
        Value::Double(value) if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(value) => {
            *value as i64
        }
        Value::Double(_) => return Err(range_error("int")),
        Value::String(text) => {
            context.meter.charge_traversal(text.len())?;
            text.parse().map_err(|_| conversion_error("string", "int"))?
        }
        Value::Timestamp(time) => time::to_seconds(*time),
        Value::Duration(duration) => i64::try_from(duration.as_nanos()).map_err(|_| range_error("int"))?,
        _ => return no_such_overload(),
    }))
}

fn to_uint<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(Value::Uint(match &args[0] {
        Value::Uint(value) => *value,
        Value::Int(value) => u64::try_from(*value).map_err(|_| range_error("uint"))?,
        Value::Double(value) if (0.0..18_446_744_073_709_551_616.0).contains(value) => *value as u64,
        Value::Double(_) => return Err(range_error("uint")),
        Value::String(text) => {
            context.meter.charge_traversal(text.len())?;
            text.parse().map_err(|_| conversion_error("string", "uint"))?
        }
        _ => return no_such_overload(),
    }))
}

fn to_double<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(Value::Double(match &args[0] {
        Value::Double(value) => *value,
        Value::Int(value) => *value as f64,
        Value::Uint(value) => *value as f64,
        Value::String(text) => {
            context.meter.charge_traversal(text.len())?;
            text.parse().map_err(|_| conversion_error("string", "double"))?
        }
        _ => return no_such_overload(),
    }))
}

fn to_string<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(match &args[0] {
        value @ Value::String(_) => value.clone(),
        Value::Bytes(bytes) => {
            context.meter.charge_traversal(bytes.len())?;
            let text = std::str::from_utf8(bytes);
            Value::string(
                text.map_err(|_| EvalError::message("invalid UTF-8 in bytes, cannot convert to string"))?.to_owned(),
            )
        }
        value @ (Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Timestamp(_)
        | Value::Duration(_)
        | Value::Ip(_)
        | Value::Cidr(_)) => Value::string(value.to_string()),
        _ => return no_such_overload(),
    })
}

fn to_bytes<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match &args[0] {
        value @ Value::Bytes(_) => Ok(value.clone()),
        Value::String(text) => {
            context.meter.charge_traversal(text.len())?;
            Ok(Value::Bytes(text.as_bytes().into()))
        }
        _ => no_such_overload(),
    }
}

fn to_bool<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(Value::Bool(match &args[0] {
        Value::Bool(value) => *value,
        Value::String(text) => match &**text {
            "1" | "t" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "false" | "FALSE" | "False" => false,
            _ => return Err(conversion_error("string", "bool")),
        },
        _ => return no_such_overload(),
    }))
}

fn to_timestamp<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match &args[0] {
        value @ Value::Timestamp(_) => Ok(value.clone()),
        Value::String(text) => time::parse_timestamp(text).map(Value::Timestamp),
        Value::Int(seconds) => time::from_seconds(*seconds),
        _ => no_such_overload(),
    }
}

fn to_duration<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match &args[0] {
        value @ Value::Duration(_) => Ok(value.clone()),
        Value::String(text) => time::parse_duration(text).map(Value::Duration),
        Value::Int(nanos) => Ok(Value::Duration(jiff::SignedDuration::from_nanos(*nanos))),
        _ => no_such_overload(),
    }
}

fn type_of<'a>(_: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(Value::Type(args[0].type_name().into()))
}
