//! Why a Deployment, ReplicaSet, StatefulSet, DaemonSet, ReplicationController or Job does not have the pods it should have.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::DynamicObject;
use mainstay_api::pod::{is_finished, is_ready};
use serde_json::Value;

use super::{Cause, Explanation, PodFacts, explain_pod, text};
use crate::why::target::WorkloadKind;

/// What was observed of a workload.
#[derive(Clone, Debug)]
pub struct WorkloadFacts {
    pub kind: WorkloadKind,
    pub object: DynamicObject,
    /// Events about it and about the ReplicaSets that it owns.
    pub events: Vec<Event>,
    /// Pods that it owns, directly or through its ReplicaSets.
    pub pods: Vec<Pod>,
    /// The first few of them that are not well, in full.
    pub troubled: Vec<PodFacts>,
}

/// The workload's own explanation, then that of its first troubled pod; of others the cause alone.
pub fn explain_workload(facts: &WorkloadFacts, now: Timestamp) -> String {
    let pods: Vec<Explanation> = facts.troubled.iter().map(|pod| explain_pod(pod, now)).collect();
    let own = workload_explanation(facts, pods.first(), now);
    let mut text = own.to_string();
    for (number, pod) in pods.iter().enumerate() {
        text.push('\n');
        text.push_str(&if number == 0 { pod.to_string() } else { format!("{}\n", pod.sentence()) });
    }
    text
}

pub(super) fn workload_explanation(
    facts: &WorkloadFacts,
    troubled: Option<&Explanation>,
    now: Timestamp,
) -> Explanation {
    let kind = facts.kind.resource().1.to_lowercase();
    let meta = &facts.object.metadata;
    let mut cause = match text::finalizers(meta).filter(|_| meta.deletion_timestamp.is_some()) {
        Some(finalizers) => Cause::new(format!("is being deleted, but {finalizers}")),
        None if meta.deletion_timestamp.is_some() => Cause::new("is being deleted"),
        None if facts.kind == WorkloadKind::Job => job(facts, troubled),
        None => replicas(facts, troubled),
    };
    let observed = facts.object.data["status"]["observedGeneration"].as_i64();
    if observed.zip(meta.generation).is_some_and(|(observed, newest)| observed < newest) {
        cause = cause.detail("its controller has not acted on the newest change yet");
    }
    cause.details.extend(failing_conditions(&facts.object.data));
    let unlisted = facts.pods.iter().filter(|pod| super::is_troubled(pod)).count().saturating_sub(facts.troubled.len());
    if unlisted > 0 {
        cause = cause.detail(format!("{unlisted} more pods are not well"));
    }
    cause.into_explanation(text::subject(&kind, meta), text::history(&facts.events, now))
}

fn replicas(facts: &WorkloadFacts, troubled: Option<&Explanation>) -> Cause {
    let data = &facts.object.data;
    let (kubectl, name) = (text::kubectl(&facts.object.metadata), text::name(&facts.object.metadata));
    let kind = facts.kind.resource().1.to_lowercase();
    let wanted = match facts.kind {
        WorkloadKind::DaemonSet => data["status"]["desiredNumberScheduled"].as_u64().unwrap_or(0),
        _ => data["spec"]["replicas"].as_u64().unwrap_or(1),
    };
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let alive = facts.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && !is_finished(pod)).count();
    let ready = facts.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod)).count();
    if wanted == 0 && facts.pods.is_empty() {
        return match facts.kind {
            WorkloadKind::DaemonSet => Cause::new("wants no pods: no node matches its node selector and tolerations")
                .next("kubectl get nodes --show-labels", "which labels there are"),
            _ => Cause::new("wants no pods: it is scaled to 0")
                .next(format!("{kubectl} scale {kind}/{name} --replicas=1"), "starts one"),
        };
    }
    let has = format!("has {ready} of {} ready", text::count(wanted, "pod"));
    let refused = text::newest(&facts.events, &["FailedCreate"]).filter(|_| alive < wanted);
    if let Some(message) = refused.and_then(|event| event.message.as_deref()) {
        return Cause::new(format!("{has}: {}", text::clause(message)));
    }
    if data["spec"]["paused"].as_bool() == Some(true) && ready < wanted {
        return Cause::new(format!("{has}: it is paused"))
            .next(format!("{kubectl} rollout resume {kind}/{name}"), "lets the rollout go on");
    }
    match troubled {
        Some(pod) => Cause::new(format!("{has}: {}", pod.sentence())),
        None if ready >= wanted => Cause::new(has),
        None if alive < wanted => Cause::new(format!("{has}: {} not created yet", text::count(wanted - alive, "pod"))),
        None => Cause::new(has),
    }
}

fn job(facts: &WorkloadFacts, troubled: Option<&Explanation>) -> Cause {
    let data = &facts.object.data;
    let (kubectl, name) = (text::kubectl(&facts.object.metadata), text::name(&facts.object.metadata));
    let succeeded = data["status"]["succeeded"].as_u64().unwrap_or(0);
    let of = data["spec"]["completions"].as_u64().map_or_else(String::new, |wanted| format!(" of {wanted}"));
    let true_condition =
        |kind: &str| conditions(data).find(|condition| condition["type"] == kind && condition["status"] == "True");
    if true_condition("Complete").is_some() {
        return Cause::new(format!("is complete: {succeeded}{of} pods succeeded"));
    }
    if let Some(condition) = true_condition("Failed") {
        let (reason, message) = (text_field(condition, "reason"), text::clause(text_field(condition, "message")));
        let pod = troubled.map_or_else(String::new, |pod| format!("; {}", pod.sentence()));
        return Cause::new(format!("failed: {reason}: {message}{pod}"));
    }
    if data["spec"]["suspend"].as_bool() == Some(true) {
        return Cause::new("is suspended").next(
            format!("{kubectl} patch job {name} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'"),
            "starts its pods",
        );
    }
    let refused = text::newest(&facts.events, &["FailedCreate"]).and_then(|event| event.message.as_deref());
    let progress = format!("is not complete: {succeeded}{of} pods succeeded");
    match (troubled, refused) {
        (Some(pod), _) => Cause::new(format!("{progress}; {}", pod.sentence())),
        (None, Some(message)) if facts.pods.is_empty() => Cause::new(format!("{progress}; {}", text::clause(message))),
        _ => {
            let running = facts.pods.iter().filter(|pod| !is_finished(pod)).count();
            Cause::new(format!("{progress}, {} at work", text::count(running, "pod")))
        }
    }
}

fn conditions(data: &Value) -> impl Iterator<Item = &Value> {
    data["status"]["conditions"].as_array().into_iter().flatten()
}

fn text_field<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition[field].as_str().unwrap_or_default()
}

/// Conditions that say that something fails.
fn failing_conditions(data: &Value) -> Vec<String> {
    let failing = conditions(data).filter(|condition| match text_field(condition, "type") {
        "ReplicaFailure" => text_field(condition, "status") == "True",
        "Progressing" | "Available" => text_field(condition, "status") == "False",
        _ => false,
    });
    let line = |condition: &Value| {
        format!(
            "{} is {}: {}: {}",
            text_field(condition, "type"),
            text_field(condition, "status"),
            text_field(condition, "reason"),
            text_field(condition, "message")
        )
    };
    failing.map(line).collect()
}
