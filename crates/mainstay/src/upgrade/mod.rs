//! `mainstay upgrade --binary FILE`: another program in place of the one that runs, and back if it does not become healthy.
//!
//! 1. The file is copied beside the installed program, and the copy is checked ([`candidate`]): it is a program for this machine,
//!    it is a Mainstay, and it reads everything in the data directory.
//! 2. The copy takes the program's name in one step; the old one stays beside it as `PROGRAM.old`.
//! 3. The process is asked to become the new program ([`restart`]): it stops as `mainstay stop` has it do, and executes the file
//!    under the same process id, so that neither systemd nor a terminal or a supervisor sees it end. Containers run on.
//! 4. If it does not report itself ready in time, the old program takes its name back and is started as the process was.
//!
//! Interrupted between 2 and 4, the new program stays and the next start runs it: going back is `mv PROGRAM.old PROGRAM`.

mod candidate;
mod restart;

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use clap::Args;

use self::{
    candidate::{Candidate, InstalledProgram},
    restart::RunningProcess,
};
use crate::{
    cli::{DataDir, duration},
    exit::Exit,
    process,
};

/// For the old program to be ready again. It was, so it need not be asked for.
const RETURN_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct UpgradeOptions {
    /// The program to run from now on
    #[arg(long, value_name = "FILE")]
    pub binary: PathBuf,

    #[command(flatten)]
    pub data: DataDir,

    /// How long the new program may take to be ready before the old one is put back
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub timeout: Duration,
}

pub fn run(options: &UpgradeOptions) -> Result<(), Exit> {
    let data_dir = options.data.path();
    if !data_dir.is_dir() {
        return Err(Exit::Refused(anyhow!("--data-dir {}: there is no such directory", data_dir.display())));
    }
    let (owner, own) = (fs::metadata(&data_dir).map(|found| found.uid()), rustix::process::geteuid().as_raw());
    if let Ok(owner) = owner
        && owner != own
    {
        return Err(Exit::Refused(anyhow!(
            "--data-dir {} belongs to user {owner}: run `mainstay upgrade` as that user",
            data_dir.display()
        )));
    }
    let running = RunningProcess::find(&data_dir)?;
    let program = match &running {
        Some(running) => running.program()?,
        None => std::env::current_exe().context("find our own program")?,
    };
    let _only = lock(&data_dir)?;
    let installed = InstalledProgram::read(&program)?;
    let mut candidate = Candidate::copy(&options.binary, &installed)?;
    candidate.check(&data_dir)?;
    if candidate.same_content(&installed)? {
        println!("{} is {} already: nothing to do.", program.display(), candidate.version());
        return Ok(());
    }
    let Some(running) = running else {
        let new = candidate.install(&installed)?;
        println!("{} is {} now. Nothing runs with --data-dir {}.", program.display(), new, data_dir.display());
        return Ok(());
    };
    let was_ready = running.was_ready();
    println!("Replacing {} ({}) with {}.", program.display(), installed.version(), candidate.version());
    let new = candidate.install(&installed)?;
    let failure = match running.become_installed(&data_dir, &program, was_ready, options.timeout) {
        Ok(took) => {
            println!("{new} runs after {:.1} s; the old program is {}.", took.as_secs_f64(), installed.old().display());
            return Ok(());
        }
        Err(failure) => failure,
    };
    eprintln!("mainstay: {new} did not become ready: {failure}");
    let began = Instant::now();
    installed.put_back().context("put the old program back")?;
    running.start_again(&data_dir, &program, was_ready, RETURN_TIMEOUT).map_err(|again| {
        let place = program.display();
        Exit::Failed(anyhow!("the old program is at {place} again, but does not become ready either: {again}"))
    })?;
    Err(Exit::Refused(anyhow!(
        "went back to {}, which is ready again after {:.1} s: {failure}",
        installed.version(),
        began.elapsed().as_secs_f64(),
    )))
}

/// One upgrade at a time.
fn lock(data_dir: &Path) -> Result<File, Exit> {
    let path = data_dir.join("upgrade.lock");
    let file = mainstay_files::open_private(&path).with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Exit::Refused(anyhow!("another `mainstay upgrade` is at work for --data-dir {}", data_dir.display())))
        }
        Err(fs::TryLockError::Error(error)) => {
            Err(Exit::Failed(anyhow!(error).context(format!("lock {}", path.display()))))
        }
    }
}

/// The process that holds the data directory, if any does.
fn holder(data_dir: &Path) -> Result<Option<i32>, Exit> {
    Ok(process::find_running(data_dir)?.map(|(pid, _)| pid.as_raw_pid()))
}
