//! `metadata.managedFields`: who owns which fields of an object.
//!
//! Appliers have an entry each. Of those who update there are at most [`MAX_UPDATE_MANAGERS`] entries: the oldest are merged into
//! [`ANCIENT_CHANGES`], so that no number of clients makes an object grow without end.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    fields_v1,
    path::PathElementError,
    set::{FieldSet, Path},
};

/// More entries of updates than these are merged, as upstream does.
pub const MAX_UPDATE_MANAGERS: usize = 10;

/// Owns what the oldest updates set.
pub const ANCIENT_CHANGES: &str = "ancient-changes";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// Who owns fields. An applier is the same in all versions; an updater is another in each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    pub name: String,
    pub operation: Operation,
    /// Empty for [`Operation::Apply`].
    api_version: String,
    /// Empty for the object itself.
    pub subresource: String,
}

impl ManagerId {
    pub fn new(name: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let api_version = if operation == Operation::Update { api_version } else { "" };
        let name = if name.is_empty() { "unknown" } else { name };
        Self {
            name: name.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// As conflicts name it.
    fn describe(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

/// What a manager owns, and in which version of the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership<'a> {
    pub api_version: String,
    pub fields: FieldSet<'a>,
    /// When that last changed: RFC 3339, whole seconds. Empty if it is not known.
    pub time: String,
}

/// The managers of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers<'a> {
    pub entries: BTreeMap<ManagerId, Ownership<'a>>,
}

/// An entry that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagersError {
    #[error("missing fieldsType in managed fields entry {0}")]
    MissingType(usize),
    #[error("invalid fieldsType {kind:?} in managed fields entry {entry}")]
    UnknownType { entry: usize, kind: String },
    #[error("error decoding set in managed fields entry {entry}")]
    Fields {
        entry: usize,
        #[source]
        source: PathElementError,
    },
}

impl<'a> Managers<'a> {
    /// Reads `metadata.managedFields`, of which null and nothing are none.
    pub fn decode(entries: &'a Value) -> Result<Self, ManagersError> {
        let mut managers = Self::default();
        for (at, entry) in entries.as_array().into_iter().flatten().enumerate() {
            let text = |field: &str| entry[field].as_str().unwrap_or_default();
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagersError::MissingType(at)),
                other => return Err(ManagersError::UnknownType { entry: at, kind: other.to_owned() }),
            }
            let operation = if text("operation") == "Apply" { Operation::Apply } else { Operation::Update };
            let id = ManagerId {
                name: text("manager").to_owned(),
                ..ManagerId::new("", operation, text("apiVersion"), text("subresource"))
            };
            let fields =
                fields_v1::decode(&entry["fieldsV1"]).map_err(|source| ManagersError::Fields { entry: at, source })?;
            let ownership =
                Ownership { api_version: text("apiVersion").to_owned(), fields, time: text("time").to_owned() };
            managers.entries.insert(id, ownership);
        }
        Ok(managers)
    }

    /// Writes `metadata.managedFields`: appliers first, then by age; `None` if nobody owns anything.
    pub fn encode(&self) -> Option<Value> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by(|(a, x), (b, y)| {
            (a.operation, &x.time, &a.name, &x.api_version, &a.subresource).cmp(&(
                b.operation,
                &y.time,
                &b.name,
                &y.api_version,
                &b.subresource,
            ))
        });
        (!entries.is_empty()).then(|| entries.into_iter().map(|(id, ownership)| encode_entry(id, ownership)).collect())
    }

    /// Whether the same managers own the same fields, whenever that began.
    pub(super) fn has_same_owners(&self, other: &Managers<'_>) -> bool {
        self.entries.len() == other.entries.len()
            && self
                .entries
                .iter()
                .zip(&other.entries)
                .all(|((a, x), (b, y))| a == b && x.api_version == y.api_version && x.fields == y.fields)
    }

    /// Merges the oldest updates of each version until there are few enough.
    pub(super) fn cap_updates(&mut self) {
        let is_update = |id: &ManagerId| id.operation == Operation::Update;
        let mut count = self.entries.keys().filter(|id| is_update(id)).count();
        if count <= MAX_UPDATE_MANAGERS {
            return;
        }
        let mut updates: Vec<(String, ManagerId)> = self
            .entries
            .iter()
            .filter(|(id, _)| is_update(id))
            .map(|(id, own)| (own.time.clone(), id.clone()))
            .collect();
        updates.sort();
        let mut firsts: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (time, id) in updates {
            if count <= MAX_UPDATE_MANAGERS {
                return;
            }
            let Some(version) = self.entries.get(&id).map(|own| own.api_version.clone()) else { continue };
            let Some(first) = firsts.get(&version) else {
                firsts.insert(version, id);
                continue;
            };
            let bucket = ManagerId::new(ANCIENT_CHANGES, Operation::Update, &version, "");
            if !self.entries.contains_key(&bucket)
                && let Some(oldest) = self.entries.remove(first)
            {
                self.entries.insert(bucket.clone(), oldest);
            }
            if bucket == id {
                continue;
            }
            let merged = self.entries.remove(&id).map(|own| own.fields).unwrap_or_default();
            count -= 1;
            if let Some(own) = self.entries.get_mut(&bucket) {
                own.fields = std::mem::take(&mut own.fields).union(merged);
                own.time = time;
            }
        }
    }
}

fn encode_entry(id: &ManagerId, ownership: &Ownership<'_>) -> Value {
    let mut entry = Map::new();
    let mut set = |field: &str, value: Value| drop(entry.insert(field.to_owned(), value));
    set("apiVersion", json!(ownership.api_version));
    set("fieldsType", json!("FieldsV1"));
    set("fieldsV1", fields_v1::encode(&ownership.fields));
    set("manager", json!(id.name));
    set("operation", json!(id.operation.name()));
    if !id.subresource.is_empty() {
        set("subresource", json!(id.subresource));
    }
    if !ownership.time.is_empty() {
        set("time", json!(ownership.time));
    }
    Value::Object(entry)
}

/// A field that another manager owns and that an apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: ManagerId,
    /// As messages write it: `.spec.replicas`.
    pub path: String,
}

impl Conflict {
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager.describe())
    }

    fn new(manager: &ManagerId, path: &Path<'_>) -> Self {
        Self { manager: manager.clone(), path: path.iter().map(ToString::to_string).collect() }
    }
}

/// The conflicts of an apply, one for each field. Paths are much longer than the fields of an object, so that not all of very many are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConflictList {
    pub listed: Vec<Conflict>,
    /// How many more there are.
    pub omitted: usize,
}

impl ConflictList {
    /// How long all paths and the names of their managers may be together.
    const MAX_BYTES: usize = 256 << 10;

    pub(super) fn new(conflicts: &[(ManagerId, FieldSet<'_>)]) -> Self {
        let (mut list, mut bytes) = (Self::default(), 0);
        for (id, fields) in conflicts {
            for path in fields.paths() {
                if bytes >= Self::MAX_BYTES {
                    list.omitted += 1;
                    continue;
                }
                let conflict = Conflict::new(id, &path);
                bytes += conflict.path.len() + conflict.manager.name.len();
                list.listed.push(conflict);
            }
        }
        list
    }

    /// All conflicts as one text in upstream's words.
    pub fn describe(&self) -> String {
        if let ([conflict], 0) = (&self.listed[..], self.omitted) {
            return format!("Apply failed with 1 conflict: {}: {}", conflict.message(), conflict.path);
        }
        let mut by_manager: BTreeMap<&ManagerId, Vec<&str>> = BTreeMap::new();
        for conflict in &self.listed {
            by_manager.entry(&conflict.manager).or_default().push(&conflict.path);
        }
        let mut lines = Vec::new();
        for (manager, paths) in by_manager {
            lines.push(format!("conflicts with {}:", manager.describe()));
            lines.extend(paths.iter().map(|path| format!("- {path}")));
        }
        if self.omitted > 0 {
            lines.push(format!("and {} more conflicts", self.omitted));
        }
        format!("Apply failed with {} conflicts: {}", self.listed.len() + self.omitted, lines.join("\n"))
    }
}
