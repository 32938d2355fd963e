//! `mainstay stop` leaves containers running; `mainstay down` leaves nothing of them.
//!
//! Both decide by what is there, not by the data directory alone: a process, containers and mounts outlive the removal of
//! the directory they were started for.

use std::{collections::BTreeSet, fs, path::Path, str::FromStr, time::Duration};

use anyhow::{Context, anyhow};
use mainstay_agent::{
    agent::{Engine, start_engine},
    leftovers::{Instance, InstanceRecord, Role, Traces, observe, observe::runtime_file, plan, remove},
    node::ended::DownNotice,
    teardown::{TeardownCounts, teardown},
};
use mainstay_errors::error_chain;

use crate::{
    api_contact::ApiContact,
    cli::{DownOptions, RuntimeChoice, StopOptions, is_root},
    exit::Exit,
    leftovers, machine,
    process::{self, DataDirLock},
};

pub fn stop(options: &StopOptions) -> Result<(), Exit> {
    let data_dir = options.data.path();
    if process::stop(&data_dir, Duration::from_secs(options.timeout))? {
        println!("Stopped. Containers run on; the next start takes them up again.");
        let settings = machine::directory_settings(&data_dir);
        if mainstay_agent::fence::has_promised(&settings.directory) {
            println!(
                "But pods that must be unique (of StatefulSets, with ReadWriteOnce claims, or marked mainstay.dev/unique) end within \
                 seconds, unless the agent starts again before: another machine may take them over."
            );
        }
    } else {
        println!("Nothing runs with --data-dir {}.", data_dir.display());
    }
    Ok(())
}

pub fn down(options: &DownOptions) -> Result<(), Exit> {
    if options.leftovers {
        return leftovers::run(options);
    }
    let data_dir = options.stop.data.path();
    let patience = Duration::from_secs(options.stop.timeout);
    let instance = machine::instance(&data_dir);
    if stop_for_good(&data_dir, &instance, patience)? {
        println!("Stopped.");
    }
    let lock = data_dir.exists().then(|| DataDirLock::acquire(&data_dir)).transpose()?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let recorded = recorded_engine(&data_dir, &instance)?;
    let ended = runtime.block_on(async {
        let ended = match recorded {
            Some(engine) => Some(end_pods(&data_dir, &engine, options.shutdown_grace).await?),
            None => None,
        };
        let swept = sweep(&instance, patience).await?;
        anyhow::Ok(match (ended, swept) {
            (Some(first), swept) => Some(add(first, swept.unwrap_or_default())),
            (None, swept) => swept,
        })
    })?;
    remove_from_api(&runtime, &data_dir);
    if let Some(lock) = lock {
        lock.release();
    }
    let Some(TeardownCounts { pods, containers }) = ended else {
        println!("No pods have run with --data-dir {}.", data_dir.display());
        return Ok(());
    };
    println!("Ended {pods} pods with {containers} running containers. Nothing of them is left on this machine.");
    let logs = machine::directory_settings(&data_dir).log_directory;
    if fs::read_dir(&logs).is_ok_and(|mut files| files.next().is_some()) {
        println!("Log files stay in {}.", logs.display());
    }
    Ok(())
}

/// Stops the process, and lets it say in the API that its pods end.
fn stop_for_good(data_dir: &Path, instance: &Instance, patience: Duration) -> Result<bool, Exit> {
    // Without the run directory no pods run. The process stops all the same if the notice cannot be left.
    let _notice = instance.run_dir().is_dir().then(|| DownNotice::leave(instance));
    process::stop(data_dir, patience)
}

/// Nothing of the machine's pods runs any more: says so in the API, by removing them. Where that fails, the servers do it in their time.
fn remove_from_api(runtime: &tokio::runtime::Runtime, data_dir: &Path) {
    let directory = machine::directory_settings(data_dir).directory;
    let removed = ApiContact::read(&directory).and_then(|contact| match contact {
        Some(contact) => runtime.block_on(contact.remove_pods(&directory)).map(Some),
        None => Ok(None),
    });
    match removed {
        Ok(Some(pods)) => println!("Removed {pods} pods from the API."),
        Ok(None) => {}
        Err(error) => eprintln!(
            "The pods of this machine stay in the API until its servers notice that it is gone: {}",
            error_chain(&*error)
        ),
    }
}

/// Which runtime to ask for the pods: None if that needs a data directory that is gone, or none was ever used.
fn recorded_engine(data_dir: &Path, instance: &Instance) -> Result<Option<Engine>, Exit> {
    let file = runtime_file(data_dir);
    let (text, has_data) = match fs::read_to_string(&file) {
        Ok(text) => (text, true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match InstanceRecord::read(instance) {
            Some(record) => (record.runtime, false),
            None => return Ok(None),
        },
        Err(error) => return Err(Exit::Failed(anyhow!(error).context(format!("read {}", file.display())))),
    };
    match RuntimeChoice::from_str(text.trim()).map_err(|why| anyhow!("{}: {why}", file.display()))? {
        RuntimeChoice::Builtin if has_data => {
            let program = std::env::current_exe().context("find our own program")?;
            Ok(Some(Engine::Builtin { shim: vec![program.into(), "shim".into()], insecure: vec![] }))
        }
        // Its records are gone with the directory: what it left is found without them.
        RuntimeChoice::Builtin => Ok(None),
        RuntimeChoice::Cri(socket) => Ok(Some(Engine::Cri { socket })),
    }
}

async fn end_pods(data_dir: &Path, engine: &Engine, grace: Option<Duration>) -> anyhow::Result<TeardownCounts> {
    let settings = machine::directory_settings(data_dir);
    let (runtime, bridge) = start_engine(&settings, engine, machine::any_range()?).await?;
    Ok(teardown(&*runtime, bridge.as_deref(), &settings, grace).await?)
}

/// Removes what there still is of an instance, without its data directory. None if there was nothing.
async fn sweep(instance: &Instance, grace: Duration) -> anyhow::Result<Option<TeardownCounts>> {
    if !is_root() {
        return match instance.run_dir().exists() {
            true => Err(anyhow!("{} is there: ending pods takes root", instance.run_dir().display())),
            false => Ok(None),
        };
    }
    let traces = observe().await?.remove(instance).unwrap_or_default();
    if traces.is_empty() {
        return Ok(None);
    }
    let failures = remove(instance, &plan(&traces), grace).await;
    let left = observe().await?.remove(instance).unwrap_or_default();
    match (failures.first(), left.is_empty()) {
        (None, true) => Ok(Some(count(&traces))),
        (Some(error), _) => Err(anyhow!(error_chain(error)).context(format!("remove what {instance} has left"))),
        (None, false) => {
            Err(anyhow!("{instance} has left something on this machine: `mainstay down --leftovers` lists it"))
        }
    }
}

fn count(traces: &Traces) -> TeardownCounts {
    let sandboxes: BTreeSet<&str> = traces.processes.iter().map(|process| process.sandbox.as_str()).collect();
    let containers = traces.processes.iter().filter(|process| process.role == Role::ContainerInit).count();
    TeardownCounts { pods: sandboxes.len(), containers }
}

fn add(a: TeardownCounts, b: TeardownCounts) -> TeardownCounts {
    TeardownCounts { pods: a.pods + b.pods, containers: a.containers + b.containers }
}
