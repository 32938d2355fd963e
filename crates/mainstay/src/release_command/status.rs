//! `mainstay release status`: a bar for each wave, which machines are on their way, who failed with the last lines of its log, and what
//! it waits for. On a terminal it is drawn anew in the same lines whenever something changes.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
    time::Duration,
};

use anyhow::anyhow;
use futures::StreamExt;
use kube::{Api, Client};
use mainstay_api::{
    machine::{Machine, MachineAxis, StateValue},
    release::{Release, ReleaseStatus},
};
use mainstay_watch::{Event, Watch, WatchOptions};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::{exit::Exit, machine_command::query::MachineQuery, terminal::printable};

/// How soon it may be drawn again: of ten thousand machines many change every second.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);
const BAR_WIDTH: usize = 30;
/// So many machines on their way are named; JSON has all.
const MOVING_SHOWN: usize = 10;
/// So many lines of the log of a failed machine are shown.
const LINES_SHOWN: usize = 5;

/// A machine that is on its way, or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct MachineProgress {
    machine: String,
    /// `moving` or `failed`.
    state: &'static str,
    running: Option<String>,
    /// Where it is, or why it failed.
    message: String,
    /// The last lines of its log.
    output: String,
}

/// The Release, and the machines that are worth a line.
struct View {
    release: Release,
    machines: Vec<MachineProgress>,
}

/// Whether it is shown again whenever it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Once,
    Live,
}

impl Mode {
    /// Live for people, once for programs, if neither is asked for.
    pub fn choose(once: bool, follow: bool, json: bool) -> Self {
        if !once && (follow || (!json && io::stdout().is_terminal())) { Self::Live } else { Self::Once }
    }
}

pub async fn show(client: Client, release: Release, mode: Mode, json: bool) -> Result<(), Exit> {
    let follow = mode == Mode::Live;
    let mut view = View::read(&client, release).await?;
    let mut screen = Screen { json, in_place: follow && !json && io::stdout().is_terminal(), lines: 0 };
    screen.print(&view);
    if !follow || is_ended(&view.release) {
        return verdict(&view.release);
    }
    let only = WatchOptions::fields(format!("metadata.name={}", view.release.name()));
    let mut changes = Watch::<Release>::new(Api::<Release>::all(client.clone()), only);
    let failed = |error| Exit::Failed(anyhow::Error::new(error).context("watch the Release"));
    while let Some(change) = changes.next().await {
        let mut newest = taken(change.map_err(failed)?);
        let redraw = Instant::now() + REDRAW_INTERVAL;
        while let Ok(Some(change)) = timeout_at(redraw, changes.next()).await {
            newest = taken(change.map_err(failed)?).or(newest);
            if newest.as_ref().is_some_and(is_ended) {
                break;
            }
        }
        let Some(release) = newest else { continue };
        let shown = render(&view);
        view = View::read(&client, release).await?;
        if render(&view) != shown {
            screen.print(&view);
        }
        if is_ended(&view.release) {
            return verdict(&view.release);
        }
    }
    Err(Exit::Failed(anyhow!("the watch of the Release ended")))
}

/// The Release as it is now, if that is what was heard.
fn taken(event: Event<Release>) -> Option<Release> {
    match event {
        Event::InitApply(release) | Event::Apply(release) => Some(release),
        Event::Init | Event::InitDone | Event::Delete(_) => None,
    }
}

impl View {
    async fn read(client: &Client, release: Release) -> anyhow::Result<Self> {
        let status = release.status.as_ref();
        // Machines are many, and most are without news.
        let Some(status) = status.filter(|status| status.moving > 0 || !status.failures.is_empty()) else {
            return Ok(Self { release, machines: Vec::new() });
        };
        let query = MachineQuery(Api::all(client.clone()));
        // Workloads are among the failures too, under names that no machine has.
        let mut machines = query.by_name(status.failures.iter().map(|failure| failure.machine.as_str())).await?;
        if status.moving > 0 {
            let target = &status.target;
            let moving = query.select(&format!("spec.version={target},status.version.running!={target}")).await?;
            machines.extend(moving);
        }
        machines.sort_by(|one, other| one.name().cmp(other.name()));
        machines.dedup_by(|one, other| one.name() == other.name());
        let machines = progress(&release, &machines);
        Ok(Self { release, machines })
    }
}

/// Those that failed first, then those that move, each in the order of names.
fn progress(release: &Release, machines: &[Machine]) -> Vec<MachineProgress> {
    let Some(status) = &release.status else { return Vec::new() };
    let mut all: Vec<MachineProgress> = machines
        .iter()
        .filter_map(|machine| {
            let running = machine.running_version().map(str::to_owned);
            let failure = status.failures.iter().find(|failure| failure.machine == machine.name());
            let is_moving = machine.spec.release.as_deref() == Some(release.name())
                && machine.spec.version.as_deref() == Some(&status.target)
                && running.as_ref() != Some(&status.target);
            let (state, message) = match failure {
                Some(failure) => ("failed", failure.message.clone()),
                None if is_moving => ("moving", whereabouts(machine)),
                None => return None,
            };
            let output = failing_output(machine).unwrap_or_default().to_owned();
            Some(MachineProgress { machine: machine.name().to_owned(), state, running, message, output })
        })
        .collect();
    all.sort_by(|one, other| (one.state, &one.machine).cmp(&(other.state, &other.machine)));
    all
}

const STEPS: [MachineAxis; 3] = [MachineAxis::Provisioned, MachineAxis::Configured, MachineAxis::Validated];

/// How far a machine is with its steps.
fn whereabouts(machine: &Machine) -> String {
    let states = STEPS.into_iter().filter_map(|axis| Some((axis, machine.state(axis)?)));
    let first = states.into_iter().find(|(_, own)| own.state != StateValue::Success);
    match first {
        Some((axis, own)) if own.message.is_empty() => format!("{}: {}", axis.field(), own.state),
        Some((axis, own)) => format!("{}: {} ({})", axis.field(), own.state, own.message),
        None => "has yet to begin".to_owned(),
    }
}

fn failing_output(machine: &Machine) -> Option<&str> {
    let mut outputs = STEPS.into_iter().filter_map(|axis| Some(machine.state(axis)?.output.as_str()));
    outputs.find(|output| !output.is_empty())
}

/// Where it is printed.
struct Screen {
    json: bool,
    /// Over what was printed before.
    in_place: bool,
    lines: usize,
}

impl Screen {
    fn print(&mut self, view: &View) {
        let View { release, machines } = view;
        if self.json {
            let (name, version) = (release.name(), &release.spec.version);
            let line = json!({"name": name, "version": version, "status": release.status, "machines": machines});
            println!("{line}");
            return;
        }
        let text = render(view);
        if self.in_place && self.lines > 0 {
            print!("\x1b[{}A\x1b[J", self.lines);
        }
        println!("{text}");
        let _ = io::stdout().flush();
        self.lines = text.lines().count();
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

fn render(view: &View) -> String {
    let View { release, machines } = view;
    let stock = ReleaseStatus::default();
    let status = release.status.as_ref().unwrap_or(&stock);
    let mut text = String::new();
    let phase = if status.phase.is_empty() { "Pending" } else { &status.phase };
    let _ = write!(text, "{}: version {}, {phase}", release.name(), release.spec.version);
    if !status.message.is_empty() {
        let _ = write!(text, "\n  {}", printable(&status.message));
    }
    if let Some(rollback) = &status.rollback {
        let _ =
            write!(text, "\n  rolled back from {} to {}: {}", rollback.from, rollback.to, printable(&rollback.reason));
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
    let of = |state: &'static str| machines.iter().filter(move |own| own.state == state);
    for own in of("moving").take(MOVING_SHOWN) {
        let _ = write!(text, "\n  {}: moving, {}", own.machine, printable(&own.message));
    }
    let more = of("moving").count().saturating_sub(MOVING_SHOWN);
    if more > 0 {
        let _ = write!(text, "\n  and {more} more on their way");
    }
    for failure in &status.failures {
        let _ = write!(text, "\n  {}: {}", failure.machine, printable(&failure.message));
        let own = of("failed").find(|own| own.machine == failure.machine);
        let lines: Vec<&str> = own.map(|own| own.output.lines().collect()).unwrap_or_default();
        for line in &lines[lines.len().saturating_sub(LINES_SHOWN)..] {
            let _ = write!(text, "\n    | {}", printable(line));
        }
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
                "phase": "Stuck", "target": "v2", "message": "stopped in wave 2", "machines": 4, "updated": 2, "failed": 1, "unavailable": 1,
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
  b: moving, validated: pending
  c: check disk: exit code 1
    | 2
    | 3
    | 4
    | 5
    | disk /dev/sda: I/O error";
        let machine = |name: &str, wanted: &str, state: serde_json::Value| -> Machine {
            serde_json::from_value(json!({
                "metadata": {"name": name}, "spec": {"release": "all", "version": wanted},
                "status": {"version": {"running": "v1"}, "validated": state},
            }))
            .unwrap()
        };
        let since = "2026-01-01T00:00:00Z";
        let failed = json!({"state": "failed", "since": since, "output": "1\n2\n3\n4\n5\ndisk /dev/sda: I/O error"});
        let machines = [
            machine("c", "v2", failed),
            machine("b", "v2", json!({"state": "pending", "since": since})),
            machine("d", "v1", json!({"state": "success", "since": since})),
        ];
        let machines = progress(&release, &machines);
        assert_eq!(
            machines.iter().map(|own| (own.machine.as_str(), own.state)).collect::<Vec<_>>(),
            [("c", "failed"), ("b", "moving")]
        );
        let view = View { release: release.clone(), machines };
        assert_eq!(render(&view), expected);
        assert!(is_ended(&release) && matches!(verdict(&release), Err(Exit::Code(1))));
        let behind =
            Release { metadata: kube::api::ObjectMeta { generation: Some(3), ..release.metadata.clone() }, ..release };
        assert!(!is_ended(&behind), "the controller has not looked yet");
    }

    #[test]
    fn what_machines_report_does_not_control_the_terminal() {
        let release: Release = serde_json::from_value(json!({
            "metadata": {"name": "all"}, "spec": {"version": "v2", "selector": {}},
            "status": {
                "phase": "Stuck", "message": "stopped: a (\u{1b}[2J)",
                "failures": [{"machine": "a", "message": "\u{1b}]0;title\u{7}\nwave 1: all is well"}],
            },
        }))
        .unwrap();
        let output = "\u{1b}[31mred\rhidden\n\u{9b}2J".to_owned();
        let progress = |machine: &str, state| MachineProgress {
            machine: machine.to_owned(),
            state,
            running: None,
            message: "\u{1b}c".to_owned(),
            output: output.clone(),
        };
        let text = render(&View { release, machines: vec![progress("a", "failed"), progress("b", "moving")] });
        assert!(text.lines().all(|line| !line.contains(char::is_control)), "{text:?}");
        assert!(text.contains("[31mred hidden") && !text.contains("\nwave 1: all is well"), "{text:?}");
    }
}
