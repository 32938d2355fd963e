//! POST of a Binding: binds a pod to a node, once.
//!
//! Node and condition are set in one transaction that holds only if the pod is still what was judged, so two
//! schedulers cannot both place it.

use http::StatusCode;
use mainstay_api::field::{Errors, FieldError, Path};
use serde_json::{Value, json};

use super::Call;
use crate::{
    admission::Request,
    api::{self, Target},
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
    objects::{
        guaranteed_update::{Ownership, Part, guaranteed_update},
        metadata, request_object,
    },
    placement::{self, Placement, PlacementError},
};

const DEFINITION: &str = "io.k8s.api.core.v1.Binding";

pub async fn bind(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, headers, body, .. } = call;
    let mut binding = request_object::decode(headers, body)?.value;
    let cannot =
        |why: String| ApiError::bad_request(format!("Binding in version \"v1\" cannot be handled as a Binding: {why}"));
    api.schema.conform(DEFINITION, &mut binding).map_err(|error| cannot(error.to_string()))?;
    let given = metadata::string_field(&binding, "name").unwrap_or_default();
    // The old path has no name: the Binding alone says whose it is.
    let name = if target.name.is_empty() { given.to_owned() } else { target.name.clone() };
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let errors = validate(&binding);
    if !errors.is_empty() {
        return Err(ApiError::invalid_kind("", "Binding", &name, &errors));
    }
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    let node = api.core_object("nodes", None, node).await?.unwrap_or_default();
    let pod = Target { d: target.d.clone(), namespace: target.namespace.clone(), name };
    let now = api::now().to_string();
    guaranteed_update(
        &Request { target: &pod, ..call.admission() },
        Part::Placement,
        Ownership::Kept,
        query.dry_run,
        |old| {
            bind_pod(old, &binding, &node, &now)
                .map_err(|why| ApiError::conflict_on("pods/binding", &pod.name, &why.to_string()))
        },
    )
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

/// The pod on its node. Which version of it is meant is judged where every change is.
fn bind_pod(old: &Value, binding: &Value, node: &Value, now: &str) -> Result<Value, PlacementError> {
    let annotations = binding["metadata"]["annotations"].as_object();
    let annotations: Vec<(&str, &str)> = annotations
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
        .collect();
    let labels = placement::topology_labels(node);
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    let mut pod =
        placement::with_node(old, &Placement { uid: "", node, annotations: &annotations, labels: &labels }, now)?;
    for field in ["uid", "resourceVersion"] {
        if let Some(given) = metadata::string_field(binding, field).filter(|given| !given.is_empty()) {
            pod["metadata"][field] = json!(given);
        }
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_may_insist_on_a_pod_and_a_version() {
        let pod = json!({"metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}, "spec": {}});
        let binding = json!({
            "metadata": {"uid": "v", "resourceVersion": "6", "annotations": {"a": "b"}}, "target": {"name": "n"},
        });
        let node = json!({"metadata": {"labels": {"topology.kubernetes.io/region": "r1"}}});
        let bound = bind_pod(&pod, &binding, &node, "now").unwrap();
        assert_eq!(bound["metadata"]["labels"], json!({"topology.kubernetes.io/region": "r1"}));
        assert_eq!((&bound["metadata"]["uid"], &bound["metadata"]["resourceVersion"]), (&json!("v"), &json!("6")));
        assert_eq!(bound["metadata"]["annotations"], json!({"a": "b"}));
        assert_eq!(bound["spec"]["nodeName"], "n");
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
