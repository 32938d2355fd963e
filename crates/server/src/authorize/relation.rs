//! Relations of the Node authorizer: whether a pod that is bound to a node refers to an object.
//!
//! Upstream's node authorizer graph, looked up when asked from the pods and volumes themselves, so that there is no
//! second account of them to keep true. What counts as a reference is [`references`]' to say. Mirror pods relate to
//! nothing: the node wrote them itself.
//!
//! A pod may read copies of ConfigMaps and Secrets in their place ([`config_versions`]). A node relates to a copy if a pod refers to the original, its
//! annotation names the copy for it, and the copy is labelled as one of that original. It also relates to copies of what a ConfigTemplate rendered, if a
//! MachineFile gives it that version as a file and the copy is labelled as one of that template.

use std::collections::BTreeSet;

use mainstay_api::{
    config_template::{TEMPLATE_LABEL, template_label},
    config_versions::{self, ConfigKind},
    references::{self, Referent},
    wellknown::kubernetes::MIRROR_POD,
};
use mainstay_store::List;
use serde_json::Value;

use crate::{
    api::Api,
    http::status::ApiResult,
    objects::{keys, object},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    pub node: String,
    pub kind: RelationKind,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelationKind {
    /// The pod itself is bound to the node.
    Pod,
    Secret,
    ConfigMap,
    Claim,
    ResourceClaim,
    Volume,
    ServiceAccount,
    /// A workload of this kind controls a pod, or controls what controls a pod.
    Workload(&'static str),
    /// The object with this uid, for which the name stands, controls a pod.
    Controller,
    /// Any pod at all is in the namespace.
    Namespace,
    /// The devices are those of the node.
    ResourceSlice,
    /// The certificate is for a pod of the node.
    PodCertificateRequest,
    /// The file is to be on the node.
    MachineFile,
    /// The volume is attached to the node, or is to be.
    VolumeAttachment,
}

/// Kinds whose objects are controlled by objects of another kind: parent, then group, version, plural and kind.
const CONTROLLED: [(&str, &str, &str, &str, &str); 2] =
    [("Deployment", "apps", "v1", "replicasets", "ReplicaSet"), ("CronJob", "batch", "v1", "jobs", "Job")];

pub async fn holds(api: &Api, relation: &Relation) -> ApiResult<bool> {
    let Relation { node, kind, namespace, name } = relation;
    let referring = async |to: Referent| any_pod(api, node, namespace, |pod| refers(pod, to, name)).await;
    match kind {
        RelationKind::Pod => any_pod(api, node, namespace, |pod| pod["metadata"]["name"] == **name).await,
        RelationKind::Namespace => any_pod(api, node, namespace, |pod| !is_mirror(pod)).await,
        RelationKind::Controller => {
            any_pod(api, node, namespace, |pod| controller(pod).is_some_and(|owner| owner["uid"] == **name)).await
        }
        RelationKind::ResourceSlice => names_node(api, node, "resource.k8s.io", "resourceslices", None, name).await,
        RelationKind::PodCertificateRequest => {
            names_node(api, node, "certificates.k8s.io", "podcertificaterequests", Some(namespace), name).await
        }
        RelationKind::MachineFile => names_node(api, node, "mainstay.dev", "machinefiles", Some(namespace), name).await,
        RelationKind::VolumeAttachment => {
            names_node(api, node, "storage.k8s.io", "volumeattachments", None, name).await
        }
        RelationKind::Workload(kind) => controls(api, relation, kind).await,
        RelationKind::ConfigMap => Ok(referring(Referent::ConfigMap).await?
            || by_copy(api, relation, ConfigKind::ConfigMap).await?
            || by_machine_file(api, relation, ConfigKind::ConfigMap).await?),
        RelationKind::Claim => referring(Referent::PersistentVolumeClaim).await,
        RelationKind::ResourceClaim => referring(Referent::ResourceClaim).await,
        RelationKind::ServiceAccount => referring(Referent::ServiceAccount).await,
        RelationKind::Secret => Ok(referring(Referent::Secret).await?
            || by_copy(api, relation, ConfigKind::Secret).await?
            || by_machine_file(api, relation, ConfigKind::Secret).await?
            || by_volume(api, node, namespace, name).await?),
        RelationKind::Volume => match api.core_object("persistentvolumes", None, name).await? {
            // A volume belongs to whoever its claim belongs to, and to the one node that has it.
            Some(volume) => Ok(is_only_on(&volume, node) || is_claimed(api, node, &volume).await?),
            None => Ok(false),
        },
    }
}

/// Whether `spec.nodeName` of an object is the node.
async fn names_node(
    api: &Api,
    node: &str,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    name: &str,
) -> ApiResult<bool> {
    let is_valid = keys::is_segment(name) && namespace.is_none_or(keys::is_segment);
    let Some(d) = api.registry.find(group, "v1", plural).filter(|_| is_valid) else { return Ok(false) };
    let (entry, _) = api.store.get(&keys::key(d, namespace, name)).await?;
    let object = entry.map(|entry| object::parse(d, &entry)).transpose()?.unwrap_or_default();
    Ok(object["spec"]["nodeName"] == node)
}

fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR_POD).is_some()
}

fn refers(pod: &Value, to: Referent, name: &str) -> bool {
    !is_mirror(pod) && references::pod_refers_to(pod, to, name)
}

/// The controller of an object: the owner that made it.
fn controller(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().find(|owner| owner["controller"] == true && owner["kind"] != "Node")
}

/// Whether a pod reads the object as the version of an original to which it refers.
async fn by_copy(api: &Api, relation: &Relation, kind: ConfigKind) -> ApiResult<bool> {
    let Relation { node, namespace, name, .. } = relation;
    let mut originals = BTreeSet::new();
    for pod in pods_of(api, node, namespace).await?.iter().filter(|pod| !is_mirror(pod)) {
        originals.extend(references::pod_copies(pod, kind, name));
    }
    if originals.is_empty() {
        return Ok(false);
    }
    let plural = match kind {
        ConfigKind::ConfigMap => "configmaps",
        ConfigKind::Secret => "secrets",
    };
    let Some(copy) = api.core_object(plural, Some(namespace), name).await? else { return Ok(false) };
    let labels = &copy["metadata"]["labels"];
    Ok(originals.iter().any(|original| config_versions::is_labelled_copy(labels, original)))
}

/// Whether a MachineFile of the node names the object, and it is a copy of what that file's template rendered.
async fn by_machine_file(api: &Api, relation: &Relation, kind: ConfigKind) -> ApiResult<bool> {
    let Relation { node, namespace, name, .. } = relation;
    let is_valid = keys::is_segment(namespace) && keys::is_segment(name);
    let Some(files) = api.registry.find("mainstay.dev", "v1", "machinefiles").filter(|_| is_valid) else {
        return Ok(false);
    };
    let (field, plural) = match kind {
        ConfigKind::ConfigMap => ("configMap", "configmaps"),
        ConfigKind::Secret => ("secret", "secrets"),
    };
    let listing = api.store.list(List { prefix: &keys::prefix(files, Some(namespace)), ..List::default() }).await?;
    let mut templates = BTreeSet::new();
    for entry in &listing.entries {
        let Ok(file) = object::parse(files, entry) else { continue }; // logged; what it names stays forbidden
        let spec = &file["spec"];
        if spec["nodeName"] == **node && spec["content"][field]["name"] == **name {
            templates.extend(spec["template"].as_str().map(template_label));
        }
    }
    if templates.is_empty() {
        return Ok(false);
    }
    let Some(copy) = api.core_object(plural, Some(namespace), name).await? else { return Ok(false) };
    Ok(copy["metadata"]["labels"][TEMPLATE_LABEL].as_str().is_some_and(|label| templates.contains(label)))
}

/// Whether a persistent volume that a pod's claim is bound to needs the Secret to be mounted.
async fn by_volume(api: &Api, node: &str, namespace: &str, name: &str) -> ApiResult<bool> {
    let Some(volumes) = api.registry.find("", "v1", "persistentvolumes") else { return Ok(false) };
    let all = api.store.list(List { prefix: &keys::prefix(volumes, None), ..List::default() }).await?;
    for entry in &all.entries {
        let Ok(volume) = object::parse(volumes, entry) else { continue }; // logged; what it needs stays forbidden
        let claimed_in = volume["spec"]["claimRef"]["namespace"].as_str();
        let needed = references::volume_secrets(&volume).iter().any(|secret| {
            secret.name == name && secret.namespace.or(claimed_in).is_some_and(|needed| needed == namespace)
        });
        if needed && is_claimed(api, node, &volume).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a pod refers to the claim that a persistent volume is bound to.
async fn is_claimed(api: &Api, node: &str, volume: &Value) -> ApiResult<bool> {
    let claim = &volume["spec"]["claimRef"];
    let (Some(namespace), Some(name)) = (claim["namespace"].as_str(), claim["name"].as_str()) else { return Ok(false) };
    any_pod(api, node, namespace, |pod| refers(pod, Referent::PersistentVolumeClaim, name)).await
}

/// Whether a volume names this node as the only one it can be reached from.
fn is_only_on(volume: &Value, node: &str) -> bool {
    let terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array();
    let named = |requirement: &Value| {
        requirement["key"] == "metadata.name"
            && requirement["operator"] == "In"
            && requirement["values"].as_array().is_some_and(|names| names.len() == 1 && names[0] == node)
    };
    terms.is_some_and(|terms| {
        !terms.is_empty()
            && terms.iter().all(|term| term["matchFields"].as_array().is_some_and(|fields| fields.iter().any(named)))
    })
}

/// Whether a workload controls a pod here, or controls what controls it.
async fn controls(api: &Api, relation: &Relation, kind: &str) -> ApiResult<bool> {
    let Relation { node, namespace, name, .. } = relation;
    let pods = pods_of(api, node, namespace).await?;
    let owners: Vec<&Value> = pods.iter().filter_map(controller).collect();
    let is = |owner: &Value, kind: &str, name: &str| owner["kind"] == kind && owner["name"] == name;
    if owners.iter().any(|owner| is(owner, kind, name)) {
        return Ok(true);
    }
    let Some((_, group, version, plural, child)) = CONTROLLED.iter().find(|(parent, ..)| *parent == kind) else {
        return Ok(false);
    };
    let Some(d) = api.registry.find(group, version, plural) else { return Ok(false) };
    for owner in owners.into_iter().filter(|owner| owner["kind"] == **child) {
        let Some(between) = owner["name"].as_str().filter(|name| keys::is_segment(name)) else { continue };
        let (entry, _) = api.store.get(&keys::key(d, Some(namespace), between)).await?;
        let object = entry.map(|entry| object::parse(d, &entry)).transpose()?.unwrap_or_default();
        if controller(&object).is_some_and(|owner| is(owner, kind, name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn any_pod(api: &Api, node: &str, namespace: &str, wanted: impl Fn(&Value) -> bool) -> ApiResult<bool> {
    Ok(pods_of(api, node, namespace).await?.iter().any(wanted))
}

/// The pods of a namespace that are bound to the node.
async fn pods_of(api: &Api, node: &str, namespace: &str) -> ApiResult<Vec<Value>> {
    let Some(pods) = api.registry.find("", "v1", "pods").filter(|_| keys::is_segment(namespace)) else {
        return Ok(Vec::new());
    };
    let node_field = pods.selectable.iter().position(|field| field.label == "spec.nodeName");
    let prefix = keys::prefix(pods, Some(namespace));
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let here = listing.entries.iter().filter(|entry| {
        let is_here = object::with_selector_fields(pods, entry, |fields| {
            node_field.and_then(|at| fields.fields.get(at)).is_some_and(|bound_to| &**bound_to == node)
        });
        is_here.unwrap_or(false) // logged; what such a pod needs stays forbidden
    });
    here.map(|entry| object::parse(pods, entry)).collect()
}

#[cfg(test)]
mod tests;
