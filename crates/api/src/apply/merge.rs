//! What an object becomes when a configuration is applied to it: everything the configuration says, and all else as it was.
//!
//! Items of merged lists take the configuration's order, and items that it does not have stay behind those they were behind.

use serde_json::{Map, Value};

use super::{
    items::{self, Items, View},
    path::PathElement,
    typed::TypeRef,
};

/// Merges a configuration, which [`super::validate()`] has passed, into an object.
pub fn merge<'s, T: TypeRef<'s>>(ty: T, object: &Value, config: &Value) -> Value {
    merged(ty, Some(object), Some(config)).unwrap_or_default()
}

fn merged<'s, T: TypeRef<'s>>(ty: T, left: Option<&Value>, right: Option<&Value>) -> Option<Value> {
    let either = right.or(left)?;
    let hollow = |value: Option<&Value>| value.is_none_or(items::is_hollow);
    match items::view(ty, either) {
        View::Leaf => Some(either.clone()),
        View::Fields | View::Items(_) if hollow(left) && hollow(right) => Some(either.clone()),
        View::Fields => merged_fields(ty, left, right),
        View::Items(items) => merged_items(items, items::list(left), items::list(right)),
    }
}

fn merged_fields<'s, T: TypeRef<'s>>(ty: T, left: Option<&Value>, right: Option<&Value>) -> Option<Value> {
    let mut fields = Map::new();
    items::zip_fields(items::fields(left), items::fields(right), |name, a, b| {
        let value = match (ty.field(name), b) {
            (Some(field), Some(_)) => merged(field.ty, a, b),
            (_, None) => a.cloned(),
            (None, Some(b)) => Some(b.clone()),
        };
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    });
    (!fields.is_empty()).then_some(Value::Object(fields))
}

struct Item<'a> {
    element: PathElement<'a>,
    value: &'a Value,
}

fn told_apart<'a, 's, T: TypeRef<'s>>(items: Items<'s, T>, list: &'a [Value]) -> Vec<Item<'a>> {
    list.iter().filter_map(|value| Some(Item { element: items.element(value).ok()?, value })).collect()
}

/// Where each element of a list is, for lookups.
struct Index<'i, 'a>(Vec<(&'i PathElement<'a>, usize)>);

impl<'i, 'a> Index<'i, 'a> {
    fn new(items: &'i [Item<'a>]) -> Self {
        let mut places: Vec<_> = items.iter().enumerate().map(|(at, item)| (&item.element, at)).collect();
        places.sort();
        Self(places)
    }

    fn first(&self, element: &PathElement<'_>) -> Option<usize> {
        let at = self.0.partition_point(|(own, _)| *own < element);
        self.0.get(at).filter(|(own, _)| *own == element).map(|(_, place)| *place)
    }

    fn is_unique(&self, element: &PathElement<'_>) -> bool {
        let at = self.0.partition_point(|(own, _)| *own < element);
        self.0.get(at + 1).is_none_or(|(own, _)| *own != element)
    }
}

fn merged_items<'s, T: TypeRef<'s>>(items: Items<'s, T>, left: &[Value], right: &[Value]) -> Option<Value> {
    let (left, right) = (told_apart(items, left), told_apart(items, right));
    let (left_index, right_index) = (Index::new(&left), Index::new(&right));
    // An item that the object has more than once is not merged with the new one: it is replaced.
    let merge_right = |item: &Item<'_>| {
        let old = left_index.first(&item.element).filter(|_| left_index.is_unique(&item.element));
        match items.item() {
            Some(ty) => merged(ty, old.map(|at| left[at].value), Some(item.value)),
            None => Some(item.value.clone()),
        }
    };
    let mut shared = right.iter().filter(|item| left_index.first(&item.element).is_some()).map(|item| &item.element);
    let mut next_shared = shared.next();
    let mut taken = vec![false; right.len()];
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some(old), Some(new)) = (left.get(l), right.get(r)) {
            if old.element == new.element {
                taken[r] = true;
                out.extend(merge_right(new));
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            let is_shared = right_index.first(&old.element).is_some();
            if is_shared && next_shared.is_some_and(|next| *next != old.element) {
                l += 1; // its turn comes in the configuration's order
                continue;
            }
        }
        if let Some(old) = left.get(l) {
            match right_index.first(&old.element) {
                None => {
                    out.push(old.value.clone());
                    l += 1;
                    continue;
                }
                Some(at) if taken[at] => l += 1,
                Some(_) => {}
            }
        }
        if let Some(new) = right.get(r) {
            taken[r] = true;
            out.extend(merge_right(new));
            if next_shared == Some(&new.element) {
                next_shared = shared.next();
            }
            r += 1;
        }
    }
    (!out.is_empty()).then_some(Value::Array(out))
}
