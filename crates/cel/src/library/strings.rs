//! Functions of strings: the standard ones and those of CEL's strings extension. Positions count characters.

use super::{Function, lists, no_such_overload};
use crate::{
    error::EvalError,
    evaluate::Context,
    value::{Str, Value},
};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "contains",
        signatures: &["string.(string) -> bool"],
        call: |context, args| test(context, args, |text, part| text.contains(part)),
    },
    Function {
        name: "startsWith",
        signatures: &["string.(string) -> bool"],
        call: |context, args| test(context, args, |text, part| text.starts_with(part)),
    },
    Function {
        name: "endsWith",
        signatures: &["string.(string) -> bool"],
        call: |context, args| test(context, args, |text, part| text.ends_with(part)),
    },
    Function { name: "charAt", signatures: &["string.(int) -> string"], call: char_at },
    Function {
        name: "indexOf",
        signatures: &["string.(string) -> int", "string.(string, int) -> int", "list(A).(A) -> int"],
        call: index_of,
    },
    Function {
        name: "lastIndexOf",
        signatures: &["string.(string) -> int", "string.(string, int) -> int", "list(A).(A) -> int"],
        call: last_index_of,
    },
    Function {
        name: "join",
        signatures: &["list(string).() -> string", "list(string).(string) -> string"],
        call: join,
    },
    Function {
        name: "lowerAscii",
        signatures: &["string.() -> string"],
        call: |context, args| change(context, args, str::to_ascii_lowercase),
    },
    Function {
        name: "upperAscii",
        signatures: &["string.() -> string"],
        call: |context, args| change(context, args, str::to_ascii_uppercase),
    },
    Function {
        name: "trim",
        signatures: &["string.() -> string"],
        call: |context, args| change(context, args, |text| text.trim().to_owned()),
    },
    Function {
        name: "replace",
        signatures: &["string.(string, string) -> string", "string.(string, string, int) -> string"],
        call: replace,
    },
    Function {
        name: "split",
        signatures: &["string.(string) -> list(string)", "string.(string, int) -> list(string)"],
        call: split,
    },
    Function {
        name: "substring",
        signatures: &["string.(int) -> string", "string.(int, int) -> string"],
        call: substring,
    },
    Function { name: "strings.quote", signatures: &["(string) -> string"], call: quote },
    Function {
        name: "jsonpatch.escapeKey",
        signatures: &["(string) -> string"],
        call: |context, args| change(context, args, |text| text.replace('~', "~0").replace('/', "~1")),
    },
];

fn test<'a>(
    context: &mut Context<'_, 'a>,
    args: &[Value<'a>],
    test: fn(&str, &str) -> bool,
) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::String(text), Value::String(part)] => {
            context.meter.charge_traversal(text.len() + part.len())?;
            Ok(Value::Bool(test(text, part)))
        }
        _ => no_such_overload(),
    }
}

fn change<'a>(
    context: &mut Context<'_, 'a>,
    args: &[Value<'a>],
    change: fn(&str) -> String,
) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::String(text)] => {
            context.meter.charge_traversal(text.len())?;
            Ok(Value::string(change(text)))
        }
        _ => no_such_overload(),
    }
}

fn out_of_range(index: i64) -> EvalError {
    EvalError::message(format!("index out of range: {index}"))
}

/// The byte at which the character of this number begins; the end for one past the last.
fn byte_offset(text: &str, index: i64) -> Result<usize, EvalError> {
    let wanted = usize::try_from(index).map_err(|_| out_of_range(index))?;
    let mut starts = text.char_indices().map(|(offset, _)| offset).chain([text.len()]);
    starts.nth(wanted).ok_or_else(|| out_of_range(index))
}

fn char_at<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text), Value::Int(index)] = args else { return no_such_overload() };
    context.meter.charge_traversal(text.len())?;
    let rest = &text[byte_offset(text, *index)?..];
    Ok(Value::string(rest.chars().take(1).collect::<String>()))
}

fn index_of<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, 0),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, *from),
        [Value::List(list), wanted] => return lists::index_of(context, list, wanted),
        _ => return no_such_overload(),
    };
    context.meter.charge_traversal(2 * text.len() + part.len())?;
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let start = byte_offset(text, from)?;
    let found = text[start..].find(&**part).map(|offset| text[..start + offset].chars().count());
    Ok(Value::Int(found.map_or(-1, |index| index as i64)))
}

fn last_index_of<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, Some(*from)),
        [Value::List(list), wanted] => return lists::last_index_of(context, list, wanted),
        _ => return no_such_overload(),
    };
    context.meter.charge_traversal(2 * text.len() + part.len())?;
    if part.is_empty() {
        return Ok(Value::Int(from.unwrap_or_else(|| text.chars().count() as i64)));
    }
    let last_start = match from {
        Some(from) => byte_offset(text, from)?,
        None => text.len(),
    };
    // The last occurrence that begins at or before that character.
    let mut end = (last_start + part.len()).min(text.len());
    while !text.is_char_boundary(end) {
        end += 1;
    }
    let found = text[..end].rfind(&**part).filter(|offset| *offset <= last_start);
    Ok(Value::Int(found.map_or(-1, |offset| text[..offset].chars().count() as i64)))
}

fn join<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return no_such_overload(),
    };
    let mut joined = String::new();
    for (index, element) in list.iter().enumerate() {
        let element = element?;
        let Value::String(text) = &element else { return no_such_overload() };
        context.meter.charge(1)?;
        context.meter.charge_traversal(2 * (text.len() + separator.len()))?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(text);
    }
    Ok(Value::string(joined))
}

fn replace<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let (text, from, to, limit) = match args {
        [Value::String(text), Value::String(from), Value::String(to)] => (text, from, to, -1),
        [Value::String(text), Value::String(from), Value::String(to), Value::Int(limit)] => (text, from, to, *limit),
        _ => return no_such_overload(),
    };
    context.meter.charge_traversal(2 * text.len())?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let count = text.matches(&**from).take(limit).count();
    context.meter.charge_traversal(text.len() + count.saturating_mul(to.len()))?;
    Ok(Value::string(text.replacen(&**from, to, limit)))
}

fn split<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let (text, separator, limit) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [Value::String(text), Value::String(separator), Value::Int(limit)] => (text, separator, *limit),
        _ => return no_such_overload(),
    };
    context.meter.charge_traversal(2 * text.len())?;
    let limit = match limit {
        0 => return Ok(Value::list(Vec::new())),
        1 => return Ok(Value::list(vec![Value::String(text.clone())])),
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let mut parts: Vec<String> = Vec::new();
    if separator.is_empty() {
        context.meter.charge(text.len() as u64)?;
        let mut rest: &str = text;
        while let Some(c) = rest.chars().next() {
            if parts.len() + 1 == limit {
                break;
            }
            parts.push(c.to_string());
            rest = &rest[c.len_utf8()..];
        }
        if !rest.is_empty() {
            parts.push(rest.to_owned());
        }
    } else {
        for part in text.splitn(limit, &**separator) {
            context.meter.charge(1)?;
            parts.push(part.to_owned());
        }
    }
    Ok(Value::list(parts.into_iter().map(Value::string).collect()))
}

fn substring<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return no_such_overload(),
    };
    context.meter.charge_traversal(2 * text.len())?;
    let from = byte_offset(text, start)?;
    let to = match end {
        Some(end) if end < start => {
            return Err(EvalError::message(format!("invalid substring range. start: {start}, end: {end}")));
        }
        Some(end) => byte_offset(text, end)?,
        None => text.len(),
    };
    Ok(Value::String(match text {
        Str::Borrowed(text) => Str::Borrowed(&text[from..to]),
        Str::Shared(text) => Str::from(text[from..to].to_owned()),
    }))
}

fn quote<'a>(context: &mut Context<'_, 'a>, args: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let [Value::String(text)] = args else { return no_such_overload() };
    context.meter.charge_traversal(2 * text.len())?;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(Value::string(quoted))
}
