//! Parameters of a policy: the objects that a binding's `paramRef` names or selects.

use std::sync::Arc;

use mainstay_api::{descriptor::Descriptor, selector::Labels};
use mainstay_store::List;
use serde_json::Value;

use crate::{
    api::Api,
    http::status::ApiResult,
    objects::{keys, object},
};

/// What a policy is evaluated with for one binding.
#[derive(Debug, PartialEq)]
pub enum FoundParams {
    /// Once, without `params`.
    NotUsed,
    /// Once for each.
    Objects(Vec<Value>),
    /// The binding says that the policy then does not apply.
    Allowed,
    /// The policy cannot be evaluated; its failure policy decides.
    Failed(String),
}

pub async fn find_params(
    api: &Api,
    policy: &Value,
    binding: &Value,
    namespace: Option<&str>,
) -> ApiResult<FoundParams> {
    let (kind, reference) = (&policy["spec"]["paramKind"], &binding["spec"]["paramRef"]);
    if !kind.is_object() {
        return Ok(FoundParams::NotUsed);
    }
    // A binding without a reference evaluates the policy with `params` null.
    if !reference.is_object() {
        return Ok(FoundParams::Objects(vec![Value::Null]));
    }
    let (version, name) = (kind["apiVersion"].as_str().unwrap_or_default(), kind["kind"].as_str().unwrap_or_default());
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let Some(d) = api.served.find_kind(group, version, name) else {
        let why = format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={name}'");
        return Ok(FoundParams::Failed(why));
    };
    let namespace = match (d.namespaced(), reference["namespace"].as_str().or(namespace)) {
        (false, _) => None,
        (true, Some(namespace)) => Some(namespace),
        (true, None) => {
            let why = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources";
            return Ok(FoundParams::Failed(format!("failed to configure binding: {why}")));
        }
    };
    let found = read_params(api, &d, reference, namespace).await?;
    Ok(match (found.is_empty(), reference["parameterNotFoundAction"].as_str()) {
        (false, _) => FoundParams::Objects(found),
        (true, Some("Allow")) => FoundParams::Allowed,
        (true, _) => FoundParams::Failed(
            "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
                .into(),
        ),
    })
}

async fn read_params(
    api: &Api,
    d: &Arc<Descriptor>,
    reference: &Value,
    namespace: Option<&str>,
) -> ApiResult<Vec<Value>> {
    if let Some(name) = reference["name"].as_str().filter(|name| keys::is_segment(name)) {
        let (entry, _) = api.store.get(&keys::key(d, namespace, name)).await?;
        return entry.into_iter().map(|entry| object::parse(d, &entry)).collect();
    }
    let Ok(selector) = Labels::from_selector(&reference["selector"]) else { return Ok(Vec::new()) };
    let prefix = keys::prefix(d, namespace);
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let mut found = Vec::new();
    for entry in &listing.entries {
        let object = object::parse(d, entry)?;
        if selector.matches_map(object["metadata"].get("labels")) {
            found.push(object);
        }
    }
    Ok(found)
}
