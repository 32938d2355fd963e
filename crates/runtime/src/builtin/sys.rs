//! System calls without a safe wrapper: fork, seccomp, signals. All but one run in the shim, which has one thread.

#![expect(
    unsafe_code,
    reason = "fork, seccomp, signal dispositions and readiness of descriptors have no safe wrappers"
)]

use std::{io, os::fd::OwnedFd};

use nix::{
    libc,
    sys::signal::{SigHandler, SigSet, Signal, signal},
    unistd::{ForkResult, Pid, fork},
};

/// A copy of this process that runs `child` and ends with what that returns.
pub fn fork_into(child: impl FnOnce() -> i32) -> nix::Result<Pid> {
    // SAFETY: only called in the shim, which has a single thread, so no lock is held by anyone else.
    match unsafe { fork()? } {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let code = child();
            // SAFETY: ends this process; what the parent has registered to run at exit is not ours to run.
            unsafe { libc::_exit(code) }
        }
    }
}

/// Signals as a program expects to find them: nothing blocked, nothing ignored.
pub fn default_signals() {
    for each in [Signal::SIGPIPE, Signal::SIGCHLD] {
        // SAFETY: no handler is installed, only the default disposition.
        let _ = unsafe { signal(each, SigHandler::SigDfl) };
    }
    let _ = SigSet::empty().thread_set_mask();
}

/// Any signal, those without a name included.
pub fn kill(pid: i32, signal: i32) -> nix::Result<()> {
    // SAFETY: takes two numbers, and touches no memory.
    nix::errno::Errno::result(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Readiness of a descriptor, in the agent.
pub fn watch(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: what is registered owns its descriptor, so that stays open and the same until it is deregistered.
    unsafe { Ok(tokio::io::unix::AsyncFd::register(fd)?) }
}

/// Installs a filter for this process and its children. Needs `CAP_SYS_ADMIN` or no-new-privileges,
/// and unlike other wrappers does not set the latter.
pub fn install_seccomp(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    // seccompiler's instructions have the kernel's layout, as libc's have.
    let prog = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: `prog` points to `length` instructions that live for the whole call; the kernel copies them.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const prog) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
