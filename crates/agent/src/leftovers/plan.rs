//! What is left over, and in which order it is removed. Pure.

use std::{net::Ipv4Addr, path::PathBuf};

use super::{PodProcess, Role, Traces};

/// Whether the traces of an instance are left over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its server or agent runs.
    Running { pid: i32, data_dir: PathBuf },
    /// It is stopped: its containers run on for the next start, and `mainstay down` can end them in good order.
    Stopped { data_dir: PathBuf },
    /// There is something, and nobody to look after it.
    LeftOver,
    /// There is nothing.
    Clean,
}

impl Verdict {
    pub fn from_traces(traces: &Traces) -> Self {
        match (&traces.holder, &traces.data_dir) {
            (Some(holder), _) => Self::Running { pid: holder.pid, data_dir: holder.data_dir.clone() },
            (None, _) if traces.is_empty() => Self::Clean,
            (None, Some(data_dir)) if traces.has_data => Self::Stopped { data_dir: data_dir.clone() },
            (None, _) => Self::LeftOver,
        }
    }
}

/// One step of removal. All may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// SIGTERM to the first process of each container; then wait for all of them.
    StopContainers(Vec<PodProcess>),
    /// SIGKILL to what is left of containers, then to shims.
    KillProcesses,
    Unmount(PathBuf),
    /// Interfaces, addresses, routes and packet rules.
    RemoveNetwork {
        links: Vec<String>,
        addresses: Vec<Ipv4Addr>,
        tables: Vec<String>,
    },
    RemoveCgroup(PathBuf),
    /// Directories that have nothing in them, from this one up to the data directory.
    RemoveEmpty {
        from: PathBuf,
        up_to: PathBuf,
    },
    RemoveRunDirectory(PathBuf),
}

/// What stands on something goes before it: processes, then mounts from the last to the first, then the network and cgroups that
/// processes were in, directories last.
pub fn plan(traces: &Traces) -> Vec<Step> {
    let mut steps = Vec::new();
    let containers: Vec<PodProcess> =
        traces.processes.iter().filter(|process| process.role != Role::Shim).cloned().collect();
    if !containers.is_empty() {
        steps.push(Step::StopContainers(containers));
    }
    if !traces.processes.is_empty() {
        steps.push(Step::KillProcesses);
    }
    steps.extend(traces.mounts.iter().rev().cloned().map(Step::Unmount));
    // The route to Services has no name of its own, so this is done whatever was found.
    let (links, addresses, tables) = (traces.links.clone(), traces.addresses.clone(), traces.tables.clone());
    steps.push(Step::RemoveNetwork { links, addresses, tables });
    steps.extend(traces.cgroups.iter().cloned().map(Step::RemoveCgroup));
    if let Some(up_to) = traces.data_dir.as_ref().filter(|_| !traces.has_data) {
        let own = traces.mounts.iter().rev().filter(|point| point.starts_with(up_to));
        steps.extend(own.map(|from| Step::RemoveEmpty { from: from.clone(), up_to: up_to.clone() }));
    }
    steps.extend(traces.run_dir.iter().cloned().map(Step::RemoveRunDirectory));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leftovers::locks::Holder;

    fn process(pid: i32, role: Role) -> PodProcess {
        let (sandbox, command) = (String::new(), String::new());
        PodProcess { pid, start_time: 0, role, sandbox, command, data_dir: None }
    }

    fn traces() -> Traces {
        Traces {
            data_dir: Some("/d".into()),
            processes: vec![process(1, Role::Shim), process(2, Role::ContainerInit), process(3, Role::Container)],
            mounts: vec!["/run/mainstay/shm/a".into(), "/d/x/merged".into(), "/d/x/merged/in".into()],
            links: vec!["ms-0".into()],
            cgroups: vec!["/sys/fs/cgroup/mainstay".into()],
            run_dir: Some("/run/mainstay".into()),
            ..Traces::default()
        }
    }

    #[test]
    fn what_stands_on_something_goes_before_it() {
        let steps = plan(&traces());
        let Step::StopContainers(containers) = &steps[0] else { panic!("{steps:?}") };
        assert_eq!(containers.iter().map(|process| process.pid).collect::<Vec<_>>(), [2, 3], "shims are not asked");
        let empty = |from: &str| Step::RemoveEmpty { from: from.into(), up_to: "/d".into() };
        let expected = [
            Step::KillProcesses,
            Step::Unmount("/d/x/merged/in".into()),
            Step::Unmount("/d/x/merged".into()),
            Step::Unmount("/run/mainstay/shm/a".into()),
            Step::RemoveNetwork { links: vec!["ms-0".into()], addresses: vec![], tables: vec![] },
            Step::RemoveCgroup("/sys/fs/cgroup/mainstay".into()),
            empty("/d/x/merged/in"),
            empty("/d/x/merged"),
            Step::RemoveRunDirectory("/run/mainstay".into()),
        ];
        assert_eq!(steps[1..], expected);
    }

    #[test]
    fn directories_of_an_instance_that_has_its_data_stay() {
        let steps = plan(&Traces { has_data: true, ..traces() });
        assert!(!steps.iter().any(|step| matches!(step, Step::RemoveEmpty { .. })), "{steps:?}");
    }

    #[test]
    fn only_what_nobody_looks_after_is_left_over() {
        let holder = Holder { pid: 7, data_dir: "/d".into(), descriptor: "/proc/7/fd/3".into() };
        let running = Traces { holder: Some(holder), ..traces() };
        assert_eq!(Verdict::from_traces(&running), Verdict::Running { pid: 7, data_dir: "/d".into() });
        let stopped = Traces { has_data: true, ..traces() };
        assert_eq!(Verdict::from_traces(&stopped), Verdict::Stopped { data_dir: "/d".into() });
        assert_eq!(Verdict::from_traces(&traces()), Verdict::LeftOver);
        assert_eq!(Verdict::from_traces(&Traces { data_dir: None, ..traces() }), Verdict::LeftOver);
        assert_eq!(Verdict::from_traces(&Traces::default()), Verdict::Clean);
    }
}
