//! The shim: one small process per pod that holds the pod's namespaces and is the parent of its containers.
//!
//! It has one thread and no async runtime, waits in `poll`, and allocates little: a machine runs hundreds of them. It
//! is started by the agent and outlives it; whatever must be known later it writes to disk before it says it. It never
//! calls libcontainer itself: each start and each exec is done by a short-lived copy of it ([`launch`]), so that
//! a call that hangs can be killed, and the memory it took is given back.
//!
//! It lives in the pod's own cgroup: what it spends on a container that floods its log is spent by the pod.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::ExitCode,
};

use mainstay_files::restrict_file;
use nix::{
    sched::{CloneFlags, unshare},
    sys::prctl,
    unistd::setsid,
};
use serde::{Deserialize, Serialize};

use super::{cgroup::Cgroup, paths::SandboxDir, record, record::SandboxRecord};
use crate::spec::PidMode;

mod attached;
mod container;
mod events;
mod executor;
mod launch;
mod log;
mod loopback;
mod reaper;

/// What the shim says of itself when all is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Hello {
    /// With the pid of the pod's first process, if its containers share their processes.
    Ready {
        reaper: Option<i32>,
    },
    Failed(String),
}

/// `shim <sandbox directory> <socket>`. Never returns while the sandbox lives.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().map(PathBuf::from);
    let (Some(directory), Some(socket)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(64);
    };
    match begin(SandboxDir(directory.clone()), &socket) {
        Ok((listener, reaper)) => {
            // An agent that is gone will never know of us: then there must be nothing to know.
            let said = say(&Hello::Ready { reaper: reaper.as_ref().map(|reaper| reaper.pid) });
            if said.and_then(|()| silence()).is_err() {
                let _ = std::fs::remove_file(&socket);
                return ExitCode::FAILURE;
            }
            match events::Shim::new(SandboxDir(directory), listener, reaper).and_then(events::Shim::run) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            let _ = say(&Hello::Failed(error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn say(hello: &Hello) -> io::Result<()> {
    let mut line = serde_json::to_vec(hello)?;
    line.push(b'\n');
    io::stdout().write_all(&line)?;
    io::stdout().flush()
}

fn begin(directory: SandboxDir, socket: &Path) -> io::Result<(UnixListener, Option<reaper::Reaper>)> {
    let record: SandboxRecord = record::read(&directory.record())?;
    let spec = &record.spec;
    // Already so if whoever started us made it the leader of a group.
    let _ = setsid();
    prctl::set_child_subreaper(true)?;
    prctl::set_name(c"mainstay-shim")?;
    let group = Cgroup::at(record.cgroup().join("shim"));
    group.create().map_err(|error| told("make the pod's cgroup", &error))?;
    group.add(std::process::id() as i32).map_err(|error| told("enter the pod's cgroup", &error))?;

    let mut flags = CloneFlags::empty();
    if !spec.host_network {
        flags |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
    }
    if !spec.host_ipc {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    unshare(flags).map_err(|error| told("make the pod's namespaces", &error.into()))?;
    if !spec.host_network {
        loopback::bring_up().map_err(|error| told("bring up the loopback interface", &error))?;
        nix::unistd::sethostname(&spec.hostname).map_err(|error| told("set the host name", &error.into()))?;
    }
    for (name, value) in &spec.sysctls {
        set_sysctl(name, value).map_err(|error| told(&format!("set sysctl {name}={value}"), &error))?;
    }
    let reaper = match spec.pid {
        PidMode::Pod => Some(reaper::Reaper::start()?),
        PidMode::Container | PidMode::Host => None,
    };
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(|error| told("listen", &error))?;
    restrict_file(socket)?;
    listener.set_nonblocking(true)?;
    Ok((listener, reaper))
}

fn told(doing: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing}: {error}"))
}

/// `a.b.c` or, where a part has dots itself, `a/b/c`.
fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    if path.split('/').any(|part| part.is_empty() || part == "..") {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    std::fs::write(Path::new("/proc/sys").join(path), value)
}

/// What the agent gave us as standard streams is the agent's.
fn silence() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}
