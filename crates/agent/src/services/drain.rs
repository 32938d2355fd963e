//! Whether connections may still be sent to a pod that ends.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::matching::{Labels, UNLABELLED, has_labels};
use mainstay_network::catalogue::{Catalogue, Key};
use parking_lot::RwLock;

/// Set to `True` once no machine's table sends to the pod.
pub const DRAINED: &str = mainstay_api::wellknown::mainstay::DRAINED_CONDITION;

type Selectors = BTreeMap<Arc<str>, BTreeMap<String, String>>;

/// Which pods Services select, by namespace. Without a server nobody does.
#[derive(Default)]
pub struct Traffic {
    selectors: RwLock<HashMap<Arc<str>, Selectors>>,
    /// Who stands behind Services, as far as this machine knows.
    catalogue: Arc<Catalogue>,
}

impl Traffic {
    pub fn new(catalogue: Arc<Catalogue>) -> Self {
        Self { selectors: RwLock::default(), catalogue }
    }

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

    /// Whether machines may be sending to a pod: some Service selects it, and its last known condition is ready.
    pub fn may_reach(&self, pod: &Pod) -> bool {
        let all = self.selectors.read();
        let mut selectors = all.get(namespace(pod)).into_iter().flat_map(BTreeMap::values);
        holds(pod, "Ready") && selectors.any(|selector| selects(selector, pod))
    }

    /// Whether this machine itself would still send to a pod for a Service that selects it. It does not know of pods that have the
    /// address of their machine, nor of Services that send to whoever is there.
    pub fn sends_to(&self, pod: &Pod) -> bool {
        let Some(address) = own_address(pod) else { return false };
        let all = self.selectors.read();
        let Some(selectors) = all.get(namespace(pod)) else { return false };
        let known = self.catalogue.read();
        known.backends_at(address).any(|(key, service, endpoint)| {
            let selected = || selectors.get(&key.name).is_some_and(|selector| selects(selector, pod));
            endpoint.ready && !service.publish_not_ready && *key.namespace == *namespace(pod) && selected()
        })
    }
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

fn selects(selector: &Labels, pod: &Pod) -> bool {
    has_labels(selector, pod.metadata.labels.as_ref().unwrap_or(&UNLABELLED))
}

/// None if it shares its machine's.
fn own_address(pod: &Pod) -> Option<Ipv4Addr> {
    let status = pod.status.as_ref()?;
    status.pod_ip.as_ref().filter(|ip| Some(*ip) != status.host_ip.as_ref())?.parse().ok()
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
    use mainstay_network::catalogue::{Endpoint, Service, ServiceKind, Slice};
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

    fn service(publish_not_ready: bool) -> Service {
        Service {
            kind: ServiceKind::Headless,
            ports: vec![],
            external_ips: vec![],
            affinity: None,
            internal_local: false,
            external_local: false,
            hold: mainstay_network::catalogue::HOLD,
            through_user_space: false,
            publish_not_ready,
            has_other_proxy: false,
            tags: vec![],
        }
    }

    fn slice(service: &str, last: u8, ready: bool) -> Slice {
        let address = Ipv4Addr::new(10, 244, 0, last);
        let endpoint =
            Endpoint { address, ready, serving: true, terminating: !ready, node: None, hostname: None, hints: None };
        Slice { service: service.into(), ports: vec![], endpoints: vec![endpoint], host: None }
    }

    #[test]
    fn a_pod_is_sent_to_until_the_endpoints_of_a_service_that_selects_it_say_otherwise() {
        let catalogue = Arc::<Catalogue>::default();
        let traffic = Traffic::new(catalogue.clone());
        let mut web = pod("a", "web", "True");
        let status = web.status.as_mut().unwrap();
        (status.pod_ip, status.host_ip) = (Some("10.244.0.2".to_owned()), Some("192.0.2.1".to_owned()));
        let selector = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        for (name, selector, publishes) in
            [("web", Some(&selector), false), ("all", Some(&selector), true), ("manual", None, false)]
        {
            let key = Key::new("a", name);
            traffic.set_selector(&key, selector);
            catalogue.set_service(key.clone(), Some(service(publishes)));
            catalogue.set_slice(key, Some(slice(name, if name == "web" { 3 } else { 2 }, true)));
        }
        assert!(!traffic.sends_to(&web), "others, or who is sent to whatever becomes of them");
        catalogue.set_slice(Key::new("a", "web"), Some(slice("web", 2, true)));
        assert!(traffic.sends_to(&web));
        catalogue.set_slice(Key::new("a", "web"), Some(slice("web", 2, false)));
        assert!(!traffic.sends_to(&web), "it is about to end");
        catalogue.set_slice(Key::new("a", "web"), Some(slice("web", 2, true)));
        let status = web.status.as_mut().unwrap();
        status.host_ip.clone_from(&status.pod_ip);
        assert!(!traffic.sends_to(&web), "it has its machine's address");
    }
}
