//! Questions about all machines.

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, api::ListParams};
use mainstay_api::host_service::{CRITICAL, HEALTH, ID, MANAGED_BY, MANAGER, NAMESPACE, NODE, node_label};
use mainstay_machines::questions::{MachineProblem, machines_by_version, not_at_version, problems, service_problem};
use serde_json::json;

use super::{Session, answer};
use crate::exit::Exit;

impl Session<'_> {
    pub async fn running_versions(&self, heard_since: Timestamp) -> Result<(), Exit> {
        let machines = self.machines().await?.examples_of_versions(heard_since).await?;
        let versions = machines_by_version(&machines, heard_since);
        self.print(versions.keys().map(|version| (*version).to_owned()), &json!(versions.keys().collect::<Vec<_>>()));
        Ok(())
    }

    pub async fn hosts_at_version(&self, version: &str, heard_since: Timestamp) -> Result<(), Exit> {
        let machines = self.machines().await?.at_version(version).await?;
        let versions = machines_by_version(&machines, heard_since);
        let hosts: Vec<&str> = versions.get(version).into_iter().flatten().copied().collect();
        self.print(hosts.iter().map(|host| (*host).to_owned()), &json!(hosts));
        Ok(())
    }

    pub async fn verify_hosts(&self, version: &str, names: &[String], heard_since: Timestamp) -> Result<(), Exit> {
        let machines = self.machines().await?.named(names, version).await?;
        let others = not_at_version(&machines, version, names, heard_since);
        let lines = others.iter().map(|name| format!("{name} does not run {version}"));
        self.print(lines, &json!({"version": version, "verified": others.is_empty(), "others": others}));
        answer(others.is_empty())
    }

    pub async fn check_single_version(&self, version: &str, verbose: bool, heard_since: Timestamp) -> Result<(), Exit> {
        let query = self.machines().await?;
        let mut machines = query.at_other_version(version).await?;
        if self.json {
            machines.extend(query.at_version(version).await?); // all are listed
        } else {
            machines.extend(query.example_at_version(version, heard_since).await?);
        }
        let versions = machines_by_version(&machines, heard_since);
        let is_single = versions.len() == 1 && versions.contains_key(version);
        let lines = versions.iter().filter(|(other, _)| verbose && **other != version).map(|(other, hosts)| {
            let hosts: Vec<&str> = hosts.iter().copied().collect();
            format!("{other}: {}", hosts.join(" "))
        });
        self.print(lines, &json!({"version": version, "single": is_single, "running": versions}));
        answer(is_single)
    }

    pub async fn get_failures(&self, hosts: bool, show_warnings: bool) -> Result<(), Exit> {
        let query = self.machines().await?;
        let client = query.0.clone().into_client();
        let (machines, services) = tokio::join!(query.with_problems(show_warnings), failing_services(client, None));
        let machines = machines?;
        let mut found: Vec<MachineProblem> =
            machines.iter().flat_map(|machine| problems(machine, show_warnings)).collect();
        found.extend(services?);
        found.sort_by(|one, other| one.machine.cmp(&other.machine));
        let mut lines: Vec<String> = match hosts {
            true => found.iter().map(|problem| problem.machine.clone()).collect(),
            false => found
                .iter()
                .map(|problem| format!("{}/{}: {}", problem.machine, problem.check, problem.output))
                .collect(),
        };
        lines.dedup();
        self.print(lines, &json!(found.iter().map(problem_json).collect::<Vec<_>>()));
        answer(found.is_empty())
    }
}

/// Services of machines that fail their checks, of one machine or of all.
pub async fn failing_services(client: Client, node: Option<&str>) -> anyhow::Result<Vec<MachineProblem>> {
    let slices: Api<EndpointSlice> = Api::namespaced(client, NAMESPACE);
    let mut labels = format!("{MANAGED_BY}={MANAGER},{HEALTH}={CRITICAL}");
    if let Some(node) = node {
        labels.push_str(&format!(",{NODE}={}", node_label(node)));
    }
    let found = slices.list(&ListParams::default().labels(&labels)).await.context("list services of machines")?;
    Ok(found.items.iter().filter_map(failing_service).collect())
}

fn failing_service(slice: &EndpointSlice) -> Option<MachineProblem> {
    let machine = slice.endpoints.as_ref()?.first()?.node_name.as_ref()?;
    Some(service_problem(machine, slice.metadata.annotations.as_ref()?.get(ID)?))
}

pub fn problem_json(problem: &MachineProblem) -> serde_json::Value {
    json!({"machine": problem.machine, "check": problem.check, "output": problem.output})
}
