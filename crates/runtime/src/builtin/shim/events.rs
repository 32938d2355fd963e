//! The shim's poll loop: waits for requests, output, input and ended processes, and handles them.

use std::{
    collections::BTreeMap,
    fs, io,
    os::{fd::AsFd, unix::net::UnixListener},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use super::{
    container::Container,
    fence::{Fence, FenceStep},
    log::Stream,
    reaper::Reaper,
};
use crate::{
    builtin::{
        paths::SandboxDir,
        record::{Phase, RunRecord},
        wire::{ReadOutcome, Request, Response},
    },
    fence::{FENCED, boot_time},
};

mod connection;
mod pending_launch;
mod requests;

use connection::{Connection, Role};
use pending_launch::PendingLaunch;

/// How long containers have to end once killed.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
const BUFFER: usize = 64 << 10;

pub struct Shim {
    dir: SandboxDir,
    listener: UnixListener,
    signals: SignalFd,
    _reaper: Option<Reaper>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    containers: BTreeMap<u64, Container>,
    launches: Vec<PendingLaunch>,
    execs: Vec<Exec>,
    /// Ended before we knew whose they are.
    unassigned_exits: Vec<(i32, i32, Option<i32>)>,
    /// Who asked us to go, and until when we wait for the containers.
    ending: Option<(u64, Instant)>,
    /// Of a pod that must be unique.
    fence: Option<Fence>,
    buffer: Vec<u8>,
}

/// A process that joined a container.
struct Exec {
    pid: i32,
    connection: u64,
    deadline: Option<Instant>,
    timed_out: bool,
}

#[derive(Clone, Copy)]
enum PollSource {
    Listener,
    Signals,
    Fence,
    Connection(u64),
    Launch(usize),
    Output(u64, Stream),
    AttachedStdin(u64, u64),
    AttachedOutput(u64, u64, Stream),
    ContainerStdin(u64),
}

impl Shim {
    pub fn new(dir: SandboxDir, listener: UnixListener, reaper: Option<Reaper>) -> io::Result<Self> {
        let mask: SigSet = [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self {
            dir,
            listener,
            signals,
            _reaper: reaper,
            connections: BTreeMap::new(),
            next: 1,
            containers: BTreeMap::new(),
            launches: Vec::new(),
            execs: Vec::new(),
            unassigned_exits: Vec::new(),
            ending: None,
            fence: None,
            buffer: vec![0; BUFFER],
        })
    }

    pub fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            for (what, flags) in ready {
                self.handle(what, flags);
            }
            self.enforce_deadlines(Instant::now());
            if let Some((connection, until)) = self.ending
                && (self.containers.values().all(|container| !container.is_running()) || Instant::now() > until)
            {
                self.respond(connection, &Response::Done);
                return Ok(());
            }
        }
    }

    fn wait(&mut self) -> io::Result<Vec<(PollSource, PollFlags)>> {
        let now = Instant::now();
        let mut wake = self.next_deadline();
        let mut readable = Vec::new();
        for (key, container) in &mut self.containers {
            match container.may_read(now) {
                Ok(()) => readable.push(*key),
                Err(Some(at)) => wake = Some(wake.map_or(at, |wake| wake.min(at))),
                Err(None) => {}
            }
        }
        let mut watched = Vec::new();
        let mut fds = Vec::new();
        let mut add = |what, fd, flags| {
            watched.push(what);
            fds.push(PollFd::new(fd, flags));
        };
        let (input, output) = (PollFlags::POLLIN, PollFlags::POLLOUT);
        add(PollSource::Listener, self.listener.as_fd(), input);
        add(PollSource::Signals, self.signals.as_fd(), input);
        if let Some(fence) = &self.fence {
            add(PollSource::Fence, fence.as_fd(), input);
        }
        for (key, connection) in &self.connections {
            let flags = if connection.has_unsent() { input | output } else { input };
            add(PollSource::Connection(*key), connection.stream.as_fd(), flags);
        }
        for (index, launch) in self.launches.iter().enumerate() {
            add(PollSource::Launch(index), launch.channel.as_fd(), input);
        }
        for (key, container) in &self.containers {
            for stream in [Stream::Stdout, Stream::Stderr] {
                if let (Some(file), true) = (&container.outputs[stream as usize], readable.contains(key)) {
                    add(PollSource::Output(*key, stream), file.as_fd(), input);
                }
                for attached in &container.attached {
                    if let Some(fd) = attached.pending_output(stream) {
                        add(PollSource::AttachedOutput(*key, attached.connection, stream), fd.as_fd(), output);
                    }
                }
            }
            match &container.stdin {
                Some(stdin) if !container.stdin_buffer.is_empty() => {
                    add(PollSource::ContainerStdin(*key), stdin.as_fd(), output)
                }
                Some(_) => {
                    for attached in &container.attached {
                        if let Some(fd) = &attached.stdin {
                            add(PollSource::AttachedStdin(*key, attached.connection), fd.as_fd(), input);
                        }
                    }
                }
                None => {}
            }
        }
        let timeout = wake.map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        // Launches go by their place, so the last comes first: removing one must not move another.
        let mut ready: Vec<_> = watched.into_iter().zip(happened).filter(|(_, flags)| !flags.is_empty()).collect();
        ready.reverse();
        Ok(ready)
    }

    fn handle(&mut self, what: PollSource, flags: PollFlags) {
        match what {
            PollSource::Listener => self.accept(),
            PollSource::Signals => {
                // Asked to end by anything but a request, the shim stays: its containers would end with it.
                while let Ok(Some(_)) = self.signals.read_signal() {}
                self.reap();
            }
            PollSource::Fence => self.look_at_fence(),
            PollSource::Connection(key) => self.handle_connection(key, flags),
            PollSource::Launch(index) => self.handle_launch(index),
            PollSource::Output(key, stream) => {
                if let Some(container) = self.containers.get_mut(&key) {
                    container.read_output(stream, &mut self.buffer);
                }
            }
            PollSource::AttachedOutput(key, connection, stream) => {
                if let Some(container) = self.containers.get_mut(&key)
                    && let Some(attached) = container.attached.iter_mut().find(|one| one.connection == connection)
                {
                    attached.flush(stream, Instant::now());
                }
                self.release_attached(key);
            }
            PollSource::AttachedStdin(key, connection) => {
                if let Some(container) = self.containers.get_mut(&key) {
                    container.read_stdin(connection, &mut self.buffer[..4096]);
                }
            }
            PollSource::ContainerStdin(key) => {
                if let Some(container) = self.containers.get_mut(&key) {
                    container.write_stdin();
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let launches = self.launches.iter().map(|launch| launch.deadline);
        let execs = self.execs.iter().filter_map(|exec| exec.deadline);
        let attached = self.containers.values().flat_map(|container| &container.attached);
        let stuck = attached.filter_map(|attached| attached.deadline());
        launches.chain(execs).chain(stuck).chain(self.ending.map(|(_, until)| until)).min()
    }

    fn enforce_deadlines(&mut self, now: Instant) {
        self.end_slow_launches(now);
        for exec in &mut self.execs {
            if exec.deadline.is_some_and(|deadline| deadline <= now) {
                exec.deadline = None;
                exec.timed_out = true;
                let pid = Pid::from_raw(exec.pid);
                let _ = kill(Pid::from_raw(-exec.pid), Signal::SIGKILL);
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        let stuck: Vec<u64> = self
            .containers
            .values()
            .flat_map(|container| &container.attached)
            .filter(|attached| attached.deadline().is_some_and(|at| at <= now))
            .map(|attached| attached.connection)
            .collect();
        for connection in stuck {
            self.close(connection);
        }
    }

    /// Stops or kills all containers if the pod's time is up.
    fn look_at_fence(&mut self) {
        let is_running = !self.launches.is_empty() || self.containers.values().any(Container::is_running);
        let Some(fence) = &mut self.fence else { return };
        let step = fence.evaluate(boot_time(), is_running);
        if step == FenceStep::Nothing {
            return;
        }
        self.abort_launches(FENCED);
        for container in self.containers.values_mut().filter(|container| container.is_running()) {
            container.is_fenced = true;
            let _ = match step {
                FenceStep::Nothing => Ok(()),
                FenceStep::Stop => container.signal(container.stop_signal(), false),
                FenceStep::Kill => container.signal(Signal::SIGKILL as i32, true),
            };
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.connections.insert(self.next, Connection::new(stream));
                self.next += 1;
            }
        }
    }

    fn handle_connection(&mut self, key: u64, flags: PollFlags) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if flags.contains(PollFlags::POLLOUT) && connection.flush().is_err() {
            return self.close(key);
        }
        if !flags.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            return;
        }
        match connection.frames.fill(&connection.stream) {
            Ok(ReadOutcome::WouldBlock) => return,
            Ok(ReadOutcome::Data) => {}
            Ok(ReadOutcome::Closed) | Err(_) => return self.close(key),
        }
        loop {
            let Some(connection) = self.connections.get_mut(&key) else { return };
            match connection.frames.take::<Request>() {
                Ok(Some((request, fds))) => self.handle_request(key, request, fds),
                Ok(None) => return,
                Err(_) => return self.close(key),
            }
        }
    }

    fn close(&mut self, key: u64) {
        let Some(connection) = self.connections.remove(&key) else { return };
        if let Role::Attached(container) = connection.role
            && let Some(container) = self.containers.get_mut(&container)
        {
            container.detach(key);
        }
    }

    fn respond(&mut self, key: u64, answer: &Response) {
        if let Some(connection) = self.connections.get_mut(&key)
            && connection.send(answer, None).is_err()
        {
            self.close(key);
        }
    }

    /// Tells all who watch how things are now.
    fn notify_watchers(&mut self) {
        let runs = Response::Runs(self.run_records());
        let watching: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.role == Role::Watching)
            .map(|(key, _)| *key)
            .collect();
        for key in watching {
            self.respond(key, &runs);
        }
    }

    fn run_records(&self) -> Vec<RunRecord> {
        self.containers.values().map(|container| container.run.clone()).collect()
    }

    fn reap(&mut self) {
        loop {
            let (pid, code, signal) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), code, None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), 128 + signal as i32, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            if !self.assign_exit(pid, code, signal) && !self.launches.is_empty() {
                self.unassigned_exits.push((pid, code, signal));
            }
        }
    }

    /// Whose end is this? False if nobody's that we know.
    fn assign_exit(&mut self, pid: i32, code: i32, signal: Option<i32>) -> bool {
        let ended =
            self.containers.iter_mut().find(|(_, container)| container.is_running() && container.pid() == Some(pid));
        if let Some((key, container)) = ended {
            let key = *key;
            container.record_exit(code, signal);
            self.release_attached(key);
            self.notify_watchers();
            return true;
        }
        let Some(index) = self.execs.iter().position(|exec| exec.pid == pid) else { return false };
        let exec = self.execs.swap_remove(index);
        self.respond(exec.connection, &Response::Ended { exit_code: code, timed_out: exec.timed_out });
        true
    }

    /// Of a container that has ended: those who have seen all of it.
    fn release_attached(&mut self, key: u64) {
        let Some(container) = self.containers.get_mut(&key) else { return };
        let Phase::Exited(exit) = &container.run.phase else { return };
        let exit_code = exit.exit_code;
        let done: Vec<u64> =
            container.attached.iter().filter(|one| !one.is_behind()).map(|one| one.connection).collect();
        container.attached.retain(|one| !done.contains(&one.connection));
        for connection in done {
            self.respond(connection, &Response::Ended { exit_code, timed_out: false });
        }
    }

    fn key_of(&self, id: &crate::observed::ContainerId) -> Option<u64> {
        self.containers.iter().find(|(_, container)| container.id == *id).map(|(key, _)| *key)
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        if let Ok(address) = self.listener.local_addr()
            && let Some(path) = address.as_pathname()
        {
            let _ = fs::remove_file(path);
        }
    }
}
