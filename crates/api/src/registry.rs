//! All descriptors of one server, found by the names that requests use.

use std::{collections::BTreeMap, sync::Arc};

use crate::{descriptor::Descriptor, groups as kinds};

#[derive(Clone)]
pub struct Registry {
    by_resource: BTreeMap<(String, String, String), Arc<Descriptor>>,
}

impl Registry {
    /// The built-in kinds.
    pub fn builtin() -> Self {
        Self::new(kinds::all())
    }

    pub fn new(descriptors: impl IntoIterator<Item = Descriptor>) -> Self {
        let by_resource = descriptors
            .into_iter()
            .map(|d| ((d.group.to_string(), d.version.to_string(), d.plural.to_string()), Arc::new(d)))
            .collect();
        Self { by_resource }
    }

    /// These kinds and custom ones. What both have is built in.
    pub fn with_custom(&self, custom: impl IntoIterator<Item = Arc<Descriptor>>) -> Self {
        let mut by_resource = self.by_resource.clone();
        for d in custom {
            by_resource.entry((d.group.to_string(), d.version.to_string(), d.plural.to_string())).or_insert(d);
        }
        Self { by_resource }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Descriptor>> {
        self.by_resource.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Descriptor>> {
        self.iter().find(|d| d.group == group && d.version == version && d.kind == kind)
    }

    /// In the order group, version, plural; the core group comes first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Descriptor>> {
        self.by_resource.values()
    }

    /// Each resource that is stored at all once, under the version it is stored as.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Descriptor>> {
        self.iter().filter(|d| d.stored_as.is_none() && !d.is_review)
    }

    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.iter().any(|d| d.group == group && d.version == version)
    }
}
