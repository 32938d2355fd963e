//! Runs one command of a machine's steps, bounded in time, processes and output.
//!
//! The last [`OUTPUT_TAIL`] bytes of its output are kept in a file that only root reads, which is named in what is reported. Of a step
//! that did not pass, the last lines ([`LINES_REPORTED`] bytes) are reported as well, unless the machine's configuration says
//! otherwise: whoever may read Machines reads them.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};
use mainstay_machines::steps::StepOutcome;

use super::settings::CommandLine;
use crate::bounded_command::{BoundedCommand, CommandEnding, CommandResult, last_lines};

/// So much of what a command printed is kept.
pub const OUTPUT_TAIL: usize = 64 << 10;
/// So much of it is reported, if the command failed.
pub const LINES_REPORTED: usize = 2 << 10;
/// Processes and threads of a step at the same time.
const MOST_PROCESSES: i64 = 4096;
/// `EX_TEMPFAIL`: what the step depends on is not there yet.
const TEMPORARY_FAILURE: i32 = 75;

/// What a command is run with.
pub struct StepCommand<'a> {
    pub command: &'a CommandLine,
    pub environment: Vec<(&'static str, String)>,
    pub timeout: Duration,
    /// Below the mount point of each hierarchy.
    pub cgroup: PathBuf,
    /// Gets the end of the output.
    pub log: &'a Path,
    /// Whether the last lines are reported too, if it fails.
    pub reports_output: bool,
}

impl StepCommand<'_> {
    /// Runs it to its end. Dropping the future kills the command at once, and what it forked with the next step.
    pub async fn run(&self) -> StepOutcome {
        let CommandResult { ending, output } = match self.try_run().await {
            Ok(result) => result,
            Err(error) => {
                let message = format!("cannot run {}: {error}", self.command.program.display());
                return StepOutcome::Failed { message, output: String::new() };
            }
        };
        let output = if self.reports_output { last_lines(&output, LINES_REPORTED) } else { String::new() };
        let link = format!("output: {}", self.log.display());
        match ending {
            CommandEnding::Exited(status) if status.success() => StepOutcome::Passed,
            CommandEnding::Exited(status) if status.code() == Some(TEMPORARY_FAILURE) => {
                StepOutcome::Pending { message: format!("waits for others (exit code 75); {link}"), output }
            }
            ending => StepOutcome::Failed { message: format!("{ending}; {link}"), output },
        }
    }

    async fn try_run(&self) -> io::Result<CommandResult> {
        let command = BoundedCommand {
            program: &self.command.program,
            arguments: &self.command.arguments,
            environment: &self.environment,
            timeout: self.timeout,
            cgroup: self.cgroup.clone(),
            most_processes: MOST_PROCESSES,
            output_tail: OUTPUT_TAIL,
        };
        let result = command.run().await?;
        if let Some(directory) = self.log.parent() {
            create_private_dir(directory)?;
        }
        write_atomic(self.log, &result.output, PRIVATE_FILE, Durability::Volatile)?;
        Ok(result)
    }
}
