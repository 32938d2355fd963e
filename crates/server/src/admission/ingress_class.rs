//! DefaultIngressClass: an Ingress that names no class gets the default one when it is created, as upstream has it.

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions, storage_class::find_default_class};
use crate::http::status::ApiResult;

const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// Where classes were named before they had a field.
const OLD_NAME: &str = "kubernetes.io/ingress.class";

pub struct DefaultIngressClass;

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group == "networking.k8s.io" && d.kind == "Ingress"
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        let named =
            !object["spec"]["ingressClassName"].is_null() || !object["metadata"]["annotations"][OLD_NAME].is_null();
        if named {
            return Ok(());
        }
        let default = find_default_class(request.api, "networking.k8s.io", "ingressclasses", IS_DEFAULT).await?;
        if let Some(name) = default {
            object["spec"]["ingressClassName"] = json!(name);
        }
        Ok(())
    }
}
