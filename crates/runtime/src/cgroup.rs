//! Creates, limits, measures, kills and removes cgroups of version 1 and 2.
//!
//! A machine that has both kinds mounted is treated as version 1, as its controllers are there. A group is a path that
//! is the same in every hierarchy.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::{Duration, Instant},
};

use mainstay_errors::with_path;
use mainstay_files::mountinfo::{self, Mount};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::spec::Resources;

mod limits;
mod memory_reaper;
mod usage;

pub use usage::Usage;

/// What the machine has.
#[derive(Debug)]
pub enum Layout {
    /// Each with the names of its controllers.
    V1(Vec<(Vec<String>, PathBuf)>),
    V2(PathBuf),
}

pub fn layout() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| Layout::from_mounts(&mountinfo::read().unwrap_or_default()))
}

/// Why containers cannot be made for want of cgroups; empty if they can.
pub fn what_is_missing() -> Vec<String> {
    match mountinfo::read() {
        Ok(mounts) => missing(&Layout::from_mounts(&mounts), &|path| path.exists()),
        Err(error) => vec![format!("the table of mounts: read /proc/self/mountinfo: {error}")],
    }
}

/// Controllers that limits of pods cannot do without.
const REQUIRED: [&str; 3] = ["cpu", "memory", "pids"];

/// A directory that exists proves nothing: who has a mount namespace with a fresh `/sys` sees empty ones.
fn missing(layout: &Layout, exists: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let hidden = |root: &Path| {
        format!(
            "cgroups: {} is missing, so no hierarchy is mounted at {} for this process. `ip netns exec` hides them: use `nsenter --net=/run/netns/NAME` instead. \
             Else mount them: mount -t cgroup2 none /sys/fs/cgroup",
            root.join("cgroup.procs").display(),
            root.display()
        )
    };
    let is_hidden = |root: &&Path| !exists(&root.join("cgroup.procs"));
    match layout {
        Layout::V2(root) => Some(root.as_path()).filter(is_hidden).map(hidden).into_iter().collect(),
        Layout::V1(all) => {
            let has = |name: &str| all.iter().any(|(names, _)| names.iter().any(|own| own == name));
            let absent = REQUIRED.iter().filter(|name| !has(name)).map(|name| {
                format!("the cgroup controller {name}: no hierarchy in /proc/self/mountinfo has it; mount it: mount -t cgroup -o {name} none /sys/fs/cgroup/{name}")
            });
            all.iter().map(|(_, root)| root.as_path()).filter(is_hidden).map(hidden).chain(absent).collect()
        }
    }
}

impl Layout {
    fn from_mounts(mounts: &[Mount]) -> Self {
        let mut v1: Vec<(Vec<String>, PathBuf)> = Vec::new();
        let mut v2 = PathBuf::from("/sys/fs/cgroup");
        for mount in mounts {
            match mount.filesystem.as_str() {
                "cgroup" if !mount.super_options.contains("name=") => {
                    let names: Vec<_> = mount
                        .super_options
                        .split(',')
                        .filter(|name| !matches!(*name, "rw" | "ro" | "clone_children" | "xattr"))
                        .map(str::to_owned)
                        .collect();
                    if v1.iter().all(|(have, _)| *have != names) {
                        v1.push((names, mount.mount_point.clone()));
                    }
                }
                "cgroup2" => v2.clone_from(&mount.mount_point),
                _ => {}
            }
        }
        if v1.is_empty() { Layout::V2(v2) } else { Layout::V1(v1) }
    }
}

/// A group, by its path below each hierarchy's mount point.
#[derive(Clone, Debug)]
pub struct Cgroup<'a> {
    layout: &'a Layout,
    path: PathBuf,
}

impl Cgroup<'static> {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path: PathBuf = path.into();
        let path = path.strip_prefix("/").map_or_else(|_| path.clone(), Path::to_path_buf);
        Self { layout: layout(), path }
    }
}

impl Cgroup<'_> {
    /// The directory of the hierarchy that has this controller.
    fn dir(&self, controller: &str) -> Option<PathBuf> {
        match self.layout {
            Layout::V2(root) => Some(root.join(&self.path)),
            Layout::V1(all) => {
                let (_, root) = all.iter().find(|(names, _)| names.iter().any(|name| name == controller))?;
                Some(root.join(&self.path))
            }
        }
    }

    fn dirs(&self) -> Vec<PathBuf> {
        match self.layout {
            Layout::V2(root) => vec![root.join(&self.path)],
            Layout::V1(all) => all.iter().map(|(_, root)| root.join(&self.path)).collect(),
        }
    }

    /// A directory in which to look for processes: they are in the same group of every hierarchy.
    fn main_dir(&self) -> Option<PathBuf> {
        ["pids", "memory", "cpu"].iter().find_map(|name| self.dir(name)).or_else(|| self.dirs().pop())
    }

    pub fn exists(&self) -> bool {
        self.main_dir().is_some_and(|dir| dir.is_dir())
    }

    /// Makes it and what lies above it.
    pub fn create(&self) -> io::Result<()> {
        match self.layout {
            Layout::V2(root) => create_v2(root, &self.path),
            Layout::V1(all) => {
                for (names, root) in all {
                    if names.iter().any(|name| name == "cpuset") {
                        create_cpuset(root, &self.path)?;
                    } else {
                        let dir = root.join(&self.path);
                        fs::create_dir_all(&dir).map_err(|error| with_path("make", &dir, &error))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Moves a process into it.
    pub fn add(&self, pid: i32) -> io::Result<()> {
        for dir in self.dirs() {
            let file = dir.join("cgroup.procs");
            fs::write(&file, pid.to_string()).map_err(|error| with_path("write", &file, &error))?;
        }
        Ok(())
    }

    pub fn limit(&self, resources: &Resources) -> io::Result<()> {
        limits::apply(self, resources)
    }

    pub fn usage(&self) -> Usage {
        usage::read(self)
    }

    /// How often the kernel killed something in it for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let Some(dir) = self.dir("memory") else { return 0 };
        let file = match self.layout {
            Layout::V1(_) => "memory.oom_control",
            Layout::V2(_) => "memory.events",
        };
        usage::field(&fs::read_to_string(dir.join(file)).unwrap_or_default(), "oom_kill").unwrap_or(0)
    }

    /// All processes in it and below.
    pub fn processes(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        // On version 1 a process that is being moved may be in one hierarchy and not yet in another.
        for dir in self.dirs() {
            collect(&dir, &mut found);
        }
        found
    }

    /// Sends a signal to all of them.
    pub fn signal(&self, signal: Signal) {
        let own = std::process::id() as i32;
        for pid in self.processes() {
            if pid != own {
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
    }

    /// Kills all in it, whatever they fork meanwhile. False if something still lives after `patience`.
    pub fn kill_all(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_micros(200);
        loop {
            if let Layout::V2(_) = self.layout
                && let Some(dir) = self.main_dir()
            {
                let _ = fs::write(dir.join("cgroup.kill"), "1");
            }
            let left = self.processes();
            if left.is_empty() {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            self.signal(Signal::SIGKILL);
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Removes it and all below. Its processes must have ended; the kernel may take a moment to notice.
    pub fn remove(&self) -> io::Result<()> {
        if let Some(memory) = self.memory_dir() {
            memory_reaper::empty_tree(&memory);
        }
        self.dirs().iter().try_for_each(|dir| remove_tree(dir))
    }

    /// Removes it if nothing is in it.
    pub fn remove_if_empty(&self) {
        for dir in self.dirs() {
            let _ = fs::remove_dir(dir);
        }
    }

    /// Removes it and all below, as [`remove`](Self::remove) does, but its part of the memory hierarchy of version 1 only loses
    /// its name: it goes soon after, emptied, so that nothing of it stays in the kernel.
    pub fn retire(&self) -> io::Result<()> {
        let memory = self.memory_dir();
        for dir in self.dirs() {
            if Some(&dir) != memory.as_ref() {
                remove_tree(&dir)?;
            }
        }
        memory.map_or(Ok(()), |dir| memory_reaper::remove(&dir))
    }

    /// Removes it if nothing is in it, or nothing but what was [retired](Self::retire).
    pub fn retire_if_empty(&self) {
        let memory = self.memory_dir();
        for dir in self.dirs() {
            if Some(&dir) != memory.as_ref() {
                let _ = fs::remove_dir(dir);
            }
        }
        memory.iter().for_each(|dir| memory_reaper::remove_if_empty(dir));
    }

    /// Removes what an earlier process retired below it and did not live to see removed: groups that are in no hierarchy
    /// but that of memory.
    pub fn remove_leftover_memory(&self) {
        if let (Some(memory), Some(main)) = (self.memory_dir(), self.main_dir()) {
            leftover_dirs(&memory, &main).into_iter().for_each(memory_reaper::remove_later);
        }
    }

    /// Its part of the memory hierarchy, if that is of version 1, has no other controller, and is not where processes are
    /// looked for.
    fn memory_dir(&self) -> Option<PathBuf> {
        let Layout::V1(all) = self.layout else { return None };
        let (_, root) = all.iter().find(|(names, _)| matches!(&names[..], [name] if name == "memory"))?;
        Some(root.join(&self.path)).filter(|dir| self.main_dir().as_ref() != Some(dir))
    }
}

/// The uppermost directories below `memory` that have no like below `main`.
fn leftover_dirs(memory: &Path, main: &Path) -> Vec<PathBuf> {
    let mut leftover = Vec::new();
    for child in children(memory) {
        let Some(name) = child.file_name() else { continue };
        let like = main.join(name);
        if like.is_dir() { leftover.extend(leftover_dirs(&child, &like)) } else { leftover.push(child) }
    }
    leftover
}

fn create_v2(root: &Path, path: &Path) -> io::Result<()> {
    let mut dir = root.to_path_buf();
    for part in path.components() {
        let available = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
        for name in available.split_whitespace() {
            // One that cannot be passed on (the rt part of cpu, say) must not keep the others from it.
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{name}"));
        }
        dir.push(part);
        make_dir(&dir)?;
    }
    Ok(())
}

/// A cpuset takes no process until it is told which processors and memory nodes are its own.
fn create_cpuset(root: &Path, path: &Path) -> io::Result<()> {
    let mut dir = root.to_path_buf();
    for part in path.components() {
        let parent = dir.clone();
        dir.push(part);
        make_dir(&dir)?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if fs::read_to_string(dir.join(file))?.trim().is_empty() {
                fs::write(dir.join(file), fs::read_to_string(parent.join(file))?.trim())?;
            }
        }
    }
    Ok(())
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(with_path("make", dir, &error)),
        _ => Ok(()),
    }
}

fn collect(dir: &Path, found: &mut BTreeSet<i32>) {
    let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) else { return };
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    for child in children(dir) {
        collect(&child, found);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).collect()
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for child in children(dir) {
        remove_tree(&child)?;
    }
    let mut tries = 0;
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) && tries < 100 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        30 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        31 29 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        32 29 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
        33 29 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn layout_of(table: &str) -> Layout {
        Layout::from_mounts(&mountinfo::parse(table.as_bytes()))
    }

    #[test]
    fn hierarchies_that_are_hidden_or_lack_a_controller_are_named() {
        let visible = |_: &Path| true;
        let complete = format!("{HYBRID}34 29 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n");
        assert!(missing(&layout_of(&complete), &visible).is_empty());
        let [pids] = <[String; 1]>::try_from(missing(&layout_of(HYBRID), &visible)).unwrap();
        assert!(pids.starts_with("the cgroup controller pids"), "{pids}");
        // As `ip netns exec` leaves it: a directory, and nothing mounted.
        let [hidden] = <[String; 1]>::try_from(missing(&layout_of(""), &|_| false)).unwrap();
        assert!(hidden.contains("/sys/fs/cgroup/cgroup.procs") && hidden.contains("nsenter"), "{hidden}");
        assert_eq!(missing(&layout_of(&complete), &|path| !path.starts_with("/sys/fs/cgroup/memory")).len(), 1);
    }

    #[test]
    fn groups_that_only_the_memory_hierarchy_has_are_leftovers() {
        let root = tempfile::tempdir().unwrap();
        let (memory, pids) = (root.path().join("memory"), root.path().join("pids"));
        for dir in ["memory/pod/old/container", "memory/pod/new", "memory/gone/sandbox", "pids/pod/new"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let mut found = leftover_dirs(&memory, &pids);
        found.sort();
        assert_eq!(found, [memory.join("gone"), memory.join("pod/old")]);
    }

    #[test]
    fn memory_is_removed_apart_only_where_it_has_a_hierarchy_of_its_own() {
        let path = |table: &str| {
            let layout = layout_of(table);
            Cgroup { layout: &layout, path: "a".into() }.memory_dir()
        };
        let pids = "34 29 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        assert_eq!(path(&format!("{HYBRID}{pids}")), Some(PathBuf::from("/sys/fs/cgroup/memory/a")));
        assert_eq!(path(HYBRID), None, "processes are looked for there");
        assert_eq!(path("31 29 0:28 / /cg rw - cgroup cgroup rw,cpu,memory\n"), None);
        assert_eq!(path("33 29 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"), None);
    }

    #[test]
    fn a_machine_with_both_kinds_is_of_the_first() {
        let Layout::V1(all) = layout_of(HYBRID) else { panic!("not version 1") };
        assert_eq!(all.len(), 2);
        assert_eq!(all[0], (vec!["cpu".to_owned(), "cpuacct".to_owned()], PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")));
    }

    #[test]
    fn a_machine_with_one_tree_is_of_the_second() {
        let layout = layout_of("30 29 0:27 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
        assert!(matches!(layout, Layout::V2(root) if root == Path::new("/sys/fs/cgroup")));
    }
}
