//! The JSONPath of printer columns: fields, `['quoted']` names, indexes and slices, `*`, `..` and filters such as
//! `[?(@.type=="Ready")]`.
//!
//! Paths come from users of the API and are followed for every object of a list. Whatever a path is, following it ends after
//! [`MAX_VISITS`] values: `..` tries again at every value below, and several of them would multiply.

use std::cell::Cell;

use serde_json::Value;

/// Values that are looked at for one path and object; what is found later is not found.
const MAX_VISITS: u32 = 100_000;

/// Filters within filters.
const MAX_NESTED_FILTERS: usize = 8;

#[derive(Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, PartialEq)]
enum Step {
    Field(Box<str>),
    Index(i64),
    Slice { from: Option<i64>, to: Option<i64>, by: i64 },
    Wildcard,
    Descend,
    Filter { path: JsonPath, test: Option<(Comparison, Value)> },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// `None` if the text is no path.
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_within(text, MAX_NESTED_FILTERS)
    }

    /// With at most so many filters within each other.
    fn parse_within(text: &str, filters: usize) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text.trim().strip_prefix('$').unwrap_or(text.trim());
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("..") {
                if steps.last() != Some(&Step::Descend) {
                    steps.push(Step::Descend);
                }
                rest = after;
                if !rest.starts_with(['[', '.']) && !rest.is_empty() {
                    rest = push_field(&mut steps, rest)?;
                }
            } else if let Some(after) = rest.strip_prefix('.') {
                rest = if after.is_empty() || after.starts_with('[') { after } else { push_field(&mut steps, after)? };
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing_bracket(after)?;
                steps.push(bracket(after[..end].trim(), filters)?);
                rest = &after[end + 1..];
            } else {
                rest = push_field(&mut steps, rest)?;
            }
        }
        Some(Self(steps))
    }

    /// The first value that the path leads to.
    pub fn first<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        find(&self.0, object, &Cell::new(MAX_VISITS))
    }
}

/// A field name up to the next dot or bracket; a backslash makes the next character part of it.
fn push_field<'t>(steps: &mut Vec<Step>, text: &'t str) -> Option<&'t str> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let mut end = text.len();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => {
                end = at;
                break;
            }
            c => name.push(c),
        }
    }
    if name.is_empty() {
        return None;
    }
    steps.push(if name == "*" { Step::Wildcard } else { Step::Field(name.into()) });
    Some(&text[end..])
}

/// Where the bracket closes that was just opened; quotes and brackets may be inside.
fn closing_bracket(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (at, c) in text.char_indices() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('\'' | '"', None) => quote = Some(c),
            ('[', None) => depth += 1,
            (']', None) if depth == 0 => return Some(at),
            (']', None) => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inside: &str, filters: usize) -> Option<Step> {
    if inside == "*" {
        return Some(Step::Wildcard);
    }
    if let Some(name) = quoted(inside) {
        return Some(Step::Field(name.into()));
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return filter(condition.trim(), filters.checked_sub(1)?);
    }
    let number = |text: &str| text.trim().parse::<i64>();
    if let Some((from, rest)) = inside.split_once(':') {
        let (to, by) = rest.split_once(':').unwrap_or((rest, ""));
        let optional = |text: &str| match text.trim() {
            "" => Some(None),
            text => number(text).ok().map(Some),
        };
        let by = optional(by)?.unwrap_or(1);
        return (by > 0).then_some(Step::Slice { from: optional(from)?, to: optional(to)?, by });
    }
    number(inside).ok().map(Step::Index)
}

fn quoted(text: &str) -> Option<&str> {
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('\'').or_else(|| inside('"'))
}

fn filter(condition: &str, filters: usize) -> Option<Step> {
    const OPERATORS: [(&str, Comparison); 6] = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let path = |text: &str| JsonPath::parse_within(text.trim().strip_prefix('@')?, filters);
    let found = OPERATORS.iter().filter_map(|(text, operator)| Some((condition.find(text)?, text, operator)));
    let Some((at, text, operator)) = found.min_by_key(|(at, text, _)| (*at, std::cmp::Reverse(text.len()))) else {
        return Some(Step::Filter { path: path(condition)?, test: None });
    };
    let right = condition[at + text.len()..].trim();
    let literal = match quoted(right) {
        Some(text) => Value::from(text),
        None => serde_json::from_str(right).ok()?,
    };
    Some(Step::Filter { path: path(&condition[..at])?, test: Some((*operator, literal)) })
}

/// `visits` is how many more values may be looked at.
fn find<'v>(steps: &[Step], value: &'v Value, visits: &Cell<u32>) -> Option<&'v Value> {
    visits.set(visits.get().checked_sub(1)?);
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    match (step, value) {
        (Step::Field(name), Value::Object(fields)) => find(rest, fields.get(&**name)?, visits),
        (Step::Index(index), Value::Array(items)) => find(rest, items.get(position(*index, items.len())?)?, visits),
        (Step::Slice { from, to, by }, Value::Array(items)) => {
            let bound = |at: Option<i64>, none: usize| match at {
                None => none,
                Some(at) if at < 0 => items.len().saturating_sub(at.unsigned_abs() as usize),
                Some(at) => (at as usize).min(items.len()),
            };
            let (from, to) = (bound(*from, 0), bound(*to, items.len()));
            items.get(from..to)?.iter().step_by(*by as usize).find_map(|item| find(rest, item, visits))
        }
        (Step::Wildcard, Value::Array(items)) => items.iter().find_map(|item| find(rest, item, visits)),
        (Step::Wildcard, Value::Object(fields)) => fields.values().find_map(|field| find(rest, field, visits)),
        (Step::Filter { path, test }, Value::Array(items)) => {
            let passes = |item: &&Value| match (find(&path.0, item, visits), test) {
                (Some(_), None) => true,
                (Some(found), Some((operator, literal))) => compare(found, *operator, literal),
                (None, _) => false,
            };
            items.iter().filter(passes).find_map(|item| find(rest, item, visits))
        }
        (Step::Descend, _) => find(rest, value, visits).or_else(|| match value {
            Value::Object(fields) => fields.values().find_map(|field| find(steps, field, visits)),
            Value::Array(items) => items.iter().find_map(|item| find(steps, item, visits)),
            _ => None,
        }),
        _ => None,
    }
}

fn position(index: i64, length: usize) -> Option<usize> {
    if index < 0 { length.checked_sub(index.unsigned_abs() as usize) } else { usize::try_from(index).ok() }
}

fn compare(left: &Value, operator: Comparison, right: &Value) -> bool {
    let order = match (left, right) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => (left == right).then_some(std::cmp::Ordering::Equal),
    };
    match operator {
        Comparison::Equal => order.is_some_and(|order| order.is_eq()),
        Comparison::NotEqual => order.is_none_or(|order| order.is_ne()),
        Comparison::Less => order.is_some_and(|order| order.is_lt()),
        Comparison::LessOrEqual => order.is_some_and(|order| order.is_le()),
        Comparison::Greater => order.is_some_and(|order| order.is_gt()),
        Comparison::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_their_first_value() {
        let object = json!({
            "metadata": {"name": "x", "labels": {"a.b/c": "label"}, "annotations": {"k": "v"}},
            "spec": {"list": [{"n": "a", "v": 1}, {"n": "b", "v": 2}, {"n": "c", "v": 3}], "empty": []},
            "status": {"conditions": [{"type": "Synced", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let cases = [
            (".metadata.name", json!("x")),
            (r".metadata.labels.a\.b/c", json!("label")),
            (".metadata.labels['a.b/c']", json!("label")),
            (".metadata.annotations.*", json!("v")),
            (".spec.list[0].n", json!("a")),
            (".spec.list[-1].n", json!("c")),
            (".spec.list[-1:].n", json!("c")),
            (".spec.list[1:2].v", json!(2)),
            (".spec.list[*].v", json!(1)),
            (".spec.list[?(@.v>1)].n", json!("b")),
            (".spec.list[?(@.n=='c')].v", json!(3)),
            (r#".status.conditions[?(@.type == "Ready")].status"#, json!("True")),
            (".status.conditions[?(@.type!=\"Synced\")].type", json!("Ready")),
            ("..v", json!(1)),
            ("$.metadata.name", json!("x")),
        ];
        for (path, expected) in cases {
            let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(parsed.first(&object), Some(&expected), "{path}");
        }
        for path in [".none", ".spec.empty[0]", ".status.conditions[?(@.type==\"None\")].status", ".metadata.name.x"] {
            assert_eq!(JsonPath::parse(path).unwrap().first(&object), None, "{path}");
        }
    }

    #[test]
    fn no_path_takes_long_to_follow() {
        let deep = (0..60).fold(json!([1, 2]), |inner, _| json!({"a": inner, "b": [1, {"a": 2}]}));
        for path in [
            format!("{}x", ".".repeat(954)),
            format!("{}.x", "..a".repeat(40)),
            format!("{}.x", "..*".repeat(40)),
            format!("{}@..x{}", "..[?(@".repeat(7).replacen('@', "@..b", 7), ")]".repeat(7)),
        ] {
            let parsed = JsonPath::parse(&path);
            assert_eq!(parsed.and_then(|parsed| parsed.first(&deep).cloned()), None, "{path}");
        }
        assert_eq!(JsonPath::parse("....a..a").unwrap().first(&deep).unwrap()["b"][0], 1);
        let nested = |depth: usize| format!("{}.x{}", "[?(@".repeat(depth), ")]".repeat(depth));
        assert!(JsonPath::parse(&nested(MAX_NESTED_FILTERS)).is_some());
        assert_eq!(JsonPath::parse(&nested(100_000)), None, "and no stack overflows");
        assert!(JsonPath::parse(&"..".repeat(1_000_000)).unwrap().first(&deep).is_some());
    }

    #[test]
    fn what_is_no_path_is_none() {
        for path in [".a[", ".a[x]", ".a[?(b==1)]", ".a[::0]", ".a[?(@.b==)]"] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
    }
}
