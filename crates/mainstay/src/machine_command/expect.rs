//! `mainstay machine expect` and `list`.

use anyhow::{Context, anyhow};
use futures::{StreamExt, stream};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::{
    machine::{Machine, MachineAxis, MachineSpec, StateValue},
    validation::names::dns1123_subdomain,
};
use serde_json::json;

use super::{Session, answer};
use crate::exit::Exit;

/// Requests under way at once.
const AT_ONCE: usize = 16;

impl Session<'_> {
    /// Makes the Machines that are missing, and marks those that are there.
    pub async fn expect(&self, names: &[String], labels: &[(String, String)], expected: bool) -> Result<(), Exit> {
        for name in names {
            if let [why, ..] = &dns1123_subdomain(name)[..] {
                return Err(Exit::Refused(anyhow!("{name:?} cannot be the name of a machine: {why}")));
            }
        }
        let machines: Api<Machine> = Api::all(self.connect().await?);
        let each = stream::iter(names).map(async |name| expect(&machines, name, labels, expected).await);
        let done: Vec<anyhow::Result<&'static str>> = each.buffered(AT_ONCE).collect().await;
        let mut changes = Vec::new();
        for (name, done) in names.iter().zip(done) {
            changes.push((name, done?));
        }
        let lines = changes.iter().map(|(name, what)| format!("{name}: {what}"));
        self.print(
            lines,
            &json!(changes.iter().map(|(name, what)| json!({"machine": name, "result": what})).collect::<Vec<_>>()),
        );
        Ok(())
    }

    pub async fn list(&self, only_unaccounted: bool) -> Result<(), Exit> {
        let is_listed = |machine: &Machine| !only_unaccounted || machine.unaccounted().is_some();
        if self.json {
            let all = self.machines().await?.all_whole().await?.into_iter();
            let machines: Vec<_> = all.filter(|(machine, _)| is_listed(machine)).map(|(_, json)| json).collect();
            // As the server wrote them: of ten thousand, writing them anew would take longest.
            println!("{}", serde_json::to_string(&machines).context("print machines")?);
            return answer(!only_unaccounted || machines.is_empty());
        }
        let mut machines = self.machines().await?.all().await?;
        machines.retain(is_listed);
        let mut rows =
            vec![["NAME", "VERSION", "WANTED", "SEEN", "CONFIGURED", "VALIDATED", "UNACCOUNTED"].map(str::to_owned)];
        rows.extend(machines.iter().map(row));
        let widths: Vec<usize> =
            (0..7).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
        let line = |row: [String; 7]| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.print(rows.into_iter().map(line), &json!(null));
        answer(!only_unaccounted || machines.is_empty())
    }
}

async fn expect(
    machines: &Api<Machine>,
    name: &str,
    labels: &[(String, String)],
    expected: bool,
) -> anyhow::Result<&'static str> {
    let labels: std::collections::BTreeMap<String, String> = labels.iter().cloned().collect();
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}, "spec": {"expected": expected}}));
    match machines.patch(name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(if expected { "expected" } else { "no longer expected" }),
        Err(kube::Error::Api(status)) if status.code == 404 && expected => {
            let mut machine = Machine::new(name, MachineSpec { expected, ..MachineSpec::default() });
            machine.metadata.labels = Some(labels);
            machines
                .create(&PostParams::default(), &machine)
                .await
                .with_context(|| format!("create machine {name}"))?;
            Ok("expected, not seen yet")
        }
        Err(error) => Err(error).with_context(|| format!("change machine {name}")),
    }
}

fn row(machine: &Machine) -> [String; 7] {
    let state = |axis| machine.state(axis).map_or(StateValue::Pending, |own| own.state).to_string();
    let or_none = |text: Option<&str>| text.unwrap_or("-").to_owned();
    [
        machine.name().to_owned(),
        or_none(machine.running_version()),
        or_none(machine.spec.version.as_deref()),
        state(MachineAxis::Seen),
        state(MachineAxis::Configured),
        state(MachineAxis::Validated),
        machine.unaccounted().unwrap_or_default().to_owned(),
    ]
}
