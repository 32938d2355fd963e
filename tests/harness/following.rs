//! A program that keeps talking: `kubectl get --watch` and its like.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Instant,
};

use super::PATIENCE;

/// Lines of a running program; dropping it ends the program.
pub struct Following {
    name: String,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Following {
    #[track_caller]
    pub fn start(mut command: Command, name: &str) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {name}: {error}"));
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { name: name.to_owned(), child, lines, seen: Vec::new() }
    }

    /// The next line for which this holds; lines before it are skipped.
    #[track_caller]
    pub fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
                panic!("{}\nnever said {what}; it said:\n{}", self.name, self.seen.join("\n"));
            };
            self.seen.push(line.clone());
            if wanted(&line) {
                return line;
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
