//! Starts and execs that are under way.

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
    record::{Phase, Process},
    shim::{
        causes::explain,
        launch::{Job, Report, run},
    },
    sys::fork_into,
    wire::{Answer, Failure, Inbox, Received},
};

/// More would not make an error clearer.
const MOST_CAUSES: usize = 4;
/// Longer than this and it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Launching {
    pub channel: UnixStream,
    pub deadline: Instant,
    inbox: Inbox,
    helper: Pid,
    container: u64,
    connection: u64,
    exec: Option<ExecWish>,
    pid: Option<i32>,
    terminal: Option<OwnedFd>,
    failed: Option<(bool, String)>,
    /// What was logged on the way.
    causes: Vec<String>,
}

#[derive(Clone, Copy)]
pub struct ExecWish {
    pub timeout: Option<Duration>,
}

impl Shim {
    /// Begins what `job` says in a copy of this process.
    pub(super) fn launch(
        &mut self,
        container: u64,
        connection: u64,
        job: Job,
        exec: Option<ExecWish>,
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
        self.launches.push(Launching {
            channel,
            deadline: Instant::now() + PATIENCE,
            inbox: Inbox::default(),
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

    pub(super) fn on_launch(&mut self, index: usize) {
        let Some(launch) = self.launches.get_mut(index) else { return };
        let closed = match launch.inbox.fill(launch.channel.as_fd()) {
            Ok(Received::Nothing) => return,
            Ok(Received::Some) => false,
            Ok(Received::Closed) | Err(_) => true,
        };
        while let Ok(Some((report, mut fds))) = launch.inbox.take::<Report>() {
            // Descriptors come with the first of several reports that were read at once, whosever they are.
            if let Some(terminal) = fds.pop() {
                launch.terminal = Some(terminal);
            }
            match report {
                Report::Pid(pid) => launch.pid = Some(pid),
                Report::Terminal => {}
                Report::Cause(text) if launch.causes.len() < MOST_CAUSES => launch.causes.push(text),
                Report::Cause(_) => {}
                // The first to say what went wrong is nearest to it.
                Report::Failed { start, text } => drop(launch.failed.get_or_insert((start, text))),
            }
        }
        if closed {
            let launch = self.launches.swap_remove(index);
            self.launched(launch);
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
            launch.failed = Some((false, format!("did not begin within {PATIENCE:?}")));
            self.launched(launch);
        }
    }

    fn launched(&mut self, launch: Launching) {
        let failed = match (launch.failed.clone(), launch.pid) {
            // One of the program itself says all there is.
            (Some((true, text)), _) => Some((true, text)),
            (Some((false, text)), _) => Some((false, explain(text, &launch.causes))),
            (None, None) => Some((false, "the process that starts it ended without a word".to_owned())),
            (None, Some(_)) => None,
        };
        if let Some((start, text)) = failed {
            if launch.exec.is_none() {
                if let Some(container) = self.containers.get_mut(&launch.container) {
                    container.cgroup().signal(Signal::SIGKILL);
                    container.failed(text.clone());
                }
                self.tell();
            }
            let why = if start { Failure::Start } else { Failure::Other };
            self.answer(launch.connection, &Answer::Failed { why, text });
            return self.settle_unclaimed();
        }
        match launch.exec {
            Some(wish) => self.exec_began(launch, wish),
            None => self.container_began(launch),
        }
        self.settle_unclaimed();
    }

    fn container_began(&mut self, launch: Launching) {
        let (Some(container), Some(pid)) = (self.containers.get_mut(&launch.container), launch.pid) else { return };
        if let Some(terminal) = launch.terminal {
            container.connect_terminal(terminal);
        }
        // It may already have ended: then it is still ours to reap, and its number cannot be another's.
        let process = Process::of(pid).unwrap_or(Process { pid, begun: 0 });
        container.change(Some(process), Phase::Running { started_at: Timestamp::now() });
        let answer = Answer::Started(container.run.clone());
        self.answer(launch.connection, &answer);
        self.tell();
    }

    fn exec_began(&mut self, launch: Launching, wish: ExecWish) {
        let Some(pid) = launch.pid else { return };
        let deadline = wish.timeout.map(|timeout| Instant::now() + timeout);
        self.execs.push(Exec { pid, connection: launch.connection, deadline, timed_out: false });
        if let Some(connection) = self.connections.get_mut(&launch.connection)
            && connection.say(&Answer::Begun, launch.terminal).is_err()
        {
            self.close(launch.connection);
        }
    }

    /// Those who ended before we knew them.
    fn settle_unclaimed(&mut self) {
        for (pid, code, signal) in std::mem::take(&mut self.unclaimed) {
            if !self.claim(pid, code, signal) && !self.launches.is_empty() {
                self.unclaimed.push((pid, code, signal));
            }
        }
    }
}
