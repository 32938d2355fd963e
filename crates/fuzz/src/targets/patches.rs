//! Patches of the three sorts: an input is `{"object": …, "patch": …}`.

use std::sync::LazyLock;

use mainstay_api::{patch, registry::Registry, schema::Schema};

use super::{conform, documents};

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::builtin);

pub fn json(input: &[u8]) {
    let Some([mut object, patch]) = documents(input, ["object", "patch"]) else { return };
    let before = object.clone();
    if patch::json(&mut object, &patch).is_err() {
        return;
    }
    if patch.as_array().is_some_and(Vec::is_empty) {
        assert_eq!(object, before, "nothing to do changes nothing");
    }
}

/// A merge patch can be repeated.
pub fn merge(input: &[u8]) {
    let Some([mut object, patch]) = documents(input, ["object", "patch"]) else { return };
    patch::merge(&mut object, &patch);
    let once = object.clone();
    patch::merge(&mut object, &patch);
    assert_eq!(object, once);
}

/// On objects of built-in kinds; what comes out still has a shape or is refused.
pub fn strategic(input: &[u8]) {
    let Some([mut object, patch]) = documents(input, ["object", "patch"]) else { return };
    let Some(d) = conform(&REGISTRY, &mut object) else { return };
    if patch::strategic(&mut object, &patch, Schema::builtin(), &d.schema).is_ok() {
        let _ = Schema::builtin().conform(&d.schema, &mut object);
    }
}
