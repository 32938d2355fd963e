//! How ownership of fields changes: the rules of structured merge and diff, for updates and applies alike.
//!
//! * Who changes a field owns it; whoever else owned it does not any more.
//! * Who applies owns all fields of the configuration, with others if their values agree.
//! * An apply that would change a field of others is a conflict, unless it is forced.
//! * Fields that an applier no longer applies are removed, unless others own them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde_json::Value;

use super::{
    compare::{Comparison, compare},
    extract::field_set,
    managers::{ManagerId, Managers, Ownership},
    merge::merge,
    path::PathElement,
    reconcile::{reconcile, with_declared_parents},
    remove::remove,
    set::FieldSet,
    typed::{TypeRef, Versions},
};

/// What says which object it is, and what the server alone writes: nobody owns it.
static UNOWNED: LazyLock<FieldSet<'static>> = LazyLock::new(|| {
    let metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let field = |name: &'static str| PathElement::Field(name.into());
    let below = metadata.map(|name| vec![field("metadata"), field(name)]);
    ["apiVersion", "kind", "metadata"].map(|name| vec![field(name)]).into_iter().chain(below).collect()
});

/// A request that changes ownership.
#[derive(Clone, Copy)]
pub struct Updater<'u, V> {
    pub versions: &'u V,
    /// The version that the request is written in.
    pub api_version: &'u str,
    pub manager: &'u ManagerId,
    /// Fields that this way of writing never changes, such as the status of an object itself.
    pub ignored: &'u FieldSet<'static>,
    /// RFC 3339, whole seconds.
    pub now: &'u str,
}

/// Fields that other managers own and an apply would change.
pub type Conflicts<'a> = Vec<(ManagerId, FieldSet<'a>)>;

/// What an apply makes of an object.
#[derive(Debug)]
pub struct Merged {
    /// `None` if it stays as it is.
    pub object: Option<Value>,
    /// `metadata.managedFields`; `None` if nobody owns anything.
    pub managed_fields: Option<Value>,
}

/// An object in the versions that its managers wrote, besides its own.
struct Converted<'o> {
    object: &'o Value,
    others: BTreeMap<String, Value>,
}

impl<'u, 's, V: Versions<'s>> Updater<'u, V> {
    /// Managers after an update of `live` to `new`; `None` if they stay as they are, with their times.
    pub fn update<'a>(&self, live: &'a Value, new: &'a Value, managers: Managers<'a>) -> Option<Option<Value>> {
        let comparison = self.compare(self.versions.root(self.api_version)?, live, new);
        let versions = self.other_versions(&managers);
        let (live, new) = (self.converted(live, &versions), self.converted(new, &versions));
        let (mut managers, reconciled) = self.reconciled(managers, &live);
        if comparison.is_same() {
            return reconciled.then(|| managers.encode());
        }
        self.disown(&mut managers, None, &comparison, &live, &new);
        let taken = comparison.into_set_fields();
        if !taken.is_empty() {
            let before = managers.entries.remove(self.manager).map(|own| own.fields).unwrap_or_default();
            managers.entries.insert(self.manager.clone(), self.ownership(before.union(taken)));
        }
        managers.cap_updates();
        Some(managers.encode())
    }

    /// What becomes of `live` when `config`, which [`super::validate()`] has passed, is applied to it.
    pub fn apply<'a>(
        &self,
        live: &'a Value,
        config: &'a Value,
        managers: &Managers<'a>,
        force: bool,
    ) -> Result<Merged, Conflicts<'a>> {
        let Some(ty) = self.versions.root(self.api_version) else {
            return Ok(Merged { object: None, managed_fields: managers.encode() });
        };
        let versions = self.other_versions(managers);
        let at_versions = self.converted(live, &versions);
        let (mut after, _) = self.reconciled(managers.clone(), &at_versions);
        let last = after.entries.remove(self.manager);
        let set = field_set(ty, config).recursive_difference(self.ignored);
        let time = last.as_ref().map(|own| own.time.clone()).unwrap_or_default();
        after.entries.insert(self.manager.clone(), Ownership { time, ..self.ownership(set) });
        let mut merged = merge(ty, live, config);
        if let Some(last) = &last {
            merged = self.pruned(merged, last, &after);
        }
        let comparison = self.compare(ty, live, &merged);
        let conflicts =
            self.disown(&mut after, Some(self.manager), &comparison, &at_versions, &self.converted(&merged, &versions));
        if !force && !conflicts.is_empty() {
            return Err(conflicts);
        }
        if let Some(own) = after.entries.get_mut(self.manager) {
            own.fields = own.fields.difference(&UNOWNED);
        }
        after.entries.retain(|_, own| !own.fields.is_empty());
        let same = comparison.is_same();
        if (!same || !after.has_same_owners(managers))
            && let Some(own) = after.entries.get_mut(self.manager)
        {
            own.time = self.now.to_owned();
        }
        let managed_fields = after.encode();
        Ok(Merged { object: (!same).then_some(merged), managed_fields })
    }

    fn ownership<'a>(&self, fields: FieldSet<'a>) -> Ownership<'a> {
        Ownership { api_version: self.api_version.to_owned(), fields, time: self.now.to_owned() }
    }

    fn compare<'a, T: TypeRef<'s>>(&self, ty: T, live: &'a Value, new: &'a Value) -> Comparison<'a> {
        let comparison = compare(ty, live, new).filtered(|set| set.difference(&UNOWNED));
        if self.ignored.is_empty() {
            return comparison;
        }
        comparison.filtered(|set| set.recursive_difference(self.ignored))
    }

    fn other_versions(&self, managers: &Managers<'_>) -> BTreeSet<String> {
        let versions = managers.entries.values().map(|own| &own.api_version);
        versions.filter(|version| *version != self.api_version).cloned().collect()
    }

    fn converted<'o>(&self, object: &'o Value, versions: &BTreeSet<String>) -> Converted<'o> {
        let others = versions.iter().filter_map(|version| {
            self.versions.root(version)?;
            Some((version.clone(), self.versions.convert(object, version)?))
        });
        Converted { object, others: others.collect() }
    }

    fn in_version<'c>(&self, object: &'c Converted<'_>, version: &str) -> Option<&'c Value> {
        if version == self.api_version { Some(object.object) } else { object.others.get(version) }
    }

    /// Sets as today's schema has them, and whether that changed any. Managers of versions that are gone are forgotten.
    fn reconciled<'a>(&self, managers: Managers<'a>, live: &Converted<'a>) -> (Managers<'a>, bool) {
        let mut changed = false;
        let mut managers = managers;
        managers.entries.retain(|_, own| {
            let known = self.versions.root(&own.api_version).zip(self.in_version(live, &own.api_version));
            changed |= known.is_none();
            known.is_some()
        });
        // In other versions, fields that are no longer atomic stay with the owner of the whole.
        for own in managers.entries.values_mut().filter(|own| own.api_version == self.api_version) {
            let ty = self.versions.root(self.api_version);
            if let Some(fields) = ty.and_then(|ty| reconcile(ty, &own.fields, live.object)) {
                own.fields = fields;
                changed = true;
            }
        }
        (managers, changed)
    }

    /// Takes from all managers but one what has changed, and returns what was taken of fields that are still there.
    fn disown<'a>(
        &self,
        managers: &mut Managers<'a>,
        but: Option<&ManagerId>,
        comparison: &Comparison<'_>,
        live: &Converted<'_>,
        new: &Converted<'_>,
    ) -> Conflicts<'a> {
        let mut taken = Vec::new();
        for (id, own) in &mut managers.entries {
            if Some(id) == but {
                continue;
            }
            let in_its_version;
            let comparison = if own.api_version == self.api_version {
                comparison
            } else {
                let of = |object| self.in_version(object, &own.api_version);
                let (Some(ty), Some(live), Some(new)) = (self.versions.root(&own.api_version), of(live), of(new))
                else {
                    own.fields = FieldSet::default();
                    continue;
                };
                in_its_version = self.compare(ty, live, new);
                &in_its_version
            };
            let changed = own.fields.intersection(&comparison.modified);
            let changed = changed.union(own.fields.intersection(&comparison.added));
            if !changed.is_empty() {
                own.fields = own.fields.difference(&changed);
                taken.push((id.clone(), changed));
            }
            if own.fields.intersects(&comparison.removed) {
                own.fields = own.fields.difference(&comparison.removed);
            }
        }
        managers.entries.retain(|id, own| Some(id) == but || !own.fields.is_empty());
        taken
    }

    /// The merged object without what its applier no longer applies and nobody else owns.
    fn pruned(&self, merged: Value, last: &Ownership<'_>, managers: &Managers<'_>) -> Value {
        let applied = managers.entries.get(self.manager).map(|own| &own.fields);
        if last.api_version == self.api_version && applied.is_some_and(|applied| last.fields.is_subset(applied)) {
            return merged; // it still applies all it did
        }
        let convert = |object: &Value, from: &str, to: &str| {
            if from == to { Some(object.clone()) } else { self.versions.convert(object, to) }
        };
        let first = last.api_version.as_str();
        let Some(ty) = self.versions.root(first) else { return merged };
        let Some(whole) = convert(&merged, self.api_version, first) else { return merged };
        let last_fields = with_declared_parents(ty, &last.fields);
        let mut pruned = remove(ty, &whole, &last_fields);
        let (mut version, mut current) = (first, Cow::Borrowed(&whole));
        for (next, owned) in owned_by_version(managers, first) {
            let Some(ty) = self.versions.root(next) else { continue };
            let (Some(all), Some(cut)) = (convert(&current, version, next), convert(&pruned, version, next)) else {
                continue;
            };
            let left = with_declared_parents(ty, &field_set(ty, &cut)).union(with_declared_parents(ty, &owned));
            let gone = with_declared_parents(ty, &field_set(ty, &all)).difference(&left);
            pruned = remove(ty, &all, &gone);
            (version, current) = (next, Cow::Owned(all));
        }
        // What nobody owns stays: defaults, and what admission added.
        let Some(pruned) = convert(&pruned, version, first) else { return merged };
        let left = with_declared_parents(ty, &field_set(ty, &pruned));
        let gone = with_declared_parents(ty, &field_set(ty, &whole)).difference(&left).intersection(&last_fields);
        let result = remove(ty, &whole, &gone);
        convert(&result, first, self.api_version).unwrap_or(result)
    }
}

/// All fields that anybody owns, by version, beginning with the given one.
fn owned_by_version<'m, 'a>(managers: &'m Managers<'a>, first: &str) -> Vec<(&'m str, FieldSet<'a>)> {
    let mut by_version: BTreeMap<&str, FieldSet<'a>> = BTreeMap::new();
    for own in managers.entries.values() {
        let fields = by_version.entry(&own.api_version).or_default();
        *fields = std::mem::take(fields).union(own.fields.clone());
    }
    let mut all: Vec<_> = by_version.into_iter().collect();
    all.sort_by_key(|(version, _)| *version != first);
    all
}
