//! The shim: one small process per pod that holds the pod's namespaces and is the parent of its containers.
//!
//! It has one thread and no async runtime, waits in `poll`, and allocates little: a machine runs hundreds of them. It
//! is started by the agent and outlives it; whatever must be known later it writes to disk before it says it. It never
//! calls libcontainer itself: each start and each exec is done by a short-lived copy of it ([`launch`]), so that
//! a call that hangs can be killed, and the memory it took is given back.
//!
//! It lives in the pod's own cgroup: what it spends on a container that floods its log is spent by the pod.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{self, Write},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::ExitCode,
};

use mainstay_errors::{error_chain, with_path};
use mainstay_files::restrict_file;
use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::prctl,
    unistd::setsid,
};
use serde::{Deserialize, Serialize};

use super::{
    cgroup::{self, Cgroup},
    paths::SandboxDir,
    record,
    record::SandboxRecord,
    wire::PROTOCOL,
};
use crate::spec::{PidMode, SandboxSpec};

mod attached_client;
mod container;
mod events;
mod executor;
mod fence;
mod launch;
mod libcontainer_log;
mod log;
mod loopback;
mod reaper;

/// The line that a shim prints once the sandbox is set up, or could not be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum StartupReport {
    /// With the pid of the pod's first process, if its containers share their processes.
    Ready {
        reaper: Option<i32>,
        /// The pid of the process whose user namespace is the pod's.
        users: Option<i32>,
        /// The version of the protocol that it speaks.
        #[serde(default = "first_protocol")]
        protocol: u32,
    },
    Failed(String),
}

fn first_protocol() -> u32 {
    1
}

/// `shim <sandbox directory> <socket>`. Never returns while the sandbox lives.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().map(PathBuf::from);
    let (Some(directory), Some(socket)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(64);
    };
    match set_up(SandboxDir(directory.clone()), &socket) {
        Ok((listener, spec, reaper)) => {
            // An agent that is gone will never know of us: then there must be nothing to know.
            let pid = reaper.as_ref().map(|reaper| reaper.pid);
            let output = report_startup(&StartupReport::Ready {
                reaper: pid.filter(|_| spec.pid == PidMode::Pod),
                users: pid.filter(|_| spec.users.is_some()),
                protocol: PROTOCOL.number,
            });
            if output.and_then(|()| detach_stdio()).is_err() {
                let _ = std::fs::remove_file(&socket);
                return ExitCode::FAILURE;
            }
            match events::Shim::new(SandboxDir(directory), listener, reaper).and_then(events::Shim::run) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            let _ = report_startup(&StartupReport::Failed(error_chain(&error)));
            ExitCode::FAILURE
        }
    }
}

fn report_startup(startup: &StartupReport) -> io::Result<()> {
    let mut line = serde_json::to_vec(startup)?;
    line.push(b'\n');
    io::stdout().write_all(&line)?;
    io::stdout().flush()
}

fn set_up(directory: SandboxDir, socket: &Path) -> io::Result<(UnixListener, SandboxSpec, Option<reaper::Reaper>)> {
    let record: SandboxRecord =
        record::read(&directory.record()).map_err(|error| with_path("read", &directory.record(), &error))?;
    let spec = record.spec.clone();
    // Already so if whoever started us made it the leader of a group.
    let _ = setsid();
    prctl::set_child_subreaper(true)?;
    prctl::set_name(c"mainstay-shim")?;
    let group = Cgroup::new(record.shim_cgroup(cgroup::layout()));
    group.create().map_err(|error| with_context("make the pod's cgroup", &error))?;
    group.add(std::process::id() as i32).map_err(|error| with_context("enter the pod's cgroup", &error))?;

    let mut flags = CloneFlags::empty();
    if !spec.host_network {
        flags |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
    }
    if !spec.host_ipc {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    let sysctls = if spec.users.is_some() { &spec.sysctls } else { &BTreeMap::new() };
    let options = reaper::ReaperOptions { pids: spec.pid == PidMode::Pod, users: spec.users, others: flags, sysctls };
    let reaper = match spec.users {
        Some(_) => {
            let reaper = reaper::Reaper::start(&options)?;
            join_namespaces(reaper.pid, flags).map_err(|error| with_context("join the pod's namespaces", &error))?;
            Some(reaper)
        }
        None => {
            unshare(flags).map_err(|error| with_context("make the pod's namespaces", &error.into()))?;
            // After them: it shares them.
            options.pids.then(|| reaper::Reaper::start(&options)).transpose()?
        }
    };
    if !spec.host_network {
        loopback::bring_up().map_err(|error| with_context("bring up the loopback interface", &error))?;
        nix::unistd::sethostname(&spec.hostname).map_err(|error| with_context("set the host name", &error.into()))?;
    }
    if spec.users.is_none() {
        for (name, value) in &spec.sysctls {
            set_sysctl(name, value)?;
        }
    }
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(|error| with_context("listen", &error))?;
    restrict_file(socket)?;
    listener.set_nonblocking(true)?;
    Ok((listener, spec, reaper))
}

/// The shim has the pod's namespaces without being in its user namespace: it stays root of the machine.
fn join_namespaces(pid: i32, flags: CloneFlags) -> io::Result<()> {
    let all = [(CloneFlags::CLONE_NEWNET, "net"), (CloneFlags::CLONE_NEWUTS, "uts"), (CloneFlags::CLONE_NEWIPC, "ipc")];
    for (flag, name) in all.into_iter().filter(|(flag, _)| flags.contains(*flag)) {
        setns(fs::File::open(format!("/proc/{pid}/ns/{name}"))?, flag)?;
    }
    Ok(())
}

fn with_context(doing: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing}: {error}"))
}

/// `a.b.c` or, where a part has dots itself, `a/b/c`.
fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let doing = |error: &io::Error| with_context(&format!("set sysctl {name}={value}"), error);
    let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    if path.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(doing(&io::ErrorKind::InvalidInput.into()));
    }
    fs::write(Path::new("/proc/sys").join(path), value).map_err(|error| doing(&error))
}

/// What the agent gave us as standard streams is the agent's.
fn detach_stdio() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
