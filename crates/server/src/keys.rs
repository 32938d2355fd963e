//! Where objects live in the store: upstream's layout below `/registry/`.

use std::sync::Arc;

use mainstay_api::descriptor::Descriptor;

/// Everything of one kind, or of one kind in one namespace. Ends in a slash.
pub fn prefix(d: &Descriptor, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) if d.namespaced() => format!("/registry/{}/{namespace}/", d.storage),
        _ => format!("/registry/{}/", d.storage),
    }
}

pub fn key(d: &Descriptor, namespace: Option<&str>, name: &str) -> Arc<str> {
    match namespace {
        Some(namespace) if d.namespaced() => format!("/registry/{}/{namespace}/{name}", d.storage).into(),
        _ => format!("/registry/{}/{name}", d.storage).into(),
    }
}

/// Namespace and name of the object behind a key of this kind.
pub fn names<'k>(d: &Descriptor, key: &'k str) -> (Option<&'k str>, &'k str) {
    let rest = key.strip_prefix("/registry/").and_then(|k| k.strip_prefix(&*d.storage)).unwrap_or(key);
    let rest = rest.strip_prefix('/').unwrap_or(rest);
    if d.namespaced() {
        match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        }
    } else {
        (None, rest)
    }
}

/// Whether a name or namespace of a request can be part of a key.
pub fn is_segment(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%', '\0'])
}
