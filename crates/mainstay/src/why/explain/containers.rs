//! Why containers of a pod wait, crash or are not ready.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Cause, pod::PodFacts, text};

/// Reasons for which a container waits its turn, not for a remedy.
const ORDINARY_WAITS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The first container with a trouble of its own, in the order in which they start.
pub fn find_cause(facts: &PodFacts, now: Timestamp) -> Option<Cause> {
    statuses(&facts.pod).find_map(|status| container_cause(facts, status, now))
}

/// The container that made its pod fail.
pub fn failed_end(facts: &PodFacts) -> Option<Cause> {
    let ended = |status: &ContainerStatus| state(status).terminated;
    let (status, end) = statuses(&facts.pod).find_map(|status| {
        let end = ended(status).filter(|end| end.exit_code != 0)?;
        Some((status, end))
    })?;
    Some(end_cause("failed", facts, status, &end, ""))
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()))
}

fn spec<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let containers = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    containers.into_iter().find(|container| container.name == name)
}

fn state(status: &ContainerStatus) -> ContainerState {
    status.state.clone().unwrap_or_default()
}

fn last_end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.last_state.as_ref().and_then(|state| state.terminated.as_ref())
}

fn container_cause(facts: &PodFacts, status: &ContainerStatus, now: Timestamp) -> Option<Cause> {
    let current = state(status);
    if let Some(waiting) = current.waiting {
        let reason = waiting.reason.unwrap_or_default();
        let message = waiting.message.unwrap_or_default();
        return match reason.as_str() {
            wait if ORDINARY_WAITS.contains(&wait) || wait.is_empty() => None,
            "CrashLoopBackOff" => Some(match last_end(status) {
                Some(end) => crash(facts, status, end),
                None => Cause::new(format!("crashes: container {}: {message}", status.name)),
            }),
            "ErrImagePull" | "ImagePullBackOff" => Some(image(facts, status, &message)),
            "ErrImageNeverPull" | "InvalidImageName" => {
                let edit = facts.edit_command();
                let cause = Cause::new(format!("cannot start: container {}: {}", status.name, text::clause(&message)));
                Some(cause.next(edit, "change image or imagePullPolicy"))
            }
            _ => Some(cannot_start(facts, status, &reason, &message, now)),
        };
    }
    if let Some(end) = current.terminated.filter(|end| end.exit_code != 0) {
        return Some(crash(facts, status, &end));
    }
    let running = current.running.filter(|_| !status.ready)?;
    if let Some(end) = last_end(status).filter(|_| status.restart_count > 0) {
        let since = text::age_of(running.started_at.as_ref(), now).unwrap_or_default();
        let again = format!("; it runs again for {since}");
        return Some(end_cause("is not ready", facts, status, end, &again));
    }
    Some(not_ready(facts, status))
}

fn crash(facts: &PodFacts, status: &ContainerStatus, end: &ContainerStateTerminated) -> Cause {
    if end.exit_code == 0 {
        let policy = facts.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
        let headline = format!(
            "restarts again and again: container {} ends by itself with exit code 0 and restartPolicy is {policy}",
            status.name
        );
        return Cause::new(headline).next(logs(facts, status), "what it printed before it ended");
    }
    end_cause("crashes", facts, status, end, "")
}

/// A cause whose headline is the end of a container.
fn end_cause(
    verb: &str,
    facts: &PodFacts,
    status: &ContainerStatus,
    end: &ContainerStateTerminated,
    afterwards: &str,
) -> Cause {
    let restarts = match status.restart_count {
        0 => String::new(),
        count => format!(", restarted {}", text::times(count)),
    };
    let container = &status.name;
    let message = end.message.as_deref().map(str::trim).filter(|message| !message.is_empty());
    let last_line = facts.last_lines.get(container).map(String::as_str).or(message);
    let last_line = last_line.map_or_else(String::new, |line| format!(": {}", text::shortened(text::clause(line))));
    match end.reason.as_deref() {
        Some("OOMKilled") => {
            let limits = spec(&facts.pod, container).and_then(|c| c.resources.as_ref()).and_then(|r| r.limits.as_ref());
            let memory = limits.and_then(|limits| limits.get("memory"));
            let limit = memory.map_or_else(
                || "it has no limit: the pod or the node had no more".to_owned(),
                |quantity| format!("limit {}", quantity.0),
            );
            let headline = format!("{verb}: container {container} ran out of memory ({limit}){restarts}{afterwards}");
            Cause::new(headline)
                .next(facts.edit_command(), format!("raise resources.limits.memory of container {container}"))
        }
        Some("StartError" | "ContainerCannotRun") => {
            let why = message.map_or("StartError", text::clause);
            Cause::new(format!("{verb}: container {container} cannot be started: {why}{restarts}{afterwards}"))
                .next(facts.edit_command(), "change command, args, mounts or the image")
        }
        _ => {
            let code = exit_code(end.exit_code);
            let headline = format!("{verb}: container {container} ended with {code}{restarts}{afterwards}{last_line}");
            Cause::new(headline).next(logs(facts, status), "all it printed before it ended")
        }
    }
}

/// Codes above 128 are signals, as shells count them.
fn exit_code(code: i32) -> String {
    let signal = nix::sys::signal::Signal::try_from(code - 128).ok();
    signal.map_or_else(|| format!("exit code {code}"), |signal| format!("exit code {code} ({signal})"))
}

/// Shows the log of the run that ended: the current one, unless the container runs again.
fn logs(facts: &PodFacts, status: &ContainerStatus) -> String {
    let meta = &facts.pod.metadata;
    let previous = if state(status).terminated.is_some() { "" } else { " --previous" };
    format!("{} logs {} -c {}{previous}", text::kubectl(meta), text::name(meta), status.name)
}

fn image(facts: &PodFacts, status: &ContainerStatus, message: &str) -> Cause {
    let image =
        spec(&facts.pod, &status.name).and_then(|container| container.image.as_deref()).unwrap_or(&status.image);
    let node = facts.node_name().unwrap_or_default();
    let cause = Cause::new(format!("cannot pull image {image}: {}", pull_error(message)));
    // The agent says so if the image is on its machine and was only pulled because the policy is Always.
    if message.contains("IfNotPresent would use it") {
        let purpose = format!("set imagePullPolicy: IfNotPresent for container {}", status.name);
        return cause.next(facts.edit_command(), purpose);
    }
    cause.next(format!("mainstay image pull {image}"), format!("on {node}: tries it there and shows each step"))
}

/// What remains of a pull error without the words that repeat the image and the state.
fn pull_error(message: &str) -> &str {
    let mut rest = message;
    for marker in ["ErrImagePull: ", "ailed to pull image "] {
        if let Some(at) = rest.rfind(marker) {
            rest = &rest[at + marker.len()..];
        }
    }
    // A quoted image and a colon are left of `failed to pull image "X": `.
    let rest = if rest.starts_with('"') { rest.split_once("\": ").map_or(rest, |(_, why)| why) } else { rest };
    text::clause(rest)
}

fn cannot_start(facts: &PodFacts, status: &ContainerStatus, reason: &str, message: &str, now: Timestamp) -> Cause {
    let message = text::clause(message);
    let why = if message.is_empty() { reason } else { message };
    let attempts = text::newest(&facts.events, &["Failed"]).and_then(|event| text::attempts(event, now));
    let attempts = attempts.map_or_else(String::new, |attempts| format!(" ({attempts})"));
    let cause = Cause::new(format!("cannot start: container {}: {why}{attempts}", status.name));
    missing_object_step(&facts.pod.metadata, message, cause)
}

/// Adds how to create the Secret or ConfigMap that a message says is not found.
pub fn missing_object_step(meta: &ObjectMeta, message: &str, cause: Cause) -> Cause {
    let kubectl = text::kubectl(meta);
    for (kind, create) in [("secret", "create secret generic"), ("configmap", "create configmap")] {
        let quoted = message.split_once(&format!("{kind} \"")).and_then(|(_, rest)| rest.split_once('"'));
        if let Some((name, _)) = quoted.filter(|(_, rest)| rest.starts_with(" not found")) {
            return cause
                .next(format!("{kubectl} {create} {name} --from-literal=KEY=VALUE"), "the pod starts once it exists");
        }
    }
    cause
}

fn not_ready(facts: &PodFacts, status: &ContainerStatus) -> Cause {
    let node = facts.node_name().unwrap_or_default();
    let container = &status.name;
    let unhealthy = text::newest(&facts.events, &["Unhealthy"]).and_then(|event| event.message.as_deref());
    let meta = &facts.pod.metadata;
    let logs = format!("{} logs {} -c {container}", text::kubectl(meta), text::name(meta));
    let probes = spec(&facts.pod, container);
    let startup = status.started == Some(false) && probes.is_some_and(|container| container.startup_probe.is_some());
    let waiting_for = match unhealthy {
        Some(message) => text::clause(message).to_owned(),
        None if startup => "its startup probe has not succeeded yet".to_owned(),
        None => "its readiness probe has not succeeded yet".to_owned(),
    };
    Cause::new(format!("runs on {node}, but container {container} is not ready: {waiting_for}"))
        .next(logs, "what the container prints")
}

/// A line for each container: its state, and how it ended before.
pub fn describe_states(pod: &Pod, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    for status in statuses(pod) {
        let restarts = match status.restart_count {
            0 => String::new(),
            count => format!(", restarted {}", text::times(count)),
        };
        lines.push(format!("container {}: {}{restarts}", status.name, describe_state(status, now)));
        if let Some(end) = last_end(status).filter(|_| status.restart_count > 0) {
            let when =
                text::age_of(end.finished_at.as_ref(), now).map_or_else(String::new, |age| format!(", {age} ago"));
            let reason = end.reason.as_deref().unwrap_or("ended");
            lines.push(format!("  previous run: {reason}, {}{when}", exit_code(end.exit_code)));
        }
    }
    lines
}

fn describe_state(status: &ContainerStatus, now: Timestamp) -> String {
    let state = state(status);
    if let Some(waiting) = state.waiting {
        return format!("waits, {}", waiting.reason.unwrap_or_default());
    }
    if let Some(end) = state.terminated {
        return format!("ended, {}, {}", end.reason.unwrap_or_default(), exit_code(end.exit_code));
    }
    let since = state.running.and_then(|running| text::age_of(running.started_at.as_ref(), now));
    let ready = if status.ready { "" } else { ", not ready" };
    since.map_or_else(|| "not created yet".to_owned(), |since| format!("runs for {since}{ready}"))
}
