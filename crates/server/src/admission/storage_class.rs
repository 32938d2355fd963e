//! DefaultStorageClass: a PersistentVolumeClaim that names no class gets the default one when it is created.

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use mainstay_store::List;
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::Api,
    http::status::ApiResult,
    objects::{keys, object},
};

const IS_DEFAULT: &str = mainstay_api::wellknown::kubernetes::DEFAULT_STORAGE_CLASS;
/// Where classes were named before they had a field.
const OLD_NAME: &str = mainstay_api::wellknown::kubernetes::BETA_STORAGE_CLASS;

pub struct DefaultStorageClass;

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("PersistentVolumeClaim")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        set_default_class(request.api, object).await
    }
}

/// An empty name is a name: it asks for a volume without a class.
async fn set_default_class(api: &Api, claim: &mut Value) -> ApiResult<()> {
    let named = !claim["spec"]["storageClassName"].is_null() || !claim["metadata"]["annotations"][OLD_NAME].is_null();
    let Some(classes) = api.registry.find("storage.k8s.io", "v1", "storageclasses").filter(|_| !named) else {
        return Ok(());
    };
    let prefix = keys::prefix(classes, None);
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let all = listing.entries.iter().map(|entry| object::parse(classes, entry)).collect::<ApiResult<Vec<Value>>>()?;
    if let Some(name) = default_class(&all) {
        claim["spec"]["storageClassName"] = json!(name);
    }
    Ok(())
}

/// Of several, the newest; of those made within one second, the first by name.
fn default_class(classes: &[Value]) -> Option<&str> {
    let text = |class: &Value, field: &str| class["metadata"][field].as_str().unwrap_or_default().to_owned();
    let marked = classes.iter().filter(|class| class["metadata"]["annotations"][IS_DEFAULT] == "true");
    let newest =
        marked.max_by_key(|class| (text(class, "creationTimestamp"), std::cmp::Reverse(text(class, "name"))))?;
    newest["metadata"]["name"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_default_counts() {
        let class = |name: &str, time: &str, default: &str| json!({"metadata": {"name": name, "creationTimestamp": time, "annotations": {IS_DEFAULT: default}}});
        assert_eq!(default_class(&[class("a", "2026-01-01T00:00:00Z", "false")]), None);
        let several = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("b", "2026-01-02T00:00:00Z", "true"),
            class("a", "2026-01-02T00:00:00Z", "true"),
            class("no", "2026-01-03T00:00:00Z", "false"),
        ];
        assert_eq!(default_class(&several), Some("a"));
    }
}
