//! Reads the Machines that a question is about, and no others: of ten thousand machines most are as they should be.
//!
//! The server selects by fields of the Machines, which it keeps beside each object.

use anyhow::Context;
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use kube::{Api, api::ListParams, core::Request};
use mainstay_api::{
    machine::{Machine, MachineAxis},
    validation::names::dns1123_subdomain,
};
use mainstay_machines::{
    machine_list::{MachineList, decode_list, decode_whole},
    questions::current_record,
};
use serde_json::value::RawValue;

/// So many machines are read one by one; of more, all that run the version are.
const MOST_READ_BY_NAME: usize = 16;
/// With more versions than this, all machines are read.
const MOST_VERSIONS: usize = 16;
/// With more machines than this in one state that counts as a problem, all machines are read, and each once.
const MOST_WITH_PROBLEMS: u32 = 1000;

pub struct MachineQuery(pub Api<Machine>);

impl MachineQuery {
    pub async fn all(&self) -> anyhow::Result<Vec<Machine>> {
        self.select("").await
    }

    /// All, with what the server said of each.
    pub async fn all_whole(&self) -> anyhow::Result<Vec<(Machine, Box<RawValue>)>> {
        decode_whole(&self.text(&ListParams::default()).await?).context("read the list of machines")
    }

    async fn text(&self, params: &ListParams) -> anyhow::Result<String> {
        let request = Request::new(self.0.resource_url()).list(params).context("list machines")?;
        self.0.clone().into_client().request_text(request).await.context("list machines")
    }

    async fn page(&self, params: &ListParams) -> anyhow::Result<MachineList> {
        decode_list(&self.text(params).await?).context("read the list of machines")
    }

    /// Those with these fields.
    pub async fn select(&self, fields: &str) -> anyhow::Result<Vec<Machine>> {
        Ok(self.page(&ListParams::default().fields(fields)).await?.machines)
    }

    async fn first(&self, fields: &str) -> anyhow::Result<Option<Machine>> {
        Ok(self.page(&ListParams::default().fields(fields).limit(1)).await?.machines.into_iter().next())
    }

    /// Those that run a version, silent ones too.
    pub async fn at_version(&self, version: &str) -> anyhow::Result<Vec<Machine>> {
        self.select(&format!("status.version.running={version}")).await
    }

    /// Those that run another one.
    pub async fn at_other_version(&self, version: &str) -> anyhow::Result<Vec<Machine>> {
        self.select(&format!("status.version.running!=,status.version.running!={version}")).await
    }

    /// One machine that runs the version if any does.
    pub async fn example_at_version(&self, version: &str, heard_since: Timestamp) -> anyhow::Result<Option<Machine>> {
        let heard = format!("status.version.running={version},status.seen.state!=failed");
        if let Some(machine) = self.first(&heard).await? {
            return Ok(Some(machine));
        }
        let silent = self.select(&format!("status.version.running={version},status.seen.state=failed")).await?;
        Ok(silent.into_iter().find(|machine| current_record(machine, heard_since).is_some()))
    }

    /// A machine for each version that runs.
    pub async fn examples_of_versions(&self, heard_since: Timestamp) -> anyhow::Result<Vec<Machine>> {
        let (mut known, mut examples) = (String::new(), Vec::new());
        for _ in 0..MOST_VERSIONS {
            let next = self.first(&format!("status.version.running!={known}")).await?;
            let Some(version) = next.as_ref().and_then(Machine::running_version) else { return Ok(examples) };
            examples.extend(self.example_at_version(version, heard_since).await?);
            known.push_str(&format!(",status.version.running!={version}"));
        }
        self.all().await
    }

    /// Those of these names that there are.
    pub async fn by_name(&self, names: impl IntoIterator<Item = &str>) -> anyhow::Result<Vec<Machine>> {
        // What cannot be the name of a machine is none.
        let names = names.into_iter().filter(|name| dns1123_subdomain(name).is_empty());
        let found = join_all(names.map(|name| self.0.get_opt(name))).await;
        let found: Result<Vec<Option<Machine>>, kube::Error> = found.into_iter().collect();
        Ok(found.context("read machines")?.into_iter().flatten().collect())
    }

    /// Enough to say which of these run the version.
    pub async fn named(&self, names: &[String], version: &str) -> anyhow::Result<Vec<Machine>> {
        if names.len() > MOST_READ_BY_NAME {
            return self.at_version(version).await;
        }
        self.by_name(names.iter().map(String::as_str)).await
    }

    /// Those about which there is something to say, by name, and maybe others.
    pub async fn with_problems(&self, show_warnings: bool) -> anyhow::Result<Vec<Machine>> {
        let selectors = MachineAxis::ALL.map(|axis| {
            // One that was never seen fails; other states that are not known are warnings.
            let state = if show_warnings || axis == MachineAxis::Seen { "!=success" } else { "=failed" };
            ListParams::default().fields(&format!("status.{}.state{state}", axis.field())).limit(MOST_WITH_PROBLEMS)
        });
        let pages = try_join_all(selectors.iter().map(|params| self.page(params))).await?;
        if !pages.iter().all(|page| page.is_complete) {
            return self.all().await;
        }
        let mut machines: Vec<Machine> = pages.into_iter().flat_map(|page| page.machines).collect();
        machines.sort_by(|one, other| one.name().cmp(other.name()));
        machines.dedup_by(|one, other| one.name() == other.name());
        Ok(machines)
    }
}
