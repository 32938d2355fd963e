//! POST of a refusal: a node gives back a pod that it cannot run.

use http::StatusCode;
use jiff::Timestamp;
use mainstay_store::Txn;
use serde::Deserialize;
use serde_json::json;

use super::Call;
use crate::{
    api,
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
    objects::{
        guaranteed_update::{Ownership, Part, guaranteed_update},
        request_object,
    },
    placement::{self, Refusal, RefusalError, event},
};

pub async fn refuse(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, user, target, query, accepted, headers, body, .. } = call;
    let submitted = request_object::decode(headers, body)?.value;
    let refusal = Refusal::deserialize(&submitted)
        .map_err(|error| ApiError::bad_request(format!("the body cannot be handled as a refusal: {error}")))?;
    let (now, mut node) = (api::now().to_string(), String::new());
    guaranteed_update(&call.admission(), Part::Placement, Ownership::Kept, query.dry_run, |old| {
        node = old["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        placement::without_node(old, &refusal, user.node_name(), &now).map_err(|why| match &why {
            RefusalError::Elsewhere { .. } if user.node_name().is_some() => {
                ApiError::forbidden(&target.d, &target.name, &why.to_string())
            }
            _ => ApiError::conflict_on("pods/refusal", &target.name, &why.to_string()),
        })
    })
    .await?;
    if let Some(events) = api.registry.find("", "v1", "events").filter(|_| !query.dry_run) {
        let refused = event::PodEvent {
            namespace: target.namespace.as_deref().unwrap_or_default(),
            pod: &target.name,
            uid: &refusal.uid,
            kind: "Warning",
            reason: "Refused",
            message: &refusal.message_for(&node),
            component: "kubelet",
        };
        let op = event::put_event(events, &refused, Timestamp::now(), &now);
        // Nothing depends on events: one that cannot be written is not written.
        if let Err(error) = api.commit(Txn { compares: Vec::new(), ops: vec![op] }, call.fence).await {
            tracing::debug!(%error, "an event was not written");
        }
    }
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(reply::encoded(StatusCode::CREATED, accepted.encoding, &status))
}
