//! The rules of server-side apply on built-in kinds: tables, and properties of random sequences.

mod ownership;
mod properties;
mod walks;

use serde_json::{Value, json};

use super::{ApplyError, FieldManager, ManagedFields, builtin::BuiltinType, set::FieldSet, typed::SingleVersion};
use crate::schema::Schema;

pub(super) const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
const CONFIG_MAP: &str = "io.k8s.api.core.v1.ConfigMap";

pub(super) fn deployment_type() -> BuiltinType<'static> {
    BuiltinType::root(Schema::builtin(), DEPLOYMENT).unwrap()
}

/// An object and everybody who writes it; the clock goes on by a second with each write.
#[derive(Clone)]
pub(super) struct World {
    definition: &'static str,
    api_version: &'static str,
    pub object: Option<Value>,
    second: u32,
}

impl World {
    pub fn deployment() -> Self {
        Self { definition: DEPLOYMENT, api_version: "apps/v1", object: None, second: 0 }
    }

    pub fn config_map() -> Self {
        Self { definition: CONFIG_MAP, api_version: "v1", object: None, second: 0 }
    }

    fn act<R>(
        &mut self,
        name: &str,
        subresource: &str,
        work: impl FnOnce(&FieldManager<'_, SingleVersion<'_, BuiltinType<'static>>>, Option<&Value>) -> R,
    ) -> R {
        self.second += 1;
        let now = format!("2026-01-01T00:{:02}:{:02}Z", self.second / 60, self.second % 60);
        let root = BuiltinType::root(Schema::builtin(), self.definition).unwrap();
        let versions = SingleVersion { api_version: self.api_version, root };
        let ignored = FieldSet::default();
        let manager = FieldManager {
            versions: &versions,
            api_version: self.api_version,
            subresource,
            name,
            ignored: &ignored,
            now: &now,
        };
        work(&manager, self.object.as_ref())
    }

    fn with_identity(&self, mut object: Value) -> Value {
        let kind = if self.definition == DEPLOYMENT { "Deployment" } else { "ConfigMap" };
        object["apiVersion"] = json!(self.api_version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!("x");
        object
    }

    pub fn apply(&mut self, name: &str, config: Value, force: bool) -> Result<(), ApplyError> {
        let config = self.with_identity(config);
        let merged = self.act(name, "", |manager, live| manager.apply(live, &config, force))?;
        let mut object = merged.object.or_else(|| self.object.clone()).unwrap_or(config);
        object["metadata"]["uid"] = json!("u");
        self.set_managed(object, merged.managed_fields);
        Ok(())
    }

    /// The conflicts of an apply, as `manager: path`.
    pub fn conflicts(&mut self, name: &str, config: Value) -> Vec<String> {
        match self.apply(name, config, false) {
            Err(ApplyError::Conflicts(conflicts)) => conflicts
                .listed
                .iter()
                .map(|conflict| format!("{}: {}", conflict.manager.name, conflict.path))
                .collect(),
            other => panic!("no conflict: {other:?}"),
        }
    }

    pub fn create(&mut self, name: &str, object: Value) {
        let mut object = self.with_identity(object);
        let managed = self.act(name, "", |manager, _| manager.created(&object));
        object["metadata"]["uid"] = json!("u");
        self.set_managed(object, managed);
    }

    /// Updates the object with what `change` makes of it, through a subresource.
    pub fn update_through(&mut self, name: &str, subresource: &str, change: impl FnOnce(&mut Value)) {
        let mut new = self.object.clone().unwrap();
        change(&mut new);
        let old = self.object.clone().unwrap();
        match self.act(name, subresource, |manager, live| manager.updated(live.unwrap(), &new)) {
            ManagedFields::Unchanged => self.set_managed(new, old["metadata"].get("managedFields").cloned()),
            ManagedFields::Changed(managed) => self.set_managed(new, managed),
        }
    }

    pub fn update(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.update_through(name, "", change);
    }

    fn set_managed(&mut self, mut object: Value, managed: Option<Value>) {
        let metadata = object["metadata"].as_object_mut().unwrap();
        match managed {
            Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
            None => drop(metadata.remove("managedFields")),
        }
        self.object = Some(object);
    }

    pub fn get(&self, pointer: &str) -> Value {
        self.object.as_ref().unwrap().pointer(pointer).cloned().unwrap_or_default()
    }

    /// Managed fields as `manager operation[/subresource] -> fields`.
    pub fn managed(&self) -> Value {
        let entries = self.get("/metadata/managedFields");
        let entries = entries.as_array().into_iter().flatten().map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default();
            let through =
                if text("subresource").is_empty() { String::new() } else { format!("/{}", text("subresource")) };
            (format!("{} {}{through}", text("manager"), text("operation")), entry["fieldsV1"].clone())
        });
        Value::Object(entries.collect())
    }
}
