//! Tokens that a node may ask for: of a pod that is bound to it, for an audience that the pod's volumes name.

use mainstay_api::references;
use serde_json::Value;

use crate::{
    admission::Request,
    http::status::{ApiError, ApiResult},
    objects::metadata,
};

pub(super) async fn check_token_request(request: &Request<'_>, node: &str, body: &Value) -> ApiResult<()> {
    let Request { api, target, .. } = request;
    let bound = &body["spec"]["boundObjectRef"];
    let pod = match bound["name"].as_str() {
        Some(name) => api.core_object("pods", target.namespace.as_deref(), name).await?,
        None => None,
    };
    verdict(node, body, pod.as_ref()).map_err(|why| ApiError::forbidden(&target.d, &target.name, &why))
}

/// Judges a TokenRequest; `pod` is the one it names.
fn verdict(node: &str, request: &Value, pod: Option<&Value>) -> super::Verdict {
    let bound = &request["spec"]["boundObjectRef"];
    let text = |field: &str| bound[field].as_str().unwrap_or_default();
    if text("kind") != "Pod" || text("apiVersion") != "v1" || text("name").is_empty() {
        return Err("node requested token not bound to a pod".to_owned());
    }
    if text("uid").is_empty() {
        return Err("node requested token with a pod binding without a uid".to_owned());
    }
    let Some(pod) = pod else { return Err(format!("pod {:?} not found", text("name"))) };
    if metadata::string_field(pod, "uid") != Some(text("uid")) {
        return Err(format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return Err("node requested token bound to a pod scheduled on a different node".to_owned());
    }
    let audience = match request["spec"]["audiences"].as_array().map(Vec::as_slice).unwrap_or_default() {
        [] => "",
        [audience] => audience.as_str().unwrap_or_default(),
        _ => return Err("node may only request 0 or 1 audiences".to_owned()),
    };
    if !references::token_audiences(pod).contains(&audience) {
        return Err(format!(
            "audience {audience:?} not found in pod spec volume, system:node:{node} is not authorized to request tokens \
             for this audience"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_given_for_audiences_of_the_pods_own_volumes() {
        let token = |audience: Value| json!({"serviceAccountToken": {"path": "t", "audience": audience}});
        let pod = |node: &str, sources: Value| {
            let volumes = json!([{"name": "v", "projected": {"sources": sources}}]);
            json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": node, "volumes": volumes}})
        };
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"});
        let asked = |audiences: Value, pod: Value| {
            verdict("a", &json!({"spec": {"boundObjectRef": bound, "audiences": audiences}}), Some(&pod))
        };
        let own = json!([token(json!("vault")), token(Value::Null)]);
        for audiences in [json!([]), Value::Null, json!(["vault"]), json!([""])] {
            assert_eq!(asked(audiences.clone(), pod("a", own.clone())), Ok(()), "{audiences}");
        }
        let why = asked(json!(["bank"]), pod("a", own.clone())).unwrap_err();
        assert!(why.starts_with("audience \"bank\" not found in pod spec volume, system:node:a is not"), "{why}");
        assert!(asked(json!([]), pod("a", json!([token(json!("vault"))]))).is_err(), "no token of the API's own");
        let why = asked(json!(["vault", ""]), pod("a", own.clone())).unwrap_err();
        assert_eq!(why, "node may only request 0 or 1 audiences");
        assert!(asked(json!([]), pod("b", own)).unwrap_err().contains("a different node"));
    }
}
