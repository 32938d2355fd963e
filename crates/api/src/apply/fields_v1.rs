//! `FieldsV1`: how sets of fields are stored in `metadata.managedFields`.

use serde_json::{Map, Value};

use super::{
    path::{PathElement, PathElementError},
    set::{FieldSet, Node},
};

const SELF: &str = ".";

/// Reads a set. Kinds of elements that are not known are skipped, as upstream does.
pub fn decode(fields: &Value) -> Result<FieldSet<'_>, PathElementError> {
    Ok(decode_node(fields)?.children)
}

fn decode_node(fields: &Value) -> Result<Node<'_>, PathElementError> {
    let mut node = Node::default();
    for (key, value) in fields.as_object().into_iter().flatten() {
        if key == SELF {
            node.member = true;
            continue;
        }
        match PathElement::parse(key) {
            Ok(element) => node.children.insert(element, decode_node(value)?),
            Err(PathElementError::UnknownType) => {}
            Err(error) => return Err(error),
        }
    }
    node.member |= node.children.is_empty(); // nothing below: the place itself is meant
    Ok(node)
}

/// Writes a set.
pub fn encode(set: &FieldSet<'_>) -> Value {
    encode_node(false, set)
}

fn encode_node(member: bool, children: &FieldSet<'_>) -> Value {
    let mut fields = Map::new();
    if member && !children.is_empty() {
        fields.insert(SELF.to_owned(), Value::Object(Map::new()));
    }
    for (element, node) in children.iter() {
        fields.insert(element.encode(), encode_node(node.member, &node.children));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sets_are_written_as_they_are_read() {
        for fields in [
            json!({}),
            json!({"f:spec": {"f:replicas": {}}}),
            json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}}),
            json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}}),
            json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"a/b\"": {}}}}),
        ] {
            assert_eq!(encode(&decode(&fields).unwrap()), fields);
        }
    }

    #[test]
    fn unknown_kinds_of_elements_are_skipped_and_nonsense_is_refused() {
        let fields = json!({"f:a": {}, "z:b": {"f:c": {}}});
        assert_eq!(encode(&decode(&fields).unwrap()), json!({"f:a": {}}));
        assert!(decode(&json!({"a": {}})).is_err());
        assert!(decode(&json!({"f:a": {"k:{": {}}})).is_err());
    }
}
