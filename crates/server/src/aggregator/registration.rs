//! Registers an APIService for every group and version that this server serves itself, as upstream does.
//!
//! Those of built-in kinds are made when the server starts, and left as they are afterwards; those of CustomResourceDefinitions
//! come and go with them. One that names a Service is somebody's, and never touched.

use std::{collections::BTreeMap, sync::Arc};

use http::{Method, StatusCode};
use mainstay_api::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{COLLECTION, GROUP, PLURAL, api_services::local_priorities};
use crate::{
    background::bootstrap::BootstrapClient, handler::Handler, objects::store_cache::CachedObject, relay::metrics,
};

/// Upstream's label of what it registers by itself.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
const ON_START: &str = "onstart";
const ALWAYS: &str = "true";

#[derive(Debug, PartialEq)]
enum Action {
    Create { name: String, object: Value },
    Delete { name: String, uid: String },
}

/// Registers what is served, now and whenever that changes.
pub async fn follow(handler: Arc<Handler>, stop: CancellationToken) {
    let client = BootstrapClient::new(&handler);
    let mut changes = handler.api.served.changes();
    let mut is_start = true;
    loop {
        changes.borrow_and_update();
        let current = handler.api.served.current();
        let actions = plan(&current, &handler.api.aggregator.objects.list(PLURAL, None), is_start);
        let mut is_done = true;
        for action in actions {
            if stop.is_cancelled() {
                return;
            }
            is_done &= apply(&client, action).await;
        }
        is_start &= !is_done;
        let again = tokio::time::Duration::from_secs(if is_done { 60 } else { 5 });
        tokio::select! {
            () = stop.cancelled() => return,
            _ = changes.changed() => {}
            () = tokio::time::sleep(again) => {}
        }
    }
}

fn plan(served: &Registry, registered: &[CachedObject], is_start: bool) -> Vec<Action> {
    // A group and version with a built-in kind is built in.
    let mut wanted: BTreeMap<String, (&str, &str, bool)> = BTreeMap::new();
    for d in served.iter() {
        let is_custom = d.custom.is_some();
        let entry = wanted.entry(format!("{}.{}", d.version, d.group)).or_insert((&d.group, &d.version, is_custom));
        entry.2 &= is_custom;
    }
    wanted.insert(format!("{}.{}", metrics::VERSION, metrics::GROUP), (metrics::GROUP, metrics::VERSION, false));
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let known: BTreeMap<String, &Value> = registered.iter().map(|o| (name(&o.value), &*o.value)).collect();
    let missing =
        wanted.iter().filter(|(name, (_, _, is_custom))| (*is_custom || is_start) && !known.contains_key(*name));
    let mut actions: Vec<Action> = missing
        .map(|(name, (group, version, is_custom))| Action::Create {
            name: name.clone(),
            object: local(name, group, version, *is_custom),
        })
        .collect();
    let is_left_over = |name: &&String, object: &&Value| {
        let is_ours = object["metadata"]["labels"][AUTOMANAGED] == ALWAYS && !object["spec"]["service"].is_object();
        is_ours && !wanted.contains_key(*name)
    };
    let left_over = known.iter().filter(|(name, object)| is_left_over(name, object));
    actions.extend(left_over.map(|(name, object)| Action::Delete {
        name: name.clone(),
        uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
    }));
    actions
}

fn local(name: &str, group: &str, version: &str, is_custom: bool) -> Value {
    let (group_priority, version_priority) = local_priorities(group, version, is_custom);
    json!({
        "kind": "APIService", "apiVersion": format!("{GROUP}/v1"),
        "metadata": { "name": name, "labels": { AUTOMANAGED: if is_custom { ALWAYS } else { ON_START } } },
        "spec": {
            "group": group, "version": version,
            "groupPriorityMinimum": group_priority, "versionPriority": version_priority,
        },
    })
}

/// Whether it need not be tried again.
async fn apply(client: &BootstrapClient<'_>, action: Action) -> bool {
    let (name, (code, answer)) = match action {
        Action::Create { name, object } => (name, client.call(Method::POST, COLLECTION, Some(&object)).await),
        Action::Delete { name, uid } => {
            let options = json!({ "preconditions": { "uid": uid } });
            let path = format!("{COLLECTION}/{name}");
            (name, client.call(Method::DELETE, &path, Some(&options)).await)
        }
    };
    let is_done = code.is_success() || matches!(code, StatusCode::CONFLICT | StatusCode::NOT_FOUND);
    if !is_done {
        let error = answer["message"].as_str().unwrap_or("no answer");
        tracing::warn!(api_service = name, error, "cannot register what this server serves; will try again");
    }
    is_done
}

#[cfg(test)]
mod tests {
    use mainstay_store::Revision;

    use super::*;

    fn cached(value: Value) -> CachedObject {
        CachedObject { modified: Revision(1), value: Arc::new(value) }
    }

    #[test]
    fn what_is_built_in_is_registered_at_the_start_and_then_left_alone() {
        let served = Registry::builtin();
        let created = plan(&served, &[], true);
        let names: Vec<&str> = created
            .iter()
            .map(|action| match action {
                Action::Create { name, .. } | Action::Delete { name, .. } => name.as_str(),
            })
            .collect();
        for name in ["v1.", "v1.apps", "v2.autoscaling", "v1.apiregistration.k8s.io", "v1beta1.metrics.k8s.io"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert_eq!(plan(&served, &[], false), [], "an administrator may delete one");
        let registered: Vec<CachedObject> = created
            .into_iter()
            .filter_map(|action| match action {
                Action::Create { object, .. } => Some(cached(object)),
                Action::Delete { .. } => None,
            })
            .collect();
        assert_eq!(plan(&served, &registered, true), [], "rests");
    }

    #[test]
    fn that_of_a_definition_goes_with_it_unless_it_names_a_service() {
        let served = Registry::builtin();
        let mut gone = local("v1.example.com", "example.com", "v1", true);
        gone["metadata"]["uid"] = json!("u");
        let deleted = plan(&served, &[cached(gone.clone())], false);
        assert_eq!(deleted, [Action::Delete { name: "v1.example.com".to_owned(), uid: "u".to_owned() }]);
        gone["spec"]["service"] = json!({ "namespace": "n", "name": "s" });
        assert_eq!(plan(&served, &[cached(gone)], false), []);
    }
}
