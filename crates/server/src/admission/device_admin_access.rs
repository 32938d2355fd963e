//! DeviceAdminAccess: `adminAccess` to devices that others use may be claimed only in namespaces that are labelled for it.
//!
//! Upstream checks this with the object's validation, which sees no other objects here.

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    field::{Errors, FieldError, Path},
};
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::http::status::{ApiError, ApiResult};

const LABEL: &str = "resource.kubernetes.io/admin-access";
const WHY: &str = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";

pub struct DeviceAdminAccess;

#[async_trait]
impl Plugin for DeviceAdminAccess {
    fn name(&self) -> &'static str {
        "DeviceAdminAccess"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group == "resource.k8s.io" && ["ResourceClaim", "ResourceClaimTemplate"].contains(&&*d.kind)
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        let errors = admin_requests(object);
        if errors.is_empty() {
            return Ok(());
        }
        let namespace = request.target.namespace.as_deref().unwrap_or_default();
        let labelled = request.api.core_object("namespaces", None, namespace).await?;
        if labelled.is_some_and(|namespace| namespace["metadata"]["labels"][LABEL] == "true") {
            return Ok(());
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        Err(ApiError::invalid(&request.target.d, name, &errors))
    }
}

/// An error for each request that asks for it.
fn admin_requests(object: &Value) -> Errors {
    let spec = Path::new("spec");
    let (devices, path) = match &object["spec"]["spec"] {
        Value::Object(_) => (&object["spec"]["spec"]["devices"], spec.child("spec")),
        _ => (&object["spec"]["devices"], spec),
    };
    let path = path.child("devices").child("requests");
    let requests = devices["requests"].as_array().into_iter().flatten().enumerate();
    let asking = requests.filter(|(_, request)| request["exactly"]["adminAccess"] == true);
    asking.map(|(nth, _)| FieldError::forbidden(&path.index(nth).child("exactly").child("adminAccess"), WHY)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_for_administrative_access_are_found_in_claims_and_templates() {
        let request = |admin: bool| json!({"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": admin}});
        let devices = json!({"devices": {"requests": [request(false), request(true)]}});
        let claim = json!({"spec": devices});
        let template = json!({"spec": {"spec": devices}});
        let found = |object: &Value| admin_requests(object).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found(&claim), [format!("spec.devices.requests[1].exactly.adminAccess: Forbidden: {WHY}")]);
        assert_eq!(found(&template), [format!("spec.spec.devices.requests[1].exactly.adminAccess: Forbidden: {WHY}")]);
    }
}
