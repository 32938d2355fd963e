//! Measurements of the store. Each runs in a process of its own, so that memory is its own.
//!
//! `bench-store engines [DIR]` compares engines beneath the store, `bench-store store [DIR]` measures the store.

mod engines;
mod store;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, bail};

/// Times of single commits.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn quantile(&self, q: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let at = ((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    fn row(&self) -> String {
        let ms = |d: Duration| format!("{:.2}", d.as_secs_f64() * 1e3);
        format!("{} | {} | {}", ms(self.quantile(0.5)), ms(self.quantile(0.99)), ms(self.quantile(1.0)))
    }
}

/// The most memory this process ever used, in MiB.
fn peak_memory() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
    Ok(kib / 1024.0)
}

/// Runs this program again with `args`, letting it print.
fn apart(args: &[&str], dir: &Path) -> anyhow::Result<()> {
    let status = Command::new(std::env::current_exe()?).args(args).arg(dir).status()?;
    anyhow::ensure!(status.success(), "{args:?} failed");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let dir = |at: usize| args.get(at).map_or_else(|| PathBuf::from("."), PathBuf::from);
    match args[..] {
        ["engines", ..] => engines::all(&dir(1)),
        ["engine", name, puts, ..] => engines::measure(name, puts.parse()?, &dir(3)),
        ["store", ..] => store::all(&dir(1)),
        ["commits", writers, ..] => store::commits(writers.parse()?, &dir(2)),
        ["open", objects, ..] => store::open(objects.parse()?, &dir(2)),
        _ => bail!("usage: bench-store engines [DIR] | store [DIR]"),
    }
}
