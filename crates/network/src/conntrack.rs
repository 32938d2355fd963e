//! The kernel's memory of connections.
//!
//! Where a connection goes is decided for its first packet and remembered. UDP has no end that the kernel could see: a
//! client that keeps sending from one port keeps its entry alive, and its datagrams go where the entry says even when
//! nobody is there any more. Such entries have to be deleted. TCP connections are left alone: one to a pod that is about to
//! end may still end well.

mod flows;

use std::{io, path::Path, time::Duration};

pub(crate) use flows::{Flow, delete, udp};

/// Settings of the machine that are left alone unless somebody asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How many connections the kernel remembers at most.
    pub max: Option<u32>,
    /// How long it remembers a TCP connection that is silent.
    pub tcp_timeout_established: Option<Duration>,
}

impl Settings {
    /// What could not be set, with the reason: outside the machine's own network namespace the kernel lets nobody change
    /// some of it, and there is nothing else that would be wrong then.
    pub fn apply(&self) -> Vec<String> {
        self.apply_below(Path::new("/proc/sys/net/netfilter"))
    }

    fn apply_below(&self, directory: &Path) -> Vec<String> {
        let seconds = self.tcp_timeout_established.map(|time| time.as_secs().max(1));
        let wanted = [("nf_conntrack_max", self.max.map(u64::from)), ("nf_conntrack_tcp_timeout_established", seconds)];
        let set = wanted.into_iter().filter_map(|(name, value)| {
            let (path, value) = (directory.join(name), value?);
            let error = write(&path, value).err()?;
            Some(format!("{} stays as it is instead of {value}: {error}", path.display()))
        });
        set.collect()
    }
}

fn write(path: &Path, value: u64) -> io::Result<()> {
    if std::fs::read_to_string(path)?.trim() == value.to_string() {
        return Ok(());
    }
    std::fs::write(path, value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_touched_unless_asked_and_what_cannot_be_set_is_said() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Settings::default().apply_below(directory.path()), Vec::<String>::new());
        let both = Settings { max: Some(7), tcp_timeout_established: Some(Duration::from_secs(600)) };
        let warnings = both.apply_below(directory.path());
        assert!(
            warnings.len() == 2 && warnings[0].contains("nf_conntrack_max stays as it is instead of 7"),
            "{warnings:?}"
        );
        let max = directory.path().join("nf_conntrack_max");
        std::fs::write(&max, "5\n").unwrap();
        assert_eq!(both.apply_below(directory.path()).len(), 1);
        assert_eq!(std::fs::read_to_string(max).unwrap(), "7");
    }
}
