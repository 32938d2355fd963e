//! DefaultPodRoles: which roles of machines pods may use that name none themselves (`--default-pod-roles`).
//!
//! The roles are written on the pod when it is created, so that scheduler, machines and people see the same whatever the setting is
//! later. With the stock setting nothing is written: pods without the annotation use what no role has.

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    roles::PodRoles,
    wellknown::{
        kubernetes::MIRROR_POD,
        mainstay::{MESOS_ROLES, ROLES},
    },
};
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::http::status::ApiResult;

pub struct DefaultPodRoles;

#[async_trait]
impl Plugin for DefaultPodRoles {
    fn name(&self) -> &'static str {
        "DefaultPodRoles"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Pod")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        add_roles(object, &request.api.settings.default_pod_roles);
        Ok(())
    }
}

/// A pod that shows a static pod stays as its machine has it.
fn add_roles(pod: &mut Value, roles: &PodRoles) {
    let has = |key: &str| pod["metadata"]["annotations"].get(key).is_some();
    if *roles == PodRoles::default() || [ROLES, MESOS_ROLES, MIRROR_POD].into_iter().any(has) {
        return;
    }
    pod["metadata"]["annotations"][ROLES] = json!(roles.text());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(mut pod: Value, roles: &str) -> Value {
        add_roles(&mut pod, &PodRoles::parse(roles));
        pod["metadata"]["annotations"].clone()
    }

    #[test]
    fn pods_that_name_no_roles_get_the_stock_ones() {
        let own = |annotations: Value| json!({"metadata": {"name": "p", "annotations": annotations}});
        assert_eq!(annotations(json!({"metadata": {"name": "p"}}), "batch,*"), json!({ROLES: "batch,*"}));
        assert_eq!(annotations(own(json!({"a": "b"})), "batch"), json!({"a": "b", ROLES: "batch"}));
        assert_eq!(annotations(json!({"metadata": {"name": "p"}}), "*"), Value::Null, "as without the annotation");
        for annotated in [json!({ROLES: ""}), json!({MESOS_ROLES: "public"}), json!({MIRROR_POD: "x"})] {
            assert_eq!(annotations(own(annotated.clone()), "batch"), annotated, "what a pod says itself wins");
        }
    }
}
