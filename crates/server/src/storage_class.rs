//! Claims that name no class get the default one, at the moment they are made.

use mainstay_api::descriptor::Descriptor;
use mainstay_store::List;
use serde_json::{Value, json};

use crate::{api::Api, keys, object, status::ApiResult};

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
/// Where classes were named before they had a field.
const OLD_NAME: &str = "volume.beta.kubernetes.io/storage-class";

pub fn concerns(d: &Descriptor) -> bool {
    d.kind == "PersistentVolumeClaim" && d.group.is_empty()
}

/// An empty name is a name: it asks for a volume without a class.
pub async fn on_create(api: &Api, claim: &mut Value) -> ApiResult<()> {
    let named = !claim["spec"]["storageClassName"].is_null() || !claim["metadata"]["annotations"][OLD_NAME].is_null();
    let Some(classes) = api.registry.find("storage.k8s.io", "v1", "storageclasses").filter(|_| !named) else {
        return Ok(());
    };
    let prefix = keys::prefix(classes, None);
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let all: Vec<Value> = listing.entries.iter().map(|entry| object::value_of(classes, entry)).collect();
    if let Some(name) = default(&all) {
        claim["spec"]["storageClassName"] = json!(name);
    }
    Ok(())
}

/// Of several, the newest; of those made within one second, the first by name.
fn default(classes: &[Value]) -> Option<&str> {
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
        assert_eq!(default(&[class("a", "2026-01-01T00:00:00Z", "false")]), None);
        let several = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("b", "2026-01-02T00:00:00Z", "true"),
            class("a", "2026-01-02T00:00:00Z", "true"),
            class("no", "2026-01-03T00:00:00Z", "false"),
        ];
        assert_eq!(default(&several), Some("a"));
    }
}
