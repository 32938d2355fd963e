//! What `/proc` says of processes.

use std::{fs, path::Path, time::Duration};

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// All processes with their arguments.
pub fn all() -> Vec<(u32, Vec<String>)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments = line.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
        Some((pid, arguments.collect()))
    })
    .collect()
}

/// The shell that runs this script.
pub fn shell_of(token: &str) -> Option<u32> {
    all().into_iter().find_map(|(pid, arguments)| {
        let shell = arguments.first().is_some_and(|program| program.ends_with("sh"));
        (shell && arguments.iter().any(|argument| argument.contains(token))).then_some(pid)
    })
}

pub fn send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    kill(Pid::from_raw(i32::try_from(pid)?), signal).with_context(|| format!("send {signal} to {pid}"))
}

pub fn rss_mb(pid: u32) -> anyhow::Result<f64> {
    field_mb(Path::new(&format!("/proc/{pid}/status")), &["VmRSS:"])
}

/// Memory that would be free without the process.
pub fn private_mb(pid: u32) -> anyhow::Result<f64> {
    field_mb(Path::new(&format!("/proc/{pid}/smaps_rollup")), &["Private_Clean:", "Private_Dirty:"])
}

fn field_mb(path: &Path, names: &[&str]) -> anyhow::Result<f64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut sum = 0.0;
    for line in text.lines() {
        if let Some(value) = names.iter().find_map(|name| line.strip_prefix(name)) {
            sum += value.trim().trim_end_matches(" kB").trim().parse::<f64>()?;
        }
    }
    Ok(sum / 1024.0)
}

/// CPU used by these processes over a time, in percent of a core.
pub async fn cpu_percent(pids: &[u32], time: Duration) -> anyhow::Result<f64> {
    let ticks = || pids.iter().map(|pid| ticks(*pid)).sum::<anyhow::Result<f64>>();
    let before = ticks()?;
    tokio::time::sleep(time).await;
    Ok((ticks()? - before) / time.as_secs_f64()) // a tick is a hundredth of a second
}

fn ticks(pid: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind_name = stat.rsplit_once(')').context("odd /proc/stat")?.1;
    let fields: Vec<&str> = behind_name.split_whitespace().collect();
    Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
}
