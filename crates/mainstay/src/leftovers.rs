//! `mainstay down --leftovers`: lists what instances left on this machine, and removes it.
//!
//! An instance whose process runs, or whose data directory is there, is left alone: `mainstay down` ends it in good order.

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use anyhow::{Context, anyhow};
use mainstay_agent::leftovers::{Instance, LeftoversError, Traces, Verdict, observe, plan, remove};
use mainstay_errors::error_chain;

use crate::{
    cli::{DownOptions, is_root},
    exit::Exit,
    terminal::printable,
};

pub fn run(options: &DownOptions) -> Result<(), Exit> {
    if !is_root() {
        return Err(Exit::Failed(anyhow!("--leftovers takes root: others cannot see all processes and packet rules")));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        let found = select(observe_instances().await?, options.instance.as_ref());
        if let (Some(instance), Some(traces)) = (&options.instance, found.values().next()) {
            refuse_if_in_use(instance, traces)?;
        }
        let mut left_over = Vec::new();
        for (instance, traces) in &found {
            match Verdict::from_traces(traces) {
                Verdict::LeftOver => {
                    describe(instance, traces);
                    left_over.push(instance);
                }
                Verdict::Running { pid, data_dir } => {
                    let data_dir = data_dir.display();
                    println!(
                        "{instance}: left alone, process {pid} runs; `mainstay down --data-dir {data_dir}` ends it"
                    );
                }
                Verdict::Stopped { data_dir } => {
                    let data_dir = data_dir.display();
                    println!("{instance}: left alone, stopped; `mainstay down --data-dir {data_dir}` ends its pods");
                }
                Verdict::Clean => {}
            }
        }
        match (left_over.len(), options.dry_run) {
            (0, _) => {
                println!("Nothing is left over.");
                Ok(())
            }
            (count, true) => {
                Err(Exit::Refused(anyhow!("{count} instances left something; nothing was removed (--dry-run)")))
            }
            (_, false) => remove_all(&left_over, Duration::from_secs(options.stop.timeout)).await,
        }
    })
}

async fn observe_instances() -> Result<BTreeMap<Instance, Traces>, Exit> {
    observe().await.map_err(|error| Exit::Failed(anyhow!(error)))
}

fn select(found: BTreeMap<Instance, Traces>, named: Option<&Instance>) -> BTreeMap<Instance, Traces> {
    found.into_iter().filter(|(instance, _)| named.is_none_or(|named| named == instance)).collect()
}

fn refuse_if_in_use(instance: &Instance, traces: &Traces) -> Result<(), Exit> {
    let (state, data_dir) = match Verdict::from_traces(traces) {
        Verdict::Running { pid, data_dir } => (format!("runs as process {pid}"), data_dir),
        Verdict::Stopped { data_dir } => ("is stopped and has its data".to_owned(), data_dir),
        Verdict::LeftOver | Verdict::Clean => return Ok(()),
    };
    let data_dir = data_dir.display();
    Err(Exit::Refused(anyhow!("--instance {instance} {state}: use `mainstay down --data-dir {data_dir}`")))
}

async fn remove_all(left_over: &[&Instance], grace: Duration) -> Result<(), Exit> {
    let mut failures = Vec::new();
    for instance in left_over {
        failures.extend(remove_one(instance, grace).await?);
    }
    for error in &failures {
        eprintln!("mainstay: {}", error_chain(error));
    }
    let mut after = observe_instances().await?;
    after.retain(|instance, traces| left_over.contains(&instance) && Verdict::from_traces(traces) == Verdict::LeftOver);
    if after.is_empty() && failures.is_empty() {
        println!("Removed. Nothing of them is left on this machine.");
        return Ok(());
    }
    after.iter().for_each(|(instance, traces)| describe(instance, traces));
    Err(Exit::Refused(anyhow!("not everything could be removed")))
}

/// Removes what an instance left, unless somebody began to look after it meanwhile. Returns what failed.
async fn remove_one(instance: &Instance, grace: Duration) -> Result<Vec<LeftoversError>, Exit> {
    let now = observe_instances().await?.remove(instance).unwrap_or_default();
    match Verdict::from_traces(&now) {
        Verdict::LeftOver => Ok(remove(instance, &plan(&now), grace).await),
        Verdict::Running { .. } | Verdict::Stopped { .. } | Verdict::Clean => Ok(Vec::new()),
    }
}

fn describe(instance: &Instance, traces: &Traces) {
    lines(instance, traces).iter().for_each(|line| println!("{line}"));
}

/// What was left, for the terminal of an administrator: programs in pods choose their own names.
fn lines(instance: &Instance, traces: &Traces) -> Vec<String> {
    let mut lines = vec![match &traces.data_dir {
        Some(data_dir) => format!("{instance}: left over, its data directory {} is gone", data_dir.display()),
        None => format!("{instance}: left over, nothing says where its data directory was"),
    }];
    lines.extend(traces.processes.iter().map(|process| format!("  process {} {}", process.pid, process.command)));
    lines.extend(list("mount", traces.mounts.iter().map(|path| path.display())));
    lines.extend(list("interface", &traces.links));
    lines.extend(list("address", &traces.addresses));
    lines.extend(list("packet rules", &traces.tables));
    lines.extend(list("cgroup", traces.cgroups.iter().map(|path| path.display())));
    lines.extend(list("directory", traces.run_dir.iter().map(|path| path.display())));
    lines.iter().map(|line| printable(line)).collect()
}

fn list<T: Display>(what: &str, all: impl IntoIterator<Item = T>) -> impl Iterator<Item = String> {
    all.into_iter().map(move |item| format!("  {what} {item}"))
}

#[cfg(test)]
mod tests {
    use mainstay_agent::leftovers::{PodProcess, Role};

    use super::*;

    #[test]
    fn what_programs_call_themselves_does_not_reach_the_terminal_raw() {
        let process = PodProcess {
            pid: 7,
            start_time: 1,
            role: Role::Container,
            sandbox: "s".to_owned(),
            command: "sh\u{1b}]0;owned\u{7}\nmainstay: nothing is left".to_owned(),
            data_dir: None,
        };
        let traces = Traces { processes: vec![process], mounts: vec!["/run/\u{1b}[2J".into()], ..Traces::default() };
        let text = lines(&"mainstay".parse().unwrap(), &traces);
        assert_eq!(text.len(), 3, "a line each: {text:?}");
        assert!(text.iter().all(|line| !line.contains(char::is_control)), "{text:?}");
        assert!(text[1].starts_with("  process 7 sh\u{fffd}]0;owned"), "{text:?}");
    }
}
