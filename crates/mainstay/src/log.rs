//! Log lines: one per event, to standard error.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::{EnvFilter, Registry, layer::SubscriberExt, reload, util::SubscriberInitExt};

use crate::cli::LogFormat;

/// What is logged unless something else is asked for.
pub const STOCK: &str = "info";

/// What is logged, which can be changed while the process runs.
#[derive(Clone)]
pub struct LogFilter {
    handle: reload::Handle<EnvFilter, Registry>,
    /// Unless something else is asked for.
    stock: String,
}

impl LogFilter {
    pub fn set(&self, filter: Option<&str>) -> anyhow::Result<()> {
        self.handle.reload(parse(filter.unwrap_or(&self.stock))?).context("change what is logged")
    }
}

fn parse(filter: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(filter).with_context(|| format!("--log {filter:?} is not a filter"))
}

/// Starts logging by `filter`, or `stock` if there is none.
pub fn start(filter: Option<&str>, stock: &str, format: LogFormat) -> anyhow::Result<LogFilter> {
    let (layer, handle) = reload::Layer::new(parse(filter.unwrap_or(stock))?);
    let registry = tracing_subscriber::registry().with(layer);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Human => {
            registry.with(lines.with_target(false).with_ansi(std::io::stderr().is_terminal())).init();
        }
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    Ok(LogFilter { handle, stock: stock.to_owned() })
}
