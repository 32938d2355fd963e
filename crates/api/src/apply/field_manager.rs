//! What every write does with `metadata.managedFields`: the steps around the rules of ownership.
//!
//! * An update tracks who set what. One that changes nothing keeps the managers' times, so that it can stay without a write.
//! * Objects that nobody's fields were tracked of stay so until somebody applies; then all there is belongs to [`BEFORE_FIRST_APPLY`].
//! * A request may bring managed fields of its own: clients repair them so. An empty list, or one with an empty entry, clears them.
//! * `kubectl apply --server-side` after a client-side apply takes over the fields that the annotation of the latter names, and keeps the
//!   annotation up to date, so that both ways can be mixed.

use serde_json::{Map, Value};

use super::{
    compare::compare,
    extract::field_set,
    managers::{ConflictList, ManagerId, Managers, ManagersError, Operation},
    set::FieldSet,
    typed::Versions,
    updater::{Merged, Updater},
    validate::validate,
};
use crate::wellknown::kubernetes::LAST_APPLIED;

/// Owns what an object had when it was applied for the first time.
pub const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager of `kubectl apply --server-side`, unless it is told another name.
const KUBECTL: &str = "kubectl";

/// Most bytes in the annotations of an object, all together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Somebody who writes an object, and how.
#[derive(Clone, Copy)]
pub struct FieldManager<'f, V> {
    pub versions: &'f V,
    /// The version that the request is written in.
    pub api_version: &'f str,
    /// Empty for the object itself.
    pub subresource: &'f str,
    pub name: &'f str,
    /// Fields that this way of writing never changes.
    pub ignored: &'f FieldSet<'static>,
    /// RFC 3339, whole seconds.
    pub now: &'f str,
}

/// What becomes of `metadata.managedFields`.
#[derive(Debug, PartialEq)]
pub enum ManagedFields {
    /// As they were in the live object.
    Unchanged,
    /// `None`: the object has none.
    Changed(Option<Value>),
}

/// Why a configuration is not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsGiven,
    /// The configuration does not fit the schema.
    #[error("{0}")]
    Invalid(String),
    #[error("failed to decode managed fields")]
    LiveManagers(#[source] ManagersError),
    #[error("{}", .0.describe())]
    Conflicts(ConflictList),
}

impl<'f, 's, V: Versions<'s>> FieldManager<'f, V> {
    fn id(&self, name: &str, operation: Operation) -> ManagerId {
        ManagerId::new(name, operation, self.api_version, self.subresource)
    }

    fn updater<'u>(&'u self, manager: &'u ManagerId) -> Updater<'u, V> {
        let Self { versions, api_version, ignored, now, .. } = *self;
        Updater { versions, api_version, manager, ignored, now }
    }

    /// Managed fields of a new object.
    pub fn created(&self, new: &Value) -> Option<Value> {
        let given = &new["metadata"]["managedFields"];
        let managers = Managers::decode(given).unwrap_or_default();
        let nothing = Value::Object(Map::new());
        let manager = self.id(self.name, Operation::Update);
        let changed = self.updater(&manager).update(&nothing, new, managers.clone());
        changed.unwrap_or_else(|| managers.encode())
    }

    /// Managed fields of `live` after it is updated to `new`.
    pub fn updated(&self, live: &Value, new: &Value) -> ManagedFields {
        let (old, given) = (&live["metadata"]["managedFields"], &new["metadata"]["managedFields"]);
        if self.subresource.is_empty() && clears(given) {
            return ManagedFields::Changed(None);
        }
        let given = Managers::decode(given)
            .ok()
            .filter(|managers| self.subresource.is_empty() && !managers.entries.is_empty() && given != old);
        let is_given = given.is_some();
        let managers = given.unwrap_or_else(|| Managers::decode(old).unwrap_or_default());
        if managers.entries.is_empty() {
            return ManagedFields::Unchanged; // nobody has applied it yet, and nobody tracked it when it was made
        }
        let manager = self.id(self.name, Operation::Update);
        match self.updater(&manager).update(live, new, managers.clone()) {
            Some(changed) => ManagedFields::Changed(changed),
            None if is_given => ManagedFields::Changed(managers.encode()),
            None => ManagedFields::Unchanged,
        }
    }

    /// What becomes of an object when a configuration is applied to it; of nothing, if there is no object yet.
    pub fn apply(&self, live: Option<&Value>, config: &Value, force: bool) -> Result<Merged, ApplyError> {
        if !config["metadata"]["managedFields"].is_null() {
            return Err(ApplyError::ManagedFieldsGiven);
        }
        if let Some(ty) = self.versions.root(self.api_version)
            && let Some(why) = validate(ty, config)
        {
            return Err(ApplyError::Invalid(why));
        }
        let nothing = Value::Object(Map::new());
        let live = live.unwrap_or(&nothing);
        let adopted = self.adopted(live)?;
        let managers = match &adopted {
            Some(adopted) => Managers::decode(adopted),
            None => Managers::decode(&live["metadata"]["managedFields"]),
        };
        let managers = managers.map_err(ApplyError::LiveManagers)?;
        let manager = self.id(self.name, Operation::Apply);
        let updater = self.updater(&manager);
        let mut merged = match updater.apply(live, config, &managers, force) {
            Ok(merged) => merged,
            Err(conflicts) => {
                let refused = match self.applied_on_client(live) {
                    Some(allowed) => conflicts
                        .into_iter()
                        .map(|(id, fields)| (id, fields.difference(&allowed.fields())))
                        .filter(|(_, fields)| !fields.is_empty())
                        .collect(),
                    None => conflicts,
                };
                if !refused.is_empty() {
                    return Err(ApplyError::Conflicts(ConflictList::new(&refused)));
                }
                let forced = updater.apply(live, config, &managers, true);
                forced.map_err(|conflicts| ApplyError::Conflicts(ConflictList::new(&conflicts)))?
            }
        };
        if self.name == KUBECTL {
            refresh_annotation(&mut merged.object, live, config);
        }
        Ok(merged)
    }

    /// Managed fields for an object that has none: all there is belongs to [`BEFORE_FIRST_APPLY`].
    fn adopted(&self, live: &Value) -> Result<Option<Value>, ApplyError> {
        let managers = Managers::decode(&live["metadata"]["managedFields"]).map_err(ApplyError::LiveManagers)?;
        if !managers.entries.is_empty() {
            return Ok(None);
        }
        let manager = self.id(BEFORE_FIRST_APPLY, Operation::Update);
        let nothing = Value::Object(Map::new());
        Ok(self.updater(&manager).update(&nothing, live, managers).flatten())
    }

    /// What kubectl has applied on the client and is still so: kubectl may take it over.
    fn applied_on_client(&self, live: &Value) -> Option<LastApplied> {
        if self.name != KUBECTL {
            return None;
        }
        let config: Value = serde_json::from_str(last_applied(live)?).ok()?;
        if config["apiVersion"] != self.api_version {
            return None;
        }
        let ty = self.versions.root(self.api_version)?;
        if validate(ty, &config).is_some() {
            return None;
        }
        let comparison = compare(ty, &config, live);
        let changed = comparison.modified.union(comparison.added).union(comparison.removed);
        let fields = field_set(ty, &config).difference(&changed);
        Some(LastApplied { encoded: super::fields_v1::encode(&fields) })
    }
}

/// The fields of a client-side apply. Encoded, for the configuration they were read from is gone.
struct LastApplied {
    encoded: Value,
}

impl LastApplied {
    fn fields(&self) -> FieldSet<'_> {
        super::fields_v1::decode(&self.encoded).unwrap_or_default()
    }
}

/// Whether managed fields in a request ask to forget all managers.
fn clears(given: &Value) -> bool {
    match given.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => entry.as_object().is_some_and(Map::is_empty),
        Some(_) | None => false,
    }
}

fn last_applied(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][LAST_APPLIED].as_str().filter(|text| !text.is_empty())
}

/// Makes the annotation of client-side applies say what was applied just now, where an object has it.
fn refresh_annotation(object: &mut Option<Value>, live: &Value, config: &Value) {
    let current = object.as_ref().unwrap_or(live);
    if current["metadata"]["annotations"].get(LAST_APPLIED).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{config}\n");
    if last_applied(current) == Some(&text) {
        return;
    }
    let object = object.get_or_insert_with(|| live.clone());
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.insert(LAST_APPLIED.to_owned(), Value::String(text));
        let size: usize =
            annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len()).sum();
        if size > MAX_ANNOTATIONS {
            annotations.remove(LAST_APPLIED);
        }
    }
}
