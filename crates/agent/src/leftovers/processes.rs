//! Processes of pods on this machine, and signals that reach only them.
//!
//! A process is a pod's if its cgroup says so, which only root can bring about, or if it descends from a shim whose cgroup says so.
//! What a command line says does not count. A signal goes through a pidfd, after the process has been compared with the one that
//! was found: a later process with the same number is never reached.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::names::{Instance, SandboxCgroup, data_dir_of_shim};

/// What a process does for its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The first process of a container: the one that gets its stop signal.
    ContainerInit,
    /// Another process of a container.
    Container,
    /// The shim, or what it runs beside containers.
    Shim,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProcess {
    pub pid: i32,
    /// In ticks since the machine started: tells a process from a later one of the same number.
    pub start_time: u64,
    pub role: Role,
    pub sandbox: String,
    /// For people.
    pub command: String,
    /// The data directory of its instance, where a shim says so.
    pub data_dir: Option<PathBuf>,
}

/// One process as `/proc` shows it.
#[derive(Clone, Debug)]
pub struct ProcEntry {
    pub pid: i32,
    pub parent: i32,
    pub start_time: u64,
    pub cgroup: Option<SandboxCgroup>,
    pub command: Vec<String>,
}

/// All processes of pods, by instance.
pub fn find() -> io::Result<BTreeMap<Instance, Vec<PodProcess>>> {
    Ok(group(&read()?))
}

fn read() -> io::Result<Vec<ProcEntry>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ended meanwhile is none.
        let Some((parent, start_time)) = stat(pid) else { continue };
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = command.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
        let mut command: Vec<String> = command.collect();
        command.pop_if(|last| last.is_empty());
        found.push(ProcEntry { pid, parent, start_time, cgroup: SandboxCgroup::of_process(&cgroup), command });
    }
    Ok(found)
}

/// Parent and start time; None if it is gone or only waits to be reaped.
fn stat(pid: i32) -> Option<(i32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, blanks and parentheses included.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let is_zombie = fields.first().is_none_or(|state| matches!(*state, "Z" | "X"));
    (!is_zombie).then_some(())?;
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// Pure: which of these processes belong to pods.
fn group(all: &[ProcEntry]) -> BTreeMap<Instance, Vec<PodProcess>> {
    let by_pid: BTreeMap<i32, &ProcEntry> = all.iter().map(|entry| (entry.pid, entry)).collect();
    let mut found: BTreeMap<Instance, Vec<PodProcess>> = BTreeMap::new();
    for entry in all {
        // A privileged container may have left the pod's cgroup, but not its ancestors.
        let Some(group) = entry.cgroup.clone().or_else(|| ancestor_group(entry, &by_pid)) else { continue };
        let parent_group = by_pid.get(&entry.parent).and_then(|parent| parent.cgroup.as_ref());
        let role = match group.part.as_deref() {
            Some("shim") | None if entry.cgroup.is_some() => Role::Shim,
            _ if entry.cgroup.is_some() && parent_group != Some(&group) => Role::ContainerInit,
            _ => Role::Container,
        };
        let data_dir = match role {
            Role::Shim => data_dir_of_shim(&entry.command),
            Role::ContainerInit | Role::Container => None,
        };
        found.entry(group.instance).or_default().push(PodProcess {
            pid: entry.pid,
            start_time: entry.start_time,
            role,
            sandbox: group.sandbox,
            command: entry.command.join(" "),
            data_dir,
        });
    }
    found
}

fn ancestor_group(entry: &ProcEntry, by_pid: &BTreeMap<i32, &ProcEntry>) -> Option<SandboxCgroup> {
    // The table is no snapshot: parents that change while it is read could make a ring of it.
    let mut visited = BTreeSet::from([entry.pid]);
    let mut parent = entry.parent;
    while visited.insert(parent) {
        let above = by_pid.get(&parent)?;
        if let Some(group) = &above.cgroup {
            return Some(group.clone());
        }
        parent = above.parent;
    }
    None
}

/// Sends a signal, unless the process has ended; whether another has its number makes no difference.
pub fn signal(process: &PodProcess, signal: Signal) -> io::Result<()> {
    let gone = |error: rustix::io::Errno| match error {
        rustix::io::Errno::SRCH => Ok(()),
        error => Err(error.into()),
    };
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(()) };
    let opened = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(opened) => opened,
        Err(error) => return gone(error),
    };
    // What the descriptor refers to can no longer change; if the number has passed on since, the descriptor is of one that ended.
    if stat(process.pid).is_none_or(|(_, start_time)| start_time != process.start_time) {
        return Ok(());
    }
    pidfd_send_signal(&opened, signal).or_else(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn entry(pid: i32, parent: i32, cgroup: &str, command: &[&str]) -> ProcEntry {
        let command = command.iter().map(|part| (*part).to_owned()).collect();
        ProcEntry { pid, parent, start_time: 7, cgroup: SandboxCgroup::parse(cgroup), command }
    }

    #[test]
    fn processes_are_found_by_cgroup_and_descent_never_by_name() {
        let (shim, container) = (format!("/mainstay/podx/{ID}/shim"), format!("/mainstay/podx/{ID}/c"));
        let (directory, socket) = (format!("/d/runtime/sandboxes/{ID}"), format!("/run/mainstay/s/{ID}"));
        let command = ["/usr/bin/mainstay", "shim", &directory, &socket];
        let all = [
            entry(1, 0, "/", &["init"]),
            entry(10, 1, &shim, &command),
            entry(11, 10, &container, &["web"]),
            entry(12, 11, &container, &["worker"]),
            entry(13, 12, "/elsewhere", &["left its cgroup"]),
            entry(20, 1, "/user.slice", &command), // somebody else, whatever it is called
            entry(21, 20, "/user.slice", &["mainstay"]),
        ];
        let found = group(&all);
        let own = &found[&"mainstay".parse::<Instance>().unwrap()];
        let roles: Vec<(i32, Role)> = own.iter().map(|process| (process.pid, process.role)).collect();
        assert_eq!(roles, [(10, Role::Shim), (11, Role::ContainerInit), (12, Role::Container), (13, Role::Container)]);
        assert_eq!((found.len(), own[0].data_dir.clone()), (1, Some("/d".into())));
    }

    #[test]
    fn a_ring_of_parents_ends() {
        assert!(group(&[entry(2, 3, "/", &[]), entry(3, 2, "/", &[])]).is_empty());
    }

    #[test]
    fn a_later_process_of_the_same_number_gets_no_signal() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let (_, start_time) = stat(pid).unwrap();
        let process = |start_time| PodProcess {
            pid,
            start_time,
            role: Role::Container,
            sandbox: String::new(),
            command: String::new(),
            data_dir: None,
        };
        signal(&process(start_time - 1), Signal::KILL).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "another process of that number lives on");
        signal(&process(start_time), Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
        signal(&process(start_time), Signal::KILL).unwrap();
    }
}
