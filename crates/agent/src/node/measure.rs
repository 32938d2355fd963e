//! Measures free memory, disk, inodes and pids of the machine.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use super::{
    facts::meminfo,
    pressure::{Amount, NodeMeasurement},
};

/// Quick: a few files of the kernel and one system call.
pub fn measure(directory: &Path) -> NodeMeasurement {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = text("/proc/meminfo");
    let (disk, inodes) = disk(directory);
    NodeMeasurement {
        memory: Amount { capacity: meminfo(&memory, "MemTotal"), available: meminfo(&memory, "MemAvailable") },
        disk,
        inodes,
        pids: pids(&text("/proc/sys/kernel/pid_max"), &text("/proc/sys/kernel/threads-max"), &text("/proc/loadavg")),
    }
}

/// Of the filesystem that a directory lies on.
pub fn disk(directory: &Path) -> (Amount, Amount) {
    let Ok(found) = statvfs(directory) else { return Default::default() };
    let bytes = |blocks: u64| blocks * found.fragment_size();
    (
        Amount { capacity: bytes(found.blocks()), available: bytes(found.blocks_available()) },
        Amount { capacity: found.files(), available: found.files_available() },
    )
}

/// Of tasks, threads included: at most as many as there are ids, and as the kernel allows.
fn pids(pid_max: &str, threads_max: &str, loadavg: &str) -> Amount {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let Some(capacity) = [number(pid_max), number(threads_max)].into_iter().flatten().min() else {
        return Amount::default();
    };
    let tasks = loadavg.split_whitespace().nth(3).and_then(|running| number(running.split_once('/')?.1));
    Amount { capacity, available: capacity.saturating_sub(tasks.unwrap_or(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_count_against_the_smaller_limit() {
        let found = pids("4194304\n", "190000\n", "0.1 0.2 0.3 2/500 12345\n");
        assert_eq!(found, Amount { capacity: 190_000, available: 189_500 });
        assert_eq!(pids("", "", ""), Amount::default());
    }

    #[test]
    fn this_machine_has_memory_and_disk() {
        let found = measure(Path::new("/"));
        assert!(found.memory.available > 0 && found.memory.available <= found.memory.capacity, "{found:?}");
        assert!(found.disk.available <= found.disk.capacity && found.disk.capacity > 0, "{found:?}");
    }
}
