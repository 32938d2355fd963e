//! Why a pod is on no node yet.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PodSpec};
use mainstay_api::wellknown::mainstay::ROLES;

use super::{
    Cause,
    claim::claim_cause,
    node::not_ready,
    pod::{LocalVolume, PodFacts},
    text,
};

/// The scheduler that is built in.
const BUILT_IN_SCHEDULER: &str = "default-scheduler";

pub fn find_cause(facts: &PodFacts, now: Timestamp) -> Cause {
    let default = PodSpec::default();
    let spec = facts.pod.spec.as_ref().unwrap_or(&default);
    let age = text::age_of(facts.pod.metadata.creation_timestamp.as_ref(), now).unwrap_or_default();
    let gates: Vec<&str> = spec.scheduling_gates.iter().flatten().map(|gate| gate.name.as_str()).collect();
    if !gates.is_empty() {
        let noun = if gates.len() == 1 { "scheduling gate" } else { "scheduling gates" };
        return Cause::new(format!("is not scheduled yet: {noun} {} must be removed first", gates.join(", ")))
            .next(facts.edit_command(), "whoever set the gate removes it from spec.schedulingGates");
    }
    let unschedulable = facts.condition("PodScheduled").filter(|condition| condition.status == "False");
    let scheduler = spec.scheduler_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(BUILT_IN_SCHEDULER);
    if scheduler != BUILT_IN_SCHEDULER && unschedulable.is_none() {
        let headline = format!(
            "waits for scheduler {scheduler:?}, which has done nothing about it for {age}; the built-in one is \
             {BUILT_IN_SCHEDULER:?}"
        );
        return Cause::new(headline)
            .next(facts.edit_command(), format!("remove schedulerName, or start the scheduler {scheduler}"));
    }
    let nominated = facts.pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    if let Some(node) = nominated.filter(|node| !node.is_empty()) {
        return Cause::new(format!("waits for room on node {node}, where pods of lower priority are being deleted"));
    }
    let Some(condition) = unschedulable else {
        return Cause::new(format!("waits to be scheduled; created {age} ago"));
    };
    let message = condition.message.as_deref().unwrap_or_default();
    let names_claim = message.to_lowercase().contains("persistentvolumeclaim");
    if let Some(cause) = claims(facts, now).filter(|_| names_claim) {
        return cause;
    }
    if let Some(cause) = on_lost_node(facts, now) {
        return cause;
    }
    no_node_fits(facts, spec, &SchedulerMessage::parse(message))
}

/// A volume that is on a node which is not there.
fn on_lost_node(facts: &PodFacts, now: Timestamp) -> Option<Cause> {
    let trouble = |local: &LocalVolume| match &local.found {
        Some(node) => not_ready(node, now).map(|why| format!("which is not ready: {why}")),
        None => Some("which does not exist".to_owned()),
    };
    let (local, trouble) = facts.local_volumes.iter().find_map(|local| Some((local, trouble(local)?)))?;
    let LocalVolume { claim, volume, node, .. } = local;
    let kubectl = text::kubectl(&facts.pod.metadata);
    let name = text::name(&facts.pod.metadata);
    let headline = format!("cannot move: its claim {claim:?} is volume {volume} on node {node}, {trouble}");
    Some(
        Cause::new(headline)
            .detail("it runs there again when the machine is back, with its data")
            .next(format!("mainstay why node/{node}"), "why the node is not ready")
            .next(
                format!("{kubectl} delete pvc {claim} --wait=false && {kubectl} delete pod {name}"),
                "only if the data is lost or not needed: starts elsewhere with an empty volume, if somebody makes the claim anew",
            ),
    )
}

fn claims(facts: &PodFacts, now: Timestamp) -> Option<Cause> {
    let kubectl = text::kubectl(&facts.pod.metadata);
    let (name, claim) = facts.unbound_claims.first()?;
    let Some(claim) = claim else {
        return Some(
            Cause::new(format!("waits for claim {name:?}, which does not exist"))
                .next(format!("{kubectl} get pvc"), "create it, or name one of these"),
        );
    };
    let cause = claim_cause(claim, now);
    let mut own = Cause::new(format!("waits for claim {name:?}, which {}", cause.headline));
    own.details.extend(cause.details);
    own.next.extend(cause.next);
    Some(own)
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 too many. The rest.`
#[derive(Debug, Default, PartialEq, Eq)]
struct SchedulerMessage<'a> {
    /// Nodes and reason.
    reasons: Vec<(Option<usize>, &'a str)>,
    sentences: Vec<&'a str>,
}

impl<'a> SchedulerMessage<'a> {
    fn parse(message: &'a str) -> Self {
        let Some((_, rest)) = message.split_once(" nodes are available: ") else {
            return Self { reasons: vec![(None, text::clause(message))], sentences: vec![] };
        };
        let (list, more) = rest.split_once(". ").unwrap_or((rest, ""));
        let reason = |reason: &'a str| match reason.split_once(' ') {
            Some((count, what)) if count.parse::<usize>().is_ok() => (count.parse().ok(), what),
            _ => (None, reason),
        };
        let reasons = text::clause(list).split(", ").map(reason).collect();
        let sentences = more.split(". ").map(text::clause);
        let sentences = sentences
            .filter(|text| !text.is_empty() && !text.ends_with("No preemption victims found for incoming pod"));
        Self { reasons, sentences: sentences.collect() }
    }
}

fn no_node_fits(facts: &PodFacts, spec: &PodSpec, message: &SchedulerMessage<'_>) -> Cause {
    let labels = required_labels(spec);
    let word = |reason: &str| match reason.contains("node affinity/selector") && !labels.is_empty() {
        true => format!("no node has the label {}", labels.join(" and ")),
        false => reason.replace("node(s) ", "nodes "),
    };
    let mut cause = match message.reasons.as_slice() {
        [(_, reason)] => Cause::new(format!("fits on no node: {}", word(reason))),
        all => {
            let counted = all.iter().map(|(count, reason)| match count {
                Some(count) => format!("{count} {}", reason.replace("node(s) ", "")),
                None => (*reason).to_owned(),
            });
            let cause = Cause::new(format!("fits on no node: {}", counted.collect::<Vec<_>>().join(", ")));
            match labels.is_empty() {
                true => cause,
                false => cause.detail(format!("it asks for nodes with the label {}", labels.join(" and "))),
            }
        }
    };
    let sentences =
        message.sentences.iter().map(|sentence| sentence.split_once("closest: ").map_or(*sentence, |(_, rest)| rest));
    cause.details.extend(sentences.map(|sentence| format!("{sentence}.")));
    match message.reasons.iter().find_map(|(_, reason)| remedy(facts, spec, reason)) {
        Some((command, purpose)) => cause.next(command, purpose),
        None => cause,
    }
}

fn remedy(facts: &PodFacts, spec: &PodSpec, reason: &str) -> Option<(String, String)> {
    if reason.contains("node affinity/selector") {
        let label = spec.node_selector.iter().flatten().next().map(|(key, value)| format!("{key}={value}"));
        return Some(match label {
            Some(label) => (format!("kubectl label node NODE {label}"), "if a node should have it".to_owned()),
            None => ("kubectl get nodes --show-labels".to_owned(), "which labels there are".to_owned()),
        });
    }
    if reason.contains("unschedulable") {
        return Some(("kubectl uncordon NODE".to_owned(), "lets it take pods again".to_owned()));
    }
    if let Some((_, taint)) = reason.split_once("untolerated taint {") {
        let key = taint.split(':').next().unwrap_or_default();
        if key.starts_with(mainstay_api::wellknown::taint::PREFIX) {
            return Some((
                "kubectl get nodes".to_owned(),
                "then mainstay why node/NAME for one that is not ready".to_owned(),
            ));
        }
        return Some((format!("kubectl taint node NODE {key}-"), "or tolerate the taint in the pod".to_owned()));
    }
    if reason.contains("role") {
        return Some((
            facts.edit_command(),
            format!("name roles of nodes in the annotation {ROLES}; kubectl get offers has them"),
        ));
    }
    if reason.starts_with("Insufficient") || reason.contains("Too many pods") || reason.contains("ports") {
        return Some(("kubectl get offers".to_owned(), "what each node can still take".to_owned()));
    }
    if reason.contains("not ready") || reason.contains("not offering") {
        return Some((
            "kubectl get nodes".to_owned(),
            "then mainstay why node/NAME for one that is not ready".to_owned(),
        ));
    }
    reason.contains("affinity").then(|| (facts.edit_command(), "change its affinity".to_owned()))
}

/// What nodes must be labelled with, as kubectl writes label selectors.
fn required_labels(spec: &PodSpec) -> Vec<String> {
    let selector = spec.node_selector.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.iter().flat_map(|selector| &selector.node_selector_terms).map(describe_term);
    let terms: Vec<String> = terms.filter(|term| !term.is_empty()).collect();
    selector.chain((!terms.is_empty()).then(|| terms.join(" or "))).collect()
}

fn describe_term(term: &NodeSelectorTerm) -> String {
    let requirements = term.match_expressions.iter().flatten().chain(term.match_fields.iter().flatten());
    let described = requirements.map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.as_deref().unwrap_or_default());
        match (requirement.operator.as_str(), values) {
            ("In", [value]) => format!("{key}={value}"),
            ("In", values) => format!("{key} in ({})", values.join(",")),
            ("NotIn", values) => format!("{key} notin ({})", values.join(",")),
            ("Exists", _) => key.clone(),
            ("DoesNotExist", _) => format!("!{key}"),
            ("Gt", values) => format!("{key}>{}", values.join(",")),
            ("Lt", values) => format!("{key}<{}", values.join(",")),
            (operator, values) => format!("{key} {operator} ({})", values.join(",")),
        }
    });
    described.collect::<Vec<_>>().join(",")
}
