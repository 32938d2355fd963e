//! Reads the Machines that a question is about, and no others: of ten thousand machines most are as they should be.
//!
//! The server selects by fields of the Machines, from an index where a value is asked for.

use anyhow::Context;
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use kube::{Api, api::ListParams};
use mainstay_api::{
    machine::{Machine, MachineAxis},
    validation::names::dns1123_subdomain,
};
use mainstay_machines::questions::current_record;

/// So many machines are read one by one; of more, all that run the version are.
const MOST_READ_BY_NAME: usize = 16;
/// With more versions than this, all machines are read.
const MOST_VERSIONS: usize = 16;

pub struct MachineQuery(pub Api<Machine>);

impl MachineQuery {
    pub async fn all(&self) -> anyhow::Result<Vec<Machine>> {
        self.select("").await
    }

    async fn select(&self, fields: &str) -> anyhow::Result<Vec<Machine>> {
        Ok(self.0.list(&ListParams::default().fields(fields)).await.context("list machines")?.items)
    }

    async fn first(&self, fields: &str) -> anyhow::Result<Option<Machine>> {
        let list = self.0.list(&ListParams::default().fields(fields).limit(1)).await.context("list machines")?;
        Ok(list.items.into_iter().next())
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
    pub async fn example_at_version(&self, version: &str) -> anyhow::Result<Option<Machine>> {
        let heard = format!("status.version.running={version},status.seen.state!=failed");
        if let Some(machine) = self.first(&heard).await? {
            return Ok(Some(machine));
        }
        let silent = self.select(&format!("status.version.running={version},status.seen.state=failed")).await?;
        let now = Timestamp::now();
        Ok(silent.into_iter().find(|machine| current_record(machine, now).is_some()))
    }

    /// A machine for each version that runs.
    pub async fn examples_of_versions(&self) -> anyhow::Result<Vec<Machine>> {
        let (mut known, mut examples) = (String::new(), Vec::new());
        for _ in 0..MOST_VERSIONS {
            let next = self.first(&format!("status.version.running!={known}")).await?;
            let Some(version) = next.as_ref().and_then(Machine::running_version) else { return Ok(examples) };
            examples.extend(self.example_at_version(version).await?);
            known.push_str(&format!(",status.version.running!={version}"));
        }
        self.all().await
    }

    /// Enough to say which of these run the version.
    pub async fn named(&self, names: &[String], version: &str) -> anyhow::Result<Vec<Machine>> {
        if names.len() > MOST_READ_BY_NAME {
            return self.at_version(version).await;
        }
        // What cannot be the name of a machine is none.
        let names = names.iter().filter(|name| dns1123_subdomain(name).is_empty());
        let found = join_all(names.map(|name| self.0.get_opt(name))).await;
        let found: Result<Vec<Option<Machine>>, kube::Error> = found.into_iter().collect();
        Ok(found.context("read machines")?.into_iter().flatten().collect())
    }

    /// Those about which there is something to say, by name.
    pub async fn with_problems(&self, show_warnings: bool) -> anyhow::Result<Vec<Machine>> {
        let selectors = MachineAxis::ALL.map(|axis| {
            // One that was never seen fails; other states that are not known are warnings.
            let state = if show_warnings || axis == MachineAxis::Seen { "!=success" } else { "=failed" };
            format!("status.{}.state{state}", axis.field())
        });
        let found = try_join_all(selectors.iter().map(|fields| self.select(fields))).await?;
        let mut machines: Vec<Machine> = found.into_iter().flatten().collect();
        machines.sort_by(|one, other| one.name().cmp(other.name()));
        machines.dedup_by(|one, other| one.name() == other.name());
        Ok(machines)
    }
}
