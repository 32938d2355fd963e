//! Runs a program of the machine itself: in a cgroup of its own, within a time limit, with bounded output.
//!
//! When the command ends or its time is up, everything in the cgroup is killed, whatever it forked; so it leaves no process
//! behind. The number of processes is limited too. All output is read, so that a command that prints much is not held up, and the
//! end of it is returned. What leaves the cgroup (as `su` does where PAM opens a session) and keeps the pipe open is not waited for.

use std::{
    io::{self, Write},
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use mainstay_runtime::{cgroup::Cgroup, spec::Resources};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    process::{Child, Command},
};
use tokio_util::task::AbortOnDropHandle;

/// How long the kernel may take to kill what is in the cgroup.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long the rest of the output is waited for once the command has ended: whoever still holds the pipe left the cgroup.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// Waits until it is in its cgroup, then becomes the command, which reads nothing.
const LAUNCHER: &str = r#"read -r _ && exec "$@" </dev/null"#;

/// What a command is run with.
pub struct BoundedCommand<'a> {
    pub program: &'a Path,
    pub arguments: &'a [String],
    pub environment: &'a [(&'static str, String)],
    pub timeout: Duration,
    /// Below the mount point of each hierarchy.
    pub cgroup: PathBuf,
    /// Processes and threads at the same time.
    pub most_processes: i64,
    /// So much of what it prints is kept.
    pub output_tail: usize,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnding {
    Exited(ExitStatus),
    TimedOut(Duration),
}

impl std::fmt::Display for CommandEnding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TimedOut(limit) => write!(f, "killed: it took longer than {limit:?}"),
            Self::Exited(status) => match (status.code(), status.signal()) {
                (Some(code), _) => write!(f, "exit code {code}"),
                (None, Some(signal)) => write!(f, "killed by signal {signal}"),
                (None, None) => f.write_str("ended"),
            },
        }
    }
}

/// What a command that could be run came to.
#[derive(Debug)]
pub struct CommandResult {
    pub ending: CommandEnding,
    /// The end of what it printed.
    pub output: Vec<u8>,
}

impl BoundedCommand<'_> {
    /// Runs it to its end. Dropping the future kills the command at once, and what it forked when its cgroup is used again.
    pub async fn run(&self) -> io::Result<CommandResult> {
        let cgroup = Cgroup::new(&self.cgroup);
        clear(cgroup.clone()).await?;
        cgroup.create()?;
        cgroup.limit(&Resources { pids_limit: Some(self.most_processes), ..Resources::default() })?;
        let (output, input) = io::pipe()?;
        let mut child = self.spawn(input)?;
        let tail = Arc::<Mutex<Vec<u8>>>::default();
        let output = pipe::Receiver::from_owned_fd(OwnedFd::from(output))?;
        let mut reading = AbortOnDropHandle::new(tokio::spawn(read_tail(output, self.output_tail, tail.clone())));
        let ending = match self.release(&cgroup, &mut child) {
            Ok(()) => match tokio::time::timeout(self.timeout, child.wait()).await {
                Ok(status) => status.map(CommandEnding::Exited),
                Err(_) => Ok(CommandEnding::TimedOut(self.timeout)),
            },
            Err(error) => Err(error),
        };
        // A command that could not be put into its cgroup, or left it, is not in there; what it forked is in its process group.
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = child.start_kill();
        clear(cgroup).await?;
        let _ = child.wait().await;
        let _ = tokio::time::timeout(OUTPUT_PATIENCE, &mut reading).await;
        drop(reading);
        let mut output = std::mem::take(&mut *tail.lock());
        output.drain(..output.len().saturating_sub(self.output_tail));
        Ok(CommandResult { ending: ending?, output })
    }

    fn spawn(&self, output: io::PipeWriter) -> io::Result<Child> {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(LAUNCHER).arg("sh").arg(self.program).args(self.arguments);
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

/// Kills all that a command left in its cgroup, for one that is not run again.
pub async fn clear_cgroup(path: &Path) -> io::Result<()> {
    clear(Cgroup::new(path)).await
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

/// Reads until everybody has closed the pipe; `tail` has the end of it, and never more than about twice as much.
async fn read_tail(mut output: pipe::Receiver, most: usize, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        let mut tail = tail.lock();
        tail.extend_from_slice(&buffer[..count]);
        let surplus = tail.len().saturating_sub(most);
        if surplus > most {
            tail.drain(..surplus);
        }
    }
}

/// The last lines of what a command printed, for people: as text, without control characters, of so many bytes at most.
pub fn last_lines(output: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(output);
    let text: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    let text = text.trim();
    if text.len() <= most {
        return text.to_owned();
    }
    let start = (text.len() - most..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    // From the beginning of a line, if there is one.
    let tail = &text[start..];
    tail.split_once('\n').map_or(tail, |(_, lines)| lines).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_long_output_whole_last_lines_are_shown() {
        assert_eq!(last_lines(b"one\ntwo\n", 100), "one\ntwo");
        assert_eq!(last_lines(b"first line\nsecond line\nthird", 12), "third");
        assert_eq!(last_lines(b"\x1b[31mred\x1b[0m\0\tend", 100), "[31mred[0m\tend");
        assert_eq!(last_lines("ääää".as_bytes(), 3), "ä");
        assert_eq!(last_lines(b"", 10), "");
        let one_line = last_lines(&[b'x'; 5000], 100);
        assert_eq!(one_line.len(), 100);
    }

    #[tokio::test]
    async fn the_end_of_a_pipe_is_kept_and_no_more() {
        let (reader, mut writer) = io::pipe().unwrap();
        let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader)).unwrap();
        let written = std::thread::spawn(move || {
            for number in 0..100_000 {
                writeln!(writer, "{number}").unwrap();
            }
        });
        let tail = Arc::<Mutex<Vec<u8>>>::default();
        read_tail(reader, 12, tail.clone()).await;
        written.join().unwrap();
        let tail = tail.lock();
        assert!(tail.ends_with(b"99998\n99999\n") && tail.len() <= 24, "{tail:?}");
    }

    /// As root, who may leave a cgroup.
    #[tokio::test]
    async fn a_command_that_leaves_its_cgroup_is_not_waited_for() {
        let leave = "for own in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do echo $$ > $own; done";
        let script = format!("{leave} 2>/dev/null; echo before; setsid sleep 30 & sleep 30");
        let command = BoundedCommand {
            program: Path::new("/bin/sh"),
            arguments: &["-c".to_owned(), script],
            environment: &[],
            timeout: Duration::from_secs(1),
            cgroup: PathBuf::from(format!("mainstay-test-bounded-{}", std::process::id())),
            most_processes: 16,
            output_tail: 100,
        };
        let result = tokio::time::timeout(Duration::from_secs(20), command.run()).await.expect("in time").unwrap();
        assert_eq!(result.ending, CommandEnding::TimedOut(Duration::from_secs(1)));
        assert!(result.output.starts_with(b"before\n"), "{:?}", String::from_utf8_lossy(&result.output));
    }
}
