//! PersistentVolumeClaimResize: a claim may ask for more storage than it has if it is bound and its class allows expansion.
//!
//! Upstream's plugin with its words. Without it a claim would ask for ever for what nobody will do.

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, quantity::Quantity, wellknown::kubernetes::BETA_STORAGE_CLASS};
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::Api,
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, keys, metadata, object},
};

pub struct PersistentVolumeClaimResize;

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("PersistentVolumeClaim")
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _: &mut TxnAdditions,
    ) -> ApiResult<()> {
        if request.part != Part::Main || !grows(object, old) {
            return Ok(());
        }
        let class = match class_of(object).filter(|class| class_of(old) == Some(*class)) {
            Some(name) => find_class(request.api, name).await?,
            None => None,
        };
        let Some(why) = objection(old, class.as_ref()) else { return Ok(()) };
        let name = metadata::string_field(object, "name").unwrap_or_default();
        Err(ApiError::forbidden(&request.target.d, name, why))
    }
}

async fn find_class(api: &Api, name: &str) -> ApiResult<Option<Value>> {
    let classes = api.registry.find("storage.k8s.io", "v1", "storageclasses").filter(|_| keys::is_segment(name));
    let Some(classes) = classes else { return Ok(None) };
    let (entry, _) = api.store.get(&keys::key(classes, None, name)).await?;
    entry.map(|entry| object::parse(classes, &entry)).transpose()
}

fn grows(object: &Value, old: &Value) -> bool {
    let size = |claim: &Value| Quantity::parse(claim["spec"]["resources"]["requests"]["storage"].as_str()?).ok();
    matches!((size(object), size(old)), (Some(new), Some(old)) if new > old)
}

fn class_of(claim: &Value) -> Option<&str> {
    let annotated = claim["metadata"]["annotations"][BETA_STORAGE_CLASS].as_str();
    annotated.or_else(|| claim["spec"]["storageClassName"].as_str()).filter(|name| !name.is_empty())
}

fn objection(old: &Value, class: Option<&Value>) -> Option<&'static str> {
    if old["status"]["phase"] != "Bound" {
        return Some("Only bound persistent volume claims can be expanded");
    }
    let allows = class.is_some_and(|class| class["allowVolumeExpansion"] == true);
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    (!allows).then_some(why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bound_claim_grows_if_its_class_allows_it() {
        let claim = |phase: &str, storage: &str| {
            let spec = json!({"storageClassName": "disks", "resources": {"requests": {"storage": storage}}});
            json!({"spec": spec, "status": {"phase": phase}})
        };
        assert!(grows(&claim("Bound", "2Gi"), &claim("Bound", "1Gi")));
        assert!(!grows(&claim("Bound", "1024Mi"), &claim("Bound", "1Gi")));
        assert!(!grows(&claim("Bound", "1Gi"), &claim("Bound", "2Gi")));
        let allowing = json!({"allowVolumeExpansion": true});
        assert_eq!(objection(&claim("Bound", "1Gi"), Some(&allowing)), None);
        assert!(objection(&claim("Pending", "1Gi"), Some(&allowing)).unwrap().starts_with("Only bound"));
        for class in [None, Some(&json!({})), Some(&json!({"allowVolumeExpansion": false}))] {
            assert!(objection(&claim("Bound", "1Gi"), class).unwrap().starts_with("only dynamically provisioned"));
        }
        assert_eq!(class_of(&json!({"metadata": {"annotations": {BETA_STORAGE_CLASS: "old"}}})), Some("old"));
        assert_eq!(class_of(&json!({"spec": {"storageClassName": ""}})), None);
    }
}
