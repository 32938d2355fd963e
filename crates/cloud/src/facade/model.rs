//! Klusters as the REST API shows them: name, spec and status, without metadata.

use k8s_openapi::api::core::v1::Event;
use mainstay_api::cloud::kluster::{ACCOUNT_LABEL, CREATOR_ANNOTATION};
use serde_json::{Value, json};

use crate::openstack::identity::TokenInfo;

pub const SEED_LABEL: &str = "kubernikus.cloud.sap/seed-reconcile";

/// The name of a project's Kluster as an object.
pub fn object_name(name: &str, project: &str) -> String {
    format!("{name}-{project}")
}

/// A new object from the body of a request. Fields that only the server sets are taken from the token.
pub fn new_object(body: &Value, name: &str, project: &str, token: &TokenInfo) -> Value {
    let mut spec = body.get("spec").filter(|spec| spec.is_object()).cloned().unwrap_or_else(|| json!({}));
    spec["name"] = json!(name);
    if !spec["openstack"].is_object() {
        spec["openstack"] = json!({});
    }
    spec["openstack"]["projectID"] = json!(project);
    if let Some(openstack) = spec["openstack"].as_object_mut() {
        openstack.remove("cloud"); // the token is of the façade's own cloud
    }
    json!({
        "apiVersion": "kubernikus.sap.cc/v1", "kind": "Kluster",
        "metadata": {
            "name": object_name(name, project),
            "labels": {ACCOUNT_LABEL: project, SEED_LABEL: "true"},
            "annotations": {CREATOR_ANNOTATION: format!("{}/{}", token.user.name, token.user.domain.name)},
        },
        "spec": spec,
    })
}

/// What of a body may change an object: everything of the spec but what the server sets.
pub fn change(body: &Value) -> Value {
    let mut spec = body.get("spec").filter(|spec| spec.is_object()).cloned().unwrap_or_else(|| json!({}));
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("name");
    }
    if let Some(openstack) = spec.get_mut("openstack").and_then(Value::as_object_mut) {
        openstack.remove("projectID");
        openstack.remove("cloud");
    }
    json!({"spec": spec})
}

/// An object as the REST API shows it.
pub fn shown(object: &Value) -> Value {
    let deleted = &object["metadata"]["deletionTimestamp"];
    let mut shown = json!({"name": object["spec"]["name"], "spec": object["spec"], "status": object["status"]});
    if !deleted.is_null() {
        shown["deletionTimestamp"] = deleted.clone();
    }
    shown
}

pub fn shown_event(event: &Event) -> Value {
    json!({
        "count": event.count.unwrap_or(1),
        "firstTimestamp": event.first_timestamp,
        "lastTimestamp": event.last_timestamp,
        "message": event.message,
        "reason": event.reason,
        "type": event.type_,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_neither_its_project_nor_its_object() {
        let body = json!({"name": "a", "spec": {"name": "b", "openstack": {"projectID": "other", "cloud": "other", "routerID": "r"}}});
        let mut token = TokenInfo::default();
        token.user.name = "ann".to_owned();
        token.user.domain.name = "eng".to_owned();
        let object = new_object(&body, "a", "p", &token);
        assert_eq!(object["metadata"]["name"], "a-p");
        assert_eq!(object["metadata"]["labels"]["account"], "p");
        assert_eq!(object["metadata"]["annotations"]["creator"], "ann/eng");
        assert_eq!(object["spec"], json!({"name": "a", "openstack": {"projectID": "p", "routerID": "r"}}));
        let change = change(&body);
        assert_eq!(change, json!({"spec": {"openstack": {"routerID": "r"}}}));
    }
}
