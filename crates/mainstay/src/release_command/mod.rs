//! `mainstay release`: shows how far a release of machines has come, and holds, approves, pauses, undoes and aborts it.
//!
//! Every command is one write to the Release, which the controller follows; each is safe at any time.

mod status;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use mainstay_api::{
    machine::version_violation,
    release::{Release, ReleaseRecord},
};
use serde_json::{Value, json};

use crate::{cli::DataDir, exit::Exit, terminal::printable, why};

#[derive(Debug, Args)]
pub struct ReleaseOptions {
    #[command(subcommand)]
    command: ReleaseCommand,

    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,

    /// How to reach the API [default: admin.kubeconfig in the data directory]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,

    /// Where everything is kept [default: /var/lib/mainstay as root, ~/.local/share/mainstay otherwise]
    #[arg(long, env = "MAINSTAY_DATA_DIR", value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ReleaseName {
    /// Name of the Release; may be left out if there is only one
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, Subcommand)]
enum ReleaseCommand {
    /// Show how far it has come, with a bar for each wave; ends with 1 if it is stuck or refused. On a terminal it is shown until the release ends
    Status {
        #[command(flatten)]
        release: ReleaseName,

        /// Show it again whenever it changes, until it is complete, stuck or refused [default: on a terminal]
        #[arg(short, long)]
        follow: bool,

        /// Show it once, also on a terminal
        #[arg(long, conflicts_with = "follow")]
        once: bool,
    },
    /// List the versions before, with how and when the release of each ended
    History(ReleaseName),
    /// Start no machine for now
    Hold {
        #[command(flatten)]
        release: ReleaseName,

        /// Why
        #[arg(long, value_name = "TEXT")]
        reason: String,

        /// How long, such as 8h [default: until unhold]
        #[arg(long, value_name = "TIME", value_parser = crate::cli::duration)]
        r#for: Option<Duration>,
    },
    /// End a hold
    Unhold(ReleaseName),
    /// Let the wave begin that waits for an approval
    Approve {
        #[command(flatten)]
        release: ReleaseName,

        /// Waves up to this one, counted from 1 [default: the one that waits]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
        wave: Option<i32>,
    },
    /// Start no machine until resumed
    Pause(ReleaseName),
    /// Go on
    Resume(ReleaseName),
    /// Bring the machines back to an earlier version
    Undo {
        #[command(flatten)]
        release: ReleaseName,

        /// Which one [default: the last that all machines ran]
        #[arg(long, value_name = "VERSION")]
        to: Option<String>,
    },
    /// Start no machine for this version any more; those under way end what they do
    Abort(ReleaseName),
}

impl ReleaseCommand {
    fn release(&self) -> Option<&str> {
        match self {
            Self::Status { release, .. }
            | Self::Hold { release, .. }
            | Self::History(release)
            | Self::Unhold(release)
            | Self::Approve { release, .. }
            | Self::Pause(release)
            | Self::Resume(release)
            | Self::Undo { release, .. }
            | Self::Abort(release) => release.name.as_deref(),
        }
    }
}

pub fn run(options: &ReleaseOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let data = DataDir { data_dir: options.data_dir.clone() };
    runtime.block_on(async {
        let client = why::connect(options.kubeconfig.as_deref(), &data).await?;
        let releases: Api<Release> = Api::all(client.clone());
        let release = find(&releases, options.command.release()).await.map_err(NotFound::into_exit)?;
        let change = match &options.command {
            ReleaseCommand::Status { follow, once, .. } => {
                let mode = status::Mode::choose(*once, *follow, options.json);
                return status::show(client, release, mode, options.json).await;
            }
            ReleaseCommand::History(_) => {
                let history = release.status.map(|status| status.history).unwrap_or_default();
                match options.json {
                    true => println!("{}", json!(history)),
                    false => print!("{}", history_table(&history)),
                }
                return Ok(());
            }
            command => change(command, &release, Timestamp::now()).map_err(Exit::Refused)?,
        };
        let Change { patch, words } = change;
        let changed = releases.patch(release.name(), &PatchParams::default(), &Patch::Merge(patch)).await;
        let changed = changed.with_context(|| format!("change release {}", release.name()))?;
        match options.json {
            true => println!("{}", json!(changed)),
            false => println!("release {}: {words}", release.name()),
        }
        Ok(())
    })
}

/// A write to a Release, and what it does.
struct Change {
    patch: Value,
    words: String,
}

/// What a command writes. Pure.
fn change(command: &ReleaseCommand, release: &Release, now: Timestamp) -> anyhow::Result<Change> {
    let spec = |spec: Value, words: String| Ok(Change { patch: json!({ "spec": spec }), words });
    let version = &release.spec.version;
    match command {
        ReleaseCommand::Status { .. } | ReleaseCommand::History(_) => spec(json!({}), String::new()),
        ReleaseCommand::Hold { reason, r#for, .. } => {
            let until = r#for.map(|time| SignedDuration::try_from(time).and_then(|time| now.checked_add(time)));
            let until = until.transpose().context("--for is too long")?;
            spec(json!({"hold": {"reason": reason, "until": until}}), "held".to_owned())
        }
        ReleaseCommand::Unhold(_) => spec(json!({"hold": null}), "no longer held".to_owned()),
        ReleaseCommand::Approve { wave, .. } => {
            let waiting =
                release.status.as_ref().filter(|status| status.phase == "Gated").and_then(|status| status.wave);
            let wave = wave.map(|wave| wave - 1).or(waiting);
            let wave = wave.ok_or_else(|| anyhow!("no wave waits for an approval; name one with --wave"))?;
            spec(
                json!({"approval": {"version": version, "wave": wave}}),
                format!("wave {} of {version} approved", wave + 1),
            )
        }
        ReleaseCommand::Pause(_) => spec(json!({"paused": true}), "paused".to_owned()),
        ReleaseCommand::Resume(_) => spec(json!({"paused": false, "abortedVersion": null}), "resumed".to_owned()),
        ReleaseCommand::Undo { to, .. } => {
            let to = match to {
                Some(to) => match version_violation(to) {
                    Some(why) => return Err(anyhow!("--to {to:?} {why}")),
                    None => to.clone(),
                },
                None => earlier_version(release)
                    .ok_or_else(|| anyhow!("no other version was complete before {version}; name one with --to"))?,
            };
            spec(json!({"version": to, "rollbackVersion": to}), format!("back from {version} to {to}"))
        }
        ReleaseCommand::Abort(_) => spec(json!({"abortedVersion": version}), format!("{version} aborted")),
    }
}

/// The newest last.
fn history_table(history: &[ReleaseRecord]) -> String {
    let time = |time: Option<&Time>| time.map_or_else(|| "-".to_owned(), |time| time.0.to_string());
    let mut rows = vec![["VERSION", "RESULT", "BEGAN", "ENDED"].map(str::to_owned)];
    rows.extend(history.iter().map(|own| {
        [own.version.clone(), own.result.clone(), time(own.start_time.as_ref()), time(Some(&own.end_time))]
    }));
    let widths: Vec<usize> = (0..4).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 4]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        printable(cells.join("  ").trim_end()) + "\n"
    };
    rows.iter().map(line).collect()
}

/// The last version that all machines ran, if not the one that is wanted now.
fn earlier_version(release: &Release) -> Option<String> {
    let status = release.status.as_ref()?;
    let complete = status.history.iter().rev().filter(|own| own.result == "Complete").map(|own| &own.version);
    let mut candidates = status.last_complete_version.iter().chain(complete);
    candidates.find(|version| **version != release.spec.version).cloned()
}

pub enum NotFound {
    None,
    Named(String),
    Several(Vec<String>),
    Failed(kube::Error),
}

impl NotFound {
    pub fn into_exit(self) -> Exit {
        match self {
            Self::None => Exit::Refused(anyhow!("there is no Release")),
            Self::Named(name) => Exit::Refused(anyhow!("there is no Release {name:?}")),
            Self::Several(names) => {
                Exit::Refused(anyhow!("there are several Releases; name one: {}", names.join(", ")))
            }
            Self::Failed(error) => Exit::Failed(anyhow!(error).context("read Releases")),
        }
    }
}

/// The Release of this name, or the only one.
pub async fn find(releases: &Api<Release>, name: Option<&str>) -> Result<Release, NotFound> {
    if let Some(name) = name {
        let found = releases.get_opt(name).await.map_err(NotFound::Failed)?;
        return found.ok_or_else(|| NotFound::Named(name.to_owned()));
    }
    let mut all = releases.list(&ListParams::default()).await.map_err(NotFound::Failed)?.items;
    match all.len() {
        0 => Err(NotFound::None),
        1 => Ok(all.remove(0)),
        _ => Err(NotFound::Several(all.iter().map(|release| release.name().to_owned()).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(status: Value) -> Release {
        let spec = json!({"version": "v3", "selector": {}});
        serde_json::from_value(json!({"metadata": {"name": "all"}, "spec": spec, "status": status})).unwrap()
    }

    fn name() -> ReleaseName {
        ReleaseName { name: None }
    }

    fn patched(command: &ReleaseCommand, status: Value) -> Result<Value, String> {
        let now = Timestamp::from_second(0).unwrap();
        change(command, &release(status), now)
            .map(|change| change.patch["spec"].clone())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn undo_goes_to_the_last_version_that_all_machines_ran() {
        let undo = ReleaseCommand::Undo { release: name(), to: None };
        let record = |version: &str, result: &str| json!({"version": version, "result": result, "endTime": "2026-01-01T00:00:00Z"});
        assert_eq!(
            patched(&undo, json!({"lastCompleteVersion": "v2"})),
            Ok(json!({"version": "v2", "rollbackVersion": "v2"}))
        );
        let history = json!([record("v1", "Complete"), record("v2", "RolledBack"), record("v3", "Complete")]);
        let status = json!({"lastCompleteVersion": "v3", "history": history});
        assert_eq!(patched(&undo, status), Ok(json!({"version": "v1", "rollbackVersion": "v1"})));
        assert!(patched(&undo, json!({})).unwrap_err().contains("name one with --to"));
        let bad = ReleaseCommand::Undo { release: name(), to: Some("a b".to_owned()) };
        assert!(patched(&bad, json!({})).unwrap_err().starts_with("--to \"a b\" must be"));
    }

    #[test]
    fn the_history_is_a_table_of_versions() {
        let history: Vec<ReleaseRecord> = serde_json::from_value(json!([
            {"version": "v1", "result": "Complete", "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-02T00:00:00Z"},
            {"version": "v2-rc1", "result": "RolledBack", "endTime": "2026-01-03T00:00:00Z"},
        ]))
        .unwrap();
        let expected = "\
VERSION  RESULT      BEGAN                 ENDED
v1       Complete    2026-01-01T00:00:00Z  2026-01-02T00:00:00Z
v2-rc1   RolledBack  -                     2026-01-03T00:00:00Z
";
        assert_eq!(history_table(&history), expected);
    }

    #[test]
    fn approvals_holds_and_aborts_are_of_one_version_or_time() {
        let approve = |wave| ReleaseCommand::Approve { release: name(), wave };
        let gated = json!({"phase": "Gated", "wave": 1});
        assert_eq!(patched(&approve(None), gated), Ok(json!({"approval": {"version": "v3", "wave": 1}})));
        assert_eq!(patched(&approve(Some(1)), json!({})), Ok(json!({"approval": {"version": "v3", "wave": 0}})));
        assert!(patched(&approve(None), json!({"phase": "Soaking", "wave": 1})).is_err());
        assert_eq!(patched(&ReleaseCommand::Abort(name()), json!({})), Ok(json!({"abortedVersion": "v3"})));
        let hold =
            ReleaseCommand::Hold { release: name(), reason: "x".to_owned(), r#for: Some(Duration::from_secs(60)) };
        assert_eq!(patched(&hold, json!({})), Ok(json!({"hold": {"reason": "x", "until": "1970-01-01T00:01:00Z"}})));
    }
}
