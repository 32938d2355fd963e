//! What the agent of a node may ask for: what it needs to run the pods bound there, and no more.
//!
//! Upstream's Node authorizer (with `AuthorizeNodeWithSelectors`), with its words. It is narrower where our agent needs
//! less: no CSINodes, of which it uses none. Beyond upstream, an agent may
//!
//! * list and watch the VolumeAttachments that name it;
//! * see all nodes and all EndpointSlices: it routes to the pods of other nodes and balances Services;
//! * get the workload that controls one of its pods, and the workload behind that (a ReplicaSet's Deployment, a Job's
//!   CronJob): their annotation says how pods are healed, their size how many may restart at once;
//! * get the ConfigMap with the settings that all nodes share, to compare its own;
//! * list and watch the MachineFiles that name it, write their status, and get the copies of ConfigMaps and Secrets that they name;
//! * get, list and watch the Machine of its own name, and write the status of it;
//! * create, update and delete the EndpointSlices of services of its own machine, all in one namespace, and create that namespace;
//! * list the PodDisruptionBudgets of namespaces in which it has a pod;
//! * list, create, update and delete the `heal-<uid>-<n>` Leases of sets of which it has a pod: the places of the set's
//!   restart budget, which all nodes share. What remains is that such a node can use up the budget of these sets;
//! * get, create, update and delete the `drain-<uid>` Lease of such a set, whose holder is the one pod that is being stopped.
//!   What remains is that such a node can delay the stops of these sets.
//!
//! What it may write is narrowed further where the object is known: see `node_restriction`.

use mainstay_api::{
    descriptor::Writer,
    exclusive, heal, host_service,
    registry::Registry,
    wellknown::{cluster_config, namespace::NODE_LEASES},
};

use super::{Decision, Relation, RelationKind, ResourceAttributes};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch"];
const ASK: &[&str] = &["create"];
const ASK_AND_READ: &[&str] = &["create", "get", "list", "watch"];

/// Group, resource and verbs that every node may use alike.
const COMMON: &[(&str, &str, &[&str])] = &[
    ("", "services", READ),
    ("", "events", WRITE),
    ("events.k8s.io", "events", WRITE),
    ("node.k8s.io", "runtimeclasses", READ),
    ("storage.k8s.io", "csidrivers", READ),
    ("certificates.k8s.io", "certificatesigningrequests", ASK_AND_READ),
    ("certificates.k8s.io", "clustertrustbundles", READ),
    ("authentication.k8s.io", "tokenreviews", ASK),
    ("authorization.k8s.io", "subjectaccessreviews", ASK),
    ("authorization.k8s.io", "localsubjectaccessreviews", ASK),
];

/// Group, resource and kind of workloads that control pods.
const WORKLOADS: &[(&str, &str, &str)] = &[
    ("apps", "replicasets", "ReplicaSet"),
    ("apps", "deployments", "Deployment"),
    ("apps", "statefulsets", "StatefulSet"),
    ("apps", "daemonsets", "DaemonSet"),
    ("batch", "jobs", "Job"),
    ("batch", "cronjobs", "CronJob"),
    ("", "replicationcontrollers", "ReplicationController"),
];

pub fn authorize(registry: &Registry, node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    let subresource = asked.subresource.as_deref();
    match (&*asked.group, &*asked.resource) {
        ("", "secrets") => read_related(node, verb, RelationKind::Secret, asked),
        ("", "configmaps") if verb == "get" && subresource.is_none() && is_cluster_config(asked) => Decision::Allow,
        ("", "configmaps") => read_related(node, verb, RelationKind::ConfigMap, asked),
        // It says when the filesystem of a volume has grown.
        ("", "persistentvolumeclaims") if subresource == Some("status") && verb == "patch" => {
            related(node, RelationKind::Claim, asked)
        }
        ("", "persistentvolumeclaims") => read_related(node, verb, RelationKind::Claim, asked),
        ("", "persistentvolumes") if subresource.is_some() => Decision::no("cannot get subresource"),
        ("", "persistentvolumes") => match verb {
            // It says of volumes that are directories of its own whether those are there.
            "get" | "list" | "watch" | "patch" => related(node, RelationKind::Volume, asked),
            _ => Decision::no("can only get individual resources of this type"),
        },
        ("", "serviceaccounts") => service_account(node, verb, asked),
        ("coordination.k8s.io", "leases") => lease(node, verb, asked),
        ("", "nodes") => match (subresource, verb) {
            (None, "create" | "update" | "patch" | "get" | "list" | "watch") => Decision::Allow,
            (Some("status"), "update" | "patch") => Decision::Allow,
            _ => Decision::NO,
        },
        ("", "pods") => pod(node, verb, asked),
        ("", "namespaces") => match (subresource, verb) {
            (None, "create") => Decision::Allow, // which one: see `node_restriction`
            _ => Decision::NO,
        },
        ("discovery.k8s.io", "endpointslices") => endpoint_slice(verb, asked),
        ("resource.k8s.io", "resourceclaims") => match (subresource, verb) {
            (None, "get") => related(node, RelationKind::ResourceClaim, asked),
            (Some(_), _) => Decision::no("cannot get subresource"),
            (None, _) => Decision::no("can only get individual resources of this type"),
        },
        ("resource.k8s.io", "resourceslices") => resource_slice(node, verb, asked),
        ("certificates.k8s.io", "podcertificaterequests") => pod_certificate_request(node, verb, asked),
        ("mainstay.dev", "machinefiles") => machine_file(node, verb, asked),
        ("storage.k8s.io", "volumeattachments") => volume_attachment(node, verb, asked),
        ("policy", "poddisruptionbudgets") => match (subresource, verb) {
            (None, "list") if !asked.namespace().is_empty() => relation(node, RelationKind::Namespace, asked, ""),
            _ => Decision::no("can only list the budgets of namespaces in which it has a pod"),
        },
        (group, resource) => {
            let d = registry.iter().find(|d| d.group == group && d.plural == resource);
            match d.map(|d| (d.writer, &d.singular)) {
                Some((Writer::SameNamedNode, what)) => return same_named(node, verb, asked, what),
                Some((Writer::SameNamedNodeStatus, what)) => return same_named_status(node, verb, asked, what),
                Some((Writer::Authorized, _)) | None => {}
            }
            if let Some((_, _, kind)) = WORKLOADS.iter().find(|(g, r, _)| (*g, *r) == (group, resource)) {
                return match (subresource, verb) {
                    (None, "get") => related(node, RelationKind::Workload(kind), asked),
                    _ => Decision::no("can only get individual resources of this type"),
                };
            }
            let listed = COMMON.iter().any(|(g, r, verbs)| (*g, *r) == (group, resource) && verbs.contains(&verb));
            Decision::allow_if(subresource.is_none() && listed)
        }
    }
}

fn is_cluster_config(asked: &ResourceAttributes<'_>) -> bool {
    (asked.namespace(), asked.name()) == (cluster_config::NAMESPACE, cluster_config::NAME)
}

fn related(node: &str, kind: RelationKind, asked: &ResourceAttributes<'_>) -> Decision {
    if asked.name().is_empty() {
        return Decision::no("No Object name found");
    }
    relation(node, kind, asked, asked.name())
}

fn relation(node: &str, kind: RelationKind, asked: &ResourceAttributes<'_>, name: &str) -> Decision {
    Decision::IfRelated(Relation {
        node: node.to_owned(),
        kind,
        namespace: asked.namespace().to_owned(),
        name: name.to_owned(),
    })
}

fn read_related(node: &str, verb: &str, kind: RelationKind, asked: &ResourceAttributes<'_>) -> Decision {
    if !READ.contains(&verb) {
        Decision::no("can only read resources of this type")
    } else if asked.subresource.is_some() {
        Decision::no("cannot read subresource")
    } else if asked.namespace().is_empty() {
        Decision::no("can only read namespaced object of this type")
    } else {
        related(node, kind, asked)
    }
}

fn service_account(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    match (asked.subresource.as_deref(), verb) {
        (None, "get") | (Some("token"), "create") => {
            if asked.name().is_empty() {
                Decision::no("can only create tokens for individual service accounts")
            } else {
                related(node, RelationKind::ServiceAccount, asked)
            }
        }
        (_, "create") => Decision::no("can only create token subresource of serviceaccount"),
        _ => Decision::no("can only create tokens for individual service accounts"),
    }
}

fn lease(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    if asked.subresource.is_some() {
        return Decision::NO;
    }
    if asked.namespace() == NODE_LEASES {
        return match verb {
            "create" => Decision::Allow, // the name is in the object: see `node_restriction`
            "get" | "update" | "patch" | "delete" if asked.name() == node => Decision::Allow,
            "get" | "update" | "patch" | "delete" => {
                Decision::no("can only access node lease with the same name as the requesting node")
            }
            _ => Decision::no("can only get, create, update, patch, or delete a node lease"),
        };
    }
    let elsewhere = || Decision::no(format!("can only access leases in the {NODE_LEASES:?} system namespace"));
    if asked.namespace().is_empty() {
        return elsewhere();
    }
    let of_set = |set: Option<&str>| match set {
        Some(set) => relation(node, RelationKind::Controller, asked, set),
        None => elsewhere(),
    };
    match verb {
        "create" => Decision::Allow, // as above
        "list" => of_set(asked.selected_label(heal::SET_LABEL)),
        "get" => of_set(exclusive::lease_set(asked.name())),
        "update" => of_set(set_of_lease(asked.name())),
        // Also when the last pod of the set has gone from here; `node_restriction` looks whose it is.
        "delete" if set_of_lease(asked.name()).is_some() => Decision::Allow,
        _ => elsewhere(),
    }
}

/// The set whose restart budget or turn to stop a Lease of this name is about.
fn set_of_lease(name: &str) -> Option<&str> {
    heal::lease_set(name).or_else(|| exclusive::lease_set(name))
}

/// All may be read. Whose a slice is, that is written, is in the object: see `node_restriction`.
fn endpoint_slice(verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    match verb {
        _ if asked.subresource.is_some() => Decision::NO,
        "get" | "list" | "watch" => Decision::Allow,
        "create" | "update" | "delete" if asked.namespace() == host_service::NAMESPACE => Decision::Allow,
        _ => Decision::no(format!(
            "can only get, list and watch endpointslices, and create, update and delete its own in the namespace {:?}",
            host_service::NAMESPACE
        )),
    }
}

/// Devices of its own, and no others.
fn resource_slice(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    if asked.subresource.is_some() {
        return Decision::no("cannot authorize ResourceSlice subresources");
    }
    match verb {
        "create" => Decision::Allow, // the node is in the object: see `node_restriction`
        "get" | "update" | "patch" | "delete" => related(node, RelationKind::ResourceSlice, asked),
        "list" | "watch" | "deletecollection" if asked.selects("spec.nodeName", node) => Decision::Allow,
        "list" | "watch" | "deletecollection" => {
            Decision::no("can only list/watch/deletecollection resourceslices with nodeName field selector")
        }
        _ => Decision::no(
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
             delete, deletecollection",
        ),
    }
}

/// Requests for certificates of its own pods.
fn pod_certificate_request(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    if asked.subresource.is_some() {
        return Decision::no("cannot authorize PodCertificateRequest subresources");
    }
    match verb {
        "create" => Decision::Allow, // whose it is, is in the object: see `node_restriction`
        "list" | "watch" if asked.selects("spec.nodeName", node) => Decision::Allow,
        "get" | "list" | "watch" if !asked.name().is_empty() => {
            related(node, RelationKind::PodCertificateRequest, asked)
        }
        "get" | "list" | "watch" => {
            Decision::no("can only list/watch podcertificaterequests with spec.nodeName field selector")
        }
        _ => Decision::no("can only create, get, list and watch podcertificaterequests"),
    }
}

/// Files that it is to have: `node_restriction` looks whose a status is.
fn machine_file(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    match (asked.subresource.as_deref(), verb) {
        (None, "list" | "watch") if asked.selects("spec.nodeName", node) => Decision::Allow,
        (None, "get") | (Some("status"), "update" | "patch") => related(node, RelationKind::MachineFile, asked),
        _ => Decision::no(
            "can only list/watch machinefiles with spec.nodeName field selector, and get, update or patch the status of \
             those that name the node",
        ),
    }
}

/// Volumes that are attached to its machine, or are to be.
fn volume_attachment(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    match (asked.subresource.as_deref(), verb) {
        (None, "list" | "watch") if asked.selects("spec.nodeName", node) => Decision::Allow,
        (None, "get") => related(node, RelationKind::VolumeAttachment, asked),
        _ => Decision::no(
            "can only list/watch volumeattachments with spec.nodeName field selector, and get those that name the node",
        ),
    }
}

/// Objects that a node writes of itself, under its own name.
fn same_named(node: &str, verb: &str, asked: &ResourceAttributes<'_>, what: &str) -> Decision {
    match verb {
        "create" => Decision::allow_if(asked.subresource.is_none()), // the name is in the object: see `node_restriction`
        "get" | "update" | "patch" | "delete" if asked.name() == node => {
            Decision::allow_if(asked.subresource.is_none())
        }
        _ => Decision::no(format!(
            "can only get, create, update, patch, or delete the {what} with the same name as the node"
        )),
    }
}

/// Objects that others write and a node reports in, under its own name: `node_restriction` knows which fields of the status.
fn same_named_status(node: &str, verb: &str, asked: &ResourceAttributes<'_>, what: &str) -> Decision {
    let is_own = asked.name() == node;
    match (asked.subresource.as_deref(), verb) {
        (None, "get") if is_own => Decision::Allow,
        (None, "list" | "watch") if is_own || asked.selects("metadata.name", node) => Decision::Allow,
        (Some("status"), "update" | "patch") if is_own => Decision::Allow,
        _ => Decision::no(format!(
            "can only get, list and watch the {what} with the same name as the node, and update or patch its status"
        )),
    }
}

fn pod(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    match (asked.subresource.as_deref(), verb) {
        (None, "list" | "watch") if asked.selects("spec.nodeName", node) => Decision::Allow,
        (None, "get") => related(node, RelationKind::Pod, asked),
        (None, "list" | "watch") if !asked.name().is_empty() => related(node, RelationKind::Pod, asked),
        (None, "list" | "watch") => Decision::no("can only list/watch pods with spec.nodeName field selector"),
        (None, "create" | "delete") => Decision::Allow,
        (Some("status"), "update" | "patch") | (Some("eviction" | "refusal"), "create") => Decision::Allow,
        _ => Decision::NO,
    }
}
