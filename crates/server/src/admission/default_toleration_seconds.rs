//! DefaultTolerationSeconds: for how long pods that do not say so themselves tolerate a node that is not ready or unreachable.
//!
//! Upstream's plugin; the time is a setting (`--unreachable-toleration`). A toleration of a pod's own, for one of the two
//! taints or for every taint, wins.

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, wellknown::taint};
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{http::status::ApiResult, objects::guaranteed_update::Part};

pub struct DefaultTolerationSeconds;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Pod")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        add_tolerations(&mut object["spec"], request.api.settings.toleration_seconds);
        Ok(())
    }

    async fn admit_update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        _old: &Value,
        _: &mut TxnAdditions,
    ) -> ApiResult<()> {
        if request.part == Part::Main {
            add_tolerations(&mut object["spec"], request.api.settings.toleration_seconds);
        }
        Ok(())
    }
}

fn add_tolerations(spec: &mut Value, seconds: i64) {
    let Some(spec) = spec.as_object_mut() else { return };
    let own = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |toleration: &Value, field: &str| toleration[field].as_str().unwrap_or_default().to_owned();
    let is_covered = |key: &str| {
        own.iter().any(|toleration| {
            ["", key].contains(&&*text(toleration, "key")) && ["", "NoExecute"].contains(&&*text(toleration, "effect"))
        })
    };
    let added: Vec<Value> = [taint::NOT_READY, taint::UNREACHABLE]
        .into_iter()
        .filter(|key| !is_covered(key))
        .map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds }))
        .collect();
    if !added.is_empty() {
        spec.insert("tolerations".to_owned(), [own, added].concat().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerations(spec: Value) -> Value {
        let mut spec = spec;
        add_tolerations(&mut spec, 5);
        spec["tolerations"].clone()
    }

    fn stock(key: &str) -> Value {
        json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 })
    }

    #[test]
    fn pods_tolerate_lost_nodes_for_the_stock_time() {
        let both = json!([stock("node.kubernetes.io/not-ready"), stock("node.kubernetes.io/unreachable")]);
        assert_eq!(tolerations(json!({})), both);
        assert_eq!(tolerations(json!({ "tolerations": null })), both);
        assert_eq!(tolerations(json!({ "tolerations": both })), both, "only once");
        let other = json!({ "key": "dedicated", "operator": "Exists", "effect": "NoSchedule" });
        assert_eq!(tolerations(json!({ "tolerations": [other] })).as_array().unwrap().len(), 3);
    }

    #[test]
    fn what_a_pod_says_itself_wins() {
        let own = json!({ "key": taint::UNREACHABLE, "operator": "Exists", "tolerationSeconds": 600 });
        assert_eq!(tolerations(json!({ "tolerations": [own] })), json!([own, stock(taint::NOT_READY)]));
        for every in [json!({ "operator": "Exists" }), json!({ "operator": "Exists", "effect": "NoExecute" })] {
            assert_eq!(tolerations(json!({ "tolerations": [every] })), json!([every]));
        }
    }
}
