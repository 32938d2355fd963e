//! PodCertificateRequests that a node may make: for a pod that is bound to it, with the identities that the pod has.
//!
//! A signer takes what a request says of pod, service account and node for true, because this was checked here.

use mainstay_api::wellknown::kubernetes::MIRROR_POD;
use serde_json::Value;

use crate::{admission::Request, http::status::ApiResult, objects::metadata};

/// What the API knows of whom a request names.
struct Named {
    pod: Option<Value>,
    account: Option<Value>,
    node: Option<Value>,
}

pub(super) async fn check(request: &Request<'_>, node: &str, object: &Value) -> ApiResult<super::Verdict> {
    let Request { api, target, .. } = request;
    let (spec, namespace) = (&object["spec"], target.namespace.as_deref());
    let name = |field: &str| spec[field].as_str().unwrap_or_default();
    let named = Named {
        pod: api.core_object("pods", namespace, name("podName")).await?,
        account: api.core_object("serviceaccounts", namespace, name("serviceAccountName")).await?,
        node: api.core_object("nodes", None, node).await?,
    };
    Ok(verdict(node, spec, &named))
}

fn verdict(node: &str, spec: &Value, named: &Named) -> super::Verdict {
    let text = |field: &str| spec[field].as_str().unwrap_or_default();
    if text("nodeName") != node {
        let why =
            format!("PodCertificateRequest.Spec.NodeName={:?}, which is not the requesting node", text("nodeName"));
        return Err(why);
    }
    let pod_name = text("podName");
    let Some(pod) = &named.pod else { return Err(format!("pod {pod_name:?} not found")) };
    same_uid(spec, "podUID", pod, "pod", pod_name)?;
    if pod["metadata"]["annotations"].get(MIRROR_POD).is_some() {
        return Err(format!("pod {pod_name:?} is a mirror pod, which has no certificates"));
    }
    if pod["spec"]["nodeName"] != node {
        return Err(format!("pod {pod_name:?} is not bound to the requesting node"));
    }
    let account = text("serviceAccountName");
    let own = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
    if account != own {
        return Err(format!(
            "PodCertificateRequest for pod {pod_name:?} names service account {account:?}, but the pod has {own:?}"
        ));
    }
    let Some(found) = &named.account else { return Err(format!("service account {account:?} not found")) };
    same_uid(spec, "serviceAccountUID", found, "service account", account)?;
    let Some(own_node) = &named.node else { return Err(format!("node {node:?} not found")) };
    same_uid(spec, "nodeUID", own_node, "node", node)
}

fn same_uid(spec: &Value, field: &str, object: &Value, what: &str, name: &str) -> super::Verdict {
    let (named, own) = (spec[field].as_str().unwrap_or_default(), metadata::string_field(object, "uid"));
    if own == Some(named) {
        return Ok(());
    }
    let own = own.unwrap_or_default();
    Err(format!("PodCertificateRequest contains {field} ({named:?}) that does not match {what} {name:?} ({own:?})"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_certificate_is_asked_for_in_the_name_of_an_own_pod_alone() {
        let object = |uid: &str| json!({"metadata": {"name": "x", "uid": uid}});
        let named = || Named {
            pod: Some(json!({"metadata": {"uid": "p"}, "spec": {"nodeName": "a", "serviceAccountName": "robot"}})),
            account: Some(object("s")),
            node: Some(object("n")),
        };
        let request = json!({
            "podName": "web", "podUID": "p", "serviceAccountName": "robot", "serviceAccountUID": "s", "nodeName": "a",
            "nodeUID": "n",
        });
        assert_eq!(verdict("a", &request, &named()), Ok(()));
        for (field, value, words) in [
            ("nodeName", "b", "which is not the requesting node"),
            ("podUID", "q", "podUID (\"q\") that does not match pod \"web\" (\"p\")"),
            ("serviceAccountName", "admin", "names service account \"admin\", but the pod has \"robot\""),
            ("serviceAccountUID", "t", "does not match service account"),
            ("nodeUID", "m", "does not match node"),
        ] {
            let mut wrong = request.clone();
            wrong[field] = value.into();
            let why = verdict("a", &wrong, &named()).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let refused = |change: fn(&mut Named)| {
            let mut named = named();
            change(&mut named);
            verdict("a", &request, &named).unwrap_err()
        };
        assert!(refused(|named| named.pod = None).contains("pod \"web\" not found"));
        assert!(refused(|named| named.account = None).contains("service account \"robot\" not found"));
        let elsewhere: fn(&mut Named) = |named| named.pod.as_mut().unwrap()["spec"]["nodeName"] = json!("b");
        assert!(refused(elsewhere).contains("not bound to the requesting node"));
        let mirror: fn(&mut Named) = |named| {
            named.pod.as_mut().unwrap()["metadata"]["annotations"] = json!({MIRROR_POD: "x"});
        };
        assert!(refused(mirror).contains("mirror pod"));
    }
}
