//! NodeRestriction admission: what the agent of a node may write, now that the object is known.
//!
//! Upstream's rules with its words; `authorize::node` has already decided that nodes may write objects of these kinds
//! at all. It is stricter where our agent needs less: a node sets no `podCIDR`, does not uncordon itself, changes no
//! finalizers of its Node, no annotations of pods, and nothing of a volume but one finalizer.

mod mirror_pod;
mod own_node;
mod pod_certificate;
mod token;

use std::collections::BTreeSet;

use async_trait::async_trait;
use mainstay_api::{
    descriptor::{Descriptor, Writer},
    exclusive, heal, host_service,
    machine::STATUS_OF_NODE,
    wellknown::namespace::NODE_LEASES,
};
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::{Api, Target},
    auth::User,
    authorize::{self, Relation, RelationKind},
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, metadata},
};

/// On a volume: its directory on the node exists.
const ON_DISK: &str = mainstay_api::wellknown::mainstay::LOCAL_PATH;
/// The label that every namespace gets by itself.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Why a write is forbidden.
type Verdict = Result<(), String>;

pub struct NodeRestriction;

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, _d: &Descriptor) -> bool {
        true
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        create(request, object).await
    }

    fn review_update(&self, request: &Request<'_>, submitted: &Value, old: &Value) -> ApiResult<()> {
        update(request.user, request.target, request.part, submitted, old)
    }

    async fn delete(&self, request: &Request<'_>, old: &Value) -> ApiResult<()> {
        let Some(node) = request.user.node_name() else { return Ok(()) };
        delete(node, request.target, old)
            .map_err(|why| ApiError::forbidden(&request.target.d, &request.target.name, &why))
    }

    async fn create_subresource(&self, request: &Request<'_>, subresource: &str, body: &Value) -> ApiResult<()> {
        create_subresource(request, subresource, body).await
    }
}

/// Judges a node's delete of an object. Who insists on another uid than the stored one was refused before.
fn delete(node: &str, target: &Target, old: &Value) -> Verdict {
    match (&*target.d.group, &*target.d.plural) {
        ("", "pods") if old["spec"]["nodeName"] != node => {
            Err(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
        }
        ("", "nodes") if target.name != node => Err(not_own_node(node, &target.name)),
        ("coordination.k8s.io", "leases") => set_lease(node, target.namespace.as_deref(), &target.name, old).map(drop),
        ("discovery.k8s.io", "endpointslices") => own_slice(node, target, &target.name, old),
        _ => Ok(()),
    }
}

/// A node writes the endpoints of its own machine's services.
fn own_slice(node: &str, target: &Target, name: &str, slice: &Value) -> Verdict {
    match host_service::ownership_violation(node, target.namespace.as_deref(), name, slice) {
        Some(why) => Err(format!("node {node:?} {why}")),
        None => Ok(()),
    }
}

/// The one namespace that a node may make: the one its services are in, as bare as it can be.
fn services_namespace(node: &str, name: &str, namespace: &Value) -> Verdict {
    let meta = &namespace["metadata"];
    let has_own = |field: &str| match &meta[field] {
        Value::Object(entries) => entries.keys().any(|key| key != NAMESPACE_NAME),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    let is_bare = !["labels", "annotations", "finalizers", "ownerReferences"].into_iter().any(has_own);
    if name == host_service::NAMESPACE && is_bare {
        return Ok(());
    }
    let only = host_service::NAMESPACE;
    Err(format!("node {node:?} can only create the namespace {only:?}, without labels and annotations of its own"))
}

/// Judges a node's POST to a subresource.
async fn create_subresource(request: &Request<'_>, subresource: &str, body: &Value) -> ApiResult<()> {
    let Request { api, user, target, .. } = request;
    let Some(node) = user.node_name() else { return Ok(()) };
    match (&*target.d.group, &*target.d.plural, subresource) {
        ("", "pods", "eviction") => {
            let pod = api.core_object("pods", target.namespace.as_deref(), &target.name).await?;
            let pod = pod.ok_or_else(|| ApiError::not_found(&target.d, &target.name))?;
            if pod["spec"]["nodeName"] == node {
                return Ok(());
            }
            let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
            Err(ApiError::forbidden(&target.d, &target.name, &why))
        }
        ("", "serviceaccounts", "token") => token::check_token_request(request, node, body).await,
        _ => Ok(()),
    }
}

fn not_own_node(node: &str, name: &str) -> String {
    format!("node {node:?} is not allowed to modify node {name:?}")
}

/// Judges what a node wants to create.
async fn create(request: &Request<'_>, object: &Value) -> ApiResult<()> {
    let Request { api, user, target, .. } = request;
    let Some(node) = user.node_name() else { return Ok(()) };
    let name = metadata::string_field(object, "name").unwrap_or_default();
    let verdict = match (&*target.d.group, &*target.d.plural) {
        ("", "nodes") => own_node::create(node, name, object),
        ("", "pods") => match api.core_object("nodes", None, node).await? {
            Some(own) => {
                mirror_pod::check_mirror_pod(node, metadata::string_field(&own, "uid").unwrap_or_default(), object)
            }
            None => return Err(ApiError::not_found(nodes(api, &target.d), node)),
        },
        ("resource.k8s.io", "resourceslices") if object["spec"]["nodeName"] != node => {
            Err("can only create ResourceSlice with the same NodeName as the requesting node".to_owned())
        }
        ("certificates.k8s.io", "podcertificaterequests") => pod_certificate::check(request, node, object).await?,
        ("", "namespaces") => services_namespace(node, name, object),
        ("discovery.k8s.io", "endpointslices") => own_slice(node, target, name, object),
        ("coordination.k8s.io", "leases") => new_lease(api, node, target.namespace.as_deref(), name, object).await?,
        _ if target.d.writer == Writer::SameNamedNode && name != node => {
            Err(format!("node {node:?} is not allowed to create the {} of node {name:?}", target.d.singular))
        }
        _ => Ok(()),
    };
    verdict.map_err(|why| ApiError::forbidden(&target.d, name, &why))
}

fn nodes<'a>(api: &'a Api, or: &'a Descriptor) -> &'a Descriptor {
    api.registry.find("", "v1", "nodes").map_or(or, |d| d)
}

/// Judges a node's change of an object.
fn update(user: &User, target: &Target, part: Part, object: &Value, old: &Value) -> ApiResult<()> {
    let Some(node) = user.node_name() else { return Ok(()) };
    let verdict = match (&*target.d.group, &*target.d.plural, part) {
        ("", "nodes", _) if target.name != node => Err(not_own_node(node, &target.name)),
        ("", "nodes", _) => own_node::update(node, part, object, old),
        ("", "persistentvolumes", _) if !only_marks(object, old) => {
            Err(format!("node {node:?} can only change the finalizer {ON_DISK:?} of persistent volumes"))
        }
        ("", "persistentvolumeclaims", _) => claim_status(node, part, object, old),
        ("", "pods", Part::Status) => pod_status(node, object, old),
        ("mainstay.dev", "machinefiles", part) => machine_file_status(node, part, object, old),
        ("discovery.k8s.io", "endpointslices", _) => {
            own_slice(node, target, &target.name, old).and_then(|()| own_slice(node, target, &target.name, object))
        }
        (_, _, part) if target.d.writer == Writer::SameNamedNodeStatus => {
            machine_status(node, target, part, object, old)
        }
        ("coordination.k8s.io", "leases", _) => {
            set_lease(node, target.namespace.as_deref(), &target.name, object).map(drop)
        }
        _ => Ok(()),
    };
    verdict.map_err(|why| ApiError::forbidden(&target.d, &target.name, &why))
}

fn pod_status(node: &str, object: &Value, old: &Value) -> Verdict {
    let differs = |part: &str, field: &str| !equal_or_both_empty(&object[part][field], &old[part][field]);
    if is_another(object, old) {
        Ok(()) // about to be told that the pod it means is gone
    } else if old["spec"]["nodeName"] != node {
        Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"))
    } else if differs("metadata", "labels") {
        Err(format!("node {node:?} cannot update labels through pod status"))
    } else if differs("metadata", "annotations") {
        Err(format!("node {node:?} cannot update annotations through pod status"))
    } else if differs("status", "resourceClaimStatuses") {
        Err(format!("node {node:?} cannot update resource claim statuses"))
    } else if differs("status", "extendedResourceClaimStatus") {
        Err(format!("node {node:?} cannot update extended resource claim status"))
    } else {
        Ok(())
    }
}

/// A node reports that the filesystem of a claim's volume has grown.
fn claim_status(node: &str, part: Part, object: &Value, old: &Value) -> Verdict {
    if is_another(object, old) {
        return Ok(()); // about to be told that the claim it means is gone
    }
    if part != Part::Status {
        return Err(format!("node {node:?} can only update the status of claims"));
    }
    unchanged_metadata(node, "a claim", object, old)?;
    let rest = |claim: &Value| {
        let mut status = claim["status"].clone();
        if let Some(fields) = status.as_object_mut() {
            fields.retain(|field, _| field != "capacity" && field != "conditions");
        }
        status
    };
    if equal_or_both_empty(&rest(object), &rest(old)) {
        return Ok(());
    }
    Err(format!(
        "node {node:?} is not allowed to update fields other than status.capacity and status.conditions of claims"
    ))
}

/// A node reports of its own files.
fn machine_file_status(node: &str, part: Part, object: &Value, old: &Value) -> Verdict {
    if is_another(object, old) {
        return Ok(()); // about to be told that the file it means is gone
    }
    if part != Part::Status || old["spec"]["nodeName"] != node {
        return Err(format!(
            "node {node:?} can only update the status of machine files with spec.nodeName set to itself"
        ));
    }
    unchanged_metadata(node, "a machine file", object, old)
}

/// A status is written without changing what else the object says.
fn unchanged_metadata(node: &str, what: &str, object: &Value, old: &Value) -> Verdict {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        if !equal_or_both_empty(&object["metadata"][field], &old["metadata"][field]) {
            return Err(format!("node {node:?} cannot update {field} through the status of {what}"));
        }
    }
    Ok(())
}

/// A node reports of its own machine what it alone knows, and leaves the rest of the status to the controllers.
fn machine_status(node: &str, target: &Target, part: Part, object: &Value, old: &Value) -> Verdict {
    if part != Part::Status || target.name != node {
        let (what, name) = (&target.d.singular, &target.name);
        return Err(format!("node {node:?} is not allowed to modify {what} {name:?}"));
    }
    unchanged_metadata(node, "a machine", object, old)?;
    let fields = |object: &Value| object["status"].as_object().map(|status| status.keys().cloned().collect());
    let all: BTreeSet<String> =
        [object, old].into_iter().filter_map(fields).flat_map(|keys: Vec<String>| keys).collect();
    let foreign = all.iter().filter(|field| !STATUS_OF_NODE.contains(&field.as_str()));
    let changed = foreign.filter(|field| !equal_or_both_empty(&object["status"][*field], &old["status"][*field]));
    match changed.map(String::as_str).next() {
        Some(field) => Err(format!("node {node:?} cannot update status.{field} of a machine")),
        None => Ok(()),
    }
}

/// Whether two optional values are the same: what is absent, null or empty says nothing.
fn equal_or_both_empty(a: &Value, b: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    };
    a == b || (is_empty(a) && is_empty(b))
}

/// Whether nothing but our finalizer changes.
fn only_marks(object: &Value, old: &Value) -> bool {
    let rest = |value: &Value| {
        let mut value = value.clone();
        if let Some(meta) = value["metadata"].as_object_mut() {
            meta.retain(|field, _| !["managedFields", "resourceVersion", "generation"].contains(&field.as_str()));
            let finalizers = meta.remove("finalizers").unwrap_or_default();
            let others = finalizers.as_array().into_iter().flatten().filter(|own| **own != ON_DISK).cloned();
            meta.insert("finalizers".to_owned(), others.collect());
        }
        value
    };
    rest(object) == rest(old)
}

/// Whether a change names another uid than the stored object has; such a change is a conflict.
fn is_another(object: &Value, old: &Value) -> bool {
    let uid = |object| metadata::string_field(object, "uid").unwrap_or_default();
    !uid(object).is_empty() && uid(object) != uid(old)
}

async fn new_lease(api: &Api, node: &str, namespace: Option<&str>, name: &str, lease: &Value) -> ApiResult<Verdict> {
    let set = match set_lease(node, namespace, name, lease) {
        Ok(Some(set)) => set,
        Ok(None) => return Ok(Ok(())),
        Err(why) => return Ok(Err(why)),
    };
    let of_set = Relation {
        node: node.to_owned(),
        kind: RelationKind::Controller,
        namespace: namespace.unwrap_or_default().to_owned(),
        name: set.to_owned(),
    };
    let related = authorize::is_related(api, &of_set).await?;
    Ok(if related { Ok(()) } else { Err(format!("node {node:?} has no pod of the set {set:?} in this namespace")) })
}

/// A node writes its own node lease, and places in the restart budgets and turns to stop of sets that carry its name. Answers the set.
fn set_lease<'n>(node: &str, namespace: Option<&str>, name: &'n str, lease: &Value) -> Result<Option<&'n str>, String> {
    if namespace == Some(NODE_LEASES) {
        return if name == node {
            Ok(None)
        } else {
            Err("can only access node lease with the same name as the requesting node".to_owned())
        };
    }
    let of_budget = heal::lease_set(name).map(|set| (set, heal::NODE_ANNOTATION));
    let of_turn = || exclusive::lease_set(name).map(|set| (set, exclusive::NODE_ANNOTATION));
    let Some((set, annotation)) = of_budget.or_else(of_turn) else {
        return Err(format!("can only access leases in the {NODE_LEASES:?} system namespace"));
    };
    if lease["metadata"]["annotations"][annotation] != node {
        return Err(format!("node {node:?} can only access leases whose annotation {annotation:?} names itself"));
    }
    Ok(Some(set))
}

#[cfg(test)]
mod tests;
