//! Renders ConfigTemplates in a short-lived process of this program, bounded in memory and time.
//!
//! Whoever may write templates of a namespace may not harm the server: a template can double a text with every step, which the engine does not bound. The
//! process is given the template and its inputs on its standard input and answers on its standard output; should it take too much it dies alone.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    process::{ExitCode, Stdio},
    time::Duration,
};

use futures::future::BoxFuture;
use mainstay_controllers::TemplateRenderer;
use mainstay_templates::{TemplateError, render};
use nix::sys::resource::{Resource, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command, sync::Semaphore};

/// The argument with which the program is one of these processes.
pub const ARGUMENT: &str = "render-template";
/// Of such a process, the program's own pages not included.
const MAX_MEMORY: u64 = 256 << 20;
const MAX_CPU_SECONDS: u64 = 10;
const TIMEOUT: Duration = Duration::from_secs(15);
/// How many there are at a time.
const MAX_PROCESSES: usize = 2;

#[derive(Serialize, Deserialize)]
struct Job {
    template: String,
    inputs: BTreeMap<String, Value>,
}

#[derive(Serialize, Deserialize)]
enum RenderReply {
    Rendered(String),
    Failed { line: Option<usize>, problem: String, detail: Option<String> },
}

/// The process: one template.
pub fn main() -> ExitCode {
    let bounded = setrlimit(Resource::RLIMIT_DATA, MAX_MEMORY, MAX_MEMORY)
        .and_then(|()| setrlimit(Resource::RLIMIT_CPU, MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        .and_then(|()| setrlimit(Resource::RLIMIT_CORE, 0, 0));
    // The first to go when the machine has no memory left.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut input = Vec::new();
    if bounded.is_err() || std::io::stdin().read_to_end(&mut input).is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(Job { template, inputs }) = serde_json::from_slice(&input) else { return ExitCode::FAILURE };
    drop(input);
    let answer = match render(&template, &inputs) {
        Ok(content) => RenderReply::Rendered(content),
        Err(TemplateError { line, problem, detail }) => RenderReply::Failed { line, problem, detail },
    };
    let written = serde_json::to_vec(&answer).map(|answer| std::io::stdout().write_all(&answer));
    if matches!(written, Ok(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Renders in such processes.
pub struct RenderProcess {
    seats: Semaphore,
}

impl Default for RenderProcess {
    fn default() -> Self {
        Self { seats: Semaphore::new(MAX_PROCESSES) }
    }
}

impl TemplateRenderer for RenderProcess {
    fn render(
        &self,
        template: String,
        inputs: BTreeMap<String, Value>,
    ) -> BoxFuture<'_, Result<String, TemplateError>> {
        Box::pin(async move {
            let _seat = self.seats.acquire().await;
            let failed = |problem: String| Err(TemplateError { line: None, problem, detail: None });
            match tokio::time::timeout(TIMEOUT, run(&Job { template, inputs })).await {
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

/// Nothing if the process died.
async fn run(job: &Job) -> std::io::Result<Option<RenderReply>> {
    let mut process = Command::new("/proc/self/exe");
    // The allocator would reserve more than there may be before the limit is set.
    process.env_clear().env("MIMALLOC_ARENA_RESERVE", "0");
    process.arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = process.kill_on_drop(true).spawn()?;
    let mut stdin = process.stdin.take().ok_or_else(|| std::io::Error::other("no standard input"))?;
    let input = serde_json::to_vec(job)?;
    // One that dies early closes its input; its end says more than that.
    let feed = async move {
        let _ = stdin.write_all(&input).await;
    };
    let ((), output) = tokio::join!(feed, process.wait_with_output());
    let output = output?;
    if !output.status.success() {
        return Ok(None);
    }
    Ok(serde_json::from_slice(&output.stdout).ok())
}
