//! Questions and reports of a machine about itself, and the version that all machines are to run.

use std::{path::Path, time::Duration};

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_agent::machine_steps::record_file::{read_version, write_version};
use mainstay_api::{
    machine::{Machine, MachineAxis, MachineState},
    release::{Release, ReleaseSpec},
};
use mainstay_errors::error_chain;
use mainstay_machines::{
    questions::{PendingUpdate, WantedVersion, problems, status_from_result},
    status_patch::state_patch,
};
use serde_json::{Value, json};

use super::{
    Session, answer,
    answers::{failing_services, problem_json},
};
use crate::{exit::Exit, release_command};

/// A script asks; an API that does not answer in this time does not.
const PATIENCE: Duration = Duration::from_secs(10);
/// `EX_IOERR`: apart from all answers of `pending-update`.
const INPUT_OUTPUT_ERROR: u8 = 74;
/// `EX_UNAVAILABLE`: apart from every number of failures that `local-health` ends with.
const UNAVAILABLE: u8 = 69;
/// The Release that `trigger-update` makes if there is none.
const FIRST_RELEASE: &str = "all";

impl Session<'_> {
    /// Within [`PATIENCE`].
    async fn own_machine(&self, name: &str) -> anyhow::Result<Option<Machine>> {
        let machine = async { Ok(Api::<Machine>::all(self.connect().await?).get_opt(name).await?) };
        tokio::time::timeout(PATIENCE, machine).await.map_err(|_| anyhow!("the API does not answer"))?
    }

    pub async fn pending_update(&self, name: &str, version_file: &Path) -> Result<(), Exit> {
        let local = read_version(version_file).map_err(|error| {
            eprintln!("mainstay: read {}: {error}", version_file.display());
            Exit::Code(INPUT_OUTPUT_ERROR)
        })?;
        let wanted = match self.own_machine(name).await {
            Ok(machine) => {
                machine.and_then(|machine| machine.spec.version).map_or(WantedVersion::Unset, WantedVersion::Version)
            }
            Err(error) => {
                eprintln!("mainstay: {}", error_chain(error.as_ref()));
                WantedVersion::Unreachable
            }
        };
        let pending = PendingUpdate::find(wanted, local);
        let code = pending.exit_code();
        self.print([pending.message()], &json!({"code": code, "message": pending.message()}));
        if code == 0 { Ok(()) } else { Err(Exit::Code(code)) }
    }

    pub fn local_version(&self, version: Option<&str>, file: &Path) -> Result<(), Exit> {
        match version {
            Some(version) => {
                write_version(file, version).with_context(|| format!("write {}", file.display()))?;
                self.print([], &json!(version));
            }
            None => {
                let version = read_version(file).with_context(|| format!("read {}", file.display()))?;
                self.print([version.clone().unwrap_or_default()], &json!(version));
            }
        }
        Ok(())
    }

    /// One write: the version it ran before is gone with it.
    pub async fn update_own_info(&self, name: &str, version: Option<&str>) -> Result<(), Exit> {
        let Some(version) = version else {
            self.print([], &json!({"machine": name, "reported": null}));
            return Ok(());
        };
        let own = json!({"running": version, "runningSince": Timestamp::now(), "wanted": version});
        self.report(name, json!({"version": own})).await
    }

    pub async fn update_own_status(&self, name: &str, axis: MachineAxis, result: i32) -> Result<(), Exit> {
        let (state, since) = (status_from_result(axis, result), Time(Timestamp::now()));
        let message = format!("reported with result {result}");
        let state = MachineState { state, since, message, output: String::new() };
        self.report(name, json!({axis.field(): state_patch(Some(&state))})).await
    }

    async fn report(&self, name: &str, status: Value) -> Result<(), Exit> {
        let machines: Api<Machine> = Api::all(self.connect().await?);
        let patch = Patch::Merge(json!({ "status": &status }));
        match machines.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(_) => {
                self.print([], &json!({"machine": name, "reported": status}));
                Ok(())
            }
            Err(kube::Error::Api(answer)) if matches!(answer.code, 403 | 404 | 422) => {
                Err(Exit::Refused(anyhow!("report the state of machine {name}: {}", answer.message)))
            }
            Err(error) => Err(Exit::Failed(anyhow!(error).context(format!("report the state of machine {name}")))),
        }
    }

    pub async fn local_health(&self, name: &str, verbose: bool) -> Result<(), Exit> {
        // A number of failures would be taken for that.
        let unavailable = |error: anyhow::Error| {
            eprintln!("mainstay: {}", error_chain(error.as_ref()));
            Exit::Code(UNAVAILABLE)
        };
        let machine = self.own_machine(name).await.map_err(unavailable)?;
        let machine = machine.ok_or_else(|| Exit::Refused(anyhow!("there is no machine {name:?}")))?;
        let mut found = problems(&machine, false);
        let services = async { failing_services(self.connect().await?, Some(name)).await };
        let services = tokio::time::timeout(PATIENCE, services).await;
        found.extend(services.unwrap_or_else(|_| Err(anyhow!("the API does not answer"))).map_err(unavailable)?);
        let lines = found.iter().filter(|_| verbose).map(|problem| format!("{}: {}", problem.check, problem.output));
        self.print(lines, &json!(found.iter().map(problem_json).collect::<Vec<_>>()));
        match u8::try_from(found.len()) {
            Ok(0) => Ok(()),
            code => Err(Exit::Code(code.unwrap_or(u8::MAX))),
        }
    }

    pub async fn ping(&self) -> Result<(), Exit> {
        let asked = async { anyhow::Ok(self.connect().await?.apiserver_version().await?) };
        let answered = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error_chain(error.as_ref())),
            Err(_) => Err("the API does not answer".to_owned()),
        };
        let line = answered.as_ref().err().map_or("success", |why| why);
        self.print([line.to_owned()], &json!({"answers": answered.is_ok(), "message": line}));
        answer(answered.is_ok())
    }

    pub async fn trigger_update(&self, version: &str, release: Option<&str>) -> Result<(), Exit> {
        let releases: Api<Release> = Api::all(self.connect().await?);
        let name = match release_command::find(&releases, release).await {
            Ok(found) => found.name().to_owned(),
            Err(release_command::NotFound::None) if release.is_none() => {
                let selector = Some(LabelSelector::default());
                let spec = ReleaseSpec { version: version.to_owned(), selector, ..ReleaseSpec::default() };
                let made = releases.create(&PostParams::default(), &Release::new(FIRST_RELEASE, spec)).await;
                let made = made.with_context(|| format!("create release {FIRST_RELEASE}"))?;
                self.print([format!("release {FIRST_RELEASE}: version {version}")], &json!(made));
                return Ok(());
            }
            Err(error) => return Err(error.into_exit()),
        };
        let patch = Patch::Merge(json!({"spec": {"version": version}}));
        let changed = releases.patch(&name, &PatchParams::default(), &patch).await;
        let changed = changed.with_context(|| format!("change release {name}"))?;
        self.print([format!("release {name}: version {version}")], &json!(changed));
        Ok(())
    }

    pub async fn current_version(&self, release: Option<&str>) -> Result<(), Exit> {
        let releases: Api<Release> = Api::all(self.connect().await?);
        let version = match release_command::find(&releases, release).await {
            Ok(found) => Some(found.spec.version),
            Err(release_command::NotFound::None) => None,
            Err(error) => return Err(error.into_exit()),
        };
        self.print([version.clone().unwrap_or_else(|| "None".to_owned())], &json!(version));
        Ok(())
    }
}
