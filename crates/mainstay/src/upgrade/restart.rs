//! The process that is to become another program: asked to, watched, and started again as it was.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal},
};

use super::holder;
use crate::{exit::Exit, process, readiness::ProcessReport, run::RESTART_SIGNAL};

/// How long nobody may hold the data directory before the process counts as ended. A supervisor may start it again.
const ENDED: Duration = Duration::from_secs(3);
/// For a process that is not ready to stop, before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const INTERVAL: Duration = Duration::from_millis(50);
/// Namespaces that a process started by this command would otherwise not be in.
const NAMESPACES: [&str; 3] = ["mnt", "net", "pid"];

/// A process and everything that is needed to start it again as it was.
pub struct RunningProcess {
    pid: i32,
    pidfd: OwnedFd,
    report: Option<ProcessReport>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: PathBuf,
    output: [Option<OwnedFd>; 2],
    /// The service that systemd runs it as.
    unit: Option<String>,
}

impl RunningProcess {
    pub fn find(data_dir: &Path) -> Result<Option<Self>, Exit> {
        let Some(pid) = holder(data_dir)? else { return Ok(None) };
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let about = |what: &str| format!("read {what} of process {pid}");
        let raw = Pid::from_raw(pid).context("a process id")?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).with_context(|| about("the state"))?;
        // Its program would be run, and be started again, with our rights.
        let status = fs::read_to_string(proc.join("status")).with_context(|| about("the user"))?;
        let own = rustix::process::geteuid().as_raw();
        if let Some(user) = foreign_user(&status, own) {
            return Err(Exit::Refused(anyhow!(
                "process {pid} runs as user {user}: run `mainstay upgrade` as that user"
            )));
        }
        for namespace in NAMESPACES {
            let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}"));
            if of(&pid.to_string()).with_context(|| about("the namespaces"))? != of("self").context("our namespaces")? {
                return Err(Exit::Refused(anyhow!(
                    "process {pid} is in another {namespace} namespace: run `mainstay upgrade` there, as with nsenter --target {pid} --all"
                )));
            }
        }
        let arguments = split(&fs::read(proc.join("cmdline")).with_context(|| about("the command line"))?);
        let environment = split(&fs::read(proc.join("environ")).with_context(|| about("the environment"))?);
        let environment = environment.iter().filter_map(|entry| split_variable(entry));
        let output = [1, 2].map(|fd| pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty()).ok());
        let groups = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
        Ok(Some(Self {
            pid,
            report: ProcessReport::read(data_dir).filter(|report| report.pid == pid as u32),
            environment: environment.collect(),
            directory: fs::read_link(proc.join("cwd")).unwrap_or_else(|_| "/".into()),
            arguments,
            output,
            unit: systemd_unit(&groups)
                .filter(|unit| Path::new("/run/systemd/system").exists() && main_process(unit) == Some(pid)),
            pidfd,
        }))
    }

    /// The file that it was started from, also if that was replaced since.
    pub fn program(&self) -> Result<PathBuf, Exit> {
        let link = fs::read_link(format!("/proc/{}/exe", self.pid)).context("find the program of the process")?;
        let text = link.to_string_lossy();
        Ok(text.strip_suffix(" (deleted)").map_or_else(|| link.clone(), PathBuf::from))
    }

    /// Only a process that was ready is expected to be so again: no server may be up.
    pub fn was_ready(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.ready)
    }

    /// Has it restart as the program that is installed now; returns how long that took.
    pub fn become_installed(
        &self,
        data_dir: &Path,
        program: &Path,
        wait_ready: bool,
        patience: Duration,
    ) -> Result<Duration, String> {
        let asked = Timestamp::now();
        // A process of a version that does not know the signal would die of it.
        if self.report.is_none() {
            self.end();
            self.spawn(program).map_err(|error| format!("it cannot be started: {error}"))?;
        } else if let Err(error) = pidfd_send_signal(self.pidfd.as_fd(), RESTART_SIGNAL) {
            return Err(format!("process {} cannot be asked to restart: {error}", self.pid));
        }
        self.wait_until_healthy(data_dir, program, Expected { started_since: asked, ready: wait_ready }, patience)
    }

    /// After a failure: ends what runs, and starts the installed program as this process was.
    pub fn start_again(
        &self,
        data_dir: &Path,
        program: &Path,
        wait_ready: bool,
        patience: Duration,
    ) -> Result<Duration, String> {
        let asked = Timestamp::now();
        // It may be the new program, and hang before it holds anything.
        self.end();
        if let Ok(Some((pid, _))) = process::find_running(data_dir)
            && let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
        {
            end(&pidfd, self.last_word());
        }
        match &self.unit {
            Some(unit) => {
                // It may have given up on it.
                let _ = Command::new("systemctl").args(["reset-failed", unit]).status();
                let started = Command::new("systemctl").args(["restart", unit]).status();
                if !started.as_ref().is_ok_and(|status| status.success()) {
                    return Err(format!("`systemctl restart {unit}` failed"));
                }
            }
            // A supervisor may have been faster.
            None if holder(data_dir).is_ok_and(|holder| holder.is_some()) => {}
            None => self.spawn(program).map_err(|error| format!("it cannot be started: {error}"))?,
        }
        self.wait_until_healthy(data_dir, program, Expected { started_since: asked, ready: wait_ready }, patience)
    }

    /// Waits until a process of the installed program holds the data directory and, if it is to, has said since then that it is
    /// ready. What the process before it said does not count: both may have the same id.
    fn wait_until_healthy(
        &self,
        data_dir: &Path,
        program: &Path,
        expected: Expected,
        patience: Duration,
    ) -> Result<Duration, String> {
        let (since, mut seen) = (Instant::now(), Instant::now());
        loop {
            let holder = holder(data_dir).ok().flatten();
            let pid = holder.or((!has_ended(&self.pidfd)).then_some(self.pid));
            let is_installed = pid.is_some_and(|pid| is_program(pid, program));
            let report = ProcessReport::read(data_dir).filter(|report| holder == Some(report.pid as i32));
            if is_installed && report.is_some_and(|report| expected.is_met_by(&report)) {
                return Ok(since.elapsed());
            }
            if pid.is_some() {
                seen = Instant::now();
            } else if seen.elapsed() > ENDED {
                return Err("its process ended".to_owned());
            }
            if since.elapsed() > patience {
                let seconds = patience.as_secs();
                return Err(match (is_installed, holder) {
                    (true, Some(_)) => format!("it runs, but is not ready after {seconds} s"),
                    (true, None) => format!("it runs, but has not started within {seconds} s"),
                    (false, _) => format!("the process that ran before has not restarted within {seconds} s"),
                });
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn end(&self) {
        end(&self.pidfd, self.last_word());
    }

    /// One that would drain the node when it is asked to stop is not asked: everything survives a kill.
    fn last_word(&self) -> Signal {
        let is_flag = |argument: &OsString| argument == "--drain-on-stop";
        let is_variable = |(name, _): &(OsString, OsString)| name == "MAINSTAY_DRAIN_ON_STOP";
        // Versions that do not say so themselves may do it.
        let may_drain = || self.arguments.iter().any(is_flag) || self.environment.iter().any(is_variable);
        let drains = self.report.as_ref().and_then(|report| report.drains_on_stop).unwrap_or_else(may_drain);
        if drains { Signal::KILL } else { Signal::TERM }
    }

    fn spawn(&self, program: &Path) -> std::io::Result<()> {
        let mut command = Command::new(program);
        if let Some((name, rest)) = self.arguments.split_first() {
            command.arg0(name).args(rest);
        }
        let [stdout, stderr] = &self.output;
        let stdio =
            |fd: &Option<OwnedFd>| fd.as_ref().and_then(|fd| fd.try_clone().ok()).map_or_else(Stdio::null, Stdio::from);
        command.env_clear().envs(self.environment.iter().cloned()).current_dir(&self.directory).stdin(Stdio::null());
        // Not of our process group: Ctrl-C here is not meant for it.
        command.stdout(stdio(stdout)).stderr(stdio(stderr)).process_group(0).spawn().map(drop)
    }
}

/// What a process has to say of itself to be healthy.
#[derive(Clone, Copy)]
struct Expected {
    started_since: Timestamp,
    ready: bool,
}

impl Expected {
    fn is_met_by(self, report: &ProcessReport) -> bool {
        report.started >= self.started_since && (report.ready || !self.ready)
    }
}

/// Also if nobody has waited for it yet.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn end(pidfd: &OwnedFd, signal: Signal) {
    let _ = pidfd_send_signal(pidfd, signal);
    let since = Instant::now();
    while !has_ended(pidfd) {
        if since.elapsed() > STOP_TIMEOUT {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
        std::thread::sleep(INTERVAL);
    }
}

fn is_program(pid: i32, program: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let running = id(Path::new(&format!("/proc/{pid}/exe")));
    running.is_some() && running == id(program)
}

/// Arguments or variables as the kernel shows them, each with a NUL at its end. An argument may be empty.
fn split(text: &[u8]) -> Vec<OsString> {
    let Some(text) = text.strip_suffix(&[0]).or(Some(text)).filter(|text| !text.is_empty()) else { return Vec::new() };
    text.split(|byte| *byte == 0).map(|part| OsString::from_vec(part.to_vec())).collect()
}

/// Name and value, in whatever encoding.
fn split_variable(entry: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = entry.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Some((text(&bytes[..at]), text(&bytes[at + 1..])))
}

/// A user that a process runs as, by its `/proc/PID/status`, if it is another; or that cannot be found out.
fn foreign_user(status: &str, own: u32) -> Option<String> {
    let Some(users) = status.lines().find_map(|line| line.strip_prefix("Uid:")) else {
        return Some("that cannot be found out".to_owned());
    };
    users.split_whitespace().find(|user| user.parse() != Ok(own)).map(str::to_owned)
}

/// The process that systemd regards as the service itself.
fn main_process(unit: &str) -> Option<i32> {
    let shown = Command::new("systemctl").args(["show", "--property=MainPID", "--value", unit]).output().ok()?;
    String::from_utf8_lossy(&shown.stdout).trim().parse().ok().filter(|pid| *pid > 0)
}

/// The service in whose cgroup a process is. That may be somebody else's, such as the one of the session it was started from.
fn systemd_unit(groups: &str) -> Option<String> {
    let path = groups.lines().find_map(|line| {
        line.strip_prefix("0::").or_else(|| line.split_once(":name=systemd:").map(|(_, path)| path))
    })?;
    path.split('/').rfind(|part| part.ends_with(".service")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_known_by_its_cgroup() {
        assert_eq!(systemd_unit("0::/system.slice/mainstay.service\n").as_deref(), Some("mainstay.service"));
        assert_eq!(systemd_unit("1:name=systemd:/system.slice/m.service\n").as_deref(), Some("m.service"));
        assert_eq!(systemd_unit("0::/user.slice/session-3.scope\n"), None);
        assert_eq!(systemd_unit(""), None);
    }

    #[test]
    fn arguments_may_be_empty_and_variables_of_any_encoding() {
        let parts = |text: &[u8]| split(text).into_iter().map(OsString::into_vec).collect::<Vec<_>>();
        assert_eq!(
            parts(b"up\0--dns-upstream\0\0--x\0"),
            [b"up".to_vec(), b"--dns-upstream".to_vec(), vec![], b"--x".to_vec()]
        );
        assert_eq!(parts(b"up\0\0"), [b"up".to_vec(), vec![]], "the last one too");
        assert_eq!(parts(b""), Vec::<Vec<u8>>::new());
        let variable = split_variable(&OsString::from_vec(b"A=\xff=b".to_vec())).unwrap();
        assert_eq!((variable.0.into_vec(), variable.1.into_vec()), (b"A".to_vec(), b"\xff=b".to_vec()));
    }

    #[test]
    fn a_process_of_another_user_is_recognised_whatever_it_has_become() {
        assert_eq!(foreign_user("Name:\tm\nUid:\t0\t0\t0\t0\n", 0), None);
        assert_eq!(foreign_user("Uid:\t65534\t65534\t65534\t65534\n", 0).as_deref(), Some("65534"));
        assert_eq!(foreign_user("Uid:\t1000\t0\t0\t0\n", 0).as_deref(), Some("1000"), "setuid");
        assert!(foreign_user("", 0).is_some());
    }

    #[test]
    fn a_running_process_is_described_so_that_it_can_be_started_again() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunningProcess::find(dir.path()).is_ok_and(|found| found.is_none()));
        let Ok(_lock) = process::DataDirLock::acquire(dir.path()) else { panic!("not locked") };
        let Ok(Some(running)) = RunningProcess::find(dir.path()) else { panic!("not found") };
        assert_eq!(running.arguments, std::env::args_os().collect::<Vec<_>>());
        assert_eq!(running.program().ok(), std::env::current_exe().ok());
        assert!(!running.was_ready() && running.output.iter().all(Option::is_some));
    }
}
