//! The functions of Kubernetes' CEL: the standard ones, CEL's extensions that upstream enables, and upstream's own.
//!
//! A [`Function`] has a name, the signatures that the checker matches calls against, and one implementation that looks at
//! the values it was given: an argument of type `dyn` is only known at run time. An implementation charges for what it
//! looks at or copies before it does so.

mod amounts;
pub(crate) mod authorizer;
mod comparison;
mod conversion;
pub(crate) mod format;
mod lists;
mod network;
pub(crate) mod operators;
mod optional;
pub(crate) mod quantity;
mod regexes;
mod sets;
mod string_format;
mod strings;
pub(crate) mod time;
pub(crate) mod urls;

use std::{collections::HashMap, sync::LazyLock};

pub(crate) use comparison::{compare, equals};
pub(crate) use regexes::compile as compile_regex;

use crate::{error::EvalError, evaluate::Context, types::Type, value::Value};

pub(crate) type Implementation = for<'c, 'a> fn(&mut Context<'c, 'a>, &[Value<'a>]) -> Result<Value<'a>, EvalError>;

/// A function as its file declares it: `string.charAt(int) -> string` has the signature `string.(int) -> string`.
pub(crate) struct Function {
    pub name: &'static str,
    pub signatures: &'static [&'static str],
    pub call: Implementation,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Debug)]
pub(crate) struct Overload {
    pub member: bool,
    /// The receiver first.
    pub parameters: Vec<Type>,
    pub result: Type,
}

#[derive(Debug)]
pub(crate) struct Declared {
    pub function: &'static Function,
    pub overloads: Vec<Overload>,
}

const ALL: [&[Function]; 15] = [
    operators::FUNCTIONS,
    comparison::FUNCTIONS,
    conversion::FUNCTIONS,
    strings::FUNCTIONS,
    string_format::FUNCTIONS,
    lists::FUNCTIONS,
    sets::FUNCTIONS,
    optional::FUNCTIONS,
    time::FUNCTIONS,
    regexes::FUNCTIONS,
    urls::FUNCTIONS,
    network::FUNCTIONS,
    amounts::FUNCTIONS,
    format::FUNCTIONS,
    authorizer::FUNCTIONS,
];

static FUNCTIONS: LazyLock<HashMap<&'static str, Declared>> = LazyLock::new(|| {
    ALL.into_iter()
        .flatten()
        .map(|function| {
            let overloads = function.signatures.iter().map(|signature| parse_signature(signature)).collect();
            (function.name, Declared { function, overloads })
        })
        .collect()
});

pub(crate) fn find_function(name: &str) -> Option<&'static Declared> {
    FUNCTIONS.get(name)
}

/// Parses `list(A).(A) -> int`, `(string, string) -> bool`.
fn parse_signature(signature: &str) -> Overload {
    let (left, result) = signature.split_once(" -> ").expect("a signature has a result");
    let (receiver, parameters) = match left.rsplit_once(".(") {
        Some((receiver, parameters)) => (Some(parse_type(receiver)), parameters),
        None => (None, &left[1..]),
    };
    let parameters = split_types(parameters.strip_suffix(')').expect("parameters end with a parenthesis"));
    Overload {
        member: receiver.is_some(),
        parameters: receiver.into_iter().chain(parameters.into_iter().map(parse_type)).collect(),
        result: parse_type(result),
    }
}

/// Splits at commas that no parenthesis encloses.
fn split_types(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut types) = (0, 0, Vec::new());
    for (index, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                types.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        types.push(text[start..].trim());
    }
    types
}

fn parse_type(text: &str) -> Type {
    let inner = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')'));
    if let Some(element) = inner("list(") {
        return Type::list(parse_type(element));
    }
    if let Some(value) = inner("optional(") {
        return Type::optional(parse_type(value));
    }
    if let Some(entry) = inner("map(") {
        let types = split_types(entry);
        return Type::map(parse_type(types[0]), parse_type(types[1]));
    }
    match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::STRING,
        "bytes" => Type::Bytes(None),
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Type,
        _ => match text.chars().next() {
            Some(letter) if text.len() == 1 && letter.is_ascii_uppercase() => Type::Parameter(letter),
            _ => Type::named(text),
        },
    }
}

/// The names of library types that an expression may write: `type(x) == net.IP`.
pub(crate) const TYPE_NAMES: [&str; 24] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "optional_type",
    "google.protobuf.Timestamp",
    "google.protobuf.Duration",
    "kubernetes.URL",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "kubernetes.NamedFormat",
    "net.IP",
    "net.CIDR",
    "kubernetes.authorization.Authorizer",
    "kubernetes.authorization.PathCheck",
    "kubernetes.authorization.GroupCheck",
    "kubernetes.authorization.ResourceCheck",
    "kubernetes.authorization.Decision",
];

pub(crate) fn no_such_overload<'a>() -> Result<Value<'a>, EvalError> {
    Err(EvalError::NoSuchOverload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_parsed() {
        let overload = parse_signature("map(string, list(A)).(A, optional(dyn)) -> optional(A)");
        assert!(overload.member);
        let shown: Vec<String> = overload.parameters.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["map(string, list(A))", "A", "optional_type(dyn)"]);
        assert_eq!(overload.result.to_string(), "optional_type(A)");
        assert_eq!(parse_signature("() -> int").parameters.len(), 0);
    }

    #[test]
    fn every_name_is_declared_once() {
        let mut names = std::collections::HashSet::new();
        for function in ALL.into_iter().flatten() {
            assert!(names.insert(function.name), "{} is declared twice", function.name);
        }
    }
}
