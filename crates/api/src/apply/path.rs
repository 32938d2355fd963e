//! Steps from an object to one of its parts, as managed fields name them: `f:spec`, `k:{"name":"web"}`, `v:"x"`, `i:0`.
//!
//! Steps are ordered as upstream orders them (fields, keys, values, indexes), so that sets are written in the same order.

use std::{borrow::Cow, cmp::Ordering, fmt};

use serde_json::{Map, Value};

/// One step.
#[derive(Clone, Debug)]
pub enum PathElement<'a> {
    /// A field of an object.
    Field(Cow<'a, str>),
    /// An item of a list whose key fields have these values. Sorted by name.
    Key(Vec<(Cow<'a, str>, Cow<'a, Value>)>),
    /// An item of a set.
    Value(Cow<'a, Value>),
    /// An item of a list by its place. Nothing here makes them, but others may have stored some.
    Index(i64),
}

/// A text that is no step.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathElementError {
    /// Upstream skips what a later version may have added, and so do we.
    #[error("unknown path element type")]
    UnknownType,
    #[error("{0:?} is not a path element")]
    Malformed(String),
}

impl<'a> PathElement<'a> {
    pub fn parse(text: &'a str) -> Result<Self, PathElementError> {
        let malformed = || PathElementError::Malformed(text.to_owned());
        let (kind, content) = text.split_at_checked(2).ok_or_else(malformed)?;
        match kind {
            "f:" => Ok(Self::Field(Cow::Borrowed(content))),
            "v:" => serde_json::from_str(content).map(|value| Self::Value(Cow::Owned(value))).map_err(|_| malformed()),
            "k:" => {
                let keys: Map<String, Value> = serde_json::from_str(content).map_err(|_| malformed())?;
                Ok(Self::Key(keys.into_iter().map(|(name, value)| (Cow::Owned(name), Cow::Owned(value))).collect()))
            }
            "i:" => content.parse().map(Self::Index).map_err(|_| malformed()),
            _ if kind.ends_with(':') => Err(PathElementError::UnknownType),
            _ => Err(malformed()),
        }
    }

    /// As managed fields spell it.
    pub fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => {
                let mut text = String::from("k:{");
                for (at, (name, value)) in keys.iter().enumerate() {
                    if at > 0 {
                        text.push(',');
                    }
                    text.push_str(&Value::from(&**name).to_string());
                    text.push(':');
                    text.push_str(&value.to_string());
                }
                text.push('}');
                text
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                let fields = a.iter().zip(b).map(|(a, b)| a.0.cmp(&b.0).then_with(|| compare_values(&a.1, &b.1)));
                fields.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
            }
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement<'_> {}

impl fmt::Display for PathElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                f.write_str("[")?;
                for (at, (name, value)) in keys.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={value}")?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Upstream's order of values: numbers, strings, booleans, lists, maps, null.
pub fn compare_values(a: &Value, b: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().unwrap_or(f64::NAN).total_cmp(&y.as_f64().unwrap_or(f64::NAN)),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            let items = x.iter().zip(y).map(|(x, y)| compare_values(x, y));
            items.fold(Ordering::Equal, Ordering::then).then(x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => {
            let fields = x.iter().zip(y).map(|(x, y)| x.0.cmp(y.0).then_with(|| compare_values(x.1, y.1)));
            fields.fold(Ordering::Equal, Ordering::then).then(x.len().cmp(&y.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Whether two values are the same: `1` and `1.0` are.
pub fn equal_values(a: &Value, b: &Value) -> bool {
    a == b || compare_values(a, b) == Ordering::Equal
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn elements_are_written_as_they_are_read() {
        for text in ["f:spec", "f:", "f:app.kubernetes.io/name", r#"k:{"name":"web"}"#, r#"v:"x""#, "v:1", "i:3"] {
            assert_eq!(PathElement::parse(text).unwrap().encode(), text);
        }
        let unsorted = PathElement::parse(r#"k:{"protocol":"TCP","containerPort":80}"#).unwrap();
        assert_eq!(unsorted.encode(), r#"k:{"containerPort":80,"protocol":"TCP"}"#);
        assert_eq!(unsorted.to_string(), r#"[containerPort=80,protocol="TCP"]"#);
    }

    #[test]
    fn what_is_no_element_is_refused_and_what_is_unknown_is_told_apart() {
        for text in ["", "f", "spec", "k:[]", "k:", "i:x", "v:", "é:x"] {
            assert!(matches!(PathElement::parse(text), Err(PathElementError::Malformed(_))), "{text}");
        }
        assert_eq!(PathElement::parse("z:new"), Err(PathElementError::UnknownType));
    }

    #[test]
    fn elements_have_upstreams_order() {
        let elements = [
            "f:a",
            "f:b",
            r#"k:{"a":1}"#,
            r#"k:{"a":2}"#,
            r#"k:{"a":2,"b":1}"#,
            "v:1",
            "v:2",
            r#"v:"a""#,
            "v:true",
            "i:0",
            "i:10",
        ];
        let parsed: Vec<_> = elements.iter().map(|text| PathElement::parse(text).unwrap()).collect();
        assert!(parsed.is_sorted_by(|a, b| a < b), "{parsed:?}");
    }

    #[test]
    fn numbers_are_equal_by_what_they_say() {
        assert!(equal_values(&json!(1), &json!(1.0)));
        assert!(!equal_values(&json!(1), &json!("1")));
        assert!(equal_values(&json!([{"a": 2.0}]), &json!([{"a": 2}])));
    }
}
