//! Strategic merge: a merge patch that knows from the schema which lists are sets of things with
//! a key, and changes those item by item.
//!
//! Directives of the language: `$patch: replace | delete | merge` in a map or a list item,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>` and `$retainKeys`. Where the
//! schema says nothing, maps merge and lists are replaced, as in RFC 7386.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::schema::{Definition, Field, Schema, Shape, Type};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const ORDER_OF: &str = "$setElementOrder";

type Object = Map<String, Value>;

pub fn strategic(target: &mut Value, patch: &Value, schema: &Schema, definition: &str) -> Result<(), PatchError> {
    let Value::Object(changes) = patch else {
        return Err(PatchError::Malformed("Invalid JSON document".to_owned()));
    };
    let mut fields = match target {
        Value::Object(fields) => fields.clone(),
        _ => Object::new(),
    };
    let about = About { schema, definition: schema.definition(definition) };
    about.merge_map(&mut fields, changes)?;
    *target = Value::Object(fields);
    Ok(())
}

/// What is known of a map being merged: its definition, or nothing.
#[derive(Clone, Copy)]
struct About<'s> {
    schema: &'s Schema,
    definition: Option<&'s Definition>,
}

impl<'s> About<'s> {
    fn field(&self, name: &str) -> Option<&'s Field> {
        self.definition.and_then(|definition| definition.field(name))
    }

    fn with_type(&self, ty: Option<&'s Type>) -> Self {
        let definition = match ty {
            Some(Type::Definition(id)) => Some(self.schema.get(*id)).filter(|d| d.shape == Shape::Object),
            _ => None,
        };
        Self { schema: self.schema, definition }
    }

    fn merge_map(&self, target: &mut Object, patch: &Object) -> Result<(), PatchError> {
        match patch.get(PATCH) {
            None => {}
            Some(directive) if directive == "replace" => {
                *target = plain_map(patch);
                return Ok(());
            }
            Some(directive) if directive == "delete" => {
                target.clear();
                return Ok(());
            }
            // Merging is what happens anyway.
            Some(directive) if directive == "merge" => {}
            Some(other) => return Err(unknown_directive(other, patch)),
        }
        retain_keys(target, patch)?;
        for (name, change) in patch {
            let (name, deletion) = match name.split_once('/') {
                Some((ORDER_OF, _)) => continue,
                Some((DELETE_FROM, field)) => (field, true),
                _ if matches!(name.as_str(), PATCH | RETAIN_KEYS | ORDER_OF) => continue,
                _ => (name.as_str(), false),
            };
            if deletion {
                delete_from(target, name, change)?;
            } else if !patch.contains_key(&format!("{ORDER_OF}/{name}")) {
                self.merge_field(target, name, change)?;
            }
        }
        for (directive, order) in patch {
            if let Some((ORDER_OF, name)) = directive.split_once('/') {
                self.merge_ordered(target, name, patch.get(name), order)?;
            }
        }
        Ok(())
    }

    fn merge_field(&self, target: &mut Object, name: &str, change: &Value) -> Result<(), PatchError> {
        if change.is_null() {
            target.remove(name);
            return Ok(());
        }
        let field = self.field(name);
        let replaces = field.is_some_and(Field::replaces);
        match (target.get_mut(name), change) {
            (Some(Value::Object(old)), Value::Object(change)) if !replaces => {
                let about = match field.map(|f| &f.ty) {
                    Some(Type::Map(item)) => return self.merge_entries(old, change, item),
                    ty => self.with_type(ty),
                };
                if change.get(PATCH).is_some_and(|directive| directive == "delete") {
                    // An emptied map is still there, as the map was.
                    old.clear();
                    return Ok(());
                }
                about.merge_map(old, change)
            }
            (Some(Value::Array(old)), Value::Array(items)) => {
                *old = self.merge_list(field, std::mem::take(old), items)?;
                Ok(())
            }
            (_, change) => {
                if let Some(value) = plain(change) {
                    target.insert(name.to_owned(), value);
                }
                Ok(())
            }
        }
    }

    /// A map whose keys are data: labels, limits.
    fn merge_entries(&self, target: &mut Object, patch: &Object, item: &'s Type) -> Result<(), PatchError> {
        if patch.contains_key(PATCH) {
            return Self { schema: self.schema, definition: None }.merge_map(target, patch);
        }
        for (key, change) in patch {
            match (target.get_mut(key), change) {
                (_, Value::Null) => {
                    target.remove(key);
                }
                (Some(Value::Object(old)), Value::Object(change)) => {
                    self.with_type(Some(item)).merge_map(old, change)?
                }
                (_, change) => {
                    if let Some(value) = plain(change) {
                        target.insert(key.clone(), value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Merges or replaces a list, without an order being asked for.
    fn merge_list(&self, field: Option<&'s Field>, old: Vec<Value>, patch: &[Value]) -> Result<Vec<Value>, PatchError> {
        let Some(field) = field.filter(|field| field.merges()) else {
            return Ok(plain_list(patch));
        };
        if old.is_empty() && patch.is_empty() {
            return Ok(old);
        }
        let item = match &field.ty {
            Type::List(item) => Some(&**item),
            _ => None,
        };
        if !old.iter().chain(patch).all(Value::is_object) {
            if let Some(value) = old.iter().chain(patch).find(|v| v.is_object() || v.is_array()) {
                return Err(inconsistent(value));
            }
            let mut known = HashSet::new();
            let merged = old.iter().chain(patch).filter(|value| known.insert(value.to_string())).cloned().collect();
            return Ok(arrange(merged, patch, &old, None));
        }
        let Some(key) = field.merge_key else {
            return Err(PatchError::Malformed("cannot merge lists without merge key for type struct".to_owned()));
        };
        self.with_type(item).merge_items(old, patch, key)
    }

    /// Merges a list of maps by `key`.
    fn merge_items(&self, mut old: Vec<Value>, patch: &[Value], key: &str) -> Result<Vec<Value>, PatchError> {
        let (mut changes, mut deleted, mut replace) = (Vec::new(), HashSet::new(), false);
        for change in patch {
            let Value::Object(fields) = change else { return Err(inconsistent(change)) };
            match fields.get(PATCH) {
                None => changes.push(change),
                Some(directive) if directive == "delete" => {
                    deleted.insert(key_of(change, key)?.to_string());
                }
                Some(directive) if directive == "replace" => replace = true,
                Some(directive) if directive == "merge" => {
                    return Err(PatchError::Malformed("merging lists cannot yet be specified in the patch".to_owned()));
                }
                Some(other) => return Err(unknown_directive(other, fields)),
            }
        }
        if replace {
            return Ok(changes.into_iter().filter_map(plain).collect());
        }
        if !deleted.is_empty() {
            old.retain(|item| item.get(key).is_none_or(|value| !deleted.contains(&value.to_string())));
        }
        let mut merged = old.clone();
        let mut index = ItemIndex::new(&merged, Some(key));
        for change in &changes {
            key_of(change, key)?;
            match index.find(change).map(|place| &mut merged[place]) {
                Some(Value::Object(item)) => {
                    if let Value::Object(change) = change {
                        self.merge_map(item, change)?;
                    }
                }
                _ => {
                    index.add(change, merged.len());
                    merged.extend(plain(change));
                }
            }
        }
        for item in &merged {
            key_of(item, key)?;
        }
        let order: Vec<Value> = changes.into_iter().cloned().collect();
        Ok(arrange(merged, &order, &old, Some(key)))
    }

    /// A list together with the order that the author wants it in.
    fn merge_ordered(
        &self,
        target: &mut Object,
        name: &str,
        patch: Option<&Value>,
        order: &Value,
    ) -> Result<(), PatchError> {
        let field = self.field(name);
        let Value::Array(order) = order else { return Err(bad_order()) };
        let patch = match patch {
            None => None,
            Some(Value::Array(items)) => Some(items.as_slice()),
            Some(Value::Null) => {
                target.remove(name);
                return Ok(());
            }
            Some(_) => return Err(bad_order()),
        };
        let key = field.and_then(|field| field.merge_key);
        if let Some(patch) = patch {
            check_order(patch, order, key)?;
        }
        let old = match target.get(name) {
            None => None,
            Some(Value::Array(items)) => Some(items.clone()),
            Some(_) => return Err(bad_order()),
        };
        let merged = match (&old, patch) {
            (None, None) => return Ok(()),
            (Some(old), None) => old.clone(),
            (None, Some(patch)) => plain_list(patch),
            (Some(old), Some(patch)) => self.merge_list(field, old.clone(), patch)?,
        };
        if let Some(key) = key {
            for item in merged.iter().chain(order) {
                key_of(item, key)?;
            }
        }
        target.insert(name.to_owned(), Value::Array(arrange(merged, order, &old.unwrap_or_default(), key)));
        Ok(())
    }
}

/// Where each item of a list stands first, by its key or as a whole: lists may be long, so nothing here compares each
/// item with each.
struct ItemIndex<'k> {
    key: Option<&'k str>,
    by_identity: HashMap<String, usize>,
}

impl<'k> ItemIndex<'k> {
    fn new(list: &[Value], key: Option<&'k str>) -> Self {
        let mut index = Self { key, by_identity: HashMap::with_capacity(list.len()) };
        list.iter().enumerate().for_each(|(place, item)| index.add(item, place));
        index
    }

    fn identity(&self, item: &Value) -> Option<String> {
        match self.key {
            Some(key) => item.get(key).map(Value::to_string),
            None => Some(item.to_string()),
        }
    }

    fn add(&mut self, item: &Value, place: usize) {
        if let Some(identity) = self.identity(item) {
            self.by_identity.entry(identity).or_insert(place);
        }
    }

    fn find(&self, item: &Value) -> Option<usize> {
        self.by_identity.get(&self.identity(item)?).copied()
    }
}

/// Puts the items that `order` names in its order, and the others, which only the server knows,
/// where they stood among those in `live`: each goes before the first of them that it preceded.
fn arrange(merged: Vec<Value>, order: &[Value], live: &[Value], key: Option<&str>) -> Vec<Value> {
    let (order, live) = (ItemIndex::new(order, key), ItemIndex::new(live, key));
    let (mut named, mut others): (Vec<_>, Vec<_>) = merged.into_iter().partition(|item| order.find(item).is_some());
    named.sort_by_cached_key(|item| order.find(item));
    others.sort_by_cached_key(|item| live.find(item).unwrap_or(usize::MAX));
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for item in named {
        let here = live.find(&item);
        while others.peek().is_some_and(|other| live.find(other).zip(here).is_some_and(|(a, b)| a < b)) {
            arranged.extend(others.next());
        }
        arranged.push(item);
    }
    arranged.extend(others);
    arranged
}

/// The patch's items must appear in the order list, and in its order.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in patch.iter().filter(|item| item.get(PATCH).is_none()) {
        let found = match key {
            Some(key) => {
                let value = key_of(item, key)?;
                rest.any(|other| other.get(key) == Some(value))
            }
            None => rest.any(|other| other == item),
        };
        if !found {
            return Err(PatchError::Malformed(format!(
                "The order in patch list:\n{}\n doesn't match {ORDER_OF} list:\n{}\n",
                go_list(patch),
                go_list(order)
            )));
        }
    }
    Ok(())
}

fn delete_from(target: &mut Object, name: &str, items: &Value) -> Result<(), PatchError> {
    let Value::Array(items) = items else {
        return Err(PatchError::Malformed(format!("invalid patch format of primitive list: {DELETE_FROM}/{name}")));
    };
    if let Some(Value::Array(list)) = target.get_mut(name) {
        let items: HashSet<String> = items.iter().map(Value::to_string).collect();
        list.retain(|item| !items.contains(&item.to_string()));
    }
    Ok(())
}

fn retain_keys(target: &mut Object, patch: &Object) -> Result<(), PatchError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let bad = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let keys = keys.as_array().ok_or_else(bad)?;
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let listed = |name: &str| keys.contains(name);
    let is_directive = |name: &str| name.starts_with('$');
    if patch.iter().any(|(name, value)| !value.is_null() && !is_directive(name) && !listed(name)) {
        return Err(bad());
    }
    target.retain(|name, _| listed(name));
    Ok(())
}

/// A patch's value where there is nothing to merge with: without directives and nulls, and
/// without what it asks to delete.
fn plain(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.get(PATCH).is_some_and(|directive| directive == "delete") => None,
        Value::Object(fields) => Some(Value::Object(plain_map(fields))),
        Value::Array(items) => Some(Value::Array(plain_list(items))),
        value => Some(value.clone()),
    }
}

fn plain_map(fields: &Object) -> Object {
    let is_directive = |name: &str| {
        matches!(name, PATCH | RETAIN_KEYS) || matches!(name.split_once('/'), Some((DELETE_FROM | ORDER_OF, _)))
    };
    let kept = fields.iter().filter(|(name, value)| !value.is_null() && !is_directive(name));
    kept.filter_map(|(name, value)| Some((name.clone(), plain(value)?))).collect()
}

fn plain_list(items: &[Value]) -> Vec<Value> {
    // `{$patch: replace}` among the items is an instruction, not an item.
    let is_marker = |item: &&Value| item.as_object().is_some_and(|o| o.len() == 1 && o.contains_key(PATCH));
    items.iter().filter(|item| !is_marker(item)).filter_map(plain).collect()
}

fn key_of<'a>(item: &'a Value, key: &str) -> Result<&'a Value, PatchError> {
    item.get(key).ok_or_else(|| {
        PatchError::Malformed(format!("map: {} does not contain declared merge key: {key}", go_value(item)))
    })
}

fn unknown_directive(directive: &Value, patch: &Object) -> PatchError {
    let patch = go_value(&Value::Object(patch.clone()));
    PatchError::Malformed(format!("unknown patch type: {} in map: {patch}", go_value(directive)))
}

fn inconsistent(value: &Value) -> PatchError {
    PatchError::Malformed(format!("invalid JSON document: list of mixed types at {}", go_value(value)))
}

fn bad_order() -> PatchError {
    PatchError::Malformed(format!("invalid {ORDER_OF} list: a list is expected"))
}

/// `map[name:web ports:[map[containerPort:80]]]`: how the API's messages show values.
fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => go_list(items),
        Value::Object(fields) => {
            let entries: Vec<_> = fields.iter().map(|(name, value)| format!("{name}:{}", go_value(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        value => value.to_string(),
    }
}

fn go_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" "))
}
