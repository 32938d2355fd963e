//! Starts and execs whose process does not run yet.

use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Exec, Shim};
use crate::builtin::{
    record::{Phase, ProcessIdentity},
    shim::{
        launch::{LaunchJob, Report, run},
        libcontainer_log::with_causes,
    },
    sys::fork_into,
    wire::{FailureKind, FrameReader, ReadOutcome, Response},
};

/// More would not make an error clearer.
const MAX_CAUSES: usize = 4;
/// Longer than this and it hangs.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(60);

pub struct PendingLaunch {
    pub channel: UnixStream,
    pub deadline: Instant,
    frames: FrameReader,
    helper: Pid,
    container: u64,
    connection: u64,
    exec: Option<ExecOptions>,
    pid: Option<i32>,
    terminal: Option<OwnedFd>,
    failed: Option<(bool, String)>,
    /// What was logged on the way.
    causes: Vec<String>,
}

#[derive(Clone, Copy)]
pub struct ExecOptions {
    pub timeout: Option<Duration>,
}

impl Shim {
    /// Begins what `job` says in a copy of this process.
    pub(super) fn launch(
        &mut self,
        container: u64,
        connection: u64,
        job: LaunchJob,
        exec: Option<ExecOptions>,
    ) -> std::io::Result<()> {
        let (channel, other) = UnixStream::pair()?;
        let mut parts = Some((job, OwnedFd::from(other)));
        let helper = fork_into(|| {
            // The shim does without huge pages; what it starts decides for itself.
            let _ = nix::sys::prctl::set_thp_disable(false);
            match parts.take() {
                Some((job, channel)) => run(job, channel),
                None => 1,
            }
        })?;
        // Our copies of the descriptors close here; only those who may report have them open.
        drop(parts);
        self.launches.push(PendingLaunch {
            channel,
            deadline: Instant::now() + LAUNCH_TIMEOUT,
            frames: FrameReader::default(),
            helper,
            container,
            connection,
            exec,
            pid: None,
            terminal: None,
            failed: None,
            causes: Vec::new(),
        });
        Ok(())
    }

    pub(super) fn handle_launch(&mut self, index: usize) {
        let Some(launch) = self.launches.get_mut(index) else { return };
        let closed = match launch.frames.fill(launch.channel.as_fd()) {
            Ok(ReadOutcome::WouldBlock) => return,
            Ok(ReadOutcome::Data) => false,
            Ok(ReadOutcome::Closed) | Err(_) => true,
        };
        while let Ok(Some((report, mut fds))) = launch.frames.take::<Report>() {
            // Descriptors come with the first of several reports that were read at once, whosever they are.
            if let Some(terminal) = fds.pop() {
                launch.terminal = Some(terminal);
            }
            match report {
                Report::Pid(pid) => launch.pid = Some(pid),
                Report::Terminal => {}
                Report::Cause(text) if launch.causes.len() < MAX_CAUSES => launch.causes.push(text),
                Report::Cause(_) => {}
                // The first to say what went wrong is nearest to it.
                Report::Failed { start, text } => drop(launch.failed.get_or_insert((start, text))),
            }
        }
        if closed {
            let launch = self.launches.swap_remove(index);
            self.finish_launch(launch);
        }
    }

    pub(super) fn end_slow_launches(&mut self, now: Instant) {
        let mut index = 0;
        while index < self.launches.len() {
            if self.launches[index].deadline > now {
                index += 1;
                continue;
            }
            let mut launch = self.launches.swap_remove(index);
            let _ = kill(launch.helper, Signal::SIGKILL);
            if launch.exec.is_none()
                && let Some(container) = self.containers.get(&launch.container)
            {
                container.cgroup().signal(Signal::SIGKILL);
            }
            launch.failed = Some((false, format!("did not begin within {LAUNCH_TIMEOUT:?}")));
            self.finish_launch(launch);
        }
    }

    /// Gives up everything that does not run yet.
    pub(super) fn abort_launches(&mut self, why: &str) {
        for mut launch in std::mem::take(&mut self.launches) {
            let _ = kill(launch.helper, Signal::SIGKILL);
            if launch.exec.is_none()
                && let Some(container) = self.containers.get(&launch.container)
            {
                container.cgroup().signal(Signal::SIGKILL);
            }
            launch.failed = Some((true, why.to_owned()));
            self.finish_launch(launch);
        }
    }

    fn finish_launch(&mut self, launch: PendingLaunch) {
        let failed = match (launch.failed.clone(), launch.pid) {
            // One of the program itself says all there is.
            (Some((true, text)), _) => Some((true, text)),
            (Some((false, text)), _) => Some((false, with_causes(text, &launch.causes))),
            (None, None) => Some((false, "the process that starts it ended without a word".to_owned())),
            (None, Some(_)) => None,
        };
        if let Some((start, text)) = failed {
            if launch.exec.is_none() {
                if let Some(container) = self.containers.get_mut(&launch.container) {
                    container.cgroup().signal(Signal::SIGKILL);
                    container.record_start_failure(text.clone());
                }
                self.notify_watchers();
            }
            let why = if start { FailureKind::Start } else { FailureKind::Other };
            self.respond(launch.connection, &Response::Failed { why, text });
            return self.assign_pending_exits();
        }
        match launch.exec {
            Some(options) => self.exec_started(launch, options),
            None => self.container_started(launch),
        }
        self.assign_pending_exits();
    }

    fn container_started(&mut self, launch: PendingLaunch) {
        let (Some(container), Some(pid)) = (self.containers.get_mut(&launch.container), launch.pid) else { return };
        if let Some(terminal) = launch.terminal {
            container.connect_terminal(terminal);
        }
        // It may already have ended: then it is still ours to reap, and its number cannot be another's.
        let process = ProcessIdentity::read(pid).unwrap_or(ProcessIdentity { pid, begun: 0 });
        container.set_phase(Some(process), Phase::Running { started_at: Timestamp::now() });
        let answer = Response::Started(container.run.clone());
        self.respond(launch.connection, &answer);
        self.notify_watchers();
    }

    fn exec_started(&mut self, launch: PendingLaunch, options: ExecOptions) {
        let Some(pid) = launch.pid else { return };
        let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
        self.execs.push(Exec { pid, connection: launch.connection, deadline, timed_out: false });
        if let Some(connection) = self.connections.get_mut(&launch.connection)
            && connection.send(&Response::Begun, launch.terminal).is_err()
        {
            self.close(launch.connection);
        }
    }

    /// Those who ended before we knew them.
    fn assign_pending_exits(&mut self) {
        for (pid, code, signal) in std::mem::take(&mut self.unassigned_exits) {
            if !self.assign_exit(pid, code, signal) && !self.launches.is_empty() {
                self.unassigned_exits.push((pid, code, signal));
            }
        }
    }
}
