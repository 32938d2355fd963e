//! Whether connections may still be sent to a pod.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_network::catalogue::Key;
use parking_lot::RwLock;

/// Set to `True` once no machine's table sends to the pod.
pub const DRAINED: &str = "mainstay.dev/Drained";

type Selectors = BTreeMap<Arc<str>, BTreeMap<String, String>>;

/// Which pods Services select, by namespace. Without a server nobody does.
#[derive(Default)]
pub struct Traffic {
    selectors: RwLock<HashMap<Arc<str>, Selectors>>,
}

impl Traffic {
    pub(super) fn set_selector(&self, service: &Key, selector: Option<&BTreeMap<String, String>>) {
        let mut all = self.selectors.write();
        match selector.filter(|selector| !selector.is_empty()) {
            Some(selector) => {
                let here = all.entry(service.namespace.clone()).or_default();
                here.insert(service.name.clone(), selector.clone());
            }
            None => {
                if let Some(here) = all.get_mut(&service.namespace) {
                    here.remove(&service.name);
                    if here.is_empty() {
                        all.remove(&service.namespace);
                    }
                }
            }
        }
    }

    /// Whether machines may be sending to a pod: some Service selects it, and it was last said to be ready.
    pub fn may_reach(&self, pod: &Pod) -> bool {
        let nothing = BTreeMap::new();
        let labels = pod.metadata.labels.as_ref().unwrap_or(&nothing);
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let all = self.selectors.read();
        let mut selectors = all.get(namespace).into_iter().flat_map(BTreeMap::values);
        holds(pod, "Ready")
            && selectors.any(|selector| selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
    }
}

/// Whether it is known that no machine sends to a pod any more.
pub fn is_drained(pod: &Pod) -> bool {
    holds(pod, DRAINED)
}

fn holds(pod: &Pod, kind: &str) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == kind && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, app: &str, ready: &str) -> Pod {
        let conditions = json!([{ "type": "Ready", "status": ready }]);
        let metadata = json!({ "name": "p", "namespace": namespace, "labels": { "app": app } });
        serde_json::from_value(json!({ "metadata": metadata, "status": { "conditions": conditions } })).unwrap()
    }

    #[test]
    fn only_ready_pods_that_services_select_are_sent_to() {
        let traffic = Traffic::default();
        let (web, all) = (Key::new("a", "web"), Key::new("b", "manual"));
        traffic.set_selector(&web, Some(&BTreeMap::from([("app".to_owned(), "web".to_owned())])));
        traffic.set_selector(&all, Some(&BTreeMap::new()));
        assert!(traffic.may_reach(&pod("a", "web", "True")));
        assert!(!traffic.may_reach(&pod("a", "web", "False")), "not ready");
        assert!(!traffic.may_reach(&pod("a", "other", "True")), "not selected");
        assert!(!traffic.may_reach(&pod("b", "web", "True")), "a selector of nothing selects nothing");
        traffic.set_selector(&web, None);
        assert!(!traffic.may_reach(&pod("a", "web", "True")), "the Service is gone");
    }
}
