//! Runs one check of an instance: a program, a request, or a connection; each within its time, with bounded output.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use tokio::{
    sync::{Semaphore, mpsc},
    time::{MissedTickBehavior, interval},
};

use super::{
    definition::{CheckDefinition, CheckKind, CheckStatus, USER_AGENT},
    health::CheckReport,
    reports::LONGEST_OUTPUT,
};
use crate::{
    bounded_command::{BoundedCommand, CommandEnding, CommandResult, last_lines},
    probe::{http_get, tcp},
};

/// Processes and threads of a check at the same time.
const MOST_PROCESSES: i64 = 512;

/// The result of a check, and whose it is.
pub struct CheckOutcome {
    pub service: String,
    pub check: String,
    /// Of the definition that was checked.
    pub generation: u64,
    pub report: CheckReport,
}

/// A check that runs again and again.
pub struct CheckTask {
    pub service: String,
    pub definition: CheckDefinition,
    pub generation: u64,
    pub node_name: String,
    pub cgroup: PathBuf,
    /// So many programs run at the same time.
    pub turns: Arc<Semaphore>,
    pub outcomes: mpsc::Sender<CheckOutcome>,
}

impl CheckTask {
    /// At once, and then every interval. Ends when nobody wants to know, or with the task.
    pub async fn run(self) {
        let mut ticks = interval(self.definition.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (status, output) = self.attempt().await;
            let report = CheckReport { status, output, time: Timestamp::now() };
            let (service, check) = (self.service.clone(), self.definition.id.clone());
            let outcome = CheckOutcome { service, check, generation: self.generation, report };
            if self.outcomes.send(outcome).await.is_err() {
                return;
            }
        }
    }

    async fn attempt(&self) -> (CheckStatus, String) {
        let timeout = self.definition.timeout;
        match &self.definition.kind {
            CheckKind::Script { program, arguments } => self.run_script(Path::new(program), arguments).await,
            CheckKind::Tcp { host, port } => match tcp::connect(host, *port, timeout).await {
                Ok(_) => (CheckStatus::Passing, format!("connected to {host}:{port}")),
                Err(why) => (CheckStatus::Critical, why),
            },
            CheckKind::Http { url, headers } => match http_get::Request::from_url(url, headers, USER_AGENT) {
                Ok(request) => judge_response(request.send(timeout).await),
                Err(why) => (CheckStatus::Critical, why),
            },
            // The program tells.
            CheckKind::Ttl { .. } => std::future::pending().await,
        }
    }

    async fn run_script(&self, program: &Path, arguments: &[String]) -> (CheckStatus, String) {
        // What only waits for others takes no turn: checks that hang hold up few.
        let Ok(_turn) = self.turns.acquire().await else {
            return (CheckStatus::Critical, "the agent stops".to_owned());
        };
        let environment =
            [("MAINSTAY_NODE_NAME", self.node_name.clone()), ("MAINSTAY_SERVICE_ID", self.service.clone())];
        let command = BoundedCommand {
            program,
            arguments,
            environment: &environment,
            timeout: self.definition.timeout,
            cgroup: self.cgroup.clone(),
            most_processes: MOST_PROCESSES,
            output_tail: LONGEST_OUTPUT,
        };
        match command.run().await {
            Ok(CommandResult { ending, output }) => {
                let output = last_lines(&output, LONGEST_OUTPUT);
                let output = if output.is_empty() { ending.to_string() } else { format!("{ending}: {output}") };
                (script_status(ending), output)
            }
            Err(error) => (CheckStatus::Critical, format!("cannot run {}: {error}", program.display())),
        }
    }
}

/// Consul's.
fn script_status(ending: CommandEnding) -> CheckStatus {
    match ending {
        CommandEnding::Exited(status) => match status.code() {
            Some(0) => CheckStatus::Passing,
            Some(1) => CheckStatus::Warning,
            Some(_) | None => CheckStatus::Critical,
        },
        CommandEnding::TimedOut(_) => CheckStatus::Critical,
    }
}

fn judge_response(response: Result<http_get::ProbeResponse, String>) -> (CheckStatus, String) {
    match response {
        Err(why) => (CheckStatus::Critical, why),
        Ok(response) => {
            let status = match response.status.as_u16() {
                200..300 => CheckStatus::Passing,
                429 => CheckStatus::Warning,
                _ => CheckStatus::Critical,
            };
            (status, format!("HTTP {}: {}", response.status, last_lines(&response.body, LONGEST_OUTPUT)))
        }
    }
}
