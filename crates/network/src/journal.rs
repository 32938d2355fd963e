//! Who has which address, in one small file.
//!
//! The file is replaced as a whole before anything is made, and after everything is gone: a kill at any
//! moment leaves at worst an address that is held by nobody, which `retain` gives back. For the same reason a disk
//! without room does not keep an address from being given back: the file then says so with its next change. It is not
//! synced, for it says nothing of use after the machine itself has gone down: the interfaces and
//! namespaces it speaks of are gone then. An unreadable file is therefore taken as empty.

use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use serde::{Deserialize, Serialize};

use crate::{
    nft::uapi::{IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP},
    range::Range,
};

pub const FORMAT: Format = Format::new("the record of pod addresses", 1);

/// A port of the machine that leads to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    pub protocol: Protocol,
    /// All of the machine's addresses if `None`.
    pub host_ip: Option<Ipv4Addr>,
    pub host_port: u16,
    pub pod_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The protocol number in an IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => IPPROTO_TCP,
            Protocol::Udp => IPPROTO_UDP,
            Protocol::Sctp => IPPROTO_SCTP,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub address: Ipv4Addr,
    pub ports: Vec<HostPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Pages {
    range: Option<Range>,
    /// By sandbox.
    held: BTreeMap<String, Lease>,
    /// Given back, the latest last: used again only when there are no others.
    freed: VecDeque<Ipv4Addr>,
    /// Ranges of other machines, and the machines.
    #[serde(default)]
    routes: BTreeMap<Range, Ipv4Addr>,
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("all addresses of {range} are in use")]
    Full { range: Range },
    #[error("write {path:?}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

pub struct Journal {
    path: PathBuf,
    pages: Pages,
}

impl Journal {
    pub fn open(path: PathBuf) -> Self {
        let pages = match std::fs::read(&path) {
            Ok(bytes) => FORMAT.decode(&bytes).unwrap_or_else(|error| {
                tracing::warn!(?path, %error, "the record of pod addresses is unreadable and begins anew");
                Pages::default()
            }),
            Err(_) => Pages::default(),
        };
        Self { path, pages }
    }

    pub fn range(&self) -> Option<Range> {
        self.pages.range
    }

    pub fn leases(&self) -> &BTreeMap<String, Lease> {
        &self.pages.held
    }

    /// From now on addresses come from here. Those given before stay what they are.
    pub fn set_range(&mut self, range: Range) -> Result<(), JournalError> {
        if self.pages.range == Some(range) {
            return Ok(());
        }
        let freed = self.pages.freed.iter().copied().filter(|address| range.contains(*address)).collect();
        self.commit(Pages { range: Some(range), freed, ..self.pages.clone() })
    }

    /// The sandbox's address; the same every time it is asked for.
    pub fn take(&mut self, sandbox: &str, range: Range, ports: &[HostPort]) -> Result<Lease, JournalError> {
        if let Some(lease) = self.pages.held.get(sandbox).filter(|lease| lease.ports == ports) {
            return Ok(lease.clone());
        }
        let address = match self.pages.held.get(sandbox) {
            Some(lease) => lease.address,
            None => self.pages.free(range).ok_or(JournalError::Full { range })?,
        };
        let lease = Lease { address, ports: ports.to_vec() };
        let mut pages = self.pages.clone();
        pages.freed.retain(|freed| *freed != address);
        pages.held.insert(sandbox.to_owned(), lease.clone());
        self.commit(pages)?;
        Ok(lease)
    }

    /// Never fails for want of disk space, because removing pods is what makes some.
    pub fn give_back(&mut self, sandboxes: &[String]) -> Result<(), JournalError> {
        let mut pages = self.pages.clone();
        for sandbox in sandboxes {
            if let Some(lease) = pages.held.remove(sandbox) {
                pages.freed.push_back(lease.address);
            }
        }
        if pages == self.pages {
            return Ok(());
        }
        match self.commit(pages.clone()) {
            Err(JournalError::Write { path, source }) if is_full(&source) => {
                tracing::warn!(?path, error = %source, "the record of pod addresses will be written when there is room");
                self.pages = pages;
                Ok(())
            }
            written => written,
        }
    }

    /// The routes that may be ours.
    pub fn routes(&self) -> &BTreeMap<Range, Ipv4Addr> {
        &self.pages.routes
    }

    pub fn set_routes(&mut self, routes: BTreeMap<Range, Ipv4Addr>) -> Result<(), JournalError> {
        if self.pages.routes == routes {
            return Ok(());
        }
        self.commit(Pages { routes, ..self.pages.clone() })
    }

    pub fn erase(&mut self) -> Result<(), JournalError> {
        self.pages = Pages::default();
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(JournalError::Write { path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn commit(&mut self, pages: Pages) -> Result<(), JournalError> {
        replace(&self.path, &pages).map_err(|source| JournalError::Write { path: self.path.clone(), source })?;
        self.pages = pages;
        Ok(())
    }
}

impl Pages {
    /// One that was never used, else the one given back longest ago.
    fn free(&self, range: Range) -> Option<Ipv4Addr> {
        let held = |address: &Ipv4Addr| self.held.values().any(|lease| lease.address == *address);
        let fresh = range.hosts().find(|address| !held(address) && !self.freed.contains(address));
        fresh.or_else(|| self.freed.iter().copied().find(|address| range.contains(*address) && !held(address)))
    }
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn replace(path: &Path, pages: &Pages) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    create_private_dir(directory)?;
    write_atomic(path, &FORMAT.encode(pages)?, PRIVATE_FILE, Durability::Volatile)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range() -> Range {
        "10.0.0.0/29".parse().unwrap() // pods: .2 to .6
    }

    fn take(journal: &mut Journal, sandbox: &str) -> u8 {
        journal.take(sandbox, range(), &[]).unwrap().address.octets()[3]
    }

    #[test]
    fn an_address_stays_with_its_sandbox_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/addresses.json");
        let mut journal = Journal::open(path.clone());
        assert_eq!((take(&mut journal, "a"), take(&mut journal, "b"), take(&mut journal, "a")), (2, 3, 2));
        let mut again = Journal::open(path);
        assert_eq!((take(&mut again, "b"), take(&mut again, "c")), (3, 4));
    }

    #[test]
    fn what_was_given_back_latest_is_used_again_last() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path().join("j"));
        assert_eq!((take(&mut journal, "a"), take(&mut journal, "b")), (2, 3));
        journal.give_back(&["a".into()]).unwrap();
        journal.give_back(&["b".into(), "never".into()]).unwrap();
        let mut journal = Journal::open(dir.path().join("j"));
        let order: Vec<u8> = ["c", "d", "e", "f", "g"].iter().map(|s| take(&mut journal, s)).collect();
        assert_eq!(order, [4, 5, 6, 2, 3]);
        assert!(matches!(journal.take("h", range(), &[]), Err(JournalError::Full { .. })));
    }

    #[test]
    fn a_full_disk_refuses_new_addresses_and_takes_old_ones_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(dir.path()).status();
        assert!(
            mounted.is_ok_and(|status| status.success()),
            "this test mounts a small file system and must run as root"
        );
        let mut journal = Journal::open(dir.path().join("j"));
        let (first, _) = (take(&mut journal, "a"), take(&mut journal, "b"));
        std::fs::write(dir.path().join("filler"), vec![0; 1 << 20]).unwrap_err();
        let refused = journal.take("c", range(), &[]);
        let returned = journal.give_back(&["a".into()]);
        let held: Vec<String> = journal.leases().keys().cloned().collect();
        let stale = Journal::open(dir.path().join("j")).leases().len();
        std::fs::remove_file(dir.path().join("filler")).unwrap();
        let next = take(&mut journal, "d");
        let written = Journal::open(dir.path().join("j")).leases().len();
        assert!(std::process::Command::new("umount").arg(dir.path()).status().unwrap().success());
        assert!(matches!(refused, Err(JournalError::Write { .. })), "{refused:?}");
        assert!(returned.is_ok(), "{returned:?}");
        assert_eq!((held, stale), (vec!["b".to_owned()], 2));
        assert_eq!((written, next != first), (2, true), "the next change writes it all");
    }

    #[test]
    fn ports_are_kept_with_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path().join("j"));
        let first = take(&mut journal, "a");
        let port = HostPort { protocol: Protocol::Tcp, host_ip: None, host_port: 80, pod_port: 8080 };
        assert_eq!(journal.take("a", range(), std::slice::from_ref(&port)).unwrap().address.octets()[3], first);
        assert_eq!(Journal::open(dir.path().join("j")).leases()["a"].ports, std::slice::from_ref(&port));
        let written = std::fs::read(dir.path().join("j")).unwrap();
        let fixture = mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/addresses.json", &written);
        std::fs::write(dir.path().join("j"), fixture).unwrap();
        assert_eq!(Journal::open(dir.path().join("j")).leases()["a"].ports, [port]);
    }

    #[test]
    fn a_damaged_file_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        std::fs::write(&path, "{\"held\":").unwrap();
        assert_eq!(take(&mut Journal::open(path), "a"), 2);
    }

    #[test]
    fn a_new_range_leaves_given_addresses_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path().join("j"));
        assert_eq!(take(&mut journal, "a"), 2);
        let other: Range = "10.9.0.0/24".parse().unwrap();
        journal.set_range(other).unwrap();
        assert_eq!(journal.take("b", other, &[]).unwrap().address.to_string(), "10.9.0.2");
        assert_eq!(journal.take("a", other, &[]).unwrap().address.to_string(), "10.0.0.2");
        assert_eq!(Journal::open(dir.path().join("j")).range(), Some(other));
    }
}
