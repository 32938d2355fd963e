//! `'%s has %d'.format([name, count])` of CEL's strings extension.

use std::fmt::Write;

use super::{Function, no_such_overload};
use crate::{
    error::EvalError,
    evaluate::Context,
    value::{List, Value},
};

/// The most digits after the point: a format of a few characters must not ask for megabytes.
const MAX_PRECISION: usize = 100;
/// How deep a value is written out by `%s`.
const MAX_DEPTH: usize = 32;

pub(crate) const FUNCTIONS: &[Function] =
    &[Function { name: "format", signatures: &["string.(list(dyn)) -> string"], call: format }];

fn format<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text), Value::List(list)] = args else { return no_such_overload() };
    context.meter.charge_traversal(2 * text.len())?;
    let mut written = String::new();
    let mut next = 0;
    let mut rest = &**text;
    while let Some(at) = rest.find('%') {
        written.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            written.push('%');
            rest = after;
            continue;
        }
        let (precision, after) = parse_precision(rest)?;
        let Some(verb) = after.chars().next() else {
            return Err(EvalError::message("could not parse formatting clause: unexpected end of string"));
        };
        rest = &after[verb.len_utf8()..];
        let value = take_argument(list, next)?;
        next += 1;
        context.meter.charge(1)?;
        let start = written.len();
        write_clause(context, &mut written, verb, precision, &value)?;
        context.meter.charge_traversal(written.len() - start)?;
    }
    written.push_str(rest);
    Ok(Value::string(written))
}

fn take_argument<'a>(list: &List<'a>, index: usize) -> Result<Value<'a>, EvalError> {
    match list.get(index) {
        Some(value) => value,
        None => Err(EvalError::message(format!("index {index} out of range"))),
    }
}

fn parse_precision(text: &str) -> Result<(Option<usize>, &str), EvalError> {
    let Some(after) = text.strip_prefix('.') else { return Ok((None, text)) };
    let (digits, rest) = after.split_at(after.bytes().take_while(u8::is_ascii_digit).count());
    match digits.parse() {
        Ok(precision) if precision <= MAX_PRECISION => Ok((Some(precision), rest)),
        _ => Err(EvalError::message("error parsing precision: not a number between 0 and 100")),
    }
}

fn write_clause<'a>(
    context: &mut Context<'_, 'a>,
    out: &mut String,
    verb: char,
    precision: Option<usize>,
    value: &Value<'a>,
) -> Result<(), EvalError> {
    let precision = precision.unwrap_or(6);
    let written = match (verb, value) {
        ('s', value) => return write_value(context, out, value, 0),
        ('d', Value::Int(value)) => write!(out, "{value}"),
        ('d', Value::Uint(value)) => write!(out, "{value}"),
        ('d' | 'f' | 'e', Value::Double(value)) if !value.is_finite() => write!(out, "{}", double_text(*value)),
        ('d', Value::Double(value)) => write!(out, "{value}"),
        ('f', Value::Double(value)) => write!(out, "{value:.precision$}"),
        ('f', Value::Int(value)) => write!(out, "{:.precision$}", *value as f64),
        ('f', Value::Uint(value)) => write!(out, "{:.precision$}", *value as f64),
        ('e', Value::Double(value)) => write!(out, "{}", exponent_text(*value, precision)),
        ('e', Value::Int(value)) => write!(out, "{}", exponent_text(*value as f64, precision)),
        ('b', Value::Bool(value)) => write!(out, "{}", u8::from(*value)),
        ('b', Value::Int(value)) => write_radix(out, *value, |out, value| write!(out, "{value:b}")),
        ('b', Value::Uint(value)) => write!(out, "{value:b}"),
        ('o', Value::Int(value)) => write_radix(out, *value, |out, value| write!(out, "{value:o}")),
        ('o', Value::Uint(value)) => write!(out, "{value:o}"),
        ('x', Value::Int(value)) => write_radix(out, *value, |out, value| write!(out, "{value:x}")),
        ('X', Value::Int(value)) => write_radix(out, *value, |out, value| write!(out, "{value:X}")),
        ('x', Value::Uint(value)) => write!(out, "{value:x}"),
        ('X', Value::Uint(value)) => write!(out, "{value:X}"),
        ('x' | 'X', Value::String(text)) => return write_hex(context, out, text.as_bytes(), verb == 'X'),
        ('x' | 'X', Value::Bytes(bytes)) => return write_hex(context, out, bytes, verb == 'X'),
        ('d' | 'f' | 'e' | 'b' | 'o' | 'x' | 'X', value) => {
            return Err(EvalError::message(format!(
                "error during formatting: '%{verb}' cannot be used with a value of type {}",
                value.type_name()
            )));
        }
        (verb, _) => {
            return Err(EvalError::message(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{verb}\""
            )));
        }
    };
    written.map_err(|_| EvalError::message("the text could not be written"))
}

fn write_radix(out: &mut String, value: i64, write: fn(&mut String, u64) -> std::fmt::Result) -> std::fmt::Result {
    if value < 0 {
        out.push('-');
    }
    write(out, value.unsigned_abs())
}

fn write_hex(context: &mut Context<'_, '_>, out: &mut String, bytes: &[u8], upper: bool) -> Result<(), EvalError> {
    context.meter.charge_traversal(2 * bytes.len())?;
    for byte in bytes {
        let _ = if upper { write!(out, "{byte:02X}") } else { write!(out, "{byte:02x}") };
    }
    Ok(())
}

/// Go's form: at least two digits of exponent.
fn exponent_text(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => match exponent.strip_prefix('-') {
            Some(digits) => format!("{mantissa}e-{digits:0>2}"),
            None => format!("{mantissa}e+{exponent:0>2}"),
        },
        None => text,
    }
}

fn double_text(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        value.to_string()
    }
}

/// Writes any value as `%s` does: lists and maps with their elements.
fn write_value<'a>(
    context: &mut Context<'_, 'a>,
    out: &mut String,
    value: &Value<'a>,
    depth: usize,
) -> Result<(), EvalError> {
    if depth > MAX_DEPTH {
        return Err(EvalError::message("the value is nested too deeply to be formatted"));
    }
    context.meter.charge(1)?;
    match value {
        Value::List(list) => {
            out.push('[');
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_value(context, out, &element?, depth + 1)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, key) in map.keys().into_iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_value(context, out, &key, depth + 1)?;
                out.push_str(": ");
                match map.get(&key) {
                    Some(value) => write_value(context, out, &value?, depth + 1)?,
                    None => out.push_str("null"),
                }
            }
            out.push('}');
        }
        Value::Double(value) => out.push_str(&double_text(*value)),
        Value::Bytes(bytes) => {
            context.meter.charge_traversal(bytes.len())?;
            out.push_str(&String::from_utf8_lossy(bytes));
        }
        Value::String(text) => {
            context.meter.charge_traversal(text.len())?;
            out.push_str(text);
        }
        value => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}
