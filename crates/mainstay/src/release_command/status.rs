//! `mainstay release status`: a bar for each wave, who failed, and what it waits for.

use std::{fmt::Write as _, pin::pin};

use anyhow::anyhow;
use futures::TryStreamExt;
use kube::{
    Api,
    runtime::{WatchStreamExt, watcher},
};
use mainstay_api::release::{Release, ReleaseStatus};
use serde_json::json;

use crate::exit::Exit;

const BAR_WIDTH: usize = 30;

pub async fn show(releases: &Api<Release>, release: Release, follow: bool, json: bool) -> Result<(), Exit> {
    print(&release, json);
    if !follow || is_ended(&release) {
        return verdict(&release);
    }
    let only = watcher::Config::default().fields(&format!("metadata.name={}", release.name()));
    let mut news = pin!(watcher(releases.clone(), only).default_backoff().applied_objects());
    let mut shown = render(&release);
    loop {
        let next = news.try_next().await.map_err(|error| Exit::Failed(anyhow!(error).context("watch the Release")))?;
        let Some(release) = next else { return Err(Exit::Failed(anyhow!("the watch of the Release ended"))) };
        let text = render(&release);
        if text != shown {
            print(&release, json);
            shown = text;
        }
        if is_ended(&release) {
            return verdict(&release);
        }
    }
}

fn print(release: &Release, json: bool) {
    if json {
        println!("{}", json!({"name": release.name(), "version": release.spec.version, "status": release.status}));
    } else {
        println!("{}", render(release));
    }
}

/// Whether nothing more happens by itself. What the controller has not looked at yet has not ended.
fn is_ended(release: &Release) -> bool {
    let Some(status) = &release.status else { return false };
    let is_current = status.observed_generation == release.metadata.generation;
    is_current && matches!(status.phase.as_str(), "Complete" | "Stuck" | "Refused" | "RolledBack" | "Aborted")
}

fn verdict(release: &Release) -> Result<(), Exit> {
    match release.status.as_ref().map(|status| status.phase.as_str()) {
        Some("Stuck" | "Refused") => Err(Exit::Code(1)),
        _ => Ok(()),
    }
}

fn render(release: &Release) -> String {
    let stock = ReleaseStatus::default();
    let status = release.status.as_ref().unwrap_or(&stock);
    let mut text = String::new();
    let phase = if status.phase.is_empty() { "Pending" } else { &status.phase };
    let _ = write!(text, "{}: version {}, {phase}", release.name(), release.spec.version);
    if !status.message.is_empty() {
        let _ = write!(text, "\n  {}", status.message);
    }
    if let Some(rollback) = &status.rollback {
        let _ = write!(text, "\n  rolled back from {} to {}: {}", rollback.from, rollback.to, rollback.reason);
    }
    for (number, wave) in status.waves.iter().enumerate() {
        let (done, all) = (usize::try_from(wave.updated).unwrap_or(0), usize::try_from(wave.machines).unwrap_or(0));
        let filled = (done * BAR_WIDTH).checked_div(all).unwrap_or(BAR_WIDTH).min(BAR_WIDTH);
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(BAR_WIDTH - filled));
        let _ = write!(text, "\n  wave {:<3} [{bar}] {done}/{all}", number + 1);
    }
    let _ = write!(
        text,
        "\n  machines {}: {} updated, {} moving, {} failed, {} unavailable",
        status.machines, status.updated, status.moving, status.failed, status.unavailable
    );
    for failure in &status.failures {
        let _ = write!(text, "\n  {}: {}", failure.machine, failure.message);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_shown_with_a_bar_for_each_wave_and_who_failed() {
        let release: Release = serde_json::from_value(json!({
            "metadata": {"name": "all", "generation": 2}, "spec": {"version": "v2", "selector": {}},
            "status": {
                "phase": "Stuck", "message": "stopped in wave 2", "machines": 4, "updated": 2, "failed": 1, "unavailable": 1,
                "observedGeneration": 2, "waves": [{"machines": 1, "updated": 1}, {"machines": 4, "updated": 2}],
                "failures": [{"machine": "c", "message": "check disk: exit code 1"}],
            },
        }))
        .unwrap();
        let expected = "\
all: version v2, Stuck
  stopped in wave 2
  wave 1   [##############################] 1/1
  wave 2   [###############...............] 2/4
  machines 4: 2 updated, 0 moving, 1 failed, 1 unavailable
  c: check disk: exit code 1";
        assert_eq!(render(&release), expected);
        assert!(is_ended(&release) && matches!(verdict(&release), Err(Exit::Code(1))));
        let behind =
            Release { metadata: kube::api::ObjectMeta { generation: Some(3), ..release.metadata.clone() }, ..release };
        assert!(!is_ended(&behind), "the controller has not looked yet");
    }
}
