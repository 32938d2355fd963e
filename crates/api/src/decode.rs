//! From request bodies to JSON values, and what was written twice in them.
//!
//! Both formats go through one visitor that builds the value and notes keys given twice (the last
//! one wins, as in the API's own decoder; whether that is an error is for the server to say).
//! Nesting is bounded, so that whatever walks the value later may recurse.
//!
//! YAML is read by `serde-saphyr`: it is maintained, free of unsafe code and panics, feeds our
//! visitor directly (so that JSON and YAML cannot come to differ), and lets us bound the expansion
//! of anchors. The forks of `serde_yaml` bind the archived libyaml translation instead.

use std::{collections::BTreeSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How deeply objects and arrays may nest: the limit that `serde_json` keeps as well.
pub const MAX_DEPTH: usize = 127;

/// The same for YAML, whose reader needs far more stack for each level.
pub const MAX_YAML_DEPTH: usize = 64;

/// Most duplicate or unknown fields of one document that are reported: nobody reads more.
pub const MAX_REPORTED: usize = 100;

/// How much of a field's path is reported: a key may be as long as a document, and every field below it has it in its path.
pub const MAX_PATH: usize = 1024;

/// Most objects with anything in them in one document. Six bytes can write one, and each takes 600 in memory; a
/// document that could be stored has far fewer.
pub const MAX_OBJECTS: usize = 100_000;

/// A decoded document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// Paths of the fields that were given more than once, at most [`MAX_REPORTED`]: `spec.replicas`.
    pub duplicates: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{0}")]
    Json(String),
    #[error("error converting YAML to JSON: yaml: {0}")]
    Yaml(String),
}

pub fn json(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let mut notes = Notes::default();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Node { position: &FieldPosition::Root, depth: 0, notes: &mut notes }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| DecodeError::Json(in_api_words(bytes, &error)))?;
    Ok(Decoded { value, duplicates: notes.duplicates })
}

/// One YAML document. An empty one is null.
pub fn yaml(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_YAML_DEPTH,
            flow_nesting_limit: MAX_YAML_DEPTH,
            max_documents: 1,
            max_nodes: 500_000,
            max_events: 1_000_000,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let mut notes = Notes::default();
    let value = serde_saphyr::with_deserializer_from_slice_with_options(bytes, options, |reader| {
        Node { position: &FieldPosition::Root, depth: 0, notes: &mut notes }.deserialize(reader)
    })
    .map_err(|error| DecodeError::Yaml(error.to_string()))?;
    Ok(Decoded { value, duplicates: notes.duplicates })
}

/// The fields of a JSON document among `wanted`, in the order in which they are written; one that is written twice is
/// there twice. For messages about fields, which come in that order.
pub fn json_field_order(bytes: &[u8], wanted: &BTreeSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // A document that cannot be read was refused before.
    let _ = FieldOrder { position: &FieldPosition::Root, wanted, found: &mut found }.deserialize(&mut reader);
    found
}

/// A value whose fields are looked at.
struct FieldOrder<'a> {
    position: &'a FieldPosition<'a>,
    wanted: &'a BTreeSet<&'a str>,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for FieldOrder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldOrder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0.. {
            let position = FieldPosition::Index(self.position, index);
            if items
                .next_element_seed(FieldOrder { position: &position, wanted: self.wanted, found: self.found })?
                .is_none()
            {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<String>()? {
            let position = FieldPosition::Field(self.position, &key);
            let path = reported_path(&position);
            // Fields below a very long key are all reported as one.
            let is_repeated = self.found.iter().rev().take(2).filter(|found| **found == path).count() == 2;
            if !is_repeated && self.wanted.contains(path.as_str()) {
                self.found.push(path);
            }
            entries.next_value_seed(FieldOrder { position: &position, wanted: self.wanted, found: self.found })?;
        }
        Ok(())
    }
}

/// A path as it is reported; of a very long one the beginning.
pub fn reported_path(path: &impl fmt::Display) -> String {
    struct Beginning(String);

    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = MAX_PATH.saturating_sub(self.0.len());
            if text.len() <= room {
                self.0.push_str(text);
                return Ok(());
            }
            self.0.push_str(&text[..text.floor_char_boundary(room)]);
            self.0.push('…');
            Err(fmt::Error) // nothing more is formatted
        }
    }

    let mut beginning = Beginning(String::new());
    let _ = fmt::Write::write_fmt(&mut beginning, format_args!("{path}"));
    beginning.0
}

/// Where the visitor is: a list on the stack, from the innermost step outwards.
enum FieldPosition<'a> {
    Root,
    Field(&'a FieldPosition<'a>, &'a str),
    Index(&'a FieldPosition<'a>, usize),
}

impl fmt::Display for FieldPosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// One value to be read, at its position.
struct Node<'a> {
    position: &'a FieldPosition<'a>,
    depth: usize,
    notes: &'a mut Notes,
}

/// What is noted along the way.
#[derive(Default)]
struct Notes {
    duplicates: Vec<String>,
    /// Objects that are not empty.
    objects: usize,
}

impl Node<'_> {
    fn deeper<E: serde::de::Error>(&self) -> Result<usize, E> {
        if self.depth < MAX_DEPTH { Ok(self.depth + 1) } else { Err(E::custom("exceeded max depth")) }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut array = Vec::new();
        loop {
            let position = FieldPosition::Index(self.position, array.len());
            match items.next_element_seed(Node { position: &position, depth, notes: self.notes })? {
                Some(item) => array.push(item),
                None => return Ok(Value::Array(array)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let position = FieldPosition::Field(self.position, &key);
            let value = entries.next_value_seed(Node { position: &position, depth, notes: self.notes })?;
            if object.is_empty() {
                self.notes.objects += 1;
                if self.notes.objects > MAX_OBJECTS {
                    return Err(serde::de::Error::custom(format_args!(
                        "more than {MAX_OBJECTS} objects in one document"
                    )));
                }
            } else if self.notes.duplicates.len() < MAX_REPORTED && object.contains_key(&key) {
                self.notes.duplicates.push(reported_path(&position));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// The reader's complaint in the words that users of the API know.
fn in_api_words(bytes: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let message = error.to_string();
    let problem = message.split(" at line ").next().unwrap_or(&message);
    let line_start =
        bytes.split(|b| *b == b'\n').take(error.line().saturating_sub(1)).map(|l| l.len() + 1).sum::<usize>();
    let at = (line_start + error.column()).saturating_sub(1);
    let found = bytes.get(at..).and_then(|rest| {
        let rest = &rest[..rest.len().min(4)];
        let text = match std::str::from_utf8(rest) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&rest[..error.valid_up_to()]).ok()?,
        };
        text.chars().next()
    });
    let context = match (problem, found) {
        ("recursion limit exceeded", _) => return "exceeded max depth".to_owned(),
        ("expected value", _) | ("trailing comma", Some(']')) => "looking for beginning of value",
        ("key must be a string" | "trailing comma", _) => "looking for beginning of object key string",
        ("trailing characters", _) => "after top-level value",
        ("expected `,` or `}`", _) => "after object key:value pair",
        ("expected `,` or `]`", _) => "after array element",
        ("expected `:`", _) => "after object key",
        ("invalid escape", _) => "in string escape code",
        ("invalid number", _) => "in numeric literal",
        ("control character (\\u0000-\\u001F) found while parsing a string", _) => "in string literal",
        _ => return message,
    };
    match found {
        Some(found) => format!("invalid character {found:?} {context}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_very_long_path_the_beginning_is_reported() {
        let long = "é".repeat(50_000);
        let fields: String = (0..20_000).map(|at| format!(r#""f{at}":1,"f{at}":2,"#)).collect();
        let text = format!(r#"{{"a":{{"{long}":{{{fields}"last":1}}}},"b":1,"b":2}}"#);
        let duplicates = json(text.as_bytes()).unwrap().duplicates;
        assert_eq!(duplicates.len(), MAX_REPORTED);
        assert!(duplicates.iter().all(|path| path.len() <= MAX_PATH + 3), "{duplicates:?}");
        assert!(duplicates[0].starts_with("a.éé") && duplicates[0].ends_with("é…"), "{}", duplicates[0]);
        let wanted = BTreeSet::from(["b", &*duplicates[0]]);
        let order = json_field_order(text.as_bytes(), &wanted);
        assert_eq!(order, [&*duplicates[0], &*duplicates[0], "b", "b"]);
    }

    #[test]
    fn duplicates_are_reported_by_path_and_the_last_one_wins() {
        let text = br#"{"a":1,"spec":{"list":[{"x":1},{"x":1,"x":2}],"replicas":1,"replicas":3},"a":2}"#;
        let decoded = json(text).unwrap();
        assert_eq!(decoded.value, json!({"a": 2, "spec": {"list": [{"x": 1}, {"x": 2}], "replicas": 3}}));
        assert_eq!(decoded.duplicates, ["spec.list[1].x", "spec.replicas", "a"]);
    }

    #[test]
    fn fields_are_found_in_the_order_of_the_document() {
        let text = br#"{"z":1,"a":{"c":[{"y":null},{"x":1,"w":true}],"b":1.5},"z":"again"}"#;
        let wanted = ["a.b", "z", "a.c[1].x", "none"].into();
        assert_eq!(json_field_order(text, &wanted), ["z", "a.c[1].x", "a.b", "z"]);
        assert_eq!(json_field_order(b"{\"z\":1,", &wanted), ["z"], "what is broken ends there");
    }

    #[test]
    fn broken_json_is_refused_with_the_apis_messages() {
        for (text, message) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{}x", "invalid character 'x' after top-level value"),
            ("{\"a\":1 \"b\":2}", "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
            ("{\n\"a\":\nfoo}", "invalid character 'o' in literal"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
        ] {
            let error = json(text.as_bytes()).unwrap_err().to_string();
            if message.ends_with("in literal") {
                assert!(error.contains("at line 3"), "{text:?}: {error}");
            } else {
                assert_eq!(error, message, "{text:?}");
            }
        }
    }

    #[test]
    fn more_objects_than_memory_is_worth_are_refused() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        let error = json(list(r#"{"":0}"#, 400_000).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("more than 100000 objects in one document"), "{error}");
        assert!(json(list(r#"{"":0}"#, 100_000).as_bytes()).is_ok());
        assert!(json(list("{}", 400_000).as_bytes()).is_ok()); // nothing in them, no memory for them
    }

    #[test]
    fn deep_nesting_is_refused_without_overflow() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let text = open.repeat(10_000) + "1" + &close.repeat(10_000);
            assert_eq!(json(text.as_bytes()).unwrap_err().to_string(), "exceeded max depth");
            assert!(yaml(text.as_bytes()).is_err());
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(json(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(yaml(nested(MAX_YAML_DEPTH - 1).as_bytes()).is_ok());
    }

    #[test]
    fn yaml_means_what_the_same_json_means() {
        let text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: {x: \"1\", y: 'true'}\ndata:\n  \
            text: |\n    one\n    two\nlist:\n- 1\n- 2.5\n- null\n- ~\n- yes\n- 0644\n- 0x10\n- 2020-01-01T00:00:00Z\n1: a\n";
        let decoded = yaml(text).unwrap();
        assert_eq!(
            decoded.value,
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a", "labels": {"x": "1", "y": "true"}},
                "data": {"text": "one\ntwo\n"},
                "list": [1, 2.5, null, null, true, 420, 16, "2020-01-01T00:00:00Z"],
                "1": "a",
            })
        );
        assert_eq!(yaml(b"{\"a\": [1, {\"b\": null}]}").unwrap().value, json!({"a": [1, {"b": null}]}));
        assert_eq!(yaml(b"").unwrap().value, Value::Null);
    }

    #[test]
    fn yaml_duplicates_are_reported() {
        let decoded = yaml(b"spec:\n  replicas: 1\n  replicas: 2\n").unwrap();
        assert_eq!(
            (decoded.value, decoded.duplicates),
            (json!({"spec": {"replicas": 2}}), vec!["spec.replicas".into()])
        );
    }

    #[test]
    fn yaml_anchors_and_merge_keys_expand() {
        let decoded = yaml(b"base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nagain: *b\n").unwrap();
        assert_eq!(
            decoded.value,
            json!({"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}, "again": {"x": 1, "y": 2}})
        );
    }

    #[test]
    fn yaml_bombs_and_second_documents_are_refused() {
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for i in 1..10 {
            let alias = format!("*a{}", i - 1);
            bomb += &format!("a{i}: &a{i} [{}]\n", [alias.as_str(); 10].join(","));
        }
        assert!(yaml(bomb.as_bytes()).is_err());
        assert!(yaml(b"a: 1\n---\nb: 2\n").is_err());
        assert!(yaml(b"a: [1\n").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = json(&bytes);
            let _ = yaml(&bytes);
        }

        #[test]
        fn decoding_agrees_with_serde_json(text in "[\\[\\]{}:,\"a1 ]{0,30}") {
            match serde_json::from_str::<Value>(&text) {
                Ok(value) => prop_assert_eq!(json(text.as_bytes()).unwrap().value, value),
                Err(_) => prop_assert!(json(text.as_bytes()).is_err()),
            }
        }
    }
}
