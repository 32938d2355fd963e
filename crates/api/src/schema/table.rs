//! Reading the table. The format is documented in `tools/generate-schema`.

use std::collections::HashMap;

use super::{Definition, Field, GroupVersionKind, Id, ListType, Schema, Shape, Type};

/// A line of a table that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("schema table, line {line}: {problem}")]
pub struct TableError {
    line: usize,
    problem: String,
}

pub fn parse(text: &'static str) -> Result<Schema, TableError> {
    let lines = || text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let mut by_name = HashMap::new();
    for (_, line) in lines().filter(|(_, line)| !line.starts_with(' ')) {
        let id = Id(by_name.len() as u32);
        by_name.insert(line.split(' ').next().unwrap_or(line), id);
    }
    let mut definitions: Vec<Definition> = Vec::with_capacity(by_name.len());
    let mut fields = Vec::new();
    for (number, line) in lines() {
        let fail = |problem: String| TableError { line: number + 1, problem };
        match line.strip_prefix(' ') {
            Some(field) if !definitions.is_empty() => fields.push(read_field(field, &by_name).map_err(fail)?),
            Some(_) => return Err(fail("a field before any definition".to_owned())),
            None => {
                finish(&mut definitions, &mut fields);
                definitions.push(read_definition(line, &by_name).map_err(fail)?);
            }
        }
    }
    finish(&mut definitions, &mut fields);
    Ok(Schema { definitions, by_name })
}

fn finish(definitions: &mut [Definition], fields: &mut Vec<Field>) {
    if let Some(last) = definitions.last_mut() {
        fields.sort_by(|a, b| a.name.cmp(b.name));
        last.fields = fields.drain(..).collect();
    }
}

type Names = HashMap<&'static str, Id>;

fn read_definition(line: &'static str, names: &Names) -> Result<Definition, String> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let shape = match words.next().unwrap_or_default() {
        "object" => Shape::Object,
        "any" => Shape::Any,
        "quantity" => Shape::Quantity,
        "int-or-string" => Shape::IntOrString,
        "time" => Shape::Time,
        "micro-time" => Shape::MicroTime,
        other => match other.strip_prefix("either=").and_then(|types| types.split_once('|')) {
            Some((a, b)) => Shape::Either(read_type(a, names)?, read_type(b, names)?),
            None => return Err(format!("unknown shape {other:?}")),
        },
    };
    let (mut kinds, mut atomic) = (Vec::new(), false);
    for word in words {
        match word.split_once('=') {
            Some(("gvk", gvk)) => {
                let mut parts = gvk.splitn(3, '/');
                let mut part = || parts.next().ok_or_else(|| format!("broken kind {gvk:?}"));
                kinds.push(GroupVersionKind { group: part()?, version: part()?, kind: part()? });
            }
            Some(("map", kind)) => atomic = kind == "atomic",
            _ => return Err(format!("unknown word {word:?}")),
        }
    }
    Ok(Definition { name, shape, fields: Box::default(), kinds: kinds.into(), atomic })
}

fn read_field(line: &'static str, names: &Names) -> Result<Field, String> {
    // A default comes last, for it is the only word that may hold spaces.
    let (line, default) = match line.split_once(" default=") {
        Some((line, default)) => (line, Some(default)),
        None => (line, None),
    };
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let ty = read_type(words.next().unwrap_or_default(), names)?;
    let mut field = Field {
        name,
        ty,
        required: false,
        list_type: None,
        keys: Box::default(),
        patch_strategy: None,
        merge_key: None,
        map_type: None,
        always_written: false,
        default,
    };
    for word in words {
        match word.split_once('=') {
            None if word == "required" => field.required = true,
            None if word == "always" => field.always_written = true,
            Some(("list", kind)) => {
                field.list_type = Some(match kind {
                    "atomic" => ListType::Atomic,
                    "set" => ListType::Set,
                    "map" => ListType::Map,
                    other => return Err(format!("unknown list type {other:?}")),
                });
            }
            Some(("keys", keys)) => field.keys = keys.split(',').collect(),
            Some(("patch", strategy)) => field.patch_strategy = Some(strategy),
            Some(("mergekey", key)) => field.merge_key = Some(key),
            Some(("map", kind)) => field.map_type = Some(kind),
            _ => return Err(format!("unknown word {word:?}")),
        }
    }
    Ok(field)
}

fn read_type(text: &'static str, names: &Names) -> Result<Type, String> {
    let inside = |open, close| text.strip_prefix(open).and_then(|t: &str| t.strip_suffix(close));
    if let Some(item) = inside('[', ']') {
        return Ok(Type::List(Box::new(read_type(item, names)?)));
    }
    if let Some(item) = inside('{', '}') {
        return Ok(Type::Map(Box::new(read_type(item, names)?)));
    }
    Ok(match text {
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "boolean" => Type::Boolean,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "double" => Type::Double,
        "any" => Type::Any,
        name => Type::Definition(*names.get(name).ok_or_else(|| format!("unknown type {name:?}"))?),
    })
}
