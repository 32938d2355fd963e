//! Server-side apply: `{"live": object, "configs": [{"manager", "force", "object"}, …]}`, and managed fields as clients may write them.

use std::sync::LazyLock;

use mainstay_api::{
    apply::{
        FieldManager, ManagedFields, builtin::BuiltinType, fields_v1, managers::Managers, set::FieldSet,
        typed::SingleVersion,
    },
    registry::Registry,
    schema::Schema,
};
use serde_json::{Value, json};

use super::{conform, documents};

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::builtin);

/// Applies configurations in turn, each twice: the second time is not refused and changes nothing.
pub fn sequence(input: &[u8]) {
    let Some([mut live, configs]) = documents(input, ["live", "configs"]) else { return };
    let Some(d) = conform(&REGISTRY, &mut live) else { return };
    let api_version = d.api_version();
    let Some(root) = BuiltinType::root(Schema::builtin(), &d.schema) else { return };
    let (versions, ignored) = (SingleVersion { api_version: &api_version, root }, FieldSet::default());
    for (turn, step) in configs.as_array().into_iter().flatten().take(8).enumerate() {
        let now = format!("2026-01-01T00:00:{turn:02}Z");
        let manager = FieldManager {
            versions: &versions,
            api_version: &api_version,
            subresource: "",
            name: step["manager"].as_str().unwrap_or("m"),
            ignored: &ignored,
            now: &now,
        };
        let mut config = step["object"].clone();
        if !config.is_object() || Schema::builtin().conform(&d.schema, &mut config).is_err() {
            continue;
        }
        if step["update"] == true {
            config["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
            match manager.updated(&live, &config) {
                ManagedFields::Unchanged => {}
                ManagedFields::Changed(managed) => config["metadata"]["managedFields"] = managed.unwrap_or_default(),
            }
            live = config;
            continue;
        }
        let Ok(merged) = manager.apply(Some(&live), &config, step["force"] == true) else { continue };
        let mut applied = merged.object.unwrap_or(live);
        if !applied["metadata"].is_object() {
            applied["metadata"] = json!({});
        }
        applied["metadata"]["managedFields"] = merged.managed_fields.unwrap_or_default();
        let again = manager.apply(Some(&applied), &config, false);
        let again = again.unwrap_or_else(|error| panic!("applied again: {error}"));
        if let Some(object) = again.object {
            assert_eq!(without_managers(object), without_managers(applied.clone()), "applied twice");
        }
        live = applied;
    }
}

fn without_managers(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// What can be read is written in a form that reads the same.
pub fn managed_fields(input: &[u8]) {
    let Ok(tree) = serde_json::from_slice::<Value>(input) else { return };
    if let Ok(set) = fields_v1::decode(&tree) {
        let written = fields_v1::encode(&set);
        assert_eq!(fields_v1::decode(&written).as_ref(), Ok(&set));
        let _ = (set.paths(), set.clone().union(set.clone()), set.difference(&set), set.is_subset(&set));
    }
    if let Ok(managers) = Managers::decode(&tree)
        && let Some(written) = managers.encode()
    {
        let again = Managers::decode(&written);
        assert_eq!(again.as_ref(), Ok(&managers));
    }
}
