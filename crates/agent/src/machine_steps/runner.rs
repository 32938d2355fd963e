//! Runs one command of a machine: in a cgroup of its own, within a time limit, with bounded output.
//!
//! When the command ends or its time is up, everything in the cgroup is killed, whatever it forked; so a step leaves no process
//! behind. The number of processes is limited too. All output is read, so that a command that prints much is not held up, and the
//! last [`OUTPUT_TAIL`] bytes are kept in a file that only root reads. The file is named in what is reported; its content is not,
//! since commands print what nobody knows.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};
use mainstay_machines::steps::StepOutcome;
use mainstay_runtime::{cgroup::Cgroup, spec::Resources};
use tokio::process::{Child, Command};

use super::settings::CommandLine;

/// So much of what a command printed is kept.
pub const OUTPUT_TAIL: usize = 64 << 10;
/// Processes and threads of a step at the same time.
const MOST_PROCESSES: i64 = 4096;
/// How long the kernel may take to kill what is in the cgroup.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// `EX_TEMPFAIL`: what the step depends on is not there yet.
const TEMPORARY_FAILURE: i32 = 75;
/// Waits until it is in its cgroup, then becomes the command, which reads nothing.
const LAUNCHER: &str = r#"read -r _ && exec "$@" </dev/null"#;

/// What a command is run with.
pub struct StepCommand<'a> {
    pub command: &'a CommandLine,
    pub environment: Vec<(&'static str, String)>,
    pub timeout: Duration,
    /// Below the mount point of each hierarchy.
    pub cgroup: PathBuf,
    /// Gets the end of the output.
    pub log: &'a Path,
}

/// How a command ended.
#[derive(Debug)]
enum Ending {
    Exited(ExitStatus),
    TimedOut,
}

impl StepCommand<'_> {
    /// Runs it to its end. Dropping the future kills the command at once, and what it forked with the next step.
    pub async fn run(&self) -> StepOutcome {
        match self.try_run().await {
            Ok(Ending::Exited(status)) if status.success() => StepOutcome::Passed,
            Ok(Ending::Exited(status)) if status.code() == Some(TEMPORARY_FAILURE) => {
                StepOutcome::Pending { message: format!("waits for others (exit code 75); {}", self.link()) }
            }
            Ok(ending) => StepOutcome::Failed { message: format!("{}; {}", self.describe(&ending), self.link()) },
            Err(error) => {
                StepOutcome::Failed { message: format!("cannot run {}: {error}", self.command.program.display()) }
            }
        }
    }

    fn link(&self) -> String {
        format!("output: {}", self.log.display())
    }

    fn describe(&self, ending: &Ending) -> String {
        match ending {
            Ending::TimedOut => format!("killed: it took longer than {:?}", self.timeout),
            Ending::Exited(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => "ended".to_owned(),
            },
        }
    }

    async fn try_run(&self) -> io::Result<Ending> {
        let cgroup = Cgroup::new(&self.cgroup);
        clear(cgroup.clone()).await?;
        cgroup.create()?;
        cgroup.limit(&Resources { pids_limit: Some(MOST_PROCESSES), ..Resources::default() })?;
        let (output, input) = io::pipe()?;
        let mut child = self.spawn(input)?;
        let tail = tokio::task::spawn_blocking(move || read_tail(output));
        let ending = match self.release(&cgroup, &mut child) {
            Ok(()) => match tokio::time::timeout(self.timeout, child.wait()).await {
                Ok(status) => status.map(Ending::Exited),
                Err(_) => Ok(Ending::TimedOut),
            },
            Err(error) => Err(error),
        };
        // A command that could not be put into its cgroup is not in there.
        let _ = child.start_kill();
        clear(cgroup).await?;
        let _ = child.wait().await;
        let tail = tail.await.map_err(io::Error::other)?;
        if let Some(directory) = self.log.parent() {
            create_private_dir(directory)?;
        }
        write_atomic(self.log, &tail, PRIVATE_FILE, Durability::Volatile)?;
        ending
    }

    fn spawn(&self, output: io::PipeWriter) -> io::Result<Child> {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(LAUNCHER).arg("sh").arg(&self.command.program).args(&self.command.arguments);
        command.envs(self.environment.iter().map(|(key, value)| (*key, value))).current_dir("/");
        command.stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
        command.process_group(0).kill_on_drop(true).spawn()
    }

    /// Puts the command into its cgroup and lets it begin.
    fn release(&self, cgroup: &Cgroup<'_>, child: &mut Child) -> io::Result<()> {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or(io::ErrorKind::NotFound)?;
        cgroup.add(pid)?;
        let stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        io::PipeWriter::from(stdin.into_owned_fd()?).write_all(b"\n")
    }
}

/// Kills all in a cgroup, also what an earlier agent left there, and removes it.
async fn clear(cgroup: Cgroup<'static>) -> io::Result<()> {
    let cleared = tokio::task::spawn_blocking(move || {
        if !cgroup.exists() {
            return Ok(());
        }
        if !cgroup.kill_all(KILL_PATIENCE) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its processes do not end when killed"));
        }
        cgroup.remove()
    });
    cleared.await.map_err(io::Error::other)?
}

/// Reads until everybody has closed the pipe; returns the end of it.
fn read_tail(mut output: io::PipeReader) -> Vec<u8> {
    let (mut tail, mut buffer) = (VecDeque::with_capacity(OUTPUT_TAIL), vec![0; 16 << 10]);
    loop {
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                tail.extend(&buffer[..count]);
                tail.drain(..tail.len().saturating_sub(OUTPUT_TAIL));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    tail.into()
}
