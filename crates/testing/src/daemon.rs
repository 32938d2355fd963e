//! A process of the real binary that runs until it is ended, with its log in a file.
//!
//! It is killed when it is dropped, and a test that panics shows the end of its log.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use crate::eventually;

/// How many lines of the log a failing test shows.
const TAIL: usize = 60;

/// What `mainstay server` and `mainstay up` print once they serve.
const READY: &str = "Ctrl-C";

/// Pods of the tests look at the machine they run on: servers enforce no Pod Security unless a flag asks for it.
const ANY_POD: [(&str, &str); 2] =
    [("MAINSTAY_POD_SECURITY_ENFORCE", "privileged"), ("MAINSTAY_POD_SECURITY_WARN", "privileged")];

pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Runs the command with a new log file.
    #[track_caller]
    pub fn spawn(command: Command, log: &Path) -> Self {
        Self::start(command, log, File::create(log))
    }

    /// Runs the command with a log file that may already have lines of an earlier process.
    #[track_caller]
    pub fn spawn_with_log_of_before(command: Command, log: &Path) -> Self {
        Self::start(command, log, File::options().create(true).append(true).open(log))
    }

    #[track_caller]
    fn start(mut command: Command, log: &Path, file: std::io::Result<File>) -> Self {
        command.envs(ANY_POD);
        let file = file.unwrap_or_else(|error| panic!("cannot write {}: {error}", log.display()));
        let child = command
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("share the log file"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        Self { child, log: log.to_owned() }
    }

    /// Waits until it serves and returns the URL of its API: a connection made now will be answered.
    #[track_caller]
    pub fn wait_until_it_serves(&mut self) -> String {
        eventually("the daemon prints where it serves", || {
            let log = self.log();
            if let Some(status) = self.exit_status() {
                panic!("the daemon ended with {status}:\n{log}");
            }
            log.contains(READY).then_some(())?;
            log.lines().find_map(|line| line.trim().strip_prefix("API")).map(|url| url.trim().to_owned())
        })
    }

    /// Everything it printed and logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    #[track_caller]
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("ask for the state of a daemon")
    }

    /// Sends a signal by its name: `TERM`, `STOP`.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status();
        assert!(status.expect("run kill").success(), "cannot send SIG{name}");
    }

    /// Ends it as a power cut would.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("kill a daemon");
        self.child.wait().expect("wait for the end of a daemon");
    }

    /// Waits for it to end by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the daemon ends", || self.exit_status())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let ended = self.child.try_wait().ok().flatten();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let (log, name) = (self.log(), self.log.file_stem().unwrap_or_default().to_string_lossy());
            let lines: Vec<&str> = log.lines().collect();
            let how = ended.map_or_else(|| "ran until now".to_owned(), |status| format!("ended with {status}"));
            eprintln!("{name} {how}; its log ends with:");
            lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: &Path) -> Daemon {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Daemon::spawn(command, log)
    }

    #[test]
    fn it_serves_once_it_prints_so_and_ends_when_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("server.log");
        let script =
            "trap 'exit 7' TERM; echo '  API  https://127.0.0.1:1'; echo 'Press Ctrl-C'; while :; do sleep 0.05; done";
        let mut daemon = shell(script, &log);
        assert_eq!(daemon.wait_until_it_serves(), "https://127.0.0.1:1");
        daemon.signal("TERM");
        assert_eq!(daemon.wait().code(), Some(7));
    }

    #[test]
    #[should_panic(expected = "ended with exit status: 3:\nno such flag")]
    fn one_that_ends_instead_fails_the_test_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        shell("echo no such flag; exit 3", &directory.path().join("server.log")).wait_until_it_serves();
    }

    #[test]
    fn a_dropped_daemon_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = shell("exec sleep 1000", &directory.path().join("server.log"));
        let process = PathBuf::from(format!("/proc/{}", daemon.pid()));
        assert!(process.exists());
        drop(daemon);
        assert!(!process.exists());
    }
}
