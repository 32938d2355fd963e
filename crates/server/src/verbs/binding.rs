//! POST of a Binding: a pod gets its machine, once.
//!
//! Node and condition are set in one transaction that holds only if the pod is still what was judged, so two
//! schedulers cannot both place it.

use http::StatusCode;
use mainstay_api::field::{Errors, FieldError, Path};
use serde_json::{Value, json};

use super::Call;
use crate::{
    api::{self, Target},
    body::Response,
    change::{Part, change},
    incoming, metadata, reply,
    status::{ApiError, ApiResult},
};

const DEFINITION: &str = "io.k8s.api.core.v1.Binding";

pub async fn bind(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, headers, body, .. } = call;
    let mut binding = incoming::decode(headers, body)?.value;
    let cannot =
        |why: String| ApiError::bad_request(format!("Binding in version \"v1\" cannot be handled as a Binding: {why}"));
    api.schema.conform(DEFINITION, &mut binding).map_err(|error| cannot(error.to_string()))?;
    let given = metadata::text(&binding, "name").unwrap_or_default();
    // The old path has no name: the Binding alone says whose it is.
    let name = if target.name.is_empty() { given.to_owned() } else { target.name.clone() };
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let errors = validate(&binding);
    if !errors.is_empty() {
        return Err(ApiError::invalid_kind("", "Binding", &name, &errors));
    }
    let pod = Target { d: target.d.clone(), namespace: target.namespace.clone(), name };
    let now = api::now().to_string();
    change(api, &pod, Part::Placement, query.dry_run, |old| {
        placed(old, &binding, &now).map_err(|why| ApiError::conflict_on("pods/binding", &pod.name, &why))
    })
    .await?;
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(reply::encoded(StatusCode::CREATED, accepted.encoding, &status))
}

fn validate(binding: &Value) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("target");
    let text = |field: &str| binding["target"][field].as_str().unwrap_or_default();
    if !matches!(text("kind"), "" | "Node") {
        errors.push(FieldError::not_supported(&path.child("kind"), text("kind"), &["Node", "<empty>"]));
    }
    if text("name").is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    errors
}

/// The pod on its machine, or why it cannot be put there.
fn placed(old: &Value, binding: &Value, now: &str) -> Result<Value, String> {
    let name = metadata::text(old, "name").unwrap_or_default();
    if metadata::text(old, "deletionTimestamp").is_some() {
        return Err(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if let Some(node) = old["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
        return Err(format!("pod {name} is already assigned to node {node:?}"));
    }
    if old["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = old.clone();
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
        pod["metadata"]["annotations"][key] = value.clone();
    }
    for field in ["uid", "resourceVersion"] {
        if let Some(given) = metadata::text(binding, field).filter(|given| !given.is_empty()) {
            pod["metadata"][field] = json!(given);
        }
    }
    let scheduled = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
    });
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let others = conditions.into_iter().filter(|condition| condition["type"] != "PodScheduled");
    pod["status"]["conditions"] = others.chain([scheduled]).collect();
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(extra: Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": "p", "uid": "u", "resourceVersion": "7"},
            "spec": {},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False"}, {"type": "Ready", "status": "False"}]},
        });
        mainstay_api::patch::merge(&mut pod, &extra);
        pod
    }

    #[test]
    fn a_pod_gets_its_machine_and_the_condition_that_says_so() {
        let binding = json!({"metadata": {"uid": "u", "annotations": {"a": "b"}}, "target": {"name": "n"}});
        let bound = placed(&pod(json!({})), &binding, "now").unwrap();
        assert_eq!(bound["spec"]["nodeName"], "n");
        assert_eq!(bound["metadata"]["annotations"], json!({"a": "b"}));
        let types: Vec<_> = bound["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
        assert_eq!(types, ["Ready", "PodScheduled"]);
        assert_eq!(bound["status"]["conditions"][1]["status"], "True");
    }

    #[test]
    fn a_pod_that_has_a_machine_is_gated_or_going_gets_none() {
        let binding = json!({"target": {"name": "n"}});
        let refused = |extra| placed(&pod(extra), &binding, "now").unwrap_err();
        assert_eq!(refused(json!({"spec": {"nodeName": "m"}})), "pod p is already assigned to node \"m\"");
        assert_eq!(
            refused(json!({"metadata": {"deletionTimestamp": "t"}})),
            "pod p is being deleted, cannot be assigned to a host"
        );
        assert_eq!(
            refused(json!({"spec": {"schedulingGates": [{"name": "g"}]}})),
            "pod p has non-empty .spec.schedulingGates"
        );
    }

    #[test]
    fn a_binding_names_a_node() {
        assert!(validate(&json!({"target": {"kind": "Node", "name": "n"}})).is_empty());
        let said: Vec<String> = validate(&json!({"target": {"kind": "Pod"}})).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\"",
                "target.name: Required value"
            ]
        );
    }
}
