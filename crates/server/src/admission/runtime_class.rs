//! RuntimeClass: a new pod's overhead, node selector and tolerations come from its RuntimeClass.
//!
//! Upstream's plugin, with its messages: a pod that names a class that does not exist, contradicts the class's node
//! selector, or sets an overhead of its own is refused.

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, quantity::Quantity};
use serde_json::{Map, Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::{Api, Target},
    http::status::{ApiError, ApiResult},
    objects::{keys, metadata, object},
};

pub struct RuntimeClass;

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Pod")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        admit(request.api, request.target, object).await
    }
}

async fn admit(api: &Api, target: &Target, pod: &mut Value) -> ApiResult<()> {
    let name = metadata::string_field(pod, "name").unwrap_or_default().to_owned();
    let forbidden = |why: String| ApiError::forbidden(&target.d, &name, &why);
    let named = pod["spec"]["runtimeClassName"].as_str().unwrap_or_default().to_owned();
    let class = match (named.as_str(), api.registry.find("node.k8s.io", "v1", "runtimeclasses")) {
        ("", _) | (_, None) => None,
        (named, Some(d)) => {
            let found = if keys::is_segment(named) { api.store.get(&keys::key(d, None, named)).await?.0 } else { None };
            let found = found.ok_or_else(|| forbidden(format!("pod rejected: RuntimeClass {named:?} not found")))?;
            Some(object::parse(d, &found)?)
        }
    };
    let spec = &mut pod["spec"];
    set_overhead(spec, class.as_ref()).map_err(forbidden)?;
    match &class {
        Some(class) => set_scheduling(spec, &class["scheduling"]).map_err(forbidden),
        None => Ok(()),
    }
}

fn set_overhead(spec: &mut Value, class: Option<&Value>) -> Result<(), String> {
    let given = spec.get("overhead").and_then(Value::as_object).filter(|given| !given.is_empty());
    let fixed = class.and_then(|class| class["overhead"]["podFixed"].as_object()).filter(|fixed| !fixed.is_empty());
    match (given, fixed) {
        (None, None) => Ok(()),
        (Some(_), None) => {
            Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".to_owned())
        }
        (Some(given), Some(fixed)) if !equal_amounts(given, fixed) => {
            Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned())
        }
        (_, Some(fixed)) => {
            let fixed = Value::Object(fixed.clone());
            spec["overhead"] = fixed;
            Ok(())
        }
    }
}

fn equal_amounts(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let amount = |value: &Value| value.as_str().and_then(|text| Quantity::parse(text).ok());
    let same = |(name, value): (&String, &Value)| b.get(name).is_some_and(|other| amount(value) == amount(other));
    a.len() == b.len() && a.iter().all(same)
}

fn set_scheduling(spec: &mut Value, scheduling: &Value) -> Result<(), String> {
    for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        let given = &spec["nodeSelector"][key];
        if !given.is_null() && given != value {
            let (value, given) = (value.as_str().unwrap_or_default(), given.as_str().unwrap_or_default());
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {given}"
            ));
        }
        spec["nodeSelector"][key] = value.clone();
    }
    let own = scheduling["tolerations"].as_array().filter(|own| !own.is_empty());
    if let Some(own) = own {
        let given = spec["tolerations"].as_array().cloned().unwrap_or_default();
        spec["tolerations"] = json!(merge_tolerations(own.iter().cloned().chain(given).collect()));
    }
    Ok(())
}

/// All tolerations but those that another one covers; of equal ones the first.
fn merge_tolerations(all: Vec<Value>) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for (index, toleration) in all.iter().enumerate() {
        let covered = merged.iter().any(|other| is_superset(other, toleration))
            || all[index + 1..].iter().any(|later| later != toleration && is_superset(later, toleration));
        if !covered {
            merged.push(toleration.clone());
        }
    }
    merged
}

/// Whether everything that one toleration tolerates, the other does too.
fn is_superset(superset: &Value, subset: &Value) -> bool {
    if superset == subset {
        return true;
    }
    let text = |toleration: &Value, field: &str| toleration[field].as_str().unwrap_or_default().to_owned();
    let operator = |toleration: &Value| match text(toleration, "operator").as_str() {
        "Exists" => "Exists",
        _ => "Equal",
    };
    let any_key = text(superset, "key").is_empty() && operator(superset) == "Exists";
    if text(superset, "key") != text(subset, "key") && !any_key {
        return false;
    }
    let effect = text(superset, "effect");
    if !effect.is_empty() && effect != text(subset, "effect") {
        return false;
    }
    if effect == "NoExecute"
        && let Some(limit) = superset["tolerationSeconds"].as_i64()
    {
        match subset["tolerationSeconds"].as_i64() {
            Some(seconds) if seconds <= limit => {}
            _ => return false,
        }
    }
    operator(superset) == "Exists" || (operator(subset) == "Equal" && text(superset, "value") == text(subset, "value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> Value {
        json!({
            "overhead": { "podFixed": { "cpu": "10m", "memory": "1Mi" } },
            "scheduling": {
                "nodeSelector": { "disk": "ssd" },
                "tolerations": [{ "key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule" }],
            },
        })
    }

    #[test]
    fn a_pod_gets_the_overhead_of_its_class() {
        let mut spec = json!({});
        assert_eq!(set_overhead(&mut spec, Some(&class())), Ok(()));
        assert_eq!(spec["overhead"], json!({ "cpu": "10m", "memory": "1Mi" }));
        let mut same = json!({ "overhead": { "cpu": "0.01", "memory": "1024Ki" } });
        assert_eq!(set_overhead(&mut same, Some(&class())), Ok(()));
        let mut other = json!({ "overhead": { "cpu": "20m" } });
        let refused = set_overhead(&mut other, Some(&class())).unwrap_err();
        assert_eq!(refused, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead");
        let refused = set_overhead(&mut other, None).unwrap_err();
        assert_eq!(refused, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead");
    }

    #[test]
    fn a_pod_goes_where_its_class_can_run() {
        let mut spec = json!({ "nodeSelector": { "zone": "a" } });
        assert_eq!(set_scheduling(&mut spec, &class()["scheduling"]), Ok(()));
        assert_eq!(spec["nodeSelector"], json!({ "zone": "a", "disk": "ssd" }));
        assert_eq!(spec["tolerations"], class()["scheduling"]["tolerations"]);
        let mut spec = json!({ "nodeSelector": { "disk": "hdd" } });
        let refused = set_scheduling(&mut spec, &class()["scheduling"]).unwrap_err();
        assert_eq!(
            refused,
            "conflict: runtimeClass.scheduling.nodeSelector[disk] = ssd; pod.spec.nodeSelector[disk] = hdd"
        );
    }

    #[test]
    fn tolerations_that_another_covers_are_left_out() {
        let narrow = json!({ "key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule" });
        let wide = json!({ "key": "team", "operator": "Exists" });
        let all = json!({ "operator": "Exists" });
        let brief = json!({ "key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 });
        let longer = json!({ "key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9 });
        assert_eq!(merge_tolerations(vec![narrow.clone(), narrow.clone()]), std::slice::from_ref(&narrow));
        assert_eq!(merge_tolerations(vec![narrow.clone(), wide.clone()]), std::slice::from_ref(&wide));
        assert_eq!(merge_tolerations(vec![wide, narrow, all.clone()]), [all]);
        assert_eq!(merge_tolerations(vec![brief, longer.clone()]), [longer]);
    }
}
