//! Which fields a configuration sets: what its manager owns after applying it.

use serde_json::Value;

use super::{
    items::{self, View},
    path::PathElement,
    set::{FieldSet, Node},
    typed::TypeRef,
};

/// The fields of an object or a configuration.
pub fn field_set<'a, 's, T: TypeRef<'s>>(ty: T, value: &'a Value) -> FieldSet<'a> {
    node(ty, value).children
}

fn node<'a, 's, T: TypeRef<'s>>(ty: T, value: &'a Value) -> Node<'a> {
    let mut node = Node::default();
    match items::view(ty, value) {
        View::Leaf => node.member = true,
        View::Fields => {
            for (name, value) in items::fields(Some(value)).into_iter().flatten() {
                let Some(field) = ty.field(name) else { continue };
                let mut below = self::node(field.ty, value);
                // What is set to nothing is set, and keys of maps are owned besides their values.
                below.member |=
                    !field.declared || value.is_null() || items::fields(Some(value)).is_some_and(|f| f.is_empty());
                node.children.insert(PathElement::Field(name.into()), below);
            }
        }
        View::Items(items) => {
            for value in items::list(Some(value)) {
                let Ok(element) = items.element(value) else { continue };
                let mut below = items.item().map(|ty| self::node(ty, value)).unwrap_or_default();
                below.member = true;
                node.children.insert(element, below);
            }
        }
    }
    node
}
