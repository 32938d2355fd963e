//! Parses selected fields of a JSON document and skips the rest.
//!
//! Selectors look at a handful of fields of objects that have hundreds. What lies outside the wanted paths is skipped as
//! text, which takes a fraction of the time that building it takes.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A path of field names into an object.
pub type FieldPath<'a> = &'a [&'a str];

/// The document with nothing but what the paths lead to; nothing at all if it is not JSON.
pub fn pruned(json: &[u8], paths: &[FieldPath<'_>]) -> Value {
    let mut source = serde_json::Deserializer::from_slice(json);
    Level { paths: paths.to_vec() }.deserialize(&mut source).unwrap_or(Value::Null)
}

struct Level<'a> {
    /// All of them lead further down.
    paths: Vec<FieldPath<'a>>,
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = fields.next_key::<std::borrow::Cow<'de, str>>()? {
            let mut onward = self.paths.iter().filter(|path| path.first().is_some_and(|step| *step == name)).peekable();
            match onward.peek() {
                None => drop(fields.next_value::<IgnoredAny>()?),
                Some(_) => {
                    let onward: Vec<FieldPath<'_>> = onward.map(|path| &path[1..]).collect();
                    let value = match onward.iter().any(|path| path.is_empty()) {
                        true => fields.next_value()?,
                        false => fields.next_value_seed(Level { paths: onward })?,
                    };
                    kept.insert(name.into_owned(), value);
                }
            }
        }
        Ok(Value::Object(kept))
    }

    // Whatever else is there, the paths do not lead through it.
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_fields_of_the_paths_are_built() {
        let object = json!({
            "kind": "Pod", "metadata": { "name": "x", "labels": { "a": "b", "c": { "d": [1] } } },
            "spec": { "nodeName": "n", "containers": [{ "nodeName": "other" }], "deep": { "a": 1, "b": 2 } },
        });
        let paths: [FieldPath<'_>; 4] =
            [&["metadata", "labels"], &["spec", "nodeName"], &["spec", "deep", "b"], &["none"]];
        let expected = json!({
            "metadata": { "labels": { "a": "b", "c": { "d": [1] } } }, "spec": { "nodeName": "n", "deep": { "b": 2 } },
        });
        assert_eq!(pruned(object.to_string().as_bytes(), &paths), expected);
    }

    #[test]
    fn a_way_through_something_else_leads_nowhere() {
        for spec in [json!(null), json!("text"), json!(1), json!(-1), json!(1.5), json!(true), json!([{ "a": 1 }])] {
            let object = json!({ "spec": spec, "status": { "phase": "x" } });
            let found = pruned(object.to_string().as_bytes(), &[&["spec", "a"], &["status", "phase"]]);
            assert_eq!((&found["spec"]["a"], &found["status"]["phase"]), (&json!(null), &json!("x")), "{spec}");
        }
    }

    #[test]
    fn what_is_not_json_has_nothing() {
        assert_eq!(pruned(b"{\"a\":", &[&["a"]]), Value::Null);
        assert_eq!(pruned(b"", &[&["a"]]), Value::Null);
    }
}
