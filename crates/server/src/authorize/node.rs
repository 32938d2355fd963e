//! What the agent of a machine may ask for: what it needs to run the pods placed there, and no more.
//!
//! Upstream's Node authorizer, with its words. Beyond it, an agent may see all nodes (it routes between
//! machines), the endpoints of Services (it proxies to them), the pods of a namespace, their owners and
//! disruption budgets (healing is bounded over a set), and other machines' heartbeats. What it may write is
//! narrowed further where the object is known: see `node_restriction`.

use super::{Decision, Relation, RelationKind, ResourceAttributes};

const READ: &[&str] = &["get", "list", "watch"];
const LOOK: &[&str] = &["get", "list"];
const WRITE: &[&str] = &["create", "update", "patch"];
const ASK: &[&str] = &["create"];
const ASK_AND_READ: &[&str] = &["create", "get", "list", "watch"];
pub(crate) const LEASES: &str = "kube-node-lease";
/// Leases by which machines share a set's restart budget begin like this, in the set's own namespace.
pub(crate) const HEALING: &str = "heal-";

/// Group, resource and verbs that every machine may use alike.
const COMMON: &[(&str, &str, &[&str])] = &[
    ("", "services", READ),
    ("", "endpoints", READ),
    ("discovery.k8s.io", "endpointslices", READ),
    ("", "events", WRITE),
    ("events.k8s.io", "events", WRITE),
    ("", "namespaces", READ),
    ("node.k8s.io", "runtimeclasses", READ),
    ("storage.k8s.io", "storageclasses", READ),
    ("storage.k8s.io", "csidrivers", READ),
    ("policy", "poddisruptionbudgets", READ),
    ("apps", "replicasets", LOOK),
    ("apps", "deployments", LOOK),
    ("apps", "statefulsets", LOOK),
    ("apps", "daemonsets", LOOK),
    ("batch", "jobs", LOOK),
    ("", "replicationcontrollers", LOOK),
    ("certificates.k8s.io", "certificatesigningrequests", ASK_AND_READ),
    ("authentication.k8s.io", "tokenreviews", ASK),
    ("authorization.k8s.io", "subjectaccessreviews", ASK),
    ("authorization.k8s.io", "localsubjectaccessreviews", ASK),
];

pub fn authorize(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    let subresource = asked.subresource.as_deref();
    match (&*asked.group, &*asked.resource) {
        ("", "secrets") => read_related(node, verb, RelationKind::Secret, asked),
        ("", "configmaps") => read_related(node, verb, RelationKind::ConfigMap, asked),
        ("", "persistentvolumeclaims") if subresource == Some("status") => match verb {
            "update" | "patch" => related(node, RelationKind::Claim, asked),
            _ => Decision::no("can only get/update/patch this type"),
        },
        ("", "persistentvolumeclaims") => read_related(node, verb, RelationKind::Claim, asked),
        ("", "persistentvolumes") if subresource.is_some() => Decision::no("cannot get subresource"),
        ("", "persistentvolumes") => match verb {
            // It says of volumes that are directories of its own whether those are there.
            "get" | "list" | "watch" | "patch" => related(node, RelationKind::Volume, asked),
            _ => Decision::no("can only get individual resources of this type"),
        },
        ("", "serviceaccounts") => service_account(node, verb, asked),
        ("coordination.k8s.io", "leases") => lease(node, verb, asked),
        ("mainstay.dev", "offers") => own(node, verb, asked, "offer"),
        ("mainstay.dev", "servicetables") => own(node, verb, asked, "service table"),
        ("", "nodes") => match (subresource, verb) {
            (None, "create" | "update" | "patch" | "get" | "list" | "watch") => Decision::Allow,
            (Some("status"), "update" | "patch") => Decision::Allow,
            _ => Decision::NO,
        },
        ("", "pods") => pod(node, verb, asked),
        (group, resource) => Decision::of(
            subresource.is_none()
                && COMMON.iter().any(|(g, r, verbs)| (*g, *r) == (group, resource) && verbs.contains(&verb)),
        ),
    }
}

fn related(node: &str, kind: RelationKind, asked: &ResourceAttributes<'_>) -> Decision {
    if asked.name().is_empty() {
        return Decision::no("No Object name found");
    }
    Decision::IfRelated(Relation {
        node: node.to_owned(),
        kind,
        namespace: asked.namespace().to_owned(),
        name: asked.name().to_owned(),
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
        (None, "get" | "list" | "watch") | (Some("token"), "create") => {
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
    let changes = ["update", "patch", "delete"].contains(&verb);
    if !changes && !["get", "list", "watch", "create"].contains(&verb) {
        Decision::no("can only get, create, update, patch, or delete a node lease")
    } else if asked.namespace() == LEASES {
        if changes && asked.name() != node {
            return Decision::no("can only access node lease with the same name as the requesting node");
        }
        Decision::of(asked.subresource.is_none())
    } else if changes && !asked.name().starts_with(HEALING) {
        Decision::no(format!("can only access leases in the {LEASES:?} system namespace"))
    } else {
        Decision::of(asked.subresource.is_none() && !asked.namespace().is_empty())
    }
}

/// What it says of itself, and nobody else of it.
fn own(node: &str, verb: &str, asked: &ResourceAttributes<'_>, what: &str) -> Decision {
    match verb {
        "create" => Decision::of(asked.subresource.is_none()), // the name is in the object: see `node_restriction`
        "get" | "update" | "patch" | "delete" if asked.name() == node => Decision::of(asked.subresource.is_none()),
        _ => Decision::no(format!(
            "can only get, create, update, patch, or delete the {what} with the same name as the node"
        )),
    }
}

fn pod(node: &str, verb: &str, asked: &ResourceAttributes<'_>) -> Decision {
    match (asked.subresource.as_deref(), verb) {
        (None, "list" | "watch") if asked.selects("spec.nodeName", node) => Decision::Allow,
        (None, "get") => Decision::Allow,
        (None, "list") if !asked.namespace().is_empty() => Decision::Allow,
        (None, "watch") if !asked.name().is_empty() => related(node, RelationKind::Pod, asked),
        (None, "list" | "watch") => Decision::no("can only list/watch pods with spec.nodeName field selector"),
        (None, "create" | "delete") => Decision::Allow,
        (Some("status"), "update" | "patch") | (Some("eviction" | "refusal"), "create") => Decision::Allow,
        _ => Decision::NO,
    }
}
