//! Why a node is not ready or takes no pods.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};

use mainstay_api::wellknown::taint::UNREACHABLE;

use super::{Cause, Explanation, text};

/// What was observed of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub node: Node,
    pub events: Vec<Event>,
    /// When its agent last renewed its Lease.
    pub renewed: Option<MicroTime>,
    /// Whether it offers what it has left; without an offer the scheduler gives it no pods.
    pub offers: bool,
}

pub fn explain_node(facts: &NodeFacts, now: Timestamp) -> Explanation {
    let cause = node_cause(facts, now);
    cause.into_explanation(text::subject("node", &facts.node.metadata), text::history(&facts.events, now))
}

fn node_cause(facts: &NodeFacts, now: Timestamp) -> Cause {
    let node = &facts.node;
    let name = text::name(&node.metadata);
    let ready = condition(node, "Ready");
    let silent = facts.renewed.as_ref().map(|MicroTime(at)| text::age(*at, now));
    let mut cause = match (ready.map(|ready| ready.status.as_str()), not_ready(node, now)) {
        (Some("Unknown") | None, Some(why)) => {
            let silent = silent.map_or_else(
                || "its agent never renewed its lease".to_owned(),
                |age| format!("its agent renewed its lease {age} ago"),
            );
            Cause::new(format!("is not ready: {why}")).detail(silent).next(
                format!("ping {}", address(node)),
                "if it answers, see there whether mainstay agent runs and what it logs",
            )
        }
        (_, Some(why)) => Cause::new(format!("is not ready: {why}")),
        _ if is_cordoned(node) => Cause::new("is ready, but cordoned: it gets no new pods")
            .next(format!("kubectl uncordon {name}"), "lets it take pods again"),
        _ if !facts.offers => Cause::new("is ready, but offers nothing: the scheduler gives it no pods")
            .next("kubectl get offers", "which nodes offer what"),
        _ => Cause::new("is ready"),
    };
    for pressure in
        ["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Suspect", "EvictionsPaused"]
    {
        if let Some(condition) = condition(node, pressure).filter(|condition| condition.status == "True") {
            cause = cause.detail(format!("{pressure}: {}", condition.message.as_deref().unwrap_or_default()));
        }
    }
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints: Vec<String> = taints
        .map(|taint| match taint.value.as_deref().filter(|value| !value.is_empty()) {
            Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
            None => format!("{}:{}", taint.key, taint.effect),
        })
        .collect();
    if taints.is_empty() { cause } else { cause.detail(format!("taints: {}", taints.join(", "))) }
}

/// Whether it is silent while others are not, so that its pods are evicted.
pub(super) fn is_lost(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == UNREACHABLE && taint.effect == "NoExecute")
}

pub(super) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == kind)
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
}

fn address(node: &Node) -> &str {
    let mut addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses
        .find(|address| address.type_ == "InternalIP")
        .map_or(text::name(&node.metadata), |address| address.address.as_str())
}

/// Why a node is not ready, if it is not.
pub(super) fn not_ready(node: &Node, now: Timestamp) -> Option<String> {
    let Some(ready) = condition(node, "Ready") else { return Some("its agent has never reported".to_owned()) };
    let since =
        text::age_of(ready.last_transition_time.as_ref(), now).map_or_else(String::new, |age| format!(" for {age}"));
    match ready.status.as_str() {
        "True" => None,
        "Unknown" => Some(format!("its agent has been silent{since}")),
        _ => {
            let reason = ready.message.as_deref().filter(|message| !message.is_empty()).or(ready.reason.as_deref());
            Some(format!("{}{since}", text::clause(reason.unwrap_or("no reason is given"))))
        }
    }
}
