//! Columns of pods, with the STATUS that kubectl shows for all containers together.
//!
//! The status starts as the pod's phase or reason. The first init container that is not done speaks
//! for a pod that is still initialising; after that the first app container that waits or has
//! ended speaks for all. Deletion overrules both.

use jiff::Timestamp;
use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column, wide},
    duration,
    read::{NONE, age, condition, deleting, flag, int, list, name, present, text, text_or, texts},
};

pub static PODS: Columns = Columns {
    definitions: &[
        NAME,
        column("Ready", "Ready containers, of all that keep running."),
        column("Status", "The state of its containers in one word."),
        column("Restarts", "How often its containers were restarted, and when last."),
        AGE,
        wide(column("IP", "Its address.")),
        wide(column("Node", "Where it runs.")),
        wide(column("Nominated Node", "Where it will run once room is made.")),
        wide(column("Readiness Gates", "Conditions that hold, of those it needs besides its own.")),
    ],
    cells: pod,
};

fn pod(object: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summary(object);
    vec![
        name(object),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.word.into(),
        summary.restarts.show(now).into(),
        age(object, now),
        text_or(object, "/status/podIPs/0/ip", text_or(object, "/status/podIP", NONE)).into(),
        text_or(object, "/spec/nodeName", NONE).into(),
        text_or(object, "/status/nominatedNodeName", NONE).into(),
        gates(object).into(),
    ]
}

struct Summary {
    ready: usize,
    total: usize,
    word: String,
    restarts: Restarts,
}

fn summary(pod: &Value) -> Summary {
    let sidecars = list(pod, "/spec/initContainers").iter().filter(|c| is_sidecar(c)).count();
    let init = init(pod);
    let mut summary = Summary {
        ready: init.ready,
        total: list(pod, "/spec/containers").len() + sidecars,
        word: init.word.clone().unwrap_or_else(|| base_word(pod).to_owned()),
        restarts: init.restarts,
    };
    if init.word.is_none() || condition(pod, "Initialized") == Some("True") {
        summary.restarts = init.sidecar_restarts;
        let mut running = false;
        // From last to first, so that the first container has the last word.
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            summary.restarts.add(status);
            if let Some(word) = stopped(status) {
                summary.word = word;
            } else if flag(status, "/ready") && present(status, "/state/running").is_some() {
                running = true;
                summary.ready += 1;
            }
        }
        if running && summary.word == "Completed" {
            let ready = condition(pod, "Ready") == Some("True");
            summary.word = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
    if deleting(pod) {
        if text(pod, "/status/reason") == "NodeLost" {
            summary.word = "Unknown".to_owned();
        } else if !crate::pod::is_terminal_phase(text(pod, "/status/phase")) {
            summary.word = "Terminating".to_owned();
        }
    }
    summary
}

/// The reason, as far as the pod itself gives one.
fn base_word(pod: &Value) -> &str {
    let mut conditions = list(pod, "/status/conditions").iter();
    if conditions.any(|c| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated") {
        return "SchedulingGated";
    }
    text_or(pod, "/status/reason", text(pod, "/status/phase"))
}

/// How far initialisation has come.
struct Init {
    /// Set while a container has not finished.
    word: Option<String>,
    ready: usize,
    restarts: Restarts,
    sidecar_restarts: Restarts,
}

fn init(pod: &Value) -> Init {
    let specs = list(pod, "/spec/initContainers");
    let mut init = Init { word: None, ready: 0, restarts: Restarts::default(), sidecar_restarts: Restarts::default() };
    for (index, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
        let spec = specs.iter().find(|spec| text(spec, "/name") == text(status, "/name"));
        let sidecar = spec.is_some_and(is_sidecar);
        init.restarts.add(status);
        if sidecar {
            init.sidecar_restarts.add(status);
        }
        let terminated = present(status, "/state/terminated");
        if terminated.is_some_and(|ended| int(ended, "/exitCode") == 0) {
            continue;
        }
        if sidecar && flag(status, "/started") {
            init.ready += usize::from(flag(status, "/ready"));
            continue;
        }
        let waiting = text(status, "/state/waiting/reason");
        init.word = Some(match terminated {
            Some(ended) => format!("Init:{}", end(ended)),
            None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", specs.len()),
        });
        break;
    }
    init
}

/// Why a container does not run, if it does not.
fn stopped(status: &Value) -> Option<String> {
    match text(status, "/state/waiting/reason") {
        "" => present(status, "/state/terminated").map(end),
        reason => Some(reason.to_owned()),
    }
}

/// How a container ended.
fn end(terminated: &Value) -> String {
    match (text(terminated, "/reason"), int(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// An init container that keeps running beside the others.
fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count = self.count.saturating_add(int(status, "/restartCount"));
        self.last = self.last.max(duration::time(status.pointer("/lastState/terminated/finishedAt")));
    }

    /// `0`, or `3 (5m ago)`.
    fn show(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 => format!("{} ({} ago)", self.count, duration::between(last, now)),
            _ => self.count.to_string(),
        }
    }
}

/// Readiness gates whose condition is true, of all.
fn gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let open = texts(gates, "/conditionType").filter(|gate| condition(pod, gate) == Some("True")).count();
    format!("{open}/{}", gates.len())
}

#[cfg(test)]
mod tests;
