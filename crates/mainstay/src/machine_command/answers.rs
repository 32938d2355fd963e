//! Questions about all machines.

use jiff::Timestamp;
use mainstay_machines::questions::{MachineProblem, machines_by_version, not_at_version, problems};
use serde_json::json;

use super::{Session, answer};
use crate::exit::Exit;

impl Session<'_> {
    pub async fn running_versions(&self) -> Result<(), Exit> {
        let machines = self.machines().await?.examples_of_versions().await?;
        let versions = machines_by_version(&machines, Timestamp::now());
        self.print(versions.keys().map(|version| (*version).to_owned()), &json!(versions.keys().collect::<Vec<_>>()));
        Ok(())
    }

    pub async fn hosts_at_version(&self, version: &str) -> Result<(), Exit> {
        let machines = self.machines().await?.at_version(version).await?;
        let versions = machines_by_version(&machines, Timestamp::now());
        let hosts: Vec<&str> = versions.get(version).into_iter().flatten().copied().collect();
        self.print(hosts.iter().map(|host| (*host).to_owned()), &json!(hosts));
        Ok(())
    }

    pub async fn verify_hosts(&self, version: &str, names: &[String]) -> Result<(), Exit> {
        let machines = self.machines().await?.named(names, version).await?;
        let others = not_at_version(&machines, version, names, Timestamp::now());
        let lines = others.iter().map(|name| format!("{name} does not run {version}"));
        self.print(lines, &json!({"version": version, "verified": others.is_empty(), "others": others}));
        answer(others.is_empty())
    }

    pub async fn check_single_version(&self, version: &str, verbose: bool) -> Result<(), Exit> {
        let query = self.machines().await?;
        let mut machines = query.at_other_version(version).await?;
        if self.json {
            machines.extend(query.at_version(version).await?); // all are listed
        } else {
            machines.extend(query.example_at_version(version).await?);
        }
        let versions = machines_by_version(&machines, Timestamp::now());
        let is_single = versions.len() == 1 && versions.contains_key(version);
        let lines = versions.iter().filter(|(other, _)| verbose && **other != version).map(|(other, hosts)| {
            let hosts: Vec<&str> = hosts.iter().copied().collect();
            format!("{other}: {}", hosts.join(" "))
        });
        self.print(lines, &json!({"version": version, "single": is_single, "running": versions}));
        answer(is_single)
    }

    pub async fn get_failures(&self, hosts: bool, show_warnings: bool) -> Result<(), Exit> {
        let machines = self.machines().await?.with_problems(show_warnings).await?;
        let found: Vec<MachineProblem> = machines.iter().flat_map(|machine| problems(machine, show_warnings)).collect();
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

pub fn problem_json(problem: &MachineProblem) -> serde_json::Value {
    json!({"machine": problem.machine, "check": problem.check, "output": problem.output})
}
