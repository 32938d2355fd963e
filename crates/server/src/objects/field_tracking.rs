//! Managed fields of what is written: who writes, through which subresource, and which fields that way cannot set.
//!
//! Every write is tracked but these: objects that live in memory alone (heartbeats, offers), which are written every few seconds
//! and never applied, and writes in which upstream does not track either (binding, eviction, deletion).

use std::borrow::Cow;

use http::{HeaderMap, header};
use mainstay_api::{
    apply::{FieldManager, ManagedFields, path::PathElement, set::FieldSet},
    descriptor::{Descriptor, StatusRule, Volatile},
    strategy::SpecPart,
};
use serde_json::Value;

use super::{guaranteed_update::Part, kind_types::KindVersions};
use crate::{
    api::{self, Api, Target},
    auth::User,
    authorize::rbac::controller_policy,
    http::query::Query,
};

/// Longest name of a manager, in bytes.
pub const MAX_NAME: usize = 128;

/// Whoever sets fields, and through what.
#[derive(Clone, Debug)]
pub struct FieldWriter {
    name: String,
    subresource: &'static str,
    part: Part,
}

impl FieldWriter {
    /// The manager that the request names, or else the program that sent it.
    pub fn from_request(query: &Query, headers: &HeaderMap, user: &User, part: Part) -> Self {
        let name = if query.field_manager.is_empty() { program(headers, user) } else { query.field_manager.clone() };
        Self { name, subresource: subresource(part), part }
    }
}

/// The program's name in `User-Agent`, up to the first slash. Parts of this process are named by their user, all controllers
/// alike: an object need not tell them apart.
fn program(headers: &HeaderMap, user: &User) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = agent.split('/').next().unwrap_or_default();
    if name.is_empty() {
        return match user.name.strip_prefix("system:mainstay:") {
            Some(part) => format!("mainstay-{part}"),
            None if controller_policy::is_own_part(user) => "mainstay-controllers".to_owned(),
            None => user.node_name().map(|_| "kubelet".to_owned()).unwrap_or_default(),
        };
    }
    let mut taken = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if taken.len() + c.len_utf8() > MAX_NAME {
            break;
        }
        taken.push(c);
    }
    taken
}

fn subresource(part: Part) -> &'static str {
    match part {
        Part::Main | Part::Placement => "",
        Part::Status => "status",
        Part::Scale => "scale",
        Part::Approval => "approval",
        Part::Finalize => "finalize",
        Part::Spec(SpecPart::EphemeralContainers) => "ephemeralcontainers",
        Part::Spec(SpecPart::Resources) => "resize",
    }
}

/// Whether fields of the object are tracked at all.
pub fn is_tracked(target: &Target) -> bool {
    match target.d.volatile {
        Volatile::None => true,
        Volatile::All => false,
        Volatile::InNamespace(namespace) => target.namespace.as_deref() != Some(namespace),
    }
}

/// Writes managed fields into a new object that is otherwise complete. `server_set` was set by the server, not by the writer.
pub fn track_create(
    api: &Api,
    target: &Target,
    writer: &FieldWriter,
    object: &mut Value,
    server_set: &FieldSet<'static>,
) {
    let ignored = ignored_fields(api, &target.d, writer.part).union(server_set.clone());
    let managed = with_manager(api, target, writer, &ignored, |manager| manager.created(object));
    set_managed_fields(object, managed);
}

/// Writes managed fields into an object that replaces `old`.
pub fn track_update(api: &Api, target: &Target, writer: &FieldWriter, object: &mut Value, old: &Value) {
    let ignored = ignored_fields(api, &target.d, writer.part);
    match with_manager(api, target, writer, &ignored, |manager| manager.updated(old, object)) {
        ManagedFields::Unchanged => keep_managed_fields(object, old),
        ManagedFields::Changed(managed) => set_managed_fields(object, managed),
    }
}

/// The object keeps the managed fields it had.
pub fn keep_managed_fields(object: &mut Value, old: &Value) {
    set_managed_fields(object, old["metadata"].get("managedFields").cloned());
}

pub fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

pub fn set_managed_fields(object: &mut Value, managed: Option<Value>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match managed {
        Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
        None => drop(metadata.remove("managedFields")),
    }
}

/// Calls the engine on behalf of a writer.
pub fn with_manager<R>(
    api: &Api,
    target: &Target,
    writer: &FieldWriter,
    ignored: &FieldSet<'static>,
    work: impl FnOnce(FieldManager<'_, KindVersions<'_>>) -> R,
) -> R {
    let registry = api.served.current();
    let versions = KindVersions { registry: &registry, schema: api.schema, d: &target.d };
    let (api_version, now) = (target.d.api_version(), api::now().to_string());
    let FieldWriter { name, subresource, .. } = writer;
    work(FieldManager { versions: &versions, api_version: &api_version, subresource, name, ignored, now: &now })
}

/// Fields that a write of this part leaves as they are, so that nobody comes to own them by it.
pub fn ignored_fields(api: &Api, d: &Descriptor, part: Part) -> FieldSet<'static> {
    let field = |name: &'static str| vec![PathElement::Field(Cow::Borrowed(name))];
    match part {
        Part::Main | Part::Scale | Part::Spec(_) | Part::Finalize | Part::Placement
            if d.status == StatusRule::Absent =>
        {
            FieldSet::default()
        }
        Part::Main | Part::Scale | Part::Spec(_) | Part::Finalize | Part::Placement => {
            [field("status")].into_iter().collect()
        }
        Part::Status | Part::Approval => {
            let definition = api.schema.definition(&d.schema);
            let names = definition.into_iter().flat_map(|definition| definition.fields.iter().map(|own| own.name));
            let others = names.filter(|name| !["apiVersion", "kind", "metadata", "status"].contains(name));
            let metadata = ["labels", "ownerReferences", "finalizers"].map(|name| {
                let mut path = field("metadata");
                path.extend(field(name));
                path
            });
            let custom = d.custom.iter().flat_map(|custom| custom.schema.properties.iter().map(|(name, _)| name));
            let custom = custom.filter(|name| !["apiVersion", "kind", "metadata", "status"].contains(&&***name));
            let custom = custom.map(|name| vec![PathElement::Field(Cow::Owned(name.to_string()))]);
            others.map(field).chain(custom).chain(metadata).collect()
        }
    }
}

/// Fields of new objects that the server sets where the author left them out, besides defaults: as upstream has it, nobody owns
/// them.
const SERVER_SET: [(&str, &str, &[&[&str]]); 7] = [
    ("", "Namespace", &[&["spec", "finalizers"]]),
    ("", "Pod", &[&["spec", "tolerations"], &["spec", "priority"]]),
    (
        "",
        "Service",
        &[
            &["spec", "clusterIP"],
            &["spec", "clusterIPs"],
            &["spec", "ipFamilies"],
            &["spec", "ipFamilyPolicy"],
            &["spec", "healthCheckNodePort"],
        ],
    ),
    ("", "PersistentVolumeClaim", &[&["spec", "dataSource"], &["spec", "dataSourceRef"]]),
    ("apps", "DaemonSet", &[&["metadata", "annotations", "deprecated.daemonset.template.generation"]]),
    (
        "batch",
        "Job",
        &[
            &["spec", "selector"],
            &["spec", "template", "metadata", "labels", "controller-uid"],
            &["spec", "template", "metadata", "labels", "job-name"],
            &["spec", "template", "metadata", "labels", "batch.kubernetes.io/controller-uid"],
            &["spec", "template", "metadata", "labels", "batch.kubernetes.io/job-name"],
        ],
    ),
    (
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &[&["spec", "username"], &["spec", "groups"], &["spec", "uid"], &["spec", "extra"]],
    ),
];

/// Which fields of a new object the server is going to set, as its author has not.
pub fn server_set_fields(d: &Descriptor, given: &Value) -> FieldSet<'static> {
    let kind = SERVER_SET.iter().find(|(group, kind, _)| *group == d.group && *kind == d.kind);
    let paths = kind.into_iter().flat_map(|(_, _, paths)| paths.iter());
    let unset = paths.filter(|path| path.iter().try_fold(given, |at, step| at.get(step)).is_none_or(Value::is_null));
    unset.map(|path| path.iter().map(|step| PathElement::Field(Cow::Borrowed(*step))).collect()).collect()
}
