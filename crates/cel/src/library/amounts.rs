//! Functions of quantities and of semantic versions, which share the names of their comparisons.

use std::{cmp::Ordering, sync::Arc};

use semver::Version;

use super::{Function, no_such_overload, quantity::Quantity};
use crate::{error::EvalError, evaluate::Context, value::Value};

const COMPARISON: &[&str] =
    &["kubernetes.Quantity.(kubernetes.Quantity) -> bool", "kubernetes.Semver.(kubernetes.Semver) -> bool"];
const ARITHMETIC: &[&str] = &[
    "kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity",
    "kubernetes.Quantity.(int) -> kubernetes.Quantity",
];

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "quantity", signatures: &["(string) -> kubernetes.Quantity"], call: quantity },
    Function { name: "isQuantity", signatures: &["(string) -> bool"], call: is_quantity },
    Function {
        name: "isInteger",
        signatures: &["kubernetes.Quantity.() -> bool"],
        call: |_, args| with_quantity(args, |quantity| Ok(Value::Bool(quantity.as_integer().is_some()))),
    },
    Function {
        name: "asInteger",
        signatures: &["kubernetes.Quantity.() -> int"],
        call: |_, args| {
            with_quantity(args, |quantity| {
                let integer = quantity.as_integer().map(Value::Int);
                integer.ok_or_else(|| EvalError::message("cannot convert value to integer"))
            })
        },
    },
    Function {
        name: "asApproximateFloat",
        signatures: &["kubernetes.Quantity.() -> double"],
        call: |_, args| with_quantity(args, |quantity| Ok(Value::Double(quantity.as_float()))),
    },
    Function {
        name: "sign",
        signatures: &["kubernetes.Quantity.() -> int"],
        call: |_, args| with_quantity(args, |quantity| Ok(Value::Int(quantity.sign()))),
    },
    Function { name: "add", signatures: ARITHMETIC, call: |_, args| arithmetic(args, Quantity::add) },
    Function { name: "sub", signatures: ARITHMETIC, call: |_, args| arithmetic(args, Quantity::sub) },
    Function { name: "isLessThan", signatures: COMPARISON, call: |_, args| Ok(Value::Bool(compare(args)?.is_lt())) },
    Function { name: "isGreaterThan", signatures: COMPARISON, call: |_, args| Ok(Value::Bool(compare(args)?.is_gt())) },
    Function {
        name: "compareTo",
        signatures: &[
            "kubernetes.Quantity.(kubernetes.Quantity) -> int",
            "kubernetes.Semver.(kubernetes.Semver) -> int",
        ],
        call: |_, args| Ok(Value::Int(compare(args)? as i64)),
    },
    Function {
        name: "semver",
        signatures: &["(string) -> kubernetes.Semver", "(string, bool) -> kubernetes.Semver"],
        call: semver,
    },
    Function { name: "isSemver", signatures: &["(string) -> bool", "(string, bool) -> bool"], call: is_semver },
    Function {
        name: "major",
        signatures: &["kubernetes.Semver.() -> int"],
        call: |_, args| with_version(args, |version| version.major),
    },
    Function {
        name: "minor",
        signatures: &["kubernetes.Semver.() -> int"],
        call: |_, args| with_version(args, |version| version.minor),
    },
    Function {
        name: "patch",
        signatures: &["kubernetes.Semver.() -> int"],
        call: |_, args| with_version(args, |version| version.patch),
    },
];

fn quantity<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text)] = args else { return no_such_overload() };
    context.meter.charge_traversal(text.len())?;
    let refused = || {
        EvalError::message(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        )
    };
    Quantity::parse(text).map(|quantity| Value::Quantity(Arc::new(quantity))).ok_or_else(refused)
}

fn is_quantity<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text)] = args else { return no_such_overload() };
    context.meter.charge_traversal(text.len())?;
    Ok(Value::Bool(Quantity::parse(text).is_some()))
}

fn with_quantity<'a>(
    args: &[Value<'a>],
    function: impl FnOnce(Quantity) -> Result<Value<'a>, EvalError>,
) -> Result<Value<'a>, EvalError> {
    let [Value::Quantity(quantity)] = args else { return no_such_overload() };
    function(**quantity)
}

fn arithmetic<'a>(
    args: &[Value<'a>],
    operation: fn(Quantity, Quantity) -> Option<Quantity>,
) -> Result<Value<'a>, EvalError> {
    let (a, b) = match args {
        [Value::Quantity(a), Value::Quantity(b)] => (**a, **b),
        [Value::Quantity(a), Value::Int(b)] => (**a, Quantity::from_int(*b)),
        _ => return no_such_overload(),
    };
    let result = operation(a, b).map(|quantity| Value::Quantity(Arc::new(quantity)));
    result.ok_or_else(|| EvalError::message("quantity overflow"))
}

fn compare(args: &[Value<'_>]) -> Result<Ordering, EvalError> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(a.cmp(b)),
        [Value::Semver(a), Value::Semver(b)] => Ok(a.cmp_precedence(b)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

/// Reads a version; with `normalize`, also `v1.2` and `01.2.3`.
fn parse_version(context: &mut Context<'_, '_>, args: &[Value<'_>]) -> Result<Option<Version>, EvalError> {
    let (text, normalize) = match args {
        [Value::String(text)] => (text, false),
        [Value::String(text), Value::Bool(normalize)] => (text, *normalize),
        _ => return Err(EvalError::NoSuchOverload),
    };
    context.meter.charge_traversal(2 * text.len())?;
    if !normalize {
        return Ok(Version::parse(text).ok());
    }
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, rest) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
    let mut parts: Vec<&str> = numbers.split('.').collect();
    if parts.len() > 3 || (parts.len() < 3 && !rest.is_empty()) {
        return Ok(None);
    }
    parts.resize(3, "0");
    let parts: Vec<&str> = parts
        .into_iter()
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    Ok(Version::parse(&format!("{}{rest}", parts.join("."))).ok())
}

fn semver<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let version = parse_version(context, args)?;
    version
        .map(|version| Value::Semver(Arc::new(version)))
        .ok_or_else(|| EvalError::message("invalid semantic version"))
}

fn is_semver<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    Ok(Value::Bool(parse_version(context, args)?.is_some()))
}

fn with_version<'a>(args: &[Value<'a>], part: fn(&Version) -> u64) -> Result<Value<'a>, EvalError> {
    let [Value::Semver(version)] = args else { return no_such_overload() };
    i64::try_from(part(version)).map(Value::Int).map_err(|_| EvalError::message("integer overflow"))
}
