//! What a cluster has on the machine, as the kernel says.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{eventually, tool};

/// How many processes have each argument that begins so.
pub fn running(prefix: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, command) in processes() {
        if let Some(mark) = command.iter().find(|part| part.starts_with(prefix)) {
            *counts.entry(mark.clone()).or_default() += 1;
        }
    }
    counts
}

/// Pids of the processes that have this argument.
pub fn pids(argument: &str) -> Vec<u32> {
    processes()
        .into_iter()
        .filter(|(_, command)| command.iter().any(|part| part == argument))
        .map(|(pid, _)| pid)
        .collect()
}

fn processes() -> Vec<(u32, Vec<String>)> {
    let entries = fs::read_dir("/proc").expect("list processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let command = |pid: u32| {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).split('\0').map(str::to_owned).collect()
    };
    pids.map(|pid| (pid, command(pid))).collect()
}

/// Pids of all processes of a cluster's pods, and of those that hold them.
pub fn of_instance(data_dir: &Path) -> Vec<u32> {
    let (instance, data_dir) = (instance(data_dir), data_dir.display().to_string());
    let ours = |pid: u32, command: &[String]| {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        cgroups.contains(&instance) || command.iter().any(|part| part.contains(&data_dir) || part.contains(&instance))
    };
    processes().into_iter().filter(|(pid, command)| ours(*pid, command)).map(|(pid, _)| pid).collect()
}

/// Kills everything that a cluster runs, until nothing is left.
pub fn kill_processes(data_dir: &Path) {
    eventually("all processes are gone", || {
        let left = of_instance(data_dir);
        for pid in &left {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid as i32), nix::sys::signal::Signal::SIGKILL);
        }
        left.is_empty().then_some(())
    });
}

/// Takes away what a kernel that starts anew would not have: mounts, cgroups and what is in `/run`.
pub fn forget(data_dir: &Path) {
    let instance = instance(data_dir);
    let names = |path: &str| path.contains(&instance) || path.contains(&data_dir.display().to_string());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read mounts");
    let points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|at| names(at)).collect();
    for point in points.iter().rev() {
        nix::mount::umount2(*point, nix::mount::MntFlags::MNT_DETACH).expect("unmount");
    }
    for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        eventually("the cgroup is gone", || remove_cgroup(&hierarchy.path().join(&instance)).is_ok().then_some(()));
    }
    let run = PathBuf::from("/run").join(&instance);
    if run.exists() {
        fs::remove_dir_all(run).expect("remove what is in /run");
    }
}

fn remove_cgroup(path: &Path) -> std::io::Result<()> {
    if !path.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(path)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove_cgroup(&entry.path())?;
    }
    fs::remove_dir(path)
}

/// Everything on the machine that names this data directory or its instance: mounts, cgroups, processes, interfaces.
pub fn traces(data_dir: &Path) -> Vec<String> {
    traces_of(&instance(data_dir), data_dir)
}

/// The same of a data directory that may be gone.
pub fn traces_of(instance: &str, data_dir: &Path) -> Vec<String> {
    let id = instance.trim_start_matches("mainstay-").to_owned();
    let names = |text: &str| text.contains(instance) || text.contains(&data_dir.display().to_string());
    let mut traces = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read mounts");
    traces.extend(mounts.lines().filter(|line| names(line)).map(|line| format!("mount {line}")));
    for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        let path = hierarchy.path().join(instance);
        traces.extend(path.exists().then(|| format!("cgroup {}", path.display())));
    }
    for (pid, command) in processes() {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if command.iter().any(|part| names(part)) || cgroups.contains(instance) {
            traces.push(format!("process {pid} {command:?}"));
        }
    }
    for link in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = link.file_name().to_string_lossy().into_owned();
        traces.extend(name.contains(&id).then(|| format!("interface {name}")));
    }
    traces.extend(network(&id));
    let run = PathBuf::from("/run").join(instance);
    traces.extend(run.exists().then(|| format!("directory {}", run.display())));
    traces
}

/// Addresses and packet rules that bear this id.
fn network(id: &str) -> Vec<String> {
    let nft = tool("nftables/usr/sbin/nft");
    let libraries = fs::canonicalize(tool("nftables")).expect("tools are there").join("libraries");
    let mut tables = Command::new(nft);
    tables.args(["list", "tables"]).env("LD_LIBRARY_PATH", libraries);
    let mut addresses = Command::new("ip");
    addresses.args(["-o", "addr", "show"]);
    let mut found = Vec::new();
    for mut question in [tables, addresses] {
        let output = question.output().expect("ask for the machine's network");
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        found.extend(lines.lines().filter(|line| line.contains(id)).map(|line| format!("network {}", line.trim())));
    }
    found
}

/// Cgroups of sandboxes of an instance, in all hierarchies.
pub fn sandbox_cgroups(instance: &str) -> Vec<PathBuf> {
    fn below(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                found.push(entry.path());
            }
            below(&entry.path(), found);
        }
    }
    let mut found = Vec::new();
    for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        below(&hierarchy.path().join(instance), &mut found);
    }
    found
}

/// As the binary names it: from the hash of the data directory.
pub fn instance(data_dir: &Path) -> String {
    let whole = fs::canonicalize(data_dir).expect("the data directory is there");
    format!("mainstay-{:08x}", xxhash_rust::xxh3::xxh3_64(whole.as_os_str().as_encoded_bytes()) >> 32)
}
