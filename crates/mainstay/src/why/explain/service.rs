//! Why a Service has no endpoints.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Event, Pod, Service, ServicePort},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use mainstay_api::{
    pod::is_ready,
    ports::{declared_ports, protocol_or_default, resolve_target_port},
};

use super::{Cause, Explanation, PodFacts, explain_pod, text};

/// What was observed of a Service.
#[derive(Clone, Debug, Default)]
pub struct ServiceFacts {
    pub service: Service,
    pub events: Vec<Event>,
    pub slices: Vec<EndpointSlice>,
    /// Pods that its selector matches.
    pub pods: Vec<Pod>,
    /// The first of them that is not ready, in full.
    pub troubled: Option<PodFacts>,
    /// Labels of the other pods in the namespace, for those whose selector is mistyped.
    pub other_labels: Vec<BTreeMap<String, String>>,
}

/// The Service's own explanation, then that of the pod that is not ready.
pub fn explain_service(facts: &ServiceFacts, now: Timestamp) -> String {
    let troubled = facts.troubled.as_ref().map(|pod| explain_pod(pod, now));
    let mut cause = service_cause(facts, troubled.as_ref());
    let load_balancer = facts.service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
    let status = facts.service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    if load_balancer && status.and_then(|balancer| balancer.ingress.as_ref()).is_none_or(Vec::is_empty) {
        cause = cause.detail("it has no external address: no load balancer has given it one (of clouds, Mainstay knows OpenStack, where one is configured)");
    }
    let own =
        cause.into_explanation(text::subject("service", &facts.service.metadata), text::history(&facts.events, now));
    troubled.map_or_else(|| own.to_string(), |pod| format!("{own}\n{pod}"))
}

fn service_cause(facts: &ServiceFacts, troubled: Option<&Explanation>) -> Cause {
    let spec = facts.service.spec.clone().unwrap_or_default();
    let meta = &facts.service.metadata;
    let (kubectl, name) = (text::kubectl(meta), text::name(meta));
    if spec.type_.as_deref() == Some("ExternalName") {
        let target = spec.external_name.unwrap_or_default();
        return Cause::new(format!("has no endpoints: it is an alias of {target} in DNS (ExternalName)"));
    }
    let ready = ready_endpoints(&facts.slices);
    if let Some(port) = unmatched_port(&spec.ports.clone().unwrap_or_default(), &facts.pods) {
        return port
            .next(format!("{kubectl} edit service {name}"), "change its targetPort, or name the port in the pods");
    }
    if ready > 0 {
        return Cause::new(format!("has {}", text::count(ready, "ready endpoint")));
    }
    let selector = spec.selector.unwrap_or_default();
    if selector.is_empty() {
        return Cause::new("has no endpoints: it has no selector, so somebody has to write its EndpointSlices")
            .next(format!("{kubectl} edit service {name}"), "set spec.selector to the labels of pods");
    }
    if facts.pods.is_empty() {
        let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        let cause = Cause::new(format!("has no endpoints: no pod has the labels {labels}"));
        let cause = match similar_values(&selector, &facts.other_labels) {
            similar if similar.is_empty() => cause,
            similar => cause.detail(format!("pods here have {}", text::few(&similar))),
        };
        return cause.next(format!("{kubectl} get pods --show-labels"), "which labels pods have");
    }
    let pods = text::count(facts.pods.len(), "pod");
    match troubled {
        Some(pod) => Cause::new(format!("has no ready endpoints: none of its {pods} is ready: {}", pod.sentence())),
        None if facts.pods.iter().any(is_ready) => {
            Cause::new(format!("has no endpoints yet: its {pods} became ready a moment ago"))
        }
        None => Cause::new(format!("has no ready endpoints: none of its {pods} is ready")),
    }
}

fn ready_endpoints(slices: &[EndpointSlice]) -> usize {
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    // Not set means ready, as upstream.
    endpoints.filter(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)).count()
}

/// A port by name that no container of the pods has.
fn unmatched_port(ports: &[ServicePort], pods: &[Pod]) -> Option<Cause> {
    let specs = || pods.iter().filter_map(|pod| pod.spec.as_ref());
    let is_resolved =
        |port: &ServicePort| specs().any(|spec| resolve_target_port(port, declared_ports(spec)).is_some());
    let unmatched = ports.iter().find(|port| !pods.is_empty() && !is_resolved(port))?;
    let Some(IntOrString::String(name)) = &unmatched.target_port else { return None };
    let (port, protocol) = (unmatched.port, protocol_or_default(unmatched.protocol.as_deref()));
    Some(Cause::new(format!(
        "has no endpoints for port {port}: no container of its pods has a {protocol} port named {name:?}"
    )))
}

/// Values that other pods have for the labels of the selector.
fn similar_values(selector: &BTreeMap<String, String>, labels: &[BTreeMap<String, String>]) -> Vec<String> {
    let pairs = labels.iter().flatten().filter(|(key, _)| selector.contains_key(*key));
    let mut similar: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    similar.sort_unstable();
    similar.dedup();
    similar
}
