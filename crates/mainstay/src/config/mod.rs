//! `mainstay config`: what became of a ConfigTemplate's versions, going back to one of them, and pausing.

mod show;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::config_template::{ConfigTemplate, ConfigTemplateStatus, result};
use serde_json::json;

use crate::{cli::DataDir, exit::Exit, why};

const FIELD_MANAGER: &str = "mainstay-config";

#[derive(Debug, Args)]
pub struct ConfigOptions {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show which version consumers have, and what happens to a new one
    Status(TemplateOptions),
    /// List the last versions: what changed, who wrote it, what became of it
    History(TemplateOptions),
    /// Have all consumers return to an earlier version and stay there until resume
    Undo(UndoOptions),
    /// Give no further consumer a new version until resume
    Pause(TemplateOptions),
    /// Go on after pause or undo
    Resume(TemplateOptions),
}

#[derive(Debug, Args)]
struct TemplateOptions {
    /// The name of the ConfigTemplate
    name: String,

    /// Its namespace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// How to reach the API [default: admin.kubeconfig in the data directory]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    data: DataDir,
}

#[derive(Debug, Args)]
struct UndoOptions {
    /// The version to return to [default: the last good one before the current]
    #[arg(long, value_name = "VERSION")]
    to: Option<String>,

    #[command(flatten)]
    template: TemplateOptions,
}

pub fn run(options: &ConfigOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    runtime.block_on(execute(&options.command))
}

async fn execute(command: &ConfigCommand) -> Result<(), Exit> {
    match command {
        ConfigCommand::Status(options) => {
            let template = read(options).await?;
            print(options, show::status(&template), &json!(template.status));
        }
        ConfigCommand::History(options) => {
            let template = read(options).await?;
            let history = template.status.unwrap_or_default().history;
            print(options, show::history(&history), &json!(history));
        }
        ConfigCommand::Undo(UndoOptions { to, template: options }) => {
            let template = read(options).await?;
            let status = template.status.clone().unwrap_or_default();
            let version = earlier_version(&status, template.spec.pinned_version.as_deref(), to.as_deref());
            let version = version.map_err(Exit::Refused)?;
            change(options, json!({ "pinnedVersion": version }), &format!("returns to version {version}")).await?;
        }
        ConfigCommand::Pause(options) => change(options, json!({ "paused": true }), "is paused").await?,
        ConfigCommand::Resume(options) => {
            change(options, json!({ "paused": null, "pinnedVersion": null }), "goes on").await?;
        }
    }
    Ok(())
}

/// The version to return to: the one that is asked for, if there is such a one; else that of the last rollout that succeeded, other than the one that
/// consumers have. While a version is on its way that is the last good one.
fn earlier_version(
    status: &ConfigTemplateStatus,
    pinned: Option<&str>,
    asked: Option<&str>,
) -> Result<String, anyhow::Error> {
    let is_known = |version: &str| {
        status.version.as_deref() == Some(version) || status.history.iter().any(|entry| entry.version == version)
    };
    match asked {
        Some(asked) if is_known(asked) => return Ok(asked.to_owned()),
        Some(asked) => return Err(anyhow!("--to: there is no version {asked}; `mainstay config history` lists them")),
        None => {}
    }
    let under_way = status.target.as_ref().map(|target| target.version.as_str());
    let current = pinned.or(under_way).or(status.version.as_deref());
    let good = status.history.iter().filter(|entry| entry.result == result::SUCCEEDED).map(|entry| &entry.version);
    let mut candidates = status.version.iter().filter(|_| under_way.is_some()).chain(good);
    let found = candidates.find(|version| Some(version.as_str()) != current);
    found.cloned().ok_or_else(|| anyhow!("there is no earlier good version"))
}

fn print(options: &TemplateOptions, text: String, value: &serde_json::Value) {
    if options.json {
        println!("{value:#}");
    } else {
        print!("{text}");
    }
}

async fn templates(options: &TemplateOptions) -> Result<Api<ConfigTemplate>, Exit> {
    let client = why::connect(options.kubeconfig.as_deref(), &options.data).await?;
    Ok(Api::namespaced(client, &options.namespace))
}

async fn read(options: &TemplateOptions) -> Result<ConfigTemplate, Exit> {
    let found = templates(options).await?.get_opt(&options.name).await;
    let found = found.with_context(|| format!("read ConfigTemplate {}/{}", options.namespace, options.name))?;
    found.ok_or_else(|| missing(options))
}

fn missing(options: &TemplateOptions) -> Exit {
    Exit::Refused(anyhow!("there is no ConfigTemplate {} in namespace {}", options.name, options.namespace))
}

async fn change(options: &TemplateOptions, spec: serde_json::Value, done: &str) -> Result<(), Exit> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({ "spec": spec }));
    let written = match templates(options).await?.patch(&options.name, &params, &patch).await {
        Ok(written) => written,
        Err(kube::Error::Api(status)) if status.code == 404 => return Err(missing(options)),
        Err(error) => {
            let doing = format!("change ConfigTemplate {}/{}", options.namespace, options.name);
            return Err(anyhow::Error::new(error).context(doing).into());
        }
    };
    let text = format!("configtemplate {}/{} {done}\n", options.namespace, options.name);
    print(options, text, &json!(written.spec));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: serde_json::Value) -> ConfigTemplateStatus {
        serde_json::from_value(value).unwrap()
    }

    fn entry(version: &str, result: &str) -> serde_json::Value {
        json!({ "version": version, "time": "2026-01-01T00:00:00Z", "result": result })
    }

    #[test]
    fn undo_goes_to_the_last_good_version_before_the_current() {
        let history =
            [entry("c", "Succeeded"), entry("x", "RolledBack"), entry("b", "Succeeded"), entry("a", "Succeeded")];
        let settled = status(json!({ "version": "c", "history": history }));
        assert_eq!(earlier_version(&settled, None, None).unwrap(), "b");
        assert_eq!(earlier_version(&settled, Some("b"), None).unwrap(), "c", "undo of an undo");
        assert_eq!(earlier_version(&settled, None, Some("a")).unwrap(), "a");
        let error = earlier_version(&settled, None, Some("z")).unwrap_err().to_string();
        assert_eq!(error, "--to: there is no version z; `mainstay config history` lists them");
        let target = json!({ "version": "d", "began": "2026-01-01T00:00:00Z" });
        let moving = status(json!({ "version": "c", "target": target, "history": [entry("d", "Progressing")] }));
        assert_eq!(earlier_version(&moving, None, None).unwrap(), "c");
        let first = status(json!({ "version": "a", "history": [entry("a", "Succeeded")] }));
        assert_eq!(earlier_version(&first, None, None).unwrap_err().to_string(), "there is no earlier good version");
    }
}
