//! A container in its shim: its streams, its log, its state on disk.

use std::{
    fs::File,
    io::Read,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::{errno::Errno, sys::signal::Signal, unistd::write};

use super::{
    attached_client::AttachedClient,
    log::{Log, Stream},
};
use crate::{
    builtin::{
        cgroup::Cgroup,
        paths::ContainerDir,
        record::{self, ContainerRecord, ExitRecord, LaunchSpec, Phase, ProcessIdentity, RunRecord},
        sys,
    },
    fence::FENCED,
    observed::ContainerId,
};

/// Output that is taken from a container per second. A program that writes faster waits, as it would for a slow
/// disk: its flood costs the machine no more than this.
const OUTPUT_RATE: u64 = 32 << 20;
const OUTPUT_BURST: u64 = 4 << 20;
/// What a container that has ended may still have in its pipes.
const DRAIN_LIMIT: usize = 2 << 20;

pub struct Container {
    pub id: ContainerId,
    pub dir: ContainerDir,
    pub launch: LaunchSpec,
    pub run: RunRecord,
    pub stdin: Option<OwnedFd>,
    /// Input of attached clients that the container has not read yet.
    pub stdin_buffer: Vec<u8>,
    /// Standard input is closed once the buffer is written.
    stdin_closing: bool,
    pub outputs: [Option<File>; 2],
    pub terminal: Option<OwnedFd>,
    pub log: Log,
    pub attached: Vec<AttachedClient>,
    /// It was stopped because the pod's time was up.
    pub is_fenced: bool,
    allowance: u64,
    counted: Instant,
}

impl Container {
    pub fn new(id: ContainerId, dir: ContainerDir, launch: LaunchSpec) -> Self {
        let log = Log::new(launch.log_path.clone(), launch.log_limit.clone());
        let run = RunRecord { container: id.clone(), version: 1, process: None, phase: Phase::Starting, log_lost: 0 };
        Self {
            id,
            dir,
            launch,
            run,
            stdin: None,
            stdin_buffer: Vec::new(),
            stdin_closing: false,
            outputs: [None, None],
            terminal: None,
            log,
            attached: Vec::new(),
            is_fenced: false,
            allowance: OUTPUT_BURST,
            counted: Instant::now(),
        }
    }

    pub fn cgroup(&self) -> Cgroup<'static> {
        Cgroup::new(self.launch.cgroup.clone())
    }

    pub fn pid(&self) -> Option<i32> {
        self.run.process.map(|process| process.pid)
    }

    pub fn is_running(&self) -> bool {
        matches!(self.run.phase, Phase::Running { .. })
    }

    /// On disk before it is reported.
    pub fn set_phase(&mut self, process: Option<ProcessIdentity>, phase: Phase) {
        self.run.version += 1;
        self.run.process = process;
        self.run.phase = phase;
        self.run.log_lost = self.log.lost();
        self.save();
    }

    pub fn save(&self) {
        let _ = record::write(&self.dir.run(), &self.run);
    }

    pub fn signal(&self, signal: i32, all: bool) -> nix::Result<()> {
        if all && let Ok(signal) = Signal::try_from(signal) {
            self.cgroup().signal(signal);
        }
        match self.pid().map(|pid| sys::kill(pid, signal)) {
            None | Some(Ok(()) | Err(Errno::ESRCH)) => Ok(()),
            Some(Err(error)) => Err(error),
        }
    }

    /// What asks it to stop.
    pub fn stop_signal(&self) -> i32 {
        record::read::<ContainerRecord>(&self.dir.record())
            .map_or(Signal::SIGTERM as i32, |container| container.stop_signal)
    }

    /// Its first process has ended.
    pub fn record_exit(&mut self, exit_code: i32, signal: Option<i32>) {
        let started_at = match self.run.phase {
            Phase::Running { started_at } => Some(started_at),
            Phase::Starting | Phase::Exited(_) => None,
        };
        if !self.launch.own_pids {
            self.cgroup().signal(Signal::SIGKILL);
        }
        let mut buffer = vec![0; 64 << 10];
        for stream in [Stream::Stdout, Stream::Stderr] {
            let mut taken = 0;
            while taken < DRAIN_LIMIT {
                match self.read_output(stream, &mut buffer) {
                    0 => break,
                    count => taken += count,
                }
            }
        }
        let oom = exit_code != 0 && self.cgroup().oom_kills() > 0;
        self.stdin = None;
        self.stdin_buffer = Vec::new();
        let message = if self.is_fenced { FENCED.to_owned() } else { String::new() };
        let exit = ExitRecord { started_at, finished_at: Timestamp::now(), exit_code, signal, oom, message };
        self.set_phase(None, Phase::Exited(exit));
    }

    /// It never began.
    pub fn record_start_failure(&mut self, message: String) {
        self.outputs = [None, None];
        self.stdin = None;
        self.terminal = None;
        let exit = ExitRecord {
            started_at: None,
            finished_at: Timestamp::now(),
            exit_code: 128,
            signal: None,
            oom: false,
            message,
        };
        self.set_phase(None, Phase::Exited(exit));
    }

    /// One read of its output, into the log and to all who look. Zero when there is nothing, now or ever.
    pub fn read_output(&mut self, stream: Stream, buffer: &mut [u8]) -> usize {
        let Some(file) = &mut self.outputs[stream as usize] else { return 0 };
        let count = match file.read(buffer) {
            Ok(count) => count,
            Err(error) if matches!(error.raw_os_error(), Some(nix::libc::EAGAIN | nix::libc::EINTR)) => return 0,
            // EIO is how a terminal says that nobody has it open any more.
            Err(_) => 0,
        };
        if count == 0 {
            self.outputs[stream as usize] = None;
            self.log.finish(stream, Timestamp::now());
            return 0;
        }
        self.log.write(stream, &buffer[..count], Timestamp::now());
        for attached in &mut self.attached {
            attached.queue_output(stream, &buffer[..count]);
        }
        self.allowance = self.allowance.saturating_sub(count as u64);
        count
    }

    /// Whether to read from it now; if not for its rate, until when to wait.
    pub fn may_read(&mut self, now: Instant) -> Result<(), Option<Instant>> {
        if self.attached.iter().any(AttachedClient::is_behind) {
            return Err(None);
        }
        let passed = now.saturating_duration_since(self.counted);
        let more = passed.as_micros() as u64 * OUTPUT_RATE / 1_000_000;
        if more > 0 {
            self.allowance = (self.allowance + more).min(OUTPUT_BURST);
            self.counted = now;
        }
        if self.allowance == 0 { Err(Some(now + Duration::from_millis(5))) } else { Ok(()) }
    }

    /// Reads what the one at `connection` types. False if that has ended.
    pub fn read_stdin(&mut self, connection: u64, buffer: &mut [u8]) -> bool {
        let Some(attached) = self.attached.iter_mut().find(|attached| attached.connection == connection) else {
            return false;
        };
        let Some(fd) = &attached.stdin else { return false };
        match nix::unistd::read(fd, buffer) {
            Ok(0) => {}
            Ok(count) => {
                self.stdin_buffer.extend_from_slice(&buffer[..count]);
                self.write_stdin();
                return true;
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return true,
            Err(_) => {}
        }
        attached.stdin = None;
        self.stdin_client_left();
        false
    }

    /// Passes on what was typed, as far as it is taken.
    pub fn write_stdin(&mut self) {
        let Some(stdin) = &self.stdin else {
            self.stdin_buffer = Vec::new();
            return;
        };
        while !self.stdin_buffer.is_empty() {
            match write(stdin, &self.stdin_buffer) {
                Ok(count) => drop(self.stdin_buffer.drain(..count)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                Err(_) => {
                    self.stdin = None;
                    self.stdin_buffer = Vec::new();
                    return;
                }
            }
        }
        self.stdin_buffer = Vec::new();
        if self.stdin_closing {
            self.stdin = None;
        }
    }

    fn stdin_client_left(&mut self) {
        if self.launch.stdin_once {
            // What was typed before arrives first.
            self.stdin_closing = true;
            self.write_stdin();
        }
    }

    /// The one at this connection has left.
    pub fn detach(&mut self, connection: u64) {
        let typed = self.attached.iter().any(|attached| attached.connection == connection && attached.stdin.is_some());
        self.attached.retain(|attached| attached.connection != connection);
        if typed {
            self.stdin_client_left();
        }
    }

    pub fn resize(&self, width: u16, height: u16) {
        if let Some(terminal) = &self.terminal {
            let size = rustix::termios::Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
            let _ = rustix::termios::tcsetwinsize(terminal.as_fd(), size);
        }
    }
}
