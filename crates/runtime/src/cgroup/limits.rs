//! Resource limits as files of cgroup version 1 and 2.

use std::{fs, io};

use super::{Cgroup, Layout};
use crate::spec::Resources;

pub fn apply(group: &Cgroup<'_>, resources: &Resources) -> io::Result<()> {
    let writes = match group.layout {
        Layout::V1(_) => v1(resources),
        Layout::V2(_) => v2(resources),
    };
    for (controller, file, value) in writes {
        // A controller that the machine lacks cannot limit; it is not a reason to refuse the pod.
        let Some(path) = group.dir(controller).map(|dir| dir.join(&file)) else { continue };
        match fs::write(&path, &value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && controller == "hugetlb" => {}
            Err(error) => return Err(io::Error::new(error.kind(), write_error(&path, &value, &error))),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn write_error(path: &std::path::Path, value: &str, error: &io::Error) -> String {
    format!("write {value} to {}: {error}", path.display())
}

type Writes = Vec<(&'static str, String, String)>;

fn v1(resources: &Resources) -> Writes {
    let mut writes = Writes::new();
    let mut write = |controller, file: &str, value: String| writes.push((controller, file.to_owned(), value));
    if let Some(shares) = resources.cpu_shares {
        write("cpu", "cpu.shares", shares.max(2).to_string());
    }
    if let Some(period) = resources.cpu_period {
        write("cpu", "cpu.cfs_period_us", period.to_string());
    }
    if let Some(quota) = resources.cpu_quota {
        write("cpu", "cpu.cfs_quota_us", if quota <= 0 { -1 } else { quota.max(1000) }.to_string());
    }
    if let Some(bytes) = resources.memory_limit {
        write("memory", "memory.limit_in_bytes", if bytes <= 0 { -1 } else { bytes }.to_string());
    }
    if let Some(count) = resources.pids_limit {
        write("pids", "pids.max", unlimited(count, "max"));
    }
    for (size, bytes) in &resources.hugepages {
        write("hugetlb", &format!("hugetlb.{}.limit_in_bytes", page_size(size)), bytes.to_string());
    }
    writes
}

fn v2(resources: &Resources) -> Writes {
    let mut writes = Writes::new();
    let mut write = |controller, file: &str, value: String| writes.push((controller, file.to_owned(), value));
    if let Some(shares) = resources.cpu_shares {
        write("cpu", "cpu.weight", weight(shares).to_string());
    }
    if resources.cpu_quota.is_some() || resources.cpu_period.is_some() {
        let quota = resources.cpu_quota.unwrap_or(-1);
        let period = resources.cpu_period.unwrap_or(100_000);
        let quota = if quota <= 0 { "max".to_owned() } else { quota.max(1000).to_string() };
        write("cpu", "cpu.max", format!("{quota} {period}"));
    }
    if let Some(bytes) = resources.memory_limit {
        write("memory", "memory.max", unlimited(bytes, "max"));
    }
    if let Some(count) = resources.pids_limit {
        write("pids", "pids.max", unlimited(count, "max"));
    }
    for (size, bytes) in &resources.hugepages {
        write("hugetlb", &format!("hugetlb.{}.max", page_size(size)), bytes.to_string());
    }
    writes
}

fn unlimited(value: i64, none: &str) -> String {
    if value <= 0 { none.to_owned() } else { value.to_string() }
}

/// Shares of 2 to 262144 as weights of 1 to 10000.
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// `2Mi` is the kernel's `2MB`.
fn page_size(size: &str) -> String {
    size.replace('i', "B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weights_over_the_whole_range() {
        assert_eq!([2, 1024, 262_144, 1 << 40].map(weight), [1, 39, 10_000, 10_000]);
    }

    #[test]
    fn no_limit_is_written_as_each_version_wants_it() {
        let none = Resources { cpu_quota: Some(-1), memory_limit: Some(0), pids_limit: Some(-1), ..Default::default() };
        let values = |writes: Writes| writes.into_iter().map(|(_, _, value)| value).collect::<Vec<_>>();
        assert_eq!(values(v1(&none)), ["-1", "-1", "max"]);
        assert_eq!(values(v2(&none)), ["max 100000", "max", "max"]);
    }

    #[test]
    fn huge_pages_are_named_as_the_kernel_names_them() {
        let some = Resources { hugepages: [("2Mi".to_owned(), 4 << 20)].into(), ..Default::default() };
        assert_eq!(v1(&some)[0].1, "hugetlb.2MB.limit_in_bytes");
    }
}
