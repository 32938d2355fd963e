//! Builds the descriptor of a kind from its generated type.
//!
//! What the generated types already know (group, version, kind, plural, scope, definition name) is
//! read from them; a kind states only where it differs from the plainest one: namespaced or not as
//! generated, named by a subdomain, stored below its plural, without status, and shown as name and
//! age.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::{ClusterResourceScope, ListableResource, NamespaceResourceScope, Resource};

use crate::{
    descriptor::{
        Conversion, Descriptor, FieldPath, NameRule, Scale, Scope, SelectableField, StatusRule, Subresource, Volatile,
        Writer,
    },
    strategy::{Plain, Rules, Strategy, Typed},
    table::{Columns, PrinterColumns, generic},
};

/// The scope of a generated type, as a value.
pub trait Scoped {
    const SCOPE: Scope;
}

impl Scoped for ClusterResourceScope {
    const SCOPE: Scope = Scope::Cluster;
}

impl Scoped for NamespaceResourceScope {
    const SCOPE: Scope = Scope::Namespaced;
}

/// Where kinds with replicas keep them.
pub const REPLICAS: Scale = Scale {
    spec_replicas: FieldPath::Static(&["spec", "replicas"]),
    status_replicas: FieldPath::Static(&["status", "replicas"]),
    selector: Some(FieldPath::Static(&["spec", "selector"])),
};

/// A selectable field that is the empty string when absent.
pub const fn field(label: &'static str, path: &'static [&'static str]) -> SelectableField {
    field_or(label, path, "")
}

pub const fn field_or(label: &'static str, path: &'static [&'static str], absent: &'static str) -> SelectableField {
    SelectableField { label: Cow::Borrowed(label), path: FieldPath::Static(path), or: FieldPath::Static(&[]), absent }
}

/// A selectable field that is looked for in two places.
pub const fn field_or_field(
    label: &'static str,
    path: &'static [&'static str],
    or: &'static [&'static str],
) -> SelectableField {
    let (path, or) = (FieldPath::Static(path), FieldPath::Static(or));
    SelectableField { label: Cow::Borrowed(label), path, or, absent: "" }
}

/// The descriptor of a generated type, with everything else at its default.
pub fn describe<K>() -> Descriptor
where
    K: ListableResource,
    K::Scope: Scoped,
{
    Descriptor { list_kind: K::LIST_KIND.into(), ..base_descriptor::<K>() }
}

/// The descriptor of a review: a kind that is posted, answered at once, and never stored.
pub fn describe_review<K>() -> Descriptor
where
    K: Resource,
    K::Scope: Scoped,
{
    Descriptor { is_review: true, ..base_descriptor::<K>() }
}

fn base_descriptor<K>() -> Descriptor
where
    K: Resource,
    K::Scope: Scoped,
{
    Descriptor {
        group: K::GROUP.into(),
        version: K::VERSION.into(),
        kind: K::KIND.into(),
        list_kind: format!("{}List", K::KIND).into(),
        plural: K::URL_PATH_SEGMENT.into(),
        singular: K::KIND.to_lowercase().into(),
        scope: K::Scope::SCOPE,
        short_names: Vec::new(),
        categories: Vec::new(),
        name_rule: NameRule::Subdomain,
        storage: K::URL_PATH_SEGMENT.into(),
        stored_as: None,
        conversion: None,
        status: StatusRule::Absent,
        scale: None,
        subresources: &[],
        volatile: Volatile::None,
        encrypted_at_rest: false,
        writer: Writer::Authorized,
        delete_collection: true,
        graceful_deletion: false,
        generation: false,
        returns_deleted: false,
        orphans_by_default: false,
        deletion_finalizer: None,
        is_review: false,
        selectable: Cow::Borrowed(&[]),
        schema: definition_name(K::GROUP, K::VERSION, K::KIND).into(),
        columns: PrinterColumns::Builtin(&generic::NAME_AGE),
        strategy: Arc::new(Plain),
        custom: None,
    }
}

/// The name of a kind's definition in OpenAPI: that of its Go package upstream, or else its group with the parts in reverse.
fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let package = match group.strip_suffix(".k8s.io").unwrap_or(group) {
        "" => "api.core".to_owned(),
        "apiextensions" => "apiextensions-apiserver.pkg.apis.apiextensions".to_owned(),
        "apiregistration" => "kube-aggregator.pkg.apis.apiregistration".to_owned(),
        name if group.ends_with(".k8s.io") || !group.contains('.') => {
            format!("api.{}", name.split('.').next().unwrap_or(name))
        }
        _ => return crate::crd::definition_name(group, version, kind),
    };
    format!("io.k8s.{package}.{version}.{kind}")
}

/// Facts, one by one.
impl Descriptor {
    pub(super) fn short(mut self, name: &'static str) -> Self {
        self.short_names.push(name.into());
        self
    }

    pub(super) fn category(mut self, name: &'static str) -> Self {
        self.categories.push(name.into());
        self
    }

    pub(super) fn encrypted_at_rest(mut self) -> Self {
        self.encrypted_at_rest = true;
        self
    }

    pub(super) fn named(mut self, rule: NameRule) -> Self {
        self.name_rule = rule;
        self
    }

    pub(super) fn stored_below(mut self, prefix: &'static str) -> Self {
        self.storage = prefix.into();
        self
    }

    pub(super) fn stored_as(mut self, api_version: &'static str, conversion: impl Conversion + 'static) -> Self {
        self.stored_as = Some(api_version.into());
        self.conversion = Some(Arc::new(conversion));
        self
    }

    pub(super) fn status(mut self) -> Self {
        self.status = StatusRule::Separate;
        self
    }

    pub(super) fn status_from_create(mut self) -> Self {
        self.status = StatusRule::SeparateAfterCreate;
        self
    }

    pub(super) fn scale(mut self, scale: Scale) -> Self {
        self.scale = Some(scale);
        self
    }

    pub(super) fn subresources(mut self, subresources: &'static [Subresource]) -> Self {
        self.subresources = subresources;
        self
    }

    pub(super) fn volatile(mut self, volatile: Volatile) -> Self {
        self.volatile = volatile;
        self
    }

    pub(super) fn written_by(mut self, writer: Writer) -> Self {
        self.writer = writer;
        self
    }

    pub(super) fn no_delete_collection(mut self) -> Self {
        self.delete_collection = false;
        self
    }

    pub(super) fn graceful_deletion(mut self) -> Self {
        self.graceful_deletion = true;
        self
    }

    pub(super) fn generation(mut self) -> Self {
        self.generation = true;
        self
    }

    pub(super) fn returns_deleted(mut self) -> Self {
        self.returns_deleted = true;
        self
    }

    pub(super) fn orphans_by_default(mut self) -> Self {
        self.orphans_by_default = true;
        self
    }

    pub(super) fn deletion_finalizer(mut self, finalizer: &'static str) -> Self {
        self.deletion_finalizer = Some(finalizer);
        self
    }

    pub(super) fn select(mut self, fields: &'static [SelectableField]) -> Self {
        self.selectable = Cow::Borrowed(fields);
        self
    }

    pub(super) fn columns(mut self, columns: &'static Columns) -> Self {
        self.columns = PrinterColumns::Builtin(columns);
        self
    }

    pub(super) fn strategy(mut self, strategy: impl Strategy + 'static) -> Self {
        self.strategy = Arc::new(strategy);
        self
    }

    pub(super) fn rules<R: Rules>(mut self) -> Self {
        self.strategy = Arc::new(Typed::<R>::new());
        self
    }
}
