//! Sets of fields and the schema: what is owned follows a type that became atomic, or is no longer.

use serde_json::Value;

use super::{
    extract::field_set,
    items::{self, View},
    path::PathElement,
    set::{FieldSet, Node},
    typed::{Structure, TypeRef},
};

/// The set as today's schema has it; `None` if it already is. `live` is the object whose fields are owned.
pub fn reconcile<'a, 's, T: TypeRef<'s>>(ty: T, set: &FieldSet<'a>, live: &'a Value) -> Option<FieldSet<'a>> {
    reconcile_children(ty, set, Some(live))
}

fn reconcile_children<'a, 's, T: TypeRef<'s>>(
    ty: T,
    set: &FieldSet<'a>,
    live: Option<&'a Value>,
) -> Option<FieldSet<'a>> {
    let mut changed: Option<FieldSet<'a>> = None;
    for (element, node) in set.iter() {
        let Some((ty, live)) = child(ty, element, live) else { continue };
        if let Some(new) = reconcile_node(ty, node, live) {
            let mut only = FieldSet::default();
            only.insert(element.clone(), Node { member: true, ..Node::default() });
            let rest = changed.unwrap_or_else(|| set.clone()).recursive_difference(&only);
            let mut replaced = FieldSet::default();
            replaced.insert(element.clone(), new);
            changed = Some(rest.union(replaced));
        }
    }
    changed
}

fn reconcile_node<'a, 's, T: TypeRef<'s>>(ty: T, node: &Node<'a>, live: Option<&'a Value>) -> Option<Node<'a>> {
    match ty.structure() {
        Structure::Deduced | Structure::Scalar(_) => None,
        // It became atomic: who owned a part owns the whole.
        Structure::Atomic => (!node.children.is_empty()).then(Node::member),
        // It was atomic: who owned the whole owns its parts.
        Structure::Map | Structure::Set | Structure::ListMap { .. } if node.member && node.children.is_empty() => {
            let children = live.map(|live| field_set(ty, live)).unwrap_or_default();
            (!children.is_empty()).then_some(Node { member: true, children })
        }
        Structure::Map | Structure::Set | Structure::ListMap { .. } => {
            let children = reconcile_children(ty, &node.children, live)?;
            Some(Node { member: node.member, children })
        }
    }
}

/// The type of a part and the part itself, where it has parts of its own.
fn child<'a, 's, T: TypeRef<'s>>(
    ty: T,
    element: &PathElement<'_>,
    live: Option<&'a Value>,
) -> Option<(T, Option<&'a Value>)> {
    match (element, items::view(ty, live.unwrap_or(&Value::Null))) {
        (PathElement::Field(name), View::Fields) => {
            Some((ty.field(name)?.ty, live.and_then(|live| live.get(name.as_ref()))))
        }
        (PathElement::Key(_), View::Items(items)) => {
            let mut list = items::list(live).iter();
            let item = list.find(|item| items.element(item).is_ok_and(|own| own == *element));
            Some((items.item()?, item))
        }
        _ => None,
    }
}

/// The set with all declared fields that lead to a member: a struct without any field left is not kept for its own sake.
pub fn with_declared_parents<'a, 's, T: TypeRef<'s>>(ty: T, set: &FieldSet<'a>) -> FieldSet<'a> {
    let mut out = FieldSet::default();
    for (element, node) in set.iter() {
        let below = |ty: T| with_declared_parents(ty, &node.children);
        let node = match (element, ty.structure()) {
            (PathElement::Field(name), Structure::Map) => match ty.field(name) {
                Some(field) => {
                    let leads_to_member = field.declared && !node.children.is_empty();
                    Node { member: node.member || leads_to_member, children: below(field.ty) }
                }
                None => node.clone(),
            },
            (_, Structure::ListMap { item, .. }) => Node { member: node.member, children: below(item) },
            _ => node.clone(),
        };
        out.insert(element.clone(), node);
    }
    out
}
