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
    if !named && let Some(name) = find_default_class(api, "storage.k8s.io", "storageclasses", IS_DEFAULT).await? {
        claim["spec"]["storageClassName"] = json!(name);
    }
    Ok(())
}

/// The name of the class that an annotation marks as the default among those of a kind.
pub(super) async fn find_default_class(
    api: &Api,
    group: &str,
    plural: &str,
    annotation: &str,
) -> ApiResult<Option<String>> {
    let Some(classes) = api.registry.find(group, "v1", plural) else { return Ok(None) };
    let prefix = keys::prefix(classes, None);
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let all = listing.entries.iter().map(|entry| object::parse(classes, entry)).collect::<ApiResult<Vec<Value>>>()?;
    Ok(default_class(&all, annotation).map(str::to_owned))
}

/// Of several, the newest; of those made within one second, the first by name.
fn default_class<'a>(classes: &'a [Value], annotation: &str) -> Option<&'a str> {
    let text = |class: &Value, field: &str| class["metadata"][field].as_str().unwrap_or_default().to_owned();
    let marked = classes.iter().filter(|class| class["metadata"]["annotations"][annotation] == "true");
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
        assert_eq!(default_class(&[class("a", "2026-01-01T00:00:00Z", "false")], IS_DEFAULT), None);
        let several = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("b", "2026-01-02T00:00:00Z", "true"),
            class("a", "2026-01-02T00:00:00Z", "true"),
            class("no", "2026-01-03T00:00:00Z", "false"),
        ];
        assert_eq!(default_class(&several, IS_DEFAULT), Some("a"));
    }
}
