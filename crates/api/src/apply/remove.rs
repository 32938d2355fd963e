//! Removes a set of fields from an object.

use serde_json::{Map, Value};

use super::{
    items::{self, Items, View},
    path::PathElement,
    set::FieldSet,
    typed::TypeRef,
};

/// The object without these fields. Objects and lists that lose all they had go with it.
pub fn remove<'s, T: TypeRef<'s>>(ty: T, value: &Value, fields: &FieldSet<'_>) -> Value {
    remaining(ty, value, fields).unwrap_or_default()
}

fn remaining<'s, T: TypeRef<'s>>(ty: T, value: &Value, gone: &FieldSet<'_>) -> Option<Value> {
    if gone.is_empty() {
        return Some(value.clone());
    }
    match items::view(ty, value) {
        View::Leaf if value.is_object() || value.is_array() => None, // parts of it were owned once, when it was not atomic
        View::Leaf => Some(value.clone()),
        View::Fields => {
            let mut left = Map::new();
            for (name, value) in items::fields(Some(value)).into_iter().flatten() {
                let value = match (gone.get(&PathElement::Field(name.into())), ty.field(name)) {
                    (Some(node), _) if node.member => None,
                    (Some(node), Some(field)) => remaining(field.ty, value, &node.children),
                    (None, _) | (_, None) => Some(value.clone()),
                };
                if let Some(value) = value {
                    left.insert(name.clone(), value);
                }
            }
            (!left.is_empty()).then_some(Value::Object(left))
        }
        View::Items(items) => {
            let left = items::list(Some(value)).iter().filter_map(|item| remaining_item(items, item, gone));
            let left: Vec<Value> = left.collect();
            (!left.is_empty()).then_some(Value::Array(left))
        }
    }
}

fn remaining_item<'s, T: TypeRef<'s>>(items: Items<'s, T>, item: &Value, gone: &FieldSet<'_>) -> Option<Value> {
    let node = items.element(item).ok().and_then(|element| gone.get(&element));
    match (node, items.item()) {
        (Some(node), _) if node.member => None,
        (Some(node), Some(ty)) => remaining(ty, item, &node.children),
        (None, _) | (_, None) => Some(item.clone()),
    }
}
