//! What `mainstay why` says. Pure: objects in, text out.

use std::fmt::Write;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Event, Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};
use kube::api::DynamicObject;
use serde_json::Value;

/// How many pods of a workload are explained one by one.
const FEW: usize = 5;

/// Where a pod is or why it is nowhere, and what happened to it.
pub fn pod(pod: &Pod, events: &[Event], now: Timestamp) -> String {
    let mut text = String::new();
    let name =
        format!("{}/{}", or_empty(pod.metadata.namespace.as_ref()), pod.metadata.name.as_deref().unwrap_or_default());
    let _ = writeln!(text, "pod {name} {}", headline(pod, now));
    if let Some(why) = unplaced(pod) {
        text.push_str(&reasons(why.message.as_deref().unwrap_or_default()));
    }
    containers(&mut text, pod, now);
    conditions(&mut text, pod, now);
    history(&mut text, pod, events, now);
    text
}

/// What became of a workload, before its pods are explained.
pub fn keeper(kind: &str, keeper: &DynamicObject, pods: &[Pod], events: &[Event], now: Timestamp) -> String {
    let mut text = String::new();
    let name = format!(
        "{}/{}",
        or_empty(keeper.metadata.namespace.as_ref()),
        keeper.metadata.name.as_deref().unwrap_or_default()
    );
    let wanted = keeper.data["spec"]["replicas"].as_i64();
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let of = wanted.map_or_else(|| format!("{} pods", pods.len()), |wanted| format!("{wanted} wanted"));
    let _ = writeln!(text, "{} {name} has {ready} ready pods of {of}", kind.to_lowercase());
    for condition in keeper.data["status"]["conditions"].as_array().into_iter().flatten() {
        let field = |name: &str| condition[name].as_str().unwrap_or_default();
        let _ = writeln!(text, "  {} {} {}: {}", field("type"), field("status"), field("reason"), field("message"));
    }
    told_events(&mut text, events, now);
    let troubled = pods.iter().filter(|pod| !is_well(pod)).count();
    if troubled > FEW {
        let _ = writeln!(text, "{troubled} pods are not well; the first {FEW}:");
    }
    text
}

/// The pods of a workload that need explaining.
pub fn troubled(pods: &[Pod]) -> impl Iterator<Item = &Pod> {
    pods.iter().filter(|pod| !is_well(pod)).take(FEW)
}

/// The labels by which a workload knows its pods, as a query writes them.
pub fn selector(keeper: &Value) -> Option<String> {
    let selector = &keeper["spec"]["selector"];
    let equal = selector.get("matchLabels").or_else(|| selector.get("matchExpressions").is_none().then_some(selector));
    let equal = equal.and_then(Value::as_object).into_iter().flatten();
    let mut parts: Vec<String> = equal.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str()?;
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        parts.push(match expression["operator"].as_str()? {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        });
    }
    (!parts.is_empty()).then(|| parts.join(","))
}

fn headline(pod: &Pod, now: Timestamp) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
    let age = pod.metadata.creation_timestamp.as_ref().map_or_else(String::new, |Time(at)| ago(*at, now));
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let leaving = pod.metadata.deletion_timestamp.as_ref();
    match (node, phase) {
        _ if leaving.is_some() => {
            let until = leaving.map_or_else(String::new, |Time(at)| format!(", by {at}"));
            let finalizers = pod.metadata.finalizers.iter().flatten().cloned().collect::<Vec<_>>();
            let held =
                if finalizers.is_empty() { String::new() } else { format!("; {} hold it", finalizers.join(", ")) };
            format!("is being deleted{until}{held}, on {}", node.unwrap_or("no machine"))
        }
        (None, _) => {
            let gated = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
            let gates: Vec<&str> = gated.map(|gate| gate.name.as_str()).collect();
            let nominated = status.nominated_node_name.as_deref().filter(|node| !node.is_empty());
            match (gates.is_empty(), nominated) {
                (false, _) => format!("is not to be placed yet: it is held by {}", gates.join(", ")),
                (true, Some(node)) => format!("waits for room on {node}, where others make way; created {age} ago"),
                (true, None) if unplaced(pod).is_some() => format!("fits on no machine; created {age} ago"),
                (true, None) => format!("waits to be placed; created {age} ago"),
            }
        }
        (Some(node), "Running") => {
            let ready = if is_ready(pod) { "ready" } else { "not ready" };
            let address = status.pod_ip.map_or_else(String::new, |ip| format!(" at {ip}"));
            let since = status.start_time.map_or(age, |Time(at)| ago(at, now));
            format!("runs on {node}{address} for {since}, {ready}")
        }
        (Some(node), "Pending") => format!("is on {node} and starts; created {age} ago"),
        (Some(node), phase) => {
            let why = [status.reason, status.message].into_iter().flatten().collect::<Vec<_>>().join(": ");
            let why = if why.is_empty() { why } else { format!(": {why}") };
            format!("ended ({phase}) on {node}{why}")
        }
    }
}

/// The condition that says why a pod is not placed.
fn unplaced(pod: &Pod) -> Option<&PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 too many. The rest.`, a line for each thing said.
fn reasons(message: &str) -> String {
    let mut text = String::new();
    let Some((counted, rest)) = message.split_once(" nodes are available: ") else {
        let _ = writeln!(text, "  {message}");
        return text;
    };
    let (list, more) = rest.split_once(". ").unwrap_or((rest.trim_end_matches('.'), ""));
    let _ = writeln!(text, "  {counted} machines can take it:");
    for reason in list.split(", ") {
        let (count, what) = reason.split_once(' ').unwrap_or(("", reason));
        let _ = match count.parse::<usize>() {
            Ok(count) => writeln!(text, "  {count:>5}  {what}"),
            Err(_) => writeln!(text, "         {reason}"),
        };
    }
    for sentence in more.split(". ").map(|sentence| sentence.trim_end_matches('.')).filter(|s| !s.is_empty()) {
        let _ = writeln!(text, "  {sentence}.");
    }
    text
}

fn containers(text: &mut String, pod: &Pod, now: Timestamp) {
    let Some(status) = &pod.status else { return };
    let own = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    for container in own {
        let restarts = match container.restart_count {
            0 => String::new(),
            1 => ", restarted once".to_owned(),
            more => format!(", restarted {more} times"),
        };
        let _ = writeln!(text, "  container {}: {}{restarts}", container.name, state(container, now));
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        if let Some(last) = last.filter(|_| container.restart_count > 0) {
            let when = last.finished_at.as_ref().map_or_else(String::new, |Time(at)| format!(" {} ago", ago(*at, now)));
            let reason = last.reason.as_deref().unwrap_or("ended");
            let _ = writeln!(text, "    before that: {reason}, exit code {}{when}", last.exit_code);
        }
    }
}

fn state(container: &ContainerStatus, now: Timestamp) -> String {
    let state = container.state.clone().unwrap_or_default();
    if let Some(waiting) = state.waiting {
        let message = waiting.message.filter(|message| !message.is_empty()).map(|message| format!(": {message}"));
        return format!("waits, {}{}", waiting.reason.unwrap_or_default(), message.unwrap_or_default());
    }
    if let Some(ended) = state.terminated {
        return format!("ended, {}, exit code {}", ended.reason.unwrap_or_default(), ended.exit_code);
    }
    let since = state.running.and_then(|running| running.started_at).map(|Time(at)| ago(at, now));
    let ready = if container.ready { "" } else { ", not ready" };
    since.map_or_else(|| "not yet made".to_owned(), |since| format!("runs for {since}{ready}"))
}

fn conditions(text: &mut String, pod: &Pod, now: Timestamp) {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    // What is as it should be needs no explanation.
    let odd = conditions.filter(|c| c.status != "True" || c.type_ == "DisruptionTarget");
    for condition in odd.filter(|condition| condition.type_ != "PodScheduled") {
        let since = condition.last_transition_time.as_ref().map(|Time(at)| format!(" for {}", ago(*at, now)));
        let said = [condition.reason.as_deref(), condition.message.as_deref()];
        let said: Vec<&str> = said.into_iter().flatten().filter(|said| !said.is_empty()).collect();
        let said = if said.is_empty() { String::new() } else { format!(": {}", said.join(": ")) };
        let since = since.unwrap_or_default();
        let _ = writeln!(text, "  {} is {}{since}{said}", condition.type_, condition.status);
    }
}

fn history(text: &mut String, pod: &Pod, events: &[Event], now: Timestamp) {
    if let Some(machine) = pod.metadata.annotations.as_ref().and_then(|all| all.get("mainstay.dev/refused-by")) {
        let _ = writeln!(text, "  last turned away by {machine}");
    }
    told_events(text, events, now);
}

fn told_events(text: &mut String, events: &[Event], now: Timestamp) {
    let mut dated: Vec<(Timestamp, &Event)> =
        events.iter().filter_map(|event| Some((first_seen(event)?, event))).collect();
    // Some carry whole seconds only: within one, the store knows who came first.
    dated.sort_by_key(|(at, event)| (at.as_second(), written(event)));
    if !dated.is_empty() {
        let _ = writeln!(text, "  history, oldest first:");
    }
    for (at, event) in dated {
        let reason = event.reason.as_deref().unwrap_or_default();
        let times = event.count.or(event.series.as_ref().and_then(|series| series.count)).unwrap_or(1);
        let times = if times > 1 { format!(" ({times} times)") } else { String::new() };
        let message = event.message.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {:>8} ago  {reason}{times}: {message}", ago(at, now));
    }
}

fn first_seen(event: &Event) -> Option<Timestamp> {
    let first = event.first_timestamp.as_ref().map(|Time(at)| *at);
    let made = event.event_time.as_ref().map(|MicroTime(at)| *at);
    first.or(made).or(event.metadata.creation_timestamp.as_ref().map(|Time(at)| *at))
}

fn written(event: &Event) -> u64 {
    event.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_well(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    (is_ready(pod) || phase == Some("Succeeded")) && pod.metadata.deletion_timestamp.is_none()
}

fn or_empty(text: Option<&String>) -> &str {
    text.map_or("", String::as_str)
}

/// `5s`, `2m10s`, `3h5m`, `9d`: the two largest parts.
fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).max(SignedDuration::ZERO).as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m{}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h{minutes}m"),
        (days, hours, _) => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests;
