//! Brings a cluster to the FlowSchemas and PriorityLevelConfigurations of `groups::flowcontrol::bootstrap`, as upstream does.
//!
//! Mandatory ones always have the fixed spec (the shares of the level `exempt` may be tuned). Suggested ones are made when
//! they are missing, and follow the suggestion unless their annotation [`AUTO_UPDATE`] says `false`.

use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use mainstay_api::groups::flowcontrol::bootstrap::{
    AUTO_UPDATE, mandatory_flow_schemas, mandatory_priority_levels, suggested_flow_schemas, suggested_priority_levels,
};
use serde_json::{Value, json};

use super::bootstrap::{BootstrapClient, BootstrapError, failed};

const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
/// How many objects are looked at and written at a time.
const AT_ONCE: usize = 16;

struct BootstrapObject {
    collection: &'static str,
    name: String,
    object: Value,
    is_mandatory: bool,
}

impl BootstrapObject {
    /// The existing object as it should be, if that is different.
    fn revise(&self, existing: &Value) -> Option<Value> {
        let follows = existing["metadata"]["annotations"][AUTO_UPDATE] == "true";
        if !self.is_mandatory && !follows {
            return None;
        }
        let mut revised = existing.clone();
        revised["spec"] = self.object["spec"].clone();
        if let Some(tuned) = existing["spec"].get("exempt").filter(|_| self.is_mandatory) {
            revised["spec"]["exempt"] = tuned.clone();
        }
        (revised["spec"] != existing["spec"]).then_some(revised)
    }
}

/// Looks at all of them, whatever becomes of one.
pub async fn reconcile(client: &BootstrapClient<'_>) -> Result<(), BootstrapError> {
    let mut results = stream::iter(bootstrap_objects()).map(|wanted| ensure(client, wanted)).buffer_unordered(AT_ONCE);
    let mut first_error = Ok(());
    while let Some(result) = results.next().await {
        first_error = first_error.and(result);
    }
    first_error
}

fn bootstrap_objects() -> Vec<BootstrapObject> {
    let object = |collection, is_mandatory, kind: &str, object: Option<Value>| {
        let mut object = object.unwrap_or_default();
        object["kind"] = json!(kind);
        object["apiVersion"] = json!("flowcontrol.apiserver.k8s.io/v1");
        object["metadata"]["annotations"] = json!({ (AUTO_UPDATE): "true" });
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        BootstrapObject { collection, name, object, is_mandatory }
    };
    let level = |is_mandatory| {
        move |level| object(LEVELS, is_mandatory, "PriorityLevelConfiguration", serde_json::to_value(level).ok())
    };
    let schema =
        |is_mandatory| move |schema| object(SCHEMAS, is_mandatory, "FlowSchema", serde_json::to_value(schema).ok());
    mandatory_priority_levels()
        .into_iter()
        .map(level(true))
        .chain(suggested_priority_levels().into_iter().map(level(false)))
        .chain(mandatory_flow_schemas().into_iter().map(schema(true)))
        .chain(suggested_flow_schemas().into_iter().map(schema(false)))
        .collect()
}

async fn ensure(client: &BootstrapClient<'_>, wanted: BootstrapObject) -> Result<(), BootstrapError> {
    let path = format!("{}/{}", wanted.collection, wanted.name);
    let (code, existing) = client.call(Method::GET, &path, None).await;
    let (code, status) = match code {
        StatusCode::NOT_FOUND => client.call(Method::POST, wanted.collection, Some(&wanted.object)).await,
        StatusCode::OK => match wanted.revise(&existing) {
            Some(revised) => client.call(Method::PUT, &path, Some(&revised)).await,
            None => (code, existing),
        },
        _ => (code, existing),
    };
    match code {
        // Another server may be faster.
        StatusCode::OK | StatusCode::CREATED | StatusCode::CONFLICT => Ok(()),
        _ => Err(failed(wanted.collection, &wanted.name, &status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> BootstrapObject {
        bootstrap_objects().into_iter().find(|wanted| wanted.name == name).unwrap()
    }

    #[test]
    fn mandatory_objects_come_back_and_suggested_ones_as_long_as_they_follow() {
        for (name, comes_back) in [("exempt", true), ("global-default", true)] {
            let wanted = find(name);
            assert_eq!(wanted.revise(&wanted.object), None);
            let mut changed = wanted.object.clone();
            changed["spec"]["type"] = json!("Odd");
            assert_eq!(wanted.revise(&changed).is_some(), comes_back, "{name}");
        }
        let suggested = find("workload-low");
        let mut kept = suggested.object.clone();
        kept["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
        kept["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
        assert_eq!(suggested.revise(&kept), None);
    }

    #[test]
    fn the_shares_of_the_exempt_level_may_be_tuned() {
        let exempt = find("exempt");
        let mut tuned = exempt.object.clone();
        tuned["spec"]["exempt"]["nominalConcurrencyShares"] = json!(5);
        assert_eq!(exempt.revise(&tuned), None);
    }
}
