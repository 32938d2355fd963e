//! The last steps of a process before it becomes the container's program: inside all namespaces, under its own
//! user, and still with all capabilities, which is why they are dropped here and not by libcontainer.
//!
//! A seccomp filter needs `CAP_SYS_ADMIN` unless the process gave up gaining privileges. So the filter comes first where
//! setuid programs shall work, and last, as close to the program as possible, where they shall not.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    rc::Rc,
};

use super::launch::{Report, report};
use crate::builtin::{seccomp::Filters, sys};
use caps::{CapSet, Capability, CapsHashSet};
use libcontainer::{
    oci_spec::runtime::Spec,
    workload::{Executor, ExecutorError, ExecutorValidationError},
};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns},
    sys::{prctl, signal::Signal},
    unistd::{Gid, Uid, execv, setgroups, setresgid, setresuid},
};

#[derive(Clone)]
pub struct Program {
    pub channel: Rc<OwnedFd>,
    pub capabilities: Vec<String>,
    pub no_new_privileges: bool,
    pub seccomp: Rc<Filters>,
    /// Mounts that the machine shall not reach any more; empty for a process that joins.
    pub private: Vec<PathBuf>,
    /// For a process that joins: libcontainer joins every namespace of the container but this one.
    pub users: Option<Rc<UserNamespaceJoin>>,
}

/// The user namespace to join.
pub struct UserNamespaceJoin {
    pub namespace: OwnedFd,
    /// The host's id of the user.
    pub owner: u32,
}

impl UserNamespaceJoin {
    /// Until now this is root of the machine. It ends as the container's user, with capabilities over the pod's namespaces alone.
    fn enter(&self, spec: &Spec) -> Result<(), String> {
        for fd in [io::stdin().as_fd(), io::stdout().as_fd(), io::stderr().as_fd()] {
            if nix::unistd::isatty(fd).unwrap_or(false) {
                let owner = Uid::from_raw(self.owner);
                nix::unistd::fchown(fd, Some(owner), None)
                    .map_err(|error| format!("hand over the terminal: {error}"))?;
            }
        }
        let process = spec.process().as_ref().ok_or("there is no process to join with")?;
        let (user, group) = (Uid::from_raw(process.user().uid()), Gid::from_raw(process.user().gid()));
        let groups = process.user().additional_gids().clone().unwrap_or_default();
        let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
        setns(&self.namespace, CloneFlags::CLONE_NEWUSER)
            .and_then(|()| setgroups(&groups))
            .and_then(|()| setresgid(group, group, group))
            .and_then(|()| setresuid(user, user, user))
            .map_err(|error| format!("join the pod's user namespace: {error}"))
    }
}

impl Executor for Program {
    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        for target in &self.private {
            let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            if let Err(error) = mount(None::<&str>, target, None::<&str>, flags, None::<&str>) {
                return Err(self.refuse(format!("make mount {} private: {error}", target.display())));
            }
        }
        let (program, path) = program_and_path(spec);
        match find(&program, &path) {
            Ok(_) => Ok(()),
            Err(why) => Err(self.refuse(why)),
        }
    }

    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let error = match self.become_program(spec) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        report(&self.channel, &Report::Failed { start: true, text: error.clone() });
        Err(ExecutorError::Other(error))
    }
}

impl Program {
    fn refuse(&self, why: String) -> ExecutorValidationError {
        report(&self.channel, &Report::Failed { start: true, text: why.clone() });
        ExecutorValidationError::ArgValidationError(why)
    }

    fn become_program(&self, spec: &Spec) -> Result<std::convert::Infallible, String> {
        if let Some(users) = &self.users {
            users.enter(spec)?;
        }
        let (program, path) = program_and_path(spec);
        let found = find(&program, &path)?;
        let arguments: Vec<CString> = spec
            .process()
            .as_ref()
            .and_then(|process| process.args().clone())
            .unwrap_or_default()
            .into_iter()
            .map(CString::new)
            .collect::<Result<_, _>>()
            .map_err(|_| format!("exec: {program:?}: an argument holds a null byte"))?;
        let found_c = CString::new(found.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;

        if !self.no_new_privileges {
            self.filter()?;
        }
        keep_only(&self.capabilities).map_err(|error| format!("drop capabilities: {error}"))?;
        // Without the shim nobody would know how it ends: it ends with the shim. Set last, as a change of user clears it.
        prctl::set_pdeathsig(Signal::SIGKILL).map_err(|error| error.to_string())?;
        sys::default_signals();
        if self.no_new_privileges {
            self.filter()?;
        }
        execv(&found_c, &arguments).map_err(|error| format!("exec: {program:?}: {}", errno_text(error)))
    }

    fn filter(&self) -> Result<(), String> {
        for program in self.seccomp.iter() {
            sys::install_seccomp(program).map_err(|error| format!("install the seccomp profile: {error}"))?;
        }
        Ok(())
    }
}

fn program_and_path(spec: &Spec) -> (String, String) {
    let process = spec.process().as_ref();
    let program = process.and_then(|process| process.args().as_ref()?.first().cloned()).unwrap_or_default();
    let environment = process.and_then(|process| process.env().clone()).unwrap_or_default();
    let path = environment.iter().rev().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or_default().to_owned();
    (program, path)
}

/// Where the program is, or why there is none, in the words that users know.
fn find(program: &str, path: &str) -> Result<PathBuf, String> {
    if program.contains('/') {
        return match std::fs::metadata(program) {
            Ok(meta) if meta.is_dir() => Err(format!("exec: {program:?}: is a directory")),
            Ok(meta) if meta.permissions().mode() & 0o111 == 0 => Err(format!("exec: {program:?}: permission denied")),
            Ok(_) => Ok(PathBuf::from(program)),
            Err(error) => Err(format!("exec: {program:?}: stat {program}: {}", io_error_text(&error))),
        };
    }
    let mut denied = false;
    for dir in path.split(':') {
        let candidate = Path::new(if dir.is_empty() { "." } else { dir }).join(program);
        match std::fs::metadata(&candidate) {
            Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o111 != 0 => return Ok(candidate),
            Ok(meta) if meta.is_file() => denied = true,
            _ => {}
        }
    }
    match denied {
        true => Err(format!("exec: {program:?}: permission denied")),
        false => Err(format!("exec: {program:?}: executable file not found in $PATH")),
    }
}

fn errno_text(error: Errno) -> String {
    error.desc().to_lowercase()
}

fn io_error_text(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |code| errno_text(Errno::from_raw(code)))
}

/// Gives up all capabilities but these, for this process and all it will become.
fn keep_only(names: &[String]) -> Result<(), String> {
    let text = |error: caps::errors::CapsError| error.to_string();
    let keep: CapsHashSet = names.iter().filter_map(|name| name.parse::<Capability>().ok()).collect();
    let have = caps::read(None, CapSet::Permitted).map_err(text)?;
    let bounding = caps::read(None, CapSet::Bounding).map_err(text)?;
    for capability in bounding.difference(&keep) {
        caps::drop(None, CapSet::Bounding, *capability).map_err(text)?;
    }
    let _ = caps::clear(None, CapSet::Ambient);
    caps::clear(None, CapSet::Inheritable).map_err(text)?;
    // What this machine does not have itself cannot be given.
    let keep: CapsHashSet = keep.intersection(&have).copied().collect();
    caps::set(None, CapSet::Effective, &keep).map_err(text)?;
    caps::set(None, CapSet::Permitted, &keep).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_path_or_missed_in_known_words() {
        assert!(find("sh", "/nowhere:/bin").is_ok());
        assert_eq!(find("nope", "/bin").unwrap_err(), r#"exec: "nope": executable file not found in $PATH"#);
        assert_eq!(
            find("/no/such", "/bin").unwrap_err(),
            r#"exec: "/no/such": stat /no/such: no such file or directory"#
        );
        assert_eq!(find("/etc/passwd", "").unwrap_err(), r#"exec: "/etc/passwd": permission denied"#);
        assert_eq!(find("/etc/", "").unwrap_err(), r#"exec: "/etc/": is a directory"#);
    }
}
