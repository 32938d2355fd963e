//! Facts about the machine that do not change while it is up: architecture, kernel, CPUs, memory, ids. Read once.

use std::{collections::BTreeMap, path::Path};

/// What an agent of this version speaks.
pub const VERSION: &str = concat!("v1.37.0+mainstay-", env!("CARGO_PKG_VERSION"));

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub architecture: String,
    pub kernel: String,
    pub os_image: String,
    pub machine_id: String,
    pub boot_id: String,
    pub system_uuid: String,
    pub hostname: String,
    pub cpus: u64,
    pub memory: u64,
    /// Page size (`2Mi`) to bytes set aside for pages of that size.
    pub hugepages: BTreeMap<String, u64>,
}

impl Facts {
    pub fn read() -> Self {
        Self::below(Path::new("/"))
    }

    /// The files of a machine's root. What a machine does not tell stays empty.
    fn below(root: &Path) -> Self {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default().trim().to_owned();
        let machine_id = text("etc/machine-id");
        let uuid = text("sys/class/dmi/id/product_uuid").to_lowercase();
        Self {
            architecture: architecture(std::env::consts::ARCH).to_owned(),
            kernel: text("proc/sys/kernel/osrelease"),
            os_image: os_image(&text("etc/os-release")),
            boot_id: text("proc/sys/kernel/random/boot_id"),
            system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
            hostname: text("proc/sys/kernel/hostname"),
            cpus: cpus(&text("sys/devices/system/cpu/online")),
            memory: meminfo(&text("proc/meminfo"), "MemTotal"),
            hugepages: hugepages(&root.join("sys/kernel/mm/hugepages")),
            machine_id,
        }
    }
}

/// How much there is of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineSize {
    pub cpus: u64,
    pub memory: u64,
}

pub fn machine_size() -> MachineSize {
    let Facts { cpus, memory, .. } = Facts::read();
    MachineSize { cpus, memory }
}

/// As images and node labels call it.
fn architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

fn os_image(os_release: &str) -> String {
    let value = |name: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        let plain = line.trim().trim_matches(['"', '\'']);
        (!plain.is_empty()).then(|| plain.to_owned())
    };
    value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or_else(|| "Linux".to_owned())
}

/// `0-3,8,10-11` are seven.
fn cpus(online: &str) -> u64 {
    let count = online.split(',').filter_map(|part| match part.split_once('-') {
        Some((first, last)) => Some(last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)? + 1),
        None => part.parse::<u64>().ok().map(|_| 1),
    });
    match count.sum() {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        counted => counted,
    }
}

/// A line of `/proc/meminfo`, in bytes.
pub fn meminfo(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn hugepages(directory: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count: u64 = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        let size = match kib {
            kib if kib % (1 << 20) == 0 => format!("{}Gi", kib >> 20),
            kib if kib % (1 << 10) == 0 => format!("{}Mi", kib >> 10),
            kib => format!("{kib}Ki"),
        };
        Some((size, count * kib * 1024))
    });
    sizes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_files_of_the_machine() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("etc/os-release", "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
        write("etc/machine-id", "0123abcd\n");
        write("proc/sys/kernel/osrelease", "6.1.0\n");
        write("proc/meminfo", "MemTotal:       24682000 kB\nMemFree: 1 kB\n");
        write("sys/devices/system/cpu/online", "0-3,8,10-11\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
        write("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n");
        let facts = Facts::below(root.path());
        assert_eq!(facts.os_image, "Debian GNU/Linux 12 (bookworm)");
        assert_eq!((facts.kernel.as_str(), facts.system_uuid.as_str()), ("6.1.0", "0123abcd"));
        assert_eq!((facts.cpus, facts.memory), (7, 24_682_000 * 1024));
        assert_eq!(facts.hugepages, BTreeMap::from([("2Mi".into(), 6 << 20), ("1Gi".into(), 0)]));
    }

    #[test]
    fn a_machine_without_readable_files_is_still_a_node() {
        let facts = Facts::below(Path::new("/nonexistent"));
        assert_eq!(facts.os_image, "Linux");
        assert!(facts.cpus > 0);
    }
}
