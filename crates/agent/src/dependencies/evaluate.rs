//! Which needs of a pod are not met, given the catalogue and what the controllers said. Pure.

use std::{collections::BTreeSet, net::Ipv4Addr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::needs::{self, EndpointState, NeedTarget, Needs, OBJECTS_CONDITION, ServiceName};
use mainstay_network::catalogue::{CatalogueState, Key, ServiceKind};

use crate::pods::Source;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeedsObservation {
    /// In the order of the annotation.
    pub unmet: Vec<UnmetNeed>,
    /// How long all needs may take together.
    pub within: Option<Duration>,
    /// The pod has needs at all.
    pub is_declared: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetNeed {
    /// `mysql: 0 of 1 ready`
    pub message: String,
    pub keep: bool,
}

impl NeedsObservation {
    pub fn message(&self) -> Option<String> {
        join(self.unmet.iter())
    }

    /// What is missing of the needs that hold after the start as well.
    pub fn message_after_start(&self) -> Option<String> {
        join(self.unmet.iter().filter(|need| need.keep))
    }
}

fn join<'a>(unmet: impl Iterator<Item = &'a UnmetNeed>) -> Option<String> {
    let messages: Vec<&str> = unmet.map(|need| need.message.as_str()).collect();
    (!messages.is_empty()).then(|| messages.join(", "))
}

pub fn evaluate(needs: &Needs, pod: &Pod, source: Source, known: Option<&CatalogueState>) -> NeedsObservation {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let mut unmet = Vec::new();
    for need in &needs.needs {
        let message = match &need.target {
            // An agent that has just started knows no Services yet. A pod that runs stays as it was, so that a restart of its agent takes it out of no Service.
            NeedTarget::Service { service, .. } if known.is_some_and(|known| !known.is_complete()) => {
                let message = format!("{service}: not known yet");
                unmet.push(UnmetNeed { message, keep: need.keep && was_unmet(pod) });
                None
            }
            NeedTarget::Service { service, at_least, state } => {
                missing_endpoints(known, namespace, service, *at_least, *state)
            }
            NeedTarget::Workload { .. } | NeedTarget::Object { .. } => missing_object(pod, source, &need.target),
        };
        unmet.extend(message.map(|message| UnmetNeed { message, keep: need.keep }));
    }
    NeedsObservation { unmet, within: needs.within, is_declared: !needs.is_empty() }
}

/// Whether needs of the pod were not met when its status was last written.
fn was_unmet(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == needs::CONDITION && condition.status == "False")
}

fn missing_endpoints(
    known: Option<&CatalogueState>,
    own_namespace: &str,
    wanted: &ServiceName,
    at_least: u32,
    state: EndpointState,
) -> Option<String> {
    let Some(known) = known else { return Some(format!("{wanted}: this machine is in no cluster that has Services")) };
    let services: Vec<Key> = match wanted.namespace(own_namespace) {
        Some(namespace) => {
            known.service_named(namespace, wanted.name()).map(|(key, _)| key.clone()).into_iter().collect()
        }
        None => known.services_named(wanted.name()).map(|(key, _)| key.clone()).collect(),
    };
    let is_alias =
        |key: &Key| known.service(key).is_some_and(|service| matches!(service.kind, ServiceKind::ExternalName(_)));
    if !services.is_empty() && services.iter().all(is_alias) {
        return Some(format!("{wanted}: a Service of type ExternalName has no endpoints"));
    }
    let found = services.iter().flat_map(|key| addresses(known, key, state)).collect::<BTreeSet<Ipv4Addr>>().len();
    let is_met = u32::try_from(found).is_ok_and(|found| found >= at_least) || found > at_least as usize;
    match (is_met, services.is_empty()) {
        (true, _) => None,
        (false, true) => Some(format!("{wanted}: no such Service")),
        (false, false) => Some(format!("{wanted}: {found} of {at_least} {state}")),
    }
}

/// An endpoint may be in several slices, for several ports. Whether it is ready is asked of its pod: a Service that publishes
/// addresses that are not ready calls all of them ready.
fn addresses(known: &CatalogueState, service: &Key, state: EndpointState) -> impl Iterator<Item = Ipv4Addr> {
    let endpoints = known.slices_of(service).flat_map(|slice| &slice.endpoints);
    endpoints
        .filter(move |endpoint| !endpoint.terminating && (state == EndpointState::Addressable || endpoint.serving))
        .map(|endpoint| endpoint.address)
}

/// The controllers write one condition for all needs of objects, with a message for each that is not met.
fn missing_object(pod: &Pod, source: Source, target: &NeedTarget) -> Option<String> {
    if source != Source::Api {
        return Some(format!("{target}: a pod from a file of its machine can need Services only"));
    }
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let Some(condition) = conditions.find(|condition| condition.type_ == OBJECTS_CONDITION) else {
        return Some(format!("{target}: not looked at yet"));
    };
    if condition.status == "True" {
        return None;
    }
    // Each line is of one need.
    let prefix = format!("{target}: ");
    let mut lines = condition.message.iter().flat_map(|message| message.lines());
    lines.find(|line| line.starts_with(&prefix)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use mainstay_network::catalogue::{Catalogue, Endpoint, HOLD, Service, Slice};
    use serde_json::json;

    use super::*;

    fn service(kind: ServiceKind) -> Service {
        Service {
            kind,
            ports: vec![],
            external_ips: vec![],
            affinity: None,
            internal_local: false,
            external_local: false,
            hold: HOLD,
            through_user_space: false,
            publish_not_ready: false,
            has_other_proxy: false,
            tags: vec![],
        }
    }

    fn endpoint(last: u8, serving: bool, terminating: bool) -> Endpoint {
        Endpoint {
            address: Ipv4Addr::new(10, 244, 0, last),
            ready: true,
            serving,
            terminating,
            node: None,
            hostname: None,
            hints: None,
        }
    }

    /// Unmet needs of a pod in namespace `a`.
    fn unmet(catalogue: &Catalogue, needs: &str, conditions: serde_json::Value) -> Vec<String> {
        let pod = json!({ "metadata": { "name": "p", "namespace": "a" }, "status": { "conditions": conditions } });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let found = evaluate(&needs.parse().unwrap(), &pod, Source::Api, Some(&catalogue.read()));
        found.unmet.into_iter().map(|need| need.message).collect()
    }

    #[test]
    fn until_all_services_are_known_a_pod_that_runs_stays_as_it_was_and_others_wait() {
        let catalogue = Catalogue::default();
        catalogue.set_service(Key::new("a", "db"), Some(service(ServiceKind::Headless)));
        let observe = |status: Option<&str>| {
            let conditions: Vec<_> =
                status.map(|status| json!({ "type": needs::CONDITION, "status": status })).into_iter().collect();
            let pod = json!({ "metadata": { "name": "p", "namespace": "a" }, "status": { "conditions": conditions } });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            evaluate(&"db keep, queue".parse().unwrap(), &pod, Source::Api, Some(&catalogue.read()))
        };
        for status in [None, Some("True"), Some("False")] {
            assert_eq!(
                observe(status).message().unwrap(),
                "db: not known yet, queue: not known yet",
                "before its start"
            );
        }
        assert_eq!(observe(Some("True")).message_after_start(), None);
        assert_eq!(observe(None).message_after_start(), None);
        assert_eq!(observe(Some("False")).message_after_start().unwrap(), "db: not known yet");
        catalogue.set_complete();
        assert_eq!(observe(Some("True")).message_after_start().unwrap(), "db: 0 of 1 ready");
    }

    #[test]
    fn endpoints_are_counted_once_by_their_state() {
        let catalogue = Catalogue::default();
        catalogue.set_complete();
        for namespace in ["a", "b"] {
            catalogue.set_service(Key::new(namespace, "db"), Some(service(ServiceKind::Headless)));
        }
        let slice = |endpoints| Some(Slice { service: "db".into(), ports: vec![], endpoints, host: None });
        let check = |needs: &str| unmet(&catalogue, needs, json!([]));
        assert_eq!(
            check("db, queue, other.c"),
            ["db: 0 of 1 ready", "queue: no such Service", "other.c: no such Service"]
        );
        catalogue.set_slice(Key::new("a", "db-1"), slice(vec![endpoint(1, true, false), endpoint(2, false, false)]));
        catalogue.set_slice(Key::new("a", "db-2"), slice(vec![endpoint(1, true, false), endpoint(3, true, true)]));
        assert_eq!(check("db"), Vec::<String>::new());
        assert_eq!(
            check("db >= 2 ready"),
            ["db: 1 of 2 ready"],
            "not what is only published, not twice, not what ends"
        );
        assert_eq!(check("db >= 2 addressable"), Vec::<String>::new());
        assert_eq!(check("db >= 3 addressable"), ["db: 2 of 3 addressable"]);
        assert_eq!(check("db.b"), ["db.b: 0 of 1 ready"]);
        catalogue.set_slice(Key::new("b", "db-1"), slice(vec![endpoint(9, true, false)]));
        assert_eq!(check("db.service >= 2"), Vec::<String>::new(), "Consul's name is of all namespaces");
        catalogue.set_service(Key::new("a", "away"), Some(service(ServiceKind::ExternalName("x.example".into()))));
        assert_eq!(check("away"), ["away: a Service of type ExternalName has no endpoints"]);
    }

    #[test]
    fn needs_of_objects_are_as_the_controllers_last_said() {
        let catalogue = Catalogue::default();
        let condition =
            |status: &str, message: &str| json!([{ "type": OBJECTS_CONDITION, "status": status, "message": message }]);
        let both = "job/migrate, configmap/zones";
        assert_eq!(
            unmet(&catalogue, both, json!([])),
            ["job/migrate: not looked at yet", "configmap/zones: not looked at yet"]
        );
        let said = condition("False", "job/migrate: is not complete\nother");
        assert_eq!(unmet(&catalogue, both, said), ["job/migrate: is not complete"]);
        assert_eq!(unmet(&catalogue, both, condition("True", "")), Vec::<String>::new());
    }

    #[test]
    fn without_a_cluster_nothing_is_met() {
        let pod = Pod::default();
        let found = evaluate(&"db, job/x keep".parse().unwrap(), &pod, Source::File, None);
        assert_eq!(found.unmet.len(), 2);
        assert_eq!(
            found.message_after_start().unwrap(),
            "job/x: a pod from a file of its machine can need Services only"
        );
    }
}
