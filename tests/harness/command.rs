//! Running a foreign program to its end, within bounds.

use std::{
    fmt,
    io::{Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// The output of a program and how it ended.
#[derive(Debug)]
pub struct Output {
    command: String,
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, stdout, stderr, code } = self;
        write!(f, "{command}\nended with {code}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}

impl Output {
    /// What it printed, if it succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self}");
        self.stdout
    }

    /// What it complained about, if it failed.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_ne!(self.code, 0, "{self}");
        self.stderr
    }
}

/// Runs a command with this on its standard input; ends it after `patience`.
#[track_caller]
pub fn run(mut command: Command, name: &str, input: &str, patience: Duration) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {name}: {error}"));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    // A program that does not read its input closes it; that is no failure.
    std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let stdout = collect(child.stdout.take().expect("stdout is piped"));
    let stderr = collect(child.stderr.take().expect("stderr is piped"));
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait().expect("ask for a program's state") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let (output, complained) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
            panic!("{name}\ndid not end within {patience:?}\nstdout:\n{output}\nstderr:\n{complained}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output {
        command: name.to_owned(),
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
        code: status.code().unwrap_or(-1),
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
