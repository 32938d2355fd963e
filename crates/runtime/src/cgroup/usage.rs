//! CPU time, memory and processes of a cgroup.

use std::{fs, path::Path};

use super::{Cgroup, Layout};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanos: u64,
    pub memory: u64,
    /// Without file pages that can be dropped at once.
    pub working_set: u64,
    pub rss: u64,
    pub pids: u64,
}

pub fn read(group: &Cgroup<'_>) -> Usage {
    let text = |controller: &str, file: &str| {
        group.dir(controller).and_then(|dir| fs::read_to_string(Path::join(&dir, file)).ok()).unwrap_or_default()
    };
    let number = |controller: &str, file: &str| text(controller, file).trim().parse().unwrap_or(0);
    let (cpu_nanos, memory, stat, names) = match group.layout {
        Layout::V1(_) => (
            number("cpuacct", "cpuacct.usage"),
            number("memory", "memory.usage_in_bytes"),
            text("memory", "memory.stat"),
            ("total_inactive_file", "total_rss"),
        ),
        Layout::V2(_) => (
            field(&text("cpu", "cpu.stat"), "usage_usec").unwrap_or(0) * 1000,
            number("memory", "memory.current"),
            text("memory", "memory.stat"),
            ("inactive_file", "anon"),
        ),
    };
    let inactive = field(&stat, names.0).unwrap_or(0);
    Usage {
        cpu_nanos,
        memory,
        working_set: memory.saturating_sub(inactive),
        rss: field(&stat, names.1).unwrap_or(0),
        pids: number("pids", "pids.current"),
    }
}

/// The number behind a name, in a file of such lines.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field(text, "oom"), None);
    }
}
