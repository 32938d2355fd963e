//! What every command that keeps running shares: logs, the async runtime, signals.

use std::{
    future::Future,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, anyhow};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{cli::CommonOptions, config_reload, exit::Exit, log, program_pages};

/// Stops in order, then executes the program's file again under the same process id: after an upgrade, the new one.
pub const RESTART_SIGNAL: Signal = Signal::USR2;

static RESTARTING: AtomicBool = AtomicBool::new(false);

/// Whether this process stops only to become the program again: nothing is to be drained for that.
pub fn is_restarting() -> bool {
    RESTARTING.load(Ordering::Relaxed)
}

/// Starts logging (with `default_filter` unless the options name one) and the runtime, and runs `work` with a token that
/// SIGTERM and SIGINT cancel. SIGUSR2 does so too, and runs the program anew afterwards. SIGHUP reads the `--config` file again.
pub fn run_until_signal<F>(
    options: &CommonOptions,
    default_filter: &str,
    work: impl FnOnce(CancellationToken) -> F,
) -> Result<(), Exit>
where
    F: Future<Output = Result<(), Exit>>,
{
    let filter = log::start(options.log.as_deref(), default_filter, options.log_format).map_err(Exit::Refused)?;
    // Before its file can be replaced: afterwards the kernel has no name for it.
    let program = std::env::current_exe().context("find our own program")?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = CancellationToken::new();
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut user2 = signal(SignalKind::user_defined2()).context("listen for SIGUSR2")?;
        // Until there is a state to write, it must not end the process.
        let _ = signal(SignalKind::user_defined1()).context("listen for SIGUSR1")?;
        tokio::spawn(config_reload::run(filter, stop.clone()));
        tokio::spawn(program_pages::run(stop.clone()));
        let cancel = stop.clone();
        tokio::spawn(async move {
            let signal = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = user2.recv() => { RESTARTING.store(true, Ordering::Relaxed); "SIGUSR2" },
            };
            tracing::info!(signal, "stopping");
            cancel.cancel();
        });
        work(stop).await
    })?;
    if is_restarting() {
        tracing::info!(program = %program.display(), "stopped; running the program anew");
        drop(runtime);
        return Err(execute_again(&program));
    }
    tracing::info!("stopped");
    Ok(())
}

/// Only returns if that fails. Locks and sockets are closed by it; containers and their shims are not ours to end.
fn execute_again(program: &Path) -> Exit {
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).exec();
    Exit::Failed(anyhow!(error).context(format!("run {} anew", program.display())))
}
