//! Renders ConfigTemplates in a few long-lived processes of this program, each bounded in memory and time.
//!
//! Whoever may write templates of a namespace may not harm the server: a template can double a text with every step, which the engine does not bound. A process
//! is sent one job after the other on its standard input and answers each on its standard output, both as [`frames`]. A job that takes too
//! much memory or CPU time kills its process, and that is the job's failure alone: the next job gets another process. Time is counted per job, memory from a process
//! that is replaced after [`MOST_JOBS`] jobs, so that nothing of one template stays for those after it for long.
//!
//! What many templates read, such as a Service, is sent to a process once and decoded there once ([`shared_texts`]); values of Secrets never stay.
//!
//! One process per job was refused: starting one costs ten times as much as rendering a usual template, and a Service may have a thousand readers.

mod frames;
mod shared_texts;

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    process::{ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use mainstay_controllers::{InputText, TemplateRenderer};
use mainstay_templates::{TemplateError, render_inputs};
use nix::sys::{
    resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
    time::TimeValLike,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Semaphore,
};

use self::{
    frames::{decode_job, frame, frame_length},
    shared_texts::{DecodedTexts, SentTexts},
};

/// The argument with which the program is one of these processes.
pub const ARGUMENT: &str = "render-template";
/// Of such a process, the program's own pages not included.
const MAX_MEMORY: u64 = 256 << 20;
/// Of each job.
const MAX_CPU_SECONDS: u64 = 10;
const TIMEOUT: Duration = Duration::from_secs(15);
/// How many there are at a time.
const MAX_PROCESSES: usize = 2;
/// A process that has rendered so many is replaced.
const MOST_JOBS: usize = 1000;
/// One that nobody needed for so long ends.
const IDLE: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum RenderReply {
    Rendered(String),
    Failed { line: Option<usize>, problem: String, detail: Option<String> },
}

/// The process: one template after the other, until its input ends.
pub fn main() -> ExitCode {
    let bounded =
        setrlimit(Resource::RLIMIT_DATA, MAX_MEMORY, MAX_MEMORY).and_then(|()| setrlimit(Resource::RLIMIT_CORE, 0, 0));
    // The first to go when the machine has no memory left.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    if bounded.is_err() {
        return ExitCode::FAILURE;
    }
    let (mut input, mut output, mut texts) = (io::stdin().lock(), io::stdout().lock(), DecodedTexts::default());
    loop {
        match serve_job(&mut input, &mut output, &mut texts) {
            Ok(true) => {}
            Ok(false) => return ExitCode::SUCCESS,
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

/// Says whether there was one.
fn serve_job(input: &mut impl Read, output: &mut impl Write, texts: &mut DecodedTexts) -> io::Result<bool> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        other => other?,
    }
    let mut job = vec![0; frame_length(length)?];
    input.read_exact(&mut job)?;
    limit_cpu_time()?;
    let (header, sent) = decode_job(&job)?;
    let inputs = texts.decode(&header, sent)?;
    let reply = match render_inputs(&header.template, inputs.into_iter()) {
        Ok(content) => RenderReply::Rendered(content),
        Err(TemplateError { line, problem, detail }) => RenderReply::Failed { line, problem, detail },
    };
    output.write_all(&frame(&reply)?)?;
    output.flush()?;
    Ok(true)
}

/// What this process may use from now on, beyond what it has used.
fn limit_cpu_time() -> io::Result<()> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let used = usage.user_time().num_seconds() + usage.system_time().num_seconds();
    let limit = u64::try_from(used).unwrap_or_default() + 1 + MAX_CPU_SECONDS;
    let (_, most) = getrlimit(Resource::RLIMIT_CPU)?;
    Ok(setrlimit(Resource::RLIMIT_CPU, limit.min(most), most)?)
}

/// Renders in such processes.
pub struct RenderPool {
    seats: Semaphore,
    idle: Arc<IdleProcesses>,
}

impl Default for RenderPool {
    fn default() -> Self {
        Self { seats: Semaphore::new(MAX_PROCESSES), idle: Arc::default() }
    }
}

/// Processes that wait for a job; never more than there are seats.
#[derive(Default)]
struct IdleProcesses {
    processes: Mutex<Vec<RenderProcess>>,
    /// Whether a task ends those that nobody needs.
    is_watched: AtomicBool,
}

impl IdleProcesses {
    fn take(&self) -> Option<RenderProcess> {
        self.processes.lock().pop()
    }

    fn return_idle(self: &Arc<Self>, process: RenderProcess) {
        self.processes.lock().push(process);
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            tokio::spawn(Self::end_unneeded(self.clone()));
        }
    }

    async fn end_unneeded(self: Arc<Self>) {
        loop {
            tokio::time::sleep(IDLE).await;
            let mut processes = self.processes.lock();
            processes.retain(|process| process.idle_since.elapsed() < IDLE);
            if processes.is_empty() {
                // Under the lock: whoever puts one back later begins anew.
                self.is_watched.store(false, Ordering::SeqCst);
                return;
            }
        }
    }
}

/// A process, which ends when this is dropped.
struct RenderProcess {
    _process: Child,
    input: ChildStdin,
    output: ChildStdout,
    sent: SentTexts,
    jobs: usize,
    idle_since: tokio::time::Instant,
}

impl TemplateRenderer for RenderPool {
    fn render(
        &self,
        template: String,
        inputs: BTreeMap<String, InputText>,
    ) -> BoxFuture<'_, Result<String, TemplateError>> {
        Box::pin(async move {
            let _seat = self.seats.acquire().await;
            let failed = |problem: String| Err(TemplateError { line: None, problem, detail: None });
            match tokio::time::timeout(TIMEOUT, self.run(&template, &inputs)).await {
                Ok(Ok(Some(RenderReply::Rendered(content)))) => Ok(content),
                Ok(Ok(Some(RenderReply::Failed { line, problem, detail }))) => {
                    Err(TemplateError { line, problem, detail })
                }
                Ok(Ok(None)) => {
                    failed(format!("takes more than {} MiB of memory or {MAX_CPU_SECONDS} s", MAX_MEMORY >> 20))
                }
                Ok(Err(error)) => failed(format!("cannot be rendered at present: {error}")),
                Err(_) => failed(format!("is not rendered after {} s", TIMEOUT.as_secs())),
            }
        })
    }
}

impl RenderPool {
    /// Nothing if the process died of the job. One that had died before it is not the job's fault: it is tried once more.
    async fn run(&self, template: &str, inputs: &BTreeMap<String, InputText>) -> io::Result<Option<RenderReply>> {
        if let Some(mut process) = self.idle.take() {
            let job = process.sent.encode_job(template, inputs)?;
            match process.exchange(&job).await {
                Ok(reply) => return Ok(Some(self.give_back(process, reply))),
                Err(error) => tracing::debug!(%error, "a renderer of templates ended; the job is tried in a new one"),
            }
        }
        let mut process = RenderProcess::start()?;
        let job = process.sent.encode_job(template, inputs)?;
        Ok(process.exchange(&job).await.ok().map(|reply| self.give_back(process, reply)))
    }

    fn give_back(&self, mut process: RenderProcess, reply: RenderReply) -> RenderReply {
        process.jobs += 1;
        process.idle_since = tokio::time::Instant::now();
        if process.jobs < MOST_JOBS {
            self.idle.return_idle(process);
        }
        reply
    }
}

impl RenderProcess {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        // The allocator would reserve more than there may be before the limit is set.
        command.env_clear().env("MIMALLOC_ARENA_RESERVE", "0");
        command.arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.kill_on_drop(true).spawn()?;
        let input = process.stdin.take().ok_or_else(|| io::Error::other("no standard input"))?;
        let output = process.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
        let sent = SentTexts::default();
        Ok(Self { _process: process, input, output, sent, jobs: 0, idle_since: tokio::time::Instant::now() })
    }

    async fn exchange(&mut self, job: &[u8]) -> io::Result<RenderReply> {
        self.input.write_all(job).await?;
        let mut length = [0; 4];
        self.output.read_exact(&mut length).await?;
        let mut reply = vec![0; frame_length(length)?];
        self.output.read_exact(&mut reply).await?;
        Ok(serde_json::from_slice(&reply)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_served_one_after_the_other_until_the_input_ends() {
        let mut sent = SentTexts::default();
        let mut job = |template: &str| sent.encode_job(template, &BTreeMap::new()).unwrap();
        let jobs = [job("one"), job("{{ nothing }}"), job("two")].concat();
        let (mut input, mut output, mut texts) = (jobs.as_slice(), Vec::new(), DecodedTexts::default());
        while serve_job(&mut input, &mut output, &mut texts).unwrap() {}
        let mut replies = Vec::new();
        let mut rest = output.as_slice();
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let (reply, tail) = tail.split_at(frame_length(*length).unwrap());
            replies.push(serde_json::from_slice::<RenderReply>(reply).unwrap());
            rest = tail;
        }
        assert_eq!(replies[0], RenderReply::Rendered("one".to_owned()));
        assert!(matches!(&replies[1], RenderReply::Failed { line: Some(1), .. }), "a bad one fails alone: {replies:?}");
        assert_eq!(replies[2], RenderReply::Rendered("two".to_owned()));
    }

    #[test]
    fn frames_that_are_too_large_or_cut_off_are_errors() {
        let serve = |mut input: &[u8]| serve_job(&mut input, &mut Vec::new(), &mut DecodedTexts::default());
        assert!(serve(&[0xff; 8]).is_err());
        assert!(serve(&[0, 0, 0, 9, b'{']).is_err());
        assert!(serve(&[0, 0, 0, 1, b'{']).is_err());
        assert!(serve(&[0, 0, 0, 5, 0, 0, 0, 9, b'{']).is_err());
        assert!(!serve(&[]).unwrap());
    }
}
