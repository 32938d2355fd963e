//! Starts a process in a container by libcontainer, in a forked copy of the shim that ends when it is done.
//!
//! libcontainer clones and then allocates, so it must run in a process of one thread, and it waits for its children without
//! a limit. The copy reports through a socket; when that closes, the program runs, or everybody who could
//! have reported is gone. The container's first process is made a child of the shim, not of the copy.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    rc::Rc,
};

use libcontainer::{
    container::{Container, builder::ContainerBuilder},
    syscall::syscall::SyscallType,
};
use mainstay_errors::{error_chain, with_path};
use mainstay_files::{create_private_dir, restrict_file};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    executor::{Program, UserNamespaceJoin},
    libcontainer_log,
};
use crate::{
    builtin::{
        cgroup::Cgroup,
        paths::ContainerDir,
        record::{self, LaunchSpec, Staging},
        seccomp, staging, sys, wire,
    },
    idmap,
    observed::ContainerId,
};

/// What the copy, or the process that becomes the program, reports to the shim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    Pid(i32),
    /// With the terminal's descriptor.
    Terminal,
    /// What was logged on the way; it matters if it fails.
    Cause(String),
    /// `start` if it is the program that cannot begin.
    Failed {
        start: bool,
        text: String,
    },
}

pub fn report(channel: &OwnedFd, report: &Report) {
    if let Ok(frame) = wire::encode(report) {
        let _ = wire::send(channel, &frame, &[]);
    }
}

/// The streams of a process; what is `None` is a terminal or nothing.
#[derive(Default)]
pub struct Stdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

pub struct LaunchJob {
    pub id: ContainerId,
    pub dir: ContainerDir,
    pub launch: LaunchSpec,
    pub stdio: Stdio,
    pub kind: LaunchKind,
}

pub enum LaunchKind {
    Container,
    Exec { command: Vec<String>, tty: bool },
}

/// Runs in the copy, and ends it.
pub fn run(job: LaunchJob, channel: OwnedFd) -> i32 {
    sys::default_signals();
    let channel = Rc::new(channel);
    let _ = libcontainer_log::forward_errors(&channel);
    let done = match job.kind {
        LaunchKind::Container => launch_container(job, &channel),
        LaunchKind::Exec { .. } => launch_exec(job, &channel),
    };
    match done {
        Ok(()) => 0,
        Err(text) => {
            report(&channel, &Report::Failed { start: false, text });
            1
        }
    }
}

fn launch_container(job: LaunchJob, channel: &Rc<OwnedFd>) -> Result<(), String> {
    let launch = &job.launch;
    let group = Cgroup::new(launch.cgroup.clone());
    group.create().map_err(|error| format!("make the container's cgroup: {error}"))?;
    group.limit(&launch.resources).map_err(|error| format!("limit the container: {error}"))?;
    if let Some(adjust) = launch.resources.oom_score_adj {
        // Lowering it takes CAP_SYS_RESOURCE, which a machine may lack; no reason to run nothing.
        let _ = fs::write("/proc/self/oom_score_adj", adjust.to_string());
    }
    enter_mount_namespace(launch).map_err(|error| format!("make the container's mounts: {error}"))?;

    // What libcontainer records in it is as open as it likes.
    create_private_dir(&job.dir.oci()).map_err(|error| format!("record the container: {error}"))?;
    let console = Console::listen(&job, launch.tty)?;
    let program = program(launch, channel, launch.private.clone())?;
    let builder = with_stdio(ContainerBuilder::new(job.id.0.clone(), SyscallType::Linux), job.stdio)
        .with_executor(program)
        .with_console_socket(console.as_ref().map(|console| console.path.clone()))
        .with_root_path(job.dir.oci())
        .map_err(|error| error_chain(&error))?;
    let mut container: Container = builder
        .as_init(job.dir.path())
        .with_systemd(false)
        .as_sibling(true)
        .build()
        .map_err(|error| error_chain(&error))?;
    let pid = container.pid().ok_or("the container has no process")?;
    report(channel, &Report::Pid(pid.as_raw()));
    if let Some(console) = console {
        console.forward(channel)?;
    }
    container.start().map_err(|error| error_chain(&error))
}

fn launch_exec(job: LaunchJob, channel: &Rc<OwnedFd>) -> Result<(), String> {
    let LaunchKind::Exec { command, tty } = &job.kind else { return Err("not an exec".into()) };
    let mut spec: Value = record::read_json(&job.dir.config()).map_err(|error| error.to_string())?;
    let mut process = spec["process"].take();
    process["args"] = json!(command);
    process["terminal"] = json!(tty);
    let file = job.dir.path().join(format!("exec-{}.json", std::process::id()));
    record::write_json(&file, &process).map_err(|error| error.to_string())?;
    let _remove = RemoveOnDrop(file.clone());
    if let Some(staging) = &job.launch.staging {
        // libcontainer looks for the root directory before it joins the container, where alone it is.
        stage_root(staging).map_err(|error| error.to_string())?;
    }

    let console = Console::listen(&job, *tty)?;
    let mut program = program(&job.launch, channel, Vec::new())?;
    program.users = join_users(&job.launch)?;
    let builder = with_stdio(ContainerBuilder::new(job.id.0.clone(), SyscallType::Linux), job.stdio)
        .with_executor(program)
        .with_console_socket(console.as_ref().map(|console| console.path.clone()))
        .with_root_path(job.dir.oci())
        .map_err(|error| error_chain(&error))?;
    let tenant = builder.as_tenant().with_detach(true).as_sibling(true).with_process(Some(file));
    let pid = tenant.build().map_err(|error| error_chain(&error))?;
    report(channel, &Report::Pid(pid.as_raw()));
    match console {
        Some(console) => console.forward(channel),
        None => Ok(()),
    }
}

fn program(launch: &LaunchSpec, channel: &Rc<OwnedFd>, private: Vec<PathBuf>) -> Result<Program, String> {
    Ok(Program {
        channel: Rc::clone(channel),
        capabilities: launch.capabilities.clone(),
        no_new_privileges: launch.no_new_privileges,
        seccomp: Rc::new(seccomp::compile(&launch.seccomp, &launch.capabilities)?),
        private,
        users: None,
    })
}

/// libcontainer 0.7 leaves the user namespace out when a process joins a container.
fn join_users(launch: &LaunchSpec) -> Result<Option<Rc<UserNamespaceJoin>>, String> {
    let Some(staging) = &launch.staging else { return Ok(None) };
    if !staging.holder.is_alive() {
        return Err("the process that holds the pod's user namespace has ended".into());
    }
    let namespace = idmap::open_namespace(staging.holder.pid).map_err(|error| error.to_string())?;
    Ok(Some(Rc::new(UserNamespaceJoin { namespace, owner: launch.stdio_owner })))
}

fn with_stdio(mut builder: ContainerBuilder, stdio: Stdio) -> ContainerBuilder {
    if let Some(fd) = stdio.stdin {
        builder = builder.with_stdin(fd);
    }
    if let Some(fd) = stdio.stdout {
        builder = builder.with_stdout(fd);
    }
    if let Some(fd) = stdio.stderr {
        builder = builder.with_stderr(fd);
    }
    builder
}

/// Into a mount namespace of its own, which the container's is made from.
fn enter_mount_namespace(launch: &LaunchSpec) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // These stay tied to the machine: taken before anything else is cut off from it.
    let shared: Vec<OwnedFd> = launch
        .shared
        .iter()
        .map(|mount| {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
            open_tree(rustix::fs::CWD, &mount.source, flags)
        })
        .collect::<Result<_, _>>()?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    for (tree, to) in shared.iter().zip(&launch.shared) {
        create_private_dir(&to.stage)?;
        move_mount(tree.as_fd(), "", rustix::fs::CWD, &to.stage, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    launch.staging.as_ref().map_or(Ok(()), stage_mounts)
}

/// Places what a container in a user namespace is made of where its user can reach it, with the owners it shall see.
fn stage_mounts(staging: &Staging) -> io::Result<()> {
    if !staging.holder.is_alive() {
        return Err(io::Error::other("the process that holds the pod's user namespace has ended"));
    }
    let users = idmap::open_namespace(staging.holder.pid)?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    // All are taken before the directory is covered: some may lie in it.
    let trees = staging.mounts.iter().map(|mount| match mount.idmapped {
        true => idmap::clone_mount(&mount.source, users.as_fd()),
        false => open_tree(rustix::fs::CWD, &mount.source, clone)
            .map_err(|error| with_path("clone the mount of", &mount.source, &error.into())),
    });
    let trees: Vec<OwnedFd> = trees.collect::<io::Result<_>>()?;
    mount_tmpfs_over(&staging.directory)?;
    for (tree, to) in trees.iter().zip(&staging.mounts) {
        let path = staging.directory.join(&to.name);
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode);
        let made = if kind.is_dir() { fs::create_dir(&path) } else { fs::File::create_new(&path).map(drop) };
        made.map_err(|error| with_path("make", &path, &error))?;
        move_mount(tree.as_fd(), "", rustix::fs::CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| with_path("move a mount to", &path, &error.into()))?;
    }
    Ok(())
}

/// An empty directory that everybody can look into, over what lies there.
fn mount_tmpfs_over(directory: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), directory, Some("tmpfs"), flags, Some("mode=755,size=1m"))
        .map_err(|error| with_path("mount a tmpfs at", directory, &error.into()))
}

/// The root directory's name alone, for a process that joins the container.
fn stage_root(wanted: &Staging) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    mount_tmpfs_over(&wanted.directory)?;
    let root = wanted.directory.join(staging::ROOT);
    fs::create_dir(&root).map_err(|error| with_path("make", &root, &error))
}

/// Where libcontainer hands over the terminal it made inside the container.
struct Console {
    path: PathBuf,
    listener: UnixListener,
}

impl Console {
    fn listen(job: &LaunchJob, wanted: bool) -> Result<Option<Self>, String> {
        if !wanted {
            return Ok(None);
        }
        // A socket's address must be short, whatever the directories are called; libcontainer goes by the whole path.
        let path = Path::new("/proc/self/cwd").join(format!("tty-{}", std::process::id()));
        std::env::set_current_dir(job.dir.path()).map_err(|error| error.to_string())?;
        let listener = UnixListener::bind(&path).map_err(|error| format!("listen for the terminal: {error}"))?;
        restrict_file(&path).map_err(|error| format!("listen for the terminal: {error}"))?;
        let path = job.dir.path().join(path.file_name().unwrap_or_default());
        Ok(Some(Self { path, listener }))
    }

    fn forward(self, channel: &OwnedFd) -> Result<(), String> {
        let (stream, _): (UnixStream, _) = self.listener.accept().map_err(|error| error.to_string())?;
        let mut buffer = [0; 256];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        rustix::net::recvmsg(
            &stream,
            &mut [io::IoSliceMut::new(&mut buffer)],
            &mut control,
            rustix::net::RecvFlags::CMSG_CLOEXEC,
        )
        .map_err(|error| error.to_string())?;
        for message in control.drain() {
            if let rustix::net::RecvAncillaryMessage::ScmRights(mut fds) = message
                && let Some(terminal) = fds.next()
            {
                let frame = wire::encode(&Report::Terminal).map_err(|error| error.to_string())?;
                wire::send(channel, &frame, &[terminal.as_fd()]).map_err(|error| error.to_string())?;
                return Ok(());
            }
        }
        Err("no terminal came".into())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
