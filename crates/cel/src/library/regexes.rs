//! Regular expressions: `matches`, `find`, `findAll`. They run in linear time; the size of a compiled one is bounded.

use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use super::{Function, no_such_overload};
use crate::{error::EvalError, evaluate::Context, value::Value};

/// The largest compiled expression, in bytes: `a{1000}{1000}` is refused.
const SIZE_LIMIT: usize = 1 << 20;
const MAX_PATTERN_LENGTH: usize = 4096;
/// What compiling an expression that is no literal costs: it takes thousands of times as long as any other step.
const COMPILE_COST: u64 = 5_000;

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "matches", signatures: &["string.(string) -> bool", "(string, string) -> bool"], call: matches },
    Function { name: "find", signatures: &["string.(string) -> string"], call: find },
    Function {
        name: "findAll",
        signatures: &["string.(string) -> list(string)", "string.(string, int) -> list(string)"],
        call: find_all,
    },
];

pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN_LENGTH {
        return Err(format!("error parsing regexp: longer than {MAX_PATTERN_LENGTH} bytes"));
    }
    RegexBuilder::new(pattern).size_limit(SIZE_LIMIT).dfa_size_limit(SIZE_LIMIT).nest_limit(64).build().map_err(
        |error| {
            let text = error.to_string();
            format!("error parsing regexp: {}", text.lines().last().unwrap_or(&text).trim_start_matches("error: "))
        },
    )
}

/// The compiled expression: of a literal, from the program; of another, once in an evaluation.
fn regex<'a>(context: &mut Context<'_, 'a>, text: &str, pattern: &str) -> Result<Arc<Regex>, EvalError> {
    let steps = (text.len() as u64 + 1).div_ceil(10).saturating_mul((pattern.len() as u64).div_ceil(4));
    context.meter.charge(steps)?;
    if let Some(regex) = context.literal_pattern {
        return Ok(regex.clone());
    }
    if let Some(regex) = context.regexes.get(pattern) {
        return Ok(regex.clone());
    }
    context.meter.charge(COMPILE_COST)?;
    let regex = Arc::new(compile(pattern).map_err(EvalError::message)?);
    context.regexes.insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}

fn matches<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_such_overload() };
    Ok(Value::Bool(regex(context, text, pattern)?.is_match(text)))
}

fn find<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_such_overload() };
    let found = regex(context, text, pattern)?.find(text).map_or("", |found| found.as_str()).to_owned();
    Ok(Value::string(found))
}

fn find_all<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let (text, pattern, limit) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, -1),
        [Value::String(text), Value::String(pattern), Value::Int(limit)] => (text, pattern, *limit),
        _ => return no_such_overload(),
    };
    let regex = regex(context, text, pattern)?;
    let mut found = Vec::new();
    for part in regex.find_iter(text).take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        context.meter.charge(1)?;
        // Every search may look at the rest of the text before it fails.
        context.meter.charge_traversal(part.len())?;
        found.push(Value::string(part.as_str().to_owned()));
    }
    Ok(Value::list(found))
}
