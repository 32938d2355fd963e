//! What every command that keeps running shares: logs, the async runtime, signals.

use std::future::Future;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{cli::CommonOptions, exit::Exit, log};

/// Starts logging (with `default_filter` unless the options name one) and the runtime, and runs `work` with a token that
/// SIGTERM and SIGINT cancel.
pub fn run_until_signal<F>(
    options: &CommonOptions,
    default_filter: &str,
    work: impl FnOnce(CancellationToken) -> F,
) -> Result<(), Exit>
where
    F: Future<Output = Result<(), Exit>>,
{
    log::start(options.log.as_deref().unwrap_or(default_filter), options.log_format).map_err(Exit::Refused)?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let cancel = stop.clone();
        tokio::spawn(async move {
            let signal = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            tracing::info!(signal, "stopping");
            cancel.cancel();
        });
        work(stop).await?;
        tracing::info!("stopped");
        Ok(())
    })
}
