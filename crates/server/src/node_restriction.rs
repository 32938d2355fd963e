//! What a machine may write, now that the object is known: itself, and what runs on it.
//!
//! Upstream's NodeRestriction admission, with its words. `authorize` has already decided that machines may
//! write objects of these kinds at all.

use http::Method;
use mainstay_api::descriptor::Descriptor;
use serde_json::Value;

use crate::{
    api::{Api, Target},
    auth::User,
    authorize::node::{HEALING, LEASES},
    change::Part,
    incoming, metadata,
    status::{ApiError, ApiResult},
    verbs::{Call, delete::Options},
};

/// On a volume: its directory on the machine exists.
const ON_DISK: &str = "mainstay.dev/local-path";
const MIRROR: &str = "kubernetes.io/config.mirror";
const RESTRICTED: &str = "node-restriction.kubernetes.io";
/// Labels in Kubernetes' own name spaces that a machine may give itself.
const OWN_LABELS: [&str; 13] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "kubernetes.io/role",
    "node.kubernetes.io/exclude-from-external-load-balancers",
];
const OWN_LABEL_SPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Judges a request of a machine by the stored object it is about.
pub async fn before(call: &Call<'_>, method: &Method, subresource: Option<&str>) -> ApiResult<()> {
    let Some(node) = call.user.node_name() else { return Ok(()) };
    let target = &call.target;
    let forbid = |why: String| Err(ApiError::forbidden(&target.d, &target.name, &why));
    let pod_elsewhere = async || {
        let pod = call.api.core_object("pods", target.namespace.as_deref(), &target.name).await?;
        let pod = pod.ok_or_else(|| ApiError::not_found(&target.d, &target.name))?;
        ApiResult::Ok(if pod["spec"]["nodeName"] == node { None } else { Some(pod) })
    };
    match (&*target.d.group, &*target.d.plural, subresource) {
        ("", "pods", None) if *method == Method::DELETE => match pod_elsewhere().await? {
            // Who insists on another pod of that name is about to be told that it is gone.
            Some(pod) if !insists_on_another(call, &pod)? => {
                forbid(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            _ => Ok(()),
        },
        ("", "pods", Some("eviction")) if pod_elsewhere().await?.is_some() => {
            forbid(format!("node {node} can only evict pods with spec.nodeName set to itself"))
        }
        ("", "nodes", _) if *method != Method::GET && *method != Method::POST && target.name != node => {
            forbid(format!("node {node:?} is not allowed to modify node {:?}", target.name))
        }
        ("", "serviceaccounts", Some("token")) => token(call, node).await,
        _ => Ok(()),
    }
}

fn insists_on_another(call: &Call<'_>, pod: &Value) -> ApiResult<bool> {
    let options = Options::parse(&call.query, call.headers, &call.body)?;
    Ok(options.uid.is_some_and(|uid| metadata::text(pod, "uid") != Some(uid.as_str())))
}

/// A token for a machine is one of a pod that runs there.
async fn token(call: &Call<'_>, node: &str) -> ApiResult<()> {
    let target = &call.target;
    let forbid = |why: &str| Err(ApiError::forbidden(&target.d, &target.name, why));
    let request = incoming::decode(call.headers, &call.body)?.value;
    let bound = &request["spec"]["boundObjectRef"];
    let text = |field: &str| bound[field].as_str().unwrap_or_default();
    if text("kind") != "Pod" || text("apiVersion") != "v1" || text("name").is_empty() {
        return forbid("node requested token not bound to a pod");
    }
    if text("uid").is_empty() {
        return forbid("node requested token with a pod binding without a uid");
    }
    let pod = call.api.core_object("pods", target.namespace.as_deref(), text("name")).await?;
    let Some(pod) = pod else { return forbid(&format!("pod {:?} not found", text("name"))) };
    if metadata::text(&pod, "uid") != Some(text("uid")) {
        let uid = text("uid");
        return forbid(&format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return forbid("node requested token bound to a pod scheduled on a different node");
    }
    Ok(())
}

/// Judges what a machine wants to create.
pub async fn create(api: &Api, user: &User, target: &Target, object: &Value) -> ApiResult<()> {
    let Some(node) = user.node_name() else { return Ok(()) };
    let name = metadata::text(object, "name").unwrap_or_default();
    let verdict = match (&*target.d.group, &*target.d.plural) {
        ("", "nodes") => new_node(node, name, object),
        ("", "pods") => match api.core_object("nodes", None, node).await? {
            Some(own) => mirror_pod(node, metadata::text(&own, "uid").unwrap_or_default(), object),
            None => return Err(ApiError::not_found(nodes(api, &target.d), node)),
        },
        ("coordination.k8s.io", "leases") => lease(node, target.namespace.as_deref(), name),
        ("mainstay.dev", "offers") if name != node => {
            Err(format!("node {node:?} is not allowed to offer what node {name:?} has"))
        }
        ("mainstay.dev", "servicetables") if name != node => {
            Err(format!("node {node:?} is not allowed to say what node {name:?} sends to"))
        }
        _ => Ok(()),
    };
    verdict.map_err(|why| ApiError::forbidden(&target.d, name, &why))
}

fn nodes<'a>(api: &'a Api, or: &'a Descriptor) -> &'a Descriptor {
    api.registry.find("", "v1", "nodes").map_or(or, |d| d)
}

/// Judges a machine's change of an object.
pub fn update(user: &User, target: &Target, part: Part, object: &Value, old: &Value) -> ApiResult<()> {
    let Some(node) = user.node_name() else { return Ok(()) };
    let verdict = match (&*target.d.group, &*target.d.plural, part) {
        ("", "nodes", _) => {
            let labels = forbidden_labels(&object["metadata"]["labels"], &old["metadata"]["labels"]);
            let taints = |value: &Value| value["spec"]["taints"].as_array().cloned().unwrap_or_default();
            if part == Part::Main && taints(object) != taints(old) {
                Err(format!("node {node:?} is not allowed to modify taints"))
            } else if labels.is_empty() {
                Ok(())
            } else {
                Err(format!("is not allowed to modify labels: {}", labels.join(", ")))
            }
        }
        ("", "persistentvolumes", _) if !only_marks(object, old) => {
            Err(format!("node {node:?} can only change the finalizer {ON_DISK:?} of persistent volumes"))
        }
        // Who means another pod of that name is about to be told that it is gone.
        ("", "pods", Part::Status) if is_another(object, old) => Ok(()),
        ("", "pods", Part::Status) if old["spec"]["nodeName"] != node => {
            Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"))
        }
        ("", "pods", Part::Status) if object["metadata"]["labels"] != old["metadata"]["labels"] => {
            Err(format!("node {node:?} cannot update labels through pod status"))
        }
        _ => Ok(()),
    };
    verdict.map_err(|why| ApiError::forbidden(&target.d, &target.name, &why))
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
    let uid = |object| metadata::text(object, "uid").unwrap_or_default();
    !uid(object).is_empty() && uid(object) != uid(old)
}

type Verdict = Result<(), String>;

fn new_node(node: &str, name: &str, object: &Value) -> Verdict {
    if name != node {
        return Err(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    let labels = forbidden_labels(&object["metadata"]["labels"], &Value::Null);
    if labels.is_empty() {
        Ok(())
    } else {
        Err(format!("node {node:?} is not allowed to set the following labels: {}", labels.join(", ")))
    }
}

fn lease(node: &str, namespace: Option<&str>, name: &str) -> Verdict {
    match namespace {
        Some(LEASES) if name != node => {
            Err("can only access node lease with the same name as the requesting node".to_owned())
        }
        Some(LEASES) => Ok(()),
        _ if name.starts_with(HEALING) => Ok(()),
        _ => Err(format!("can only access leases in the {LEASES:?} system namespace")),
    }
}

/// The only pods a machine creates show what it runs by itself, and reach nothing else of the API.
fn mirror_pod(node: &str, uid: &str, pod: &Value) -> Verdict {
    let spec = &pod["spec"];
    if pod["metadata"]["annotations"].get(MIRROR).is_none() {
        return Err(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if spec["nodeName"] != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let owner = match owners {
        [owner] => owner,
        [] => return Err(format!("node {node:?} can only create pods with an owner reference set to itself")),
        _ => return Err(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner["controller"] != true {
        return Err(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let given = owner["uid"].as_str().unwrap_or_default();
    if given != uid {
        return Err(format!("node {node} UID mismatch: expected {given} got {uid}"));
    }
    if spec["serviceAccountName"].as_str().is_some_and(|name| !name.is_empty()) {
        return Err(format!("node {node:?} can not create pods that reference a service account"));
    }
    for (what, keys) in [
        ("secrets", &["secret", "secretRef", "secretKeyRef", "imagePullSecrets"][..]),
        ("configmaps", &["configMap", "configMapRef", "configMapKeyRef"]),
        ("persistentvolumeclaims", &["persistentVolumeClaim"]),
        ("clustertrustbundles", &["clusterTrustBundle"]),
    ] {
        if has_field(spec, keys) {
            return Err(format!("node {node:?} can not create pods that reference {what}"));
        }
    }
    Ok(())
}

fn has_field(value: &Value, names: &[&str]) -> bool {
    match value {
        Value::Object(fields) => fields
            .iter()
            .any(|(key, value)| (names.contains(&key.as_str()) && !value.is_null()) || has_field(value, names)),
        Value::Array(items) => items.iter().any(|item| has_field(item, names)),
        _ => false,
    }
}

/// Labels that differ and are not for machines to set.
fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    let keys = |labels: &Value| labels.as_object().map(|m| m.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let mut changed: Vec<String> = keys(new).into_iter().chain(keys(old)).filter(|key| new[key] != old[key]).collect();
    changed.sort();
    changed.dedup();
    changed.retain(|label| is_forbidden(label));
    changed
}

fn is_forbidden(label: &str) -> bool {
    let space = label.split_once('/').map_or("", |(space, _)| space);
    let within = |name: &str| space == name || space.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    let kubernetes = within("kubernetes.io") || within("k8s.io");
    let own = OWN_LABELS.contains(&label) || OWN_LABEL_SPACES.iter().any(|space| within(space));
    within(RESTRICTED) || (kubernetes && !own)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mirror() -> Value {
        json!({
            "metadata": {
                "name": "web-a", "annotations": {MIRROR: "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "u", "controller": true}],
            },
            "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]},
        })
    }

    #[test]
    fn a_mirror_pod_of_its_own_is_taken() {
        assert_eq!(mirror_pod("a", "u", &mirror()), Ok(()));
    }

    #[test]
    fn other_pods_of_a_machine_are_refused_with_upstreams_words() {
        for (pointer, value, words) in [
            ("/metadata/annotations", json!({}), "pod does not have \"kubernetes.io/config.mirror\" annotation"),
            ("/spec/nodeName", json!("b"), "can only create pods with spec.nodeName set to itself"),
            ("/metadata/ownerReferences", json!([]), "with an owner reference set to itself"),
            ("/metadata/ownerReferences/0/name", json!("b"), "with an owner reference set to itself"),
            ("/metadata/ownerReferences/0/controller", json!(false), "with a controller owner reference"),
            ("/metadata/ownerReferences/0/uid", json!("v"), "node a UID mismatch: expected v got u"),
            (
                "/spec/containers/0/image",
                json!({"secretRef": {"name": "x"}}),
                "can not create pods that reference secrets",
            ),
            ("/spec/containers/0/image", json!({"configMap": {"name": "x"}}), "that reference configmaps"),
        ] {
            let mut pod = mirror();
            *pod.pointer_mut(pointer).unwrap() = value;
            let why = mirror_pod("a", "u", &pod).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let mut pod = mirror();
        pod["spec"]["serviceAccountName"] = json!("default");
        assert!(mirror_pod("a", "u", &pod).unwrap_err().contains("reference a service account"));
    }

    #[test]
    fn a_machine_may_not_steer_pods_to_itself_by_labels() {
        for allowed in
            ["zone", "example.org/rack", "kubernetes.io/hostname", "node.kubernetes.io/anything", "mainstay.dev/x"]
        {
            assert!(!is_forbidden(allowed), "{allowed}");
        }
        for refused in [
            "node-restriction.kubernetes.io/trusted",
            "x.node-restriction.kubernetes.io/trusted",
            "node-role.kubernetes.io/control-plane",
            "pod-security.kubernetes.io/enforce",
            "example.k8s.io/a",
        ] {
            assert!(is_forbidden(refused), "{refused}");
        }
        let labels = json!({"a": "1", "node-role.kubernetes.io/x": ""});
        assert_eq!(forbidden_labels(&labels, &Value::Null), ["node-role.kubernetes.io/x"]);
        assert_eq!(forbidden_labels(&labels, &labels), Vec::<String>::new());
        assert_eq!(forbidden_labels(&Value::Null, &labels), ["node-role.kubernetes.io/x"]);
    }

    #[test]
    fn of_a_volume_a_machine_says_no_more_than_that_it_is_there() {
        let volume = |finalizers: &[&str], version: &str, path: &str| json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}, "spec": {"local": {"path": path}}});
        let old = volume(&["kubernetes.io/pv-protection"], "1", "/a");
        assert!(only_marks(&volume(&["kubernetes.io/pv-protection", ON_DISK], "2", "/a"), &old));
        assert!(!only_marks(&volume(&["kubernetes.io/pv-protection"], "2", "/b"), &old));
        assert!(!only_marks(&volume(&[], "2", "/a"), &old));
        let bare = json!({"metadata": {}, "spec": {}});
        assert!(only_marks(&bare, &json!({"metadata": {"finalizers": [ON_DISK]}, "spec": {}})));
    }

    #[test]
    fn a_machine_changes_itself_alone_and_not_its_taints() {
        let registry = mainstay_api::registry::Registry::builtin();
        let target = Target { d: registry.find("", "v1", "nodes").unwrap().clone(), namespace: None, name: "a".into() };
        let old = json!({"metadata": {"name": "a"}, "spec": {}});
        let new = json!({"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
        let node = User::node("a");
        assert!(update(&node, &target, Part::Main, &old, &old).is_ok());
        let refused = update(&node, &target, Part::Main, &new, &old).unwrap_err().status();
        assert_eq!(refused["message"], r#"nodes "a" is forbidden: node "a" is not allowed to modify taints"#);
        assert!(update(&User::internal("x"), &target, Part::Main, &new, &old).is_ok());
        let target = Target { d: registry.find("", "v1", "pods").unwrap().clone(), namespace: None, name: "p".into() };
        let pod = |uid: &str, on: &str| json!({"metadata": {"name": "p", "uid": uid}, "spec": {"nodeName": on}});
        let status = |new: Value, old: Value| update(&node, &target, Part::Status, &new, &old);
        assert!(status(pod("u", "a"), pod("u", "a")).is_ok());
        assert!(status(pod("u", "b"), pod("u", "b")).is_err());
        assert!(status(pod("", "b"), pod("u", "b")).is_err());
        assert!(status(pod("gone", "a"), pod("u", "b")).is_ok(), "a conflict follows");
        assert!(new_node("a", "b", &json!({})).is_err());
        assert!(lease("a", Some("kube-node-lease"), "b").is_err());
        assert!(lease("a", Some("kube-node-lease"), "a").is_ok());
        assert!(lease("a", Some("shop"), "heal-u-0").is_ok());
        assert!(lease("a", Some("shop"), "leader").is_err());
    }
}
