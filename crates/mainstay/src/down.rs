//! `mainstay stop` leaves containers running; `mainstay down` leaves nothing of them.

use std::{fs, str::FromStr, time::Duration};

use anyhow::{Context, anyhow};
use mainstay_agent::{
    agent::{Engine, start_engine},
    teardown::{Ended, teardown},
};

use crate::{
    cli::{RuntimeChoice, StopOptions},
    exit::Exit,
    machine,
    process::{self, Claim},
};

pub fn stop(options: &StopOptions) -> Result<(), Exit> {
    let data_dir = options.data.path();
    if process::stop(&data_dir, Duration::from_secs(options.timeout))? {
        println!("Stopped. Containers run on; the next start takes them up again.");
    } else {
        println!("Nothing runs with --data-dir {}.", data_dir.display());
    }
    Ok(())
}

pub fn down(options: &StopOptions) -> Result<(), Exit> {
    let data_dir = options.data.path();
    if process::stop(&data_dir, Duration::from_secs(options.timeout))? {
        println!("Stopped.");
    }
    let directory = data_dir.join("agent");
    let remembered = directory.join("runtime");
    let Ok(text) = fs::read_to_string(&remembered) else {
        println!("No pods have run with --data-dir {}.", data_dir.display());
        return Ok(());
    };
    let _claim = Claim::take(&data_dir)?;
    let choice = RuntimeChoice::from_str(text.trim()).map_err(|why| anyhow!("{}: {why}", remembered.display()))?;
    let engine = match choice {
        RuntimeChoice::Builtin => {
            let program = std::env::current_exe().context("find our own program")?;
            Engine::Builtin { shim: vec![program.into(), "shim".into()], insecure: vec![] }
        }
        RuntimeChoice::Cri(socket) => Engine::Cri { socket },
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let ended = runtime.block_on(async {
        let settings = machine::places(&data_dir);
        let (runtime, bridge) = start_engine(&settings, &engine, machine::any_range()?).await?;
        anyhow::Ok(teardown(&*runtime, bridge.as_deref(), &settings).await?)
    })?;
    let Ended { pods, containers } = ended;
    println!("Ended {pods} pods with {containers} running containers. Nothing of them is left on this machine.");
    Ok(())
}
