//! What one resource is: names, storage, subresources, selectable fields, rules. Adding a kind is adding one descriptor;
//! CONTRIBUTING.md has the recipe.

mod subresource;

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;

pub use subresource::{Subresource, SubresourceKind};

use crate::{crd::CustomKind, strategy::Strategy, table::PrinterColumns};

type Text = Cow<'static, str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// Which names an object of the kind may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, up to 253 characters: what most kinds use.
    Subdomain,
    /// RFC 1123 label, up to 63 characters.
    Label,
    /// RFC 1035 label: as above, but starting with a letter.
    ServiceLabel,
    /// Anything that can be one segment of a URL path.
    PathSegment,
}

/// How a kind's `status` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusRule {
    /// The kind has no status subresource: `status`, if any, is ordinary content.
    Absent,
    /// Only through `/status`; dropped on create and kept on update.
    Separate,
    /// As `Separate`, but a create may bring it along (nodes register with theirs).
    SeparateAfterCreate,
}

/// A path of field names into an object: written in the source for built-in kinds, in a definition for custom ones.
#[derive(Clone, Debug)]
pub enum FieldPath {
    Static(&'static [&'static str]),
    Owned(Arc<[Box<str>]>),
}

impl FieldPath {
    pub fn steps(&self) -> Vec<&str> {
        match self {
            Self::Static(steps) => steps.to_vec(),
            Self::Owned(steps) => steps.iter().map(|step| &**step).collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Self::Static(steps) => steps.is_empty(),
            Self::Owned(steps) => steps.is_empty(),
        }
    }

    /// The field of an object, if all of the path is there.
    pub fn find<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        match self {
            Self::Static(steps) => steps.iter().try_fold(object, |value, step| value.get(step)),
            Self::Owned(steps) => steps.iter().try_fold(object, |value, step| value.get(&**step)),
        }
    }
}

/// The `/scale` subresource, as paths into the object.
#[derive(Clone, Debug)]
pub struct Scale {
    pub spec_replicas: FieldPath,
    pub status_replicas: FieldPath,
    /// Where the label selector is; `None` if the kind has no selector.
    pub selector: Option<FieldPath>,
}

/// Which objects of a kind are kept in memory alone: written every few seconds by those they tell of, worth no fsync,
/// and written anew after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volatile {
    None,
    All,
    InNamespace(&'static str),
}

/// Who may write objects of a kind, besides administrators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Whoever the authorizer allows to.
    Authorized,
    /// A node, and only the object that has its name.
    SameNamedNode,
    /// A node reads the object that has its name and writes the status of it, and nothing else.
    SameNamedNodeStatus,
}

/// A field usable in `fieldSelector`, besides `metadata.name` and `metadata.namespace`.
///
/// Labels and paths are those of the served version. Values compare as text: `true`, `3`.
#[derive(Clone, Debug)]
pub struct SelectableField {
    pub label: Text,
    pub path: FieldPath,
    /// Where to look if there is nothing; empty for nowhere.
    pub or: FieldPath,
    /// What an absent field compares as.
    pub absent: &'static str,
}

impl SelectableField {
    /// The field of an object, as selectors compare it.
    pub fn value_in<'a>(&self, object: &'a Value) -> Cow<'a, str> {
        let at = |path: &FieldPath| {
            let value = path.find(object)?;
            match value {
                Value::Null => None,
                Value::String(text) => Some(Cow::Borrowed(text.as_str())).filter(|text| !text.is_empty()),
                other => Some(Cow::Owned(other.to_string())),
            }
        };
        let or = || if self.or.is_empty() { None } else { at(&self.or) };
        at(&self.path).or_else(or).unwrap_or(Cow::Borrowed(self.absent))
    }
}

/// Two served versions of one stored resource. `apiVersion` is converted with the rest.
pub trait Conversion: Send + Sync {
    /// From the served form to the stored one, in place.
    fn to_stored(&self, object: &mut Value);
    /// From the stored form to the served one, in place.
    fn to_served(&self, object: &mut Value);

    /// As [`Conversion::to_stored`], where somebody else converts and may fail to.
    fn try_to_stored(&self, object: &mut Value) -> Result<(), String> {
        self.to_stored(object);
        Ok(())
    }

    /// As [`Conversion::to_served`], where somebody else converts and may fail to.
    fn try_to_served(&self, object: &mut Value) -> Result<(), String> {
        self.to_served(object);
        Ok(())
    }
}

pub struct Descriptor {
    /// `""` for the core group.
    pub group: Text,
    pub version: Text,
    pub kind: Text,
    /// `<kind>List` but for a few.
    pub list_kind: Text,
    /// The resource in URLs: `pods`.
    pub plural: Text,
    pub singular: Text,
    pub scope: Scope,
    pub short_names: Vec<Text>,
    pub categories: Vec<Text>,
    pub name_rule: NameRule,
    /// Path below `/registry/`, upstream's irregular ones included: `pods`, `services/specs`.
    pub storage: Text,
    /// `apiVersion` under which objects are stored, where it is not the served one.
    pub stored_as: Option<Text>,
    pub conversion: Option<Arc<dyn Conversion>>,
    pub status: StatusRule,
    pub scale: Option<Scale>,
    /// Those besides `status` and `scale`, which have fields of their own here.
    pub subresources: &'static [Subresource],
    pub volatile: Volatile,
    /// Whether objects are encrypted in the store unless the encryption configuration says otherwise.
    pub encrypted_at_rest: bool,
    pub writer: Writer,
    /// Whether a whole collection can be deleted with one request.
    pub delete_collection: bool,
    /// Whether a delete waits for the grace period in the spec.
    pub graceful_deletion: bool,
    /// Whether `metadata.generation` counts changes of what is desired.
    pub generation: bool,
    /// Whether a delete that takes effect at once answers with the object rather than a `Status`.
    pub returns_deleted: bool,
    /// Whether dependents survive a delete that does not say what becomes of them.
    pub orphans_by_default: bool,
    /// A finalizer that a delete adds: what the object stands for is removed first.
    pub deletion_finalizer: Option<&'static str>,
    /// Whether objects are reviews: posted, answered at once, and never stored.
    pub is_review: bool,
    pub selectable: Cow<'static, [SelectableField]>,
    /// The definition in the schema table: `io.k8s.api.core.v1.Pod`.
    pub schema: Text,
    pub columns: PrinterColumns,
    pub strategy: Arc<dyn Strategy>,
    /// What a CustomResourceDefinition says about the kind; `None` for built-in kinds.
    pub custom: Option<Arc<CustomKind>>,
}

impl Descriptor {
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `apiVersion` as stored.
    pub fn stored_api_version(&self) -> String {
        self.stored_as.as_ref().map_or_else(|| self.api_version(), Text::to_string)
    }

    /// `pods`, `deployments.apps`: how messages name the resource.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_string() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// Whether this is the named kind of the core group.
    pub fn is_core(&self, kind: &str) -> bool {
        self.group.is_empty() && self.kind == kind
    }

    pub fn has_subresource(&self, subresource: Subresource) -> bool {
        match subresource {
            Subresource::Status => self.status != StatusRule::Absent,
            Subresource::Scale => self.scale.is_some(),
            other => self.subresources.contains(&other),
        }
    }

    /// The subresource of this name, if the kind has it.
    pub fn find_subresource(&self, name: &str) -> Option<Subresource> {
        Subresource::from_name(name).filter(|subresource| self.has_subresource(*subresource))
    }

    /// All subresources in the order of their names, as discovery lists them.
    pub fn all_subresources(&self) -> Vec<Subresource> {
        let shared = [Subresource::Status, Subresource::Scale].into_iter().filter(|own| self.has_subresource(*own));
        let mut all: Vec<Subresource> = self.subresources.iter().copied().chain(shared).collect();
        all.sort_by_key(|subresource| subresource.name());
        all
    }
}
