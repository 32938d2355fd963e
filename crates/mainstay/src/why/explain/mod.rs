//! What is wrong with an object and what to do about it. Pure: observed facts in, [`Explanation`] out.
//!
//! The headline is the cause, as precise as it is known: the object that is missing by name, the limit that was hit, the
//! last line of the log. Details and history follow, and last the command to type next.

mod claim;
mod containers;
mod cron_job;
mod dependencies;
mod namespace;
mod node;
mod pod;
mod service;
#[cfg(test)]
mod tests;
mod text;
mod unscheduled;
mod workload;

use std::fmt;

pub use self::{
    claim::{ClaimFacts, explain_claim},
    cron_job::{CronJobFacts, explain_cron_job},
    dependencies::AwaitedFacts,
    namespace::{NamespaceFacts, RemainingObject, explain_namespace},
    node::{NodeFacts, explain_node},
    pod::{
        AssignedNode, LocalVolume, OwnerName, PodFacts, RemovedPodFacts, explain_pod, explain_removed_pod, is_troubled,
    },
    service::{ServiceFacts, explain_service},
    workload::{WorkloadFacts, explain_workload},
};

use crate::terminal::printable;

/// Why an object is as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Kind, namespace and name: `pod default/web`.
    pub subject: String,
    /// What continues the subject to a sentence: `cannot start: secret "db" not found`.
    pub headline: String,
    pub details: Vec<String>,
    /// Events, oldest first.
    pub history: Vec<String>,
    pub next: Vec<NextStep>,
}

/// A command that brings the reader further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStep {
    pub command: String,
    pub purpose: String,
}

impl NextStep {
    fn new(command: impl Into<String>, purpose: impl Into<String>) -> Self {
        Self { command: command.into(), purpose: purpose.into() }
    }
}

/// What a part of the explanation found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cause {
    headline: String,
    details: Vec<String>,
    next: Vec<NextStep>,
}

impl Cause {
    fn new(headline: impl Into<String>) -> Self {
        Self { headline: headline.into(), ..Self::default() }
    }

    fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    fn next(mut self, command: impl Into<String>, purpose: impl Into<String>) -> Self {
        self.next.push(NextStep::new(command, purpose));
        self
    }

    fn into_explanation(self, subject: String, history: Vec<String>) -> Explanation {
        Explanation { subject, headline: self.headline, details: self.details, history, next: self.next }
    }
}

impl Explanation {
    /// Subject and headline, without the rest.
    pub fn sentence(&self) -> String {
        printable(&format!("{} {}", self.subject, self.headline))
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.sentence())?;
        self.details.iter().try_for_each(|line| writeln!(f, "  {}", printable(line)))?;
        if !self.history.is_empty() {
            writeln!(f, "  history, oldest first:")?;
            self.history.iter().try_for_each(|line| writeln!(f, "  {}", printable(line)))?;
        }
        let next = self.next.iter().map(|step| format!("{}   # {}", step.command, step.purpose));
        next.into_iter().try_for_each(|line| writeln!(f, "  next: {}", printable(&line)))
    }
}
