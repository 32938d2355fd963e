//! Priority: a new pod's priority comes from its PriorityClass.
//!
//! Upstream's plugin, with its messages. Pods without a class get the global default, if there is one: of several the
//! one with the least value.

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, wellknown::kubernetes::system_priority};
use mainstay_store::List;
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::{Api, Target},
    http::status::{ApiError, ApiResult},
    objects::{keys, metadata, object},
};

/// What the stored bytes of a global default contain.
const GLOBAL_DEFAULT: &[u8] = br#""globalDefault":true"#;

pub struct Priority;

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Pod")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        set_priority(request.api, request.target, object).await
    }
}

async fn set_priority(api: &Api, target: &Target, pod: &mut Value) -> ApiResult<()> {
    let Some(d) = api.registry.find("scheduling.k8s.io", "v1", "priorityclasses") else { return Ok(()) };
    let named = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
    if system_priority(&named).is_some() {
        return Ok(()); // known without looking it up
    }
    let class = if named.is_empty() {
        match global_default(api, d).await? {
            Some(class) => class,
            None => return Ok(()),
        }
    } else {
        let found = if keys::is_segment(&named) { api.store.get(&keys::key(d, None, &named)).await?.0 } else { None };
        let name = metadata::string_field(pod, "name").unwrap_or_default();
        let missing = || ApiError::forbidden(&target.d, name, &format!("no PriorityClass with name {named} was found"));
        let found = found.ok_or_else(missing)?;
        object::parse(d, &found)?
    };
    let name = metadata::string_field(pod, "name").unwrap_or_default().to_owned();
    assign(&mut pod["spec"], &class, named.is_empty()).map_err(|why| ApiError::forbidden(&target.d, &name, &why))
}

async fn global_default(api: &Api, d: &Descriptor) -> ApiResult<Option<Value>> {
    let prefix = keys::prefix(d, None);
    let listing = api.store.list(List { prefix: &prefix, ..List::default() }).await?;
    let marked = listing.entries.iter().filter(|entry| contains(&entry.value, GLOBAL_DEFAULT));
    let classes = marked.map(|entry| object::parse(d, entry)).collect::<ApiResult<Vec<Value>>>()?;
    Ok(classes.into_iter().min_by_key(|class| class["value"].as_i64()))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// `defaulted`: the pod named no class, so what it has was put there for want of one.
fn assign(spec: &mut Value, class: &Value, defaulted: bool) -> Result<(), String> {
    let value = class["value"].as_i64().unwrap_or(0);
    let policy = class["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority");
    let given = spec["priority"].as_i64().filter(|given| !(defaulted && *given == 0));
    if let Some(given) = given.filter(|given| *given != value) {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {value} from the given PriorityClass name"
        ));
    }
    let given = spec["preemptionPolicy"].as_str().filter(|_| !defaulted);
    if let Some(given) = given.filter(|given| *given != policy) {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        ));
    }
    spec["priorityClassName"] = class["metadata"]["name"].clone();
    spec["priority"] = json!(value);
    spec["preemptionPolicy"] = json!(policy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> Value {
        json!({ "metadata": { "name": "high" }, "value": 7, "preemptionPolicy": "Never" })
    }

    #[test]
    fn a_pod_gets_what_its_class_says() {
        let expected = json!({ "priorityClassName": "high", "priority": 7, "preemptionPolicy": "Never" });
        for (mut spec, defaulted) in [
            (json!({ "priorityClassName": "high" }), false),
            (json!({ "priorityClassName": "high", "priority": 7 }), false),
            (json!({ "priority": 0, "preemptionPolicy": "PreemptLowerPriority" }), true),
        ] {
            assert_eq!(assign(&mut spec, &class(), defaulted), Ok(()));
            assert_eq!(spec, expected);
        }
    }

    #[test]
    fn nobody_gives_himself_a_priority() {
        let mut spec = json!({ "priorityClassName": "high", "priority": 9 });
        let why = assign(&mut spec, &class(), false).unwrap_err();
        assert!(why.starts_with("the integer value of priority (9) must not be provided in pod spec"), "{why}");
        let mut spec = json!({ "priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority" });
        let why = assign(&mut spec, &class(), false).unwrap_err();
        assert!(why.starts_with("the string value of PreemptionPolicy (PreemptLowerPriority) must not"), "{why}");
    }
}
