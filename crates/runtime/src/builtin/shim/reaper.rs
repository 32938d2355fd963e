//! The first process of a pod whose containers see each other's processes. It only reaps what is orphaned, and ends with
//! the shim: then the kernel ends everything else in the namespace.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
};

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
    unistd::{Pid, pipe2},
};

use crate::builtin::sys::fork_into;

pub struct Reaper {
    pub pid: i32,
    /// Open as long as the shim lives.
    _lifeline: Option<OwnedFd>,
}

impl Reaper {
    pub fn start() -> io::Result<Self> {
        let (listen, lifeline) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let mut lifeline = Some(lifeline);
        let (mut told, mut tell) = io::pipe()?;
        // Only the children of who makes the namespace are in it: a helper makes it, the shim stays outside.
        let helper = fork_into(|| {
            let born = unshare(CloneFlags::CLONE_NEWPID).and_then(|()| {
                fork_into(|| {
                    lifeline = None;
                    reap(&listen);
                    0
                })
            });
            let Ok(pid) = born else { return 1 };
            i32::from(tell.write_all(&pid.as_raw().to_ne_bytes()).is_err())
        })?;
        drop(tell);
        drop(listen);
        let _ = waitpid(helper, None);
        let mut pid = [0; 4];
        told.read_exact(&mut pid).map_err(|_| io::Error::other("could not make the pod's process namespace"))?;
        Ok(Self { pid: i32::from_ne_bytes(pid), _lifeline: lifeline })
    }
}

fn reap(lifeline: &OwnedFd) {
    let _ = prctl::set_name(c"mainstay-init");
    let _ = super::silence();
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
