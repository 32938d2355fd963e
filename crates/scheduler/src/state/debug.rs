//! The texts below `/debug`.

use std::{fmt::Write, time::Instant};

use jiff::{SignedDuration, Timestamp};

use super::{CachedPod, SchedulerState};
use crate::{
    handle::{DebugReply, DebugRequest},
    metrics::ReconcileKind,
};

impl SchedulerState {
    /// `clock` is the wall-clock time at `now`.
    pub fn debug(&mut self, request: DebugRequest, now: Instant, clock: Timestamp) -> DebugReply {
        match request {
            DebugRequest::PodQueue => DebugReply::Text(self.queue_dump(now, clock)),
            DebugRequest::PodStore => DebugReply::Text(self.pods_dump()),
            DebugRequest::Tasks => DebugReply::Text(self.tasks_dump()),
            DebugRequest::RequestExplicit => {
                self.request_reconcile(ReconcileKind::Explicit, now);
                DebugReply::Done
            }
            DebugRequest::RequestImplicit => {
                self.request_reconcile(ReconcileKind::Implicit, now);
                DebugReply::Done
            }
            DebugRequest::Kamikaze => {
                let nodes = self.withdraw_all_offers();
                DebugReply::Text(nodes.into_iter().map(|node| node + "\n").collect::<String>() + "OK\n")
            }
        }
    }

    /// Pod, deadline (`-` if only a change makes it be tried again), backoff.
    fn queue_dump(&self, now: Instant, clock: Timestamp) -> String {
        let mut text = String::new();
        for waiting in self.queue.waiting_pods(now) {
            let deadline = waiting.due_in.and_then(|due| clock.checked_add(SignedDuration::try_from(due).ok()?).ok());
            let deadline = deadline.map_or_else(|| "-".to_owned(), |deadline| format!("{deadline:.3}"));
            let _ = writeln!(text, "{}\t{deadline}\t{:.3}s", waiting.pod, waiting.delay.as_secs_f64());
        }
        text
    }

    /// Pod, node (`-` if it has none), state, uid.
    fn pods_dump(&self) -> String {
        let mut text = String::new();
        for pod in self.pods_by_key() {
            let node = pod.node().unwrap_or("-");
            let _ = writeln!(text, "{}\t{node}\t{}\t{}", pod.view.key, self.pod_state(pod), pod.view.uid);
        }
        text
    }

    fn tasks_dump(&self) -> String {
        let placed = self.pods_by_key().into_iter().filter(|pod| !pod.view.finished && pod.node().is_some());
        let placed: Vec<&CachedPod> = placed.collect();
        let mut text = format!("task_count={}\n", placed.len());
        for pod in placed {
            let node = pod.node().unwrap_or_default();
            let _ = writeln!(text, "{}\t{}\t{}\t{node}", pod.view.uid, pod.view.key, self.pod_state(pod));
        }
        text
    }

    fn pods_by_key(&self) -> Vec<&CachedPod> {
        let mut all: Vec<&CachedPod> = self.pods.values().collect();
        all.sort_by(|a, b| a.view.key.cmp(&b.view.key));
        all
    }

    fn pod_state(&self, pod: &CachedPod) -> &'static str {
        let view = &pod.view;
        match &pod.assumed {
            _ if view.finished => "ended",
            _ if view.terminating => "terminating",
            _ if view.node.is_some() => "placed",
            Some(assumed) if assumed.version.is_some() => "placed",
            Some(_) => "binding",
            None if !view.gates.is_empty() => "gated",
            None if self.queue.contains(&view.key) => "waiting",
            None => "ignored",
        }
    }
}
