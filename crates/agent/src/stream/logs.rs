//! `/containerLogs`: streams the log of a container.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use mainstay_errors::error_chain;
use mainstay_runtime::{PodUid, Runtime};
use tokio::{
    sync::{broadcast, mpsc},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    response::{self, HandlerResult, RequestError},
    server::Parts,
};
use crate::logs::{
    Options,
    read::{self, Writing},
};

/// How long an answer about a container's state is believed without a word from the runtime.
const BELIEVED: Duration = Duration::from_secs(2);

pub async fn serve_logs(parts: &Parts, namespace: &str, pod: &str, container: &str, query: &str) -> HandlerResult {
    let options = Options::parse(query, Timestamp::now()).map_err(|e| RequestError::bad_request(e.to_string()))?;
    let found = parts.find(namespace, pod).await?;
    let log = found.log(&parts.log_directory, container, options.previous)?;
    let run = Run {
        runtime: parts.runtime.clone(),
        wakeups: parts.runtime.wakeups(),
        uid: found.uid.clone(),
        log: log.path.clone(),
        seen: None,
    };
    let (to, from) = mpsc::channel(4);
    tokio::spawn(async move {
        if let Err(error) = read::read(&log.path, &options, run, to).await {
            tracing::warn!(error = error_chain(&error), "cannot read a log");
        }
    });
    Ok(response::stream("text/plain", ReceiverStream::new(from).map(Ok)))
}

/// One run of a container, known by its log.
struct Run {
    runtime: Arc<dyn Runtime>,
    wakeups: broadcast::Receiver<PodUid>,
    uid: PodUid,
    log: std::path::PathBuf,
    /// When it was last seen running.
    seen: Option<Instant>,
}

impl Writing for Run {
    async fn writing(&mut self) -> bool {
        if !self.woken() && self.seen.is_some_and(|seen| seen.elapsed() < BELIEVED) {
            return true;
        }
        // A runtime that cannot be asked says nothing about the container.
        let running = match self.runtime.observe(Some(&self.uid)).await {
            Ok(observed) => observed.containers.iter().any(|c| c.log_path == self.log && c.state.is_running()),
            Err(_) => true,
        };
        self.seen = running.then(Instant::now);
        running
    }
}

impl Run {
    /// Whether the runtime reported a change of the pod since it was last asked.
    fn woken(&mut self) -> bool {
        let mut woken = false;
        loop {
            match self.wakeups.try_recv() {
                Ok(uid) => woken |= uid == self.uid,
                Err(broadcast::error::TryRecvError::Lagged(_)) => woken = true,
                Err(_) => return woken,
            }
        }
    }
}
