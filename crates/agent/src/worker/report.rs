//! Writes the status of a pod to the API.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use super::status::conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING};
use crate::sources::mirror::Identity;

/// Writes the whole status; conditions that are not ours stay as they are. What is absent now and was there
/// before is removed.
pub async fn report(
    client: &Client,
    to: &Identity,
    status: &PodStatus,
    previous: Option<&PodStatus>,
) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &to.namespace);
    let body = json!({ "metadata": { "uid": to.uid }, "status": body(status, previous) });
    match api.patch_status(&to.name, &PatchParams::default(), &Patch::Strategic(body)).await {
        Ok(_) => Ok(()),
        Err(error) if is_moot(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The pod is gone, or its name belongs to another by now.
pub fn is_moot(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

/// Fields of a status that others write.
const OF_OTHERS: [&str; 5] =
    ["extendedResourceClaimStatus", "nominatedNodeName", "qosClass", "resize", "resourceClaimStatuses"];

fn body(status: &PodStatus, previous: Option<&PodStatus>) -> Value {
    let object = |status: &PodStatus| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        Ok(_) | Err(_) => Map::new(),
    };
    let mut new = object(status);
    for key in previous.map(object).unwrap_or_default().keys() {
        // Decided by others.
        if !OF_OTHERS.contains(&key.as_str()) {
            new.entry(key.clone()).or_insert(Value::Null);
        }
    }
    // Conditions are merged by their type: what one no longer says must be taken back.
    for condition in new.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        for key in ["reason", "message"] {
            if let Some(condition) = condition.as_object_mut() {
                condition.entry(key).or_insert(Value::Null);
            }
        }
    }
    // Those that are gone once they no longer hold.
    let before = previous.iter().flat_map(|status| status.conditions.iter().flatten());
    let gone: Vec<Value> = before
        .filter(|condition| [RESIZE_PENDING, RESIZE_IN_PROGRESS].contains(&condition.type_.as_str()))
        .filter(|condition| !status.conditions.iter().flatten().any(|c| c.type_ == condition.type_))
        .map(|condition| json!({ "$patch": "delete", "type": condition.type_ }))
        .collect();
    if let (Some(conditions), false) = (new.get_mut("conditions").and_then(Value::as_array_mut), gone.is_empty()) {
        conditions.extend(gone);
    }
    Value::Object(new)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodCondition;

    use super::*;

    #[test]
    fn what_was_there_and_is_not_now_is_removed_and_others_are_left_alone() {
        let status = |ip: Option<&str>| PodStatus { pod_ip: ip.map(str::to_owned), ..PodStatus::default() };
        let mut before = status(Some("10.0.0.1"));
        before.nominated_node_name = Some("n".into());
        assert_eq!(body(&status(None), Some(&before)), json!({ "podIP": null }));
        assert_eq!(body(&status(Some("10.0.0.2")), None), json!({ "podIP": "10.0.0.2" }));
    }

    #[test]
    fn a_resize_that_is_done_takes_its_condition_along() {
        let condition = |kind: &str| PodCondition { type_: kind.into(), status: "True".into(), ..Default::default() };
        let of = |kinds: &[&str]| PodStatus {
            conditions: Some(kinds.iter().map(|kind| condition(kind)).collect()),
            ..PodStatus::default()
        };
        let body = body(&of(&["Ready"]), Some(&of(&["Ready", RESIZE_PENDING, "Other"])));
        let types: Vec<&Value> = body["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
        assert_eq!(types, [&json!("Ready"), &json!(RESIZE_PENDING)]);
        assert_eq!(body["conditions"][1]["$patch"], json!("delete"));
    }

    #[test]
    fn a_condition_that_gives_no_reason_takes_back_the_one_it_gave() {
        let condition = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
        let status = PodStatus { conditions: Some(vec![condition]), ..PodStatus::default() };
        let expected = json!({ "type": "Ready", "status": "True", "reason": null, "message": null });
        assert_eq!(body(&status, None), json!({ "conditions": [expected] }));
    }
}
