//! What people see below `/debug`.

use std::{fmt::Write, time::Instant};

use jiff::{SignedDuration, Timestamp};

use super::{Known, State};
use crate::{
    handle::{Ask, Reply},
    metrics::Kind,
};

impl State {
    /// `clock` is what the clock on the wall says at `now`.
    pub fn answer(&mut self, ask: Ask, now: Instant, clock: Timestamp) -> Reply {
        match ask {
            Ask::PodQueue => Reply::Text(self.queue_text(now, clock)),
            Ask::PodStore => Reply::Text(self.store_text()),
            Ask::Tasks => Reply::Text(self.tasks_text()),
            Ask::RequestExplicit => {
                self.request(Kind::Explicit, now);
                Reply::Done
            }
            Ask::RequestImplicit => {
                self.request(Kind::Implicit, now);
                Reply::Done
            }
            Ask::Kamikaze => {
                let machines = self.tear_up_all();
                Reply::Text(machines.into_iter().map(|machine| machine + "\n").collect::<String>() + "OK\n")
            }
        }
    }

    /// Pod, deadline (`-` if only a change brings it back), back-off.
    fn queue_text(&self, now: Instant, clock: Timestamp) -> String {
        let mut text = String::new();
        for waiting in self.queue.waiting(now) {
            let deadline = waiting.due_in.and_then(|due| clock.checked_add(SignedDuration::try_from(due).ok()?).ok());
            let deadline = deadline.map_or_else(|| "-".to_owned(), |deadline| format!("{deadline:.3}"));
            let _ = writeln!(text, "{}\t{deadline}\t{:.3}s", waiting.pod, waiting.delay.as_secs_f64());
        }
        text
    }

    /// Pod, machine (`-` if it has none), state, uid.
    fn store_text(&self) -> String {
        let mut text = String::new();
        for known in self.sorted() {
            let machine = self.machine_of(known).unwrap_or("-");
            let _ = writeln!(text, "{}\t{machine}\t{}\t{}", known.view.key, self.state_of(known), known.view.uid);
        }
        text
    }

    fn tasks_text(&self) -> String {
        let placed = self.sorted().into_iter().filter(|known| !known.view.ended && self.machine_of(known).is_some());
        let placed: Vec<&Known> = placed.collect();
        let mut text = format!("task_count={}\n", placed.len());
        for known in placed {
            let machine = self.machine_of(known).unwrap_or_default();
            let _ = writeln!(text, "{}\t{}\t{}\t{machine}", known.view.uid, known.view.key, self.state_of(known));
        }
        text
    }

    fn sorted(&self) -> Vec<&Known> {
        let mut all: Vec<&Known> = self.pods.values().collect();
        all.sort_by(|a, b| a.view.key.cmp(&b.view.key));
        all
    }

    fn machine_of<'a>(&'a self, known: &'a Known) -> Option<&'a str> {
        known.view.node.as_deref().or(known.binding.as_ref().map(|binding| binding.node.as_str()))
    }

    fn state_of(&self, known: &Known) -> &'static str {
        let pod = &known.view;
        match &known.binding {
            _ if pod.ended => "ended",
            _ if pod.terminating => "terminating",
            _ if pod.node.is_some() => "placed",
            Some(binding) if binding.version.is_some() => "placed",
            Some(_) => "binding",
            None if !pod.gates.is_empty() => "gated",
            None if self.queue.contains(&pod.key) => "waiting",
            None => "ignored",
        }
    }
}
