//! The first process of a pod whose containers share processes or a user namespace. It only reaps what is orphaned, and
//! ends with the shim: then the kernel ends everything else in its pid namespace.
//!
//! With a user namespace it also holds the pod's network, host name and IPC, which must belong to that namespace from the
//! start. It is not dumpable and was never executed inside, so nobody in the pod can trace it, although it is their user.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
};

use mainstay_errors::{append_cause, with_path};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::{Gid, Pid, Uid, pipe2, setgroups, setresgid, setresuid},
};

use crate::{builtin::sys::fork_into, idmap::UserNamespace};

pub struct Reaper {
    pub pid: i32,
    /// Open as long as the shim lives.
    _lifeline: Option<OwnedFd>,
}

/// The namespaces that it is to hold.
pub struct ReaperOptions<'a> {
    /// Containers see each other's processes.
    pub pids: bool,
    pub users: Option<UserNamespace>,
    /// Made in the user namespace, so that they belong to it.
    pub others: CloneFlags,
    /// Settings of these namespaces; only their own root may change all of them.
    pub sysctls: &'a BTreeMap<String, String>,
}

impl Reaper {
    pub fn start(options: &ReaperOptions<'_>) -> io::Result<Self> {
        let (listen, lifeline) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let (mut answers, answer) = io::pipe()?;
        let (mut mapped, map) = io::pipe()?;
        // Whoever reads waits until nobody can write: each process closes the ends that are not its own.
        let (mut lifeline, mut answer, mut map) = (Some(lifeline), Some(answer), Some(map));
        // Only the children of who makes the namespace are in it: a helper makes it, the shim stays outside.
        let helper = fork_into(|| {
            map = None;
            let Some(mut say) = answer.take() else { return 1 };
            let mut born = enter(options, &mut say, &mut mapped);
            let mut say = Some(say);
            if born.is_ok() {
                let child = fork_into(|| {
                    (lifeline, say) = (None, None);
                    reap(&listen);
                    0
                });
                let reported = child.map_err(io::Error::from).map(|pid| pid.to_string());
                born = reported.and_then(|pid| say.take().map_or(Ok(()), |mut say| say.write_all(pid.as_bytes())));
            }
            match (born, say) {
                (Err(error), Some(mut say)) => i32::from(say.write_all(error.to_string().as_bytes()).is_err()),
                (born, _) => i32::from(born.is_err()),
            }
        })?;
        drop((answer, listen, mapped));
        let made = match (options.users, &mut map) {
            (Some(users), Some(map)) => write_maps(&mut answers, map, helper, users),
            _ => Ok(()),
        };
        drop(map);
        let mut output = String::new();
        let read = answers.read_to_string(&mut output);
        let _ = waitpid(helper, None);
        read?;
        match (output.parse(), made) {
            (Ok(pid), Ok(())) => Ok(Self { pid, _lifeline: lifeline }),
            (_, Err(error)) => Err(io::Error::other(append_cause(error.to_string(), &output))),
            (Err(_), Ok(())) => Err(io::Error::other(output)),
        }
    }
}

/// In the helper: makes the namespaces, and becomes root of the new user namespace.
fn enter(options: &ReaperOptions<'_>, answer: &mut io::PipeWriter, mapped: &mut io::PipeReader) -> io::Result<()> {
    if options.users.is_some() {
        let made = unshare(CloneFlags::CLONE_NEWUSER);
        answer.write_all(b"\n")?;
        made.map_err(|error| failed("make the pod's user namespace", error))?;
        mapped.read_exact(&mut [0]).map_err(|_| io::Error::other("the pod's user namespace was not mapped"))?;
        let root = (Uid::from_raw(0), Gid::from_raw(0));
        setgroups(&[])
            .and_then(|()| setresgid(root.1, root.1, root.1))
            .and_then(|()| setresuid(root.0, root.0, root.0))
            .map_err(|error| failed("become root of the pod's user namespace", error))?;
        unshare(options.others).map_err(|error| failed("make the pod's namespaces", error))?;
        for (name, value) in options.sysctls {
            super::set_sysctl(name, value)?;
        }
    }
    if options.pids {
        unshare(CloneFlags::CLONE_NEWPID).map_err(|error| failed("make the pod's process namespace", error))?;
    }
    Ok(())
}

fn failed(doing: &str, error: Errno) -> io::Error {
    io::Error::other(format!("{doing}: {}", io::Error::from(error)))
}

/// In the shim: says which ids the helper's namespace has.
fn write_maps(
    answers: &mut io::PipeReader,
    map: &mut io::PipeWriter,
    helper: Pid,
    users: UserNamespace,
) -> io::Result<()> {
    answers.read_exact(&mut [0])?;
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/{helper}/{file}");
        fs::write(&path, users.map()).map_err(|error| with_path("write", path.as_ref(), &error))?;
    }
    map.write_all(b"\n")
}

fn reap(lifeline: &OwnedFd) {
    let _ = prctl::set_name(c"mainstay-init");
    let _ = super::detach_stdio();
    let mask = SigSet::from(Signal::SIGCHLD);
    let _ = mask.thread_block();
    let Ok(signals) = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) else { return };
    loop {
        let mut fds =
            [PollFd::new(lifeline.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) if fds[0].any() == Some(true) => return,
            Ok(_) => {}
        }
        while let Ok(Some(_)) = signals.read_signal() {}
        while waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
    }
}
