//! `nfs` volumes: mounted by `mount.nfs` where the machine has it, else by the kernel itself.
//!
//! A machine that can do neither refuses the volume at once and says what is missing.

use std::{
    net::{IpAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    process::Command,
};

use nix::mount::{MsFlags, mount};

/// Where distributions put the helper.
const HELPERS: [&str; 3] = ["/sbin/mount.nfs", "/usr/sbin/mount.nfs", "/bin/mount.nfs"];
const PORT: u16 = 2049;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub server: String,
    pub path: String,
    pub read_only: bool,
}

impl Export {
    fn source(&self) -> String {
        match self.server.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{}", self.path),
            Ok(IpAddr::V4(_)) | Err(_) => format!("{}:{}", self.server, self.path),
        }
    }
}

/// How this machine can mount exports.
#[derive(Debug, PartialEq, Eq)]
pub enum Client {
    Helper(PathBuf),
    Kernel,
}

impl Client {
    pub fn of_machine() -> Result<Self, String> {
        let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        Self::choose(HELPERS.iter().map(Path::new).find(|helper| helper.exists()), &filesystems)
    }

    fn choose(helper: Option<&Path>, filesystems: &str) -> Result<Self, String> {
        match helper {
            Some(helper) => Ok(Self::Helper(helper.to_owned())),
            None if filesystems.lines().any(|line| line.split_whitespace().last() == Some("nfs4")) => Ok(Self::Kernel),
            None => Err("this machine cannot mount nfs: it has neither mount.nfs (package nfs-common or nfs-utils) \
                         nor nfs4 in its kernel"
                .to_owned()),
        }
    }
}

/// Mounts the export, unless something is mounted there already.
pub fn mount_export(export: &Export, target: &Path) -> Result<(), String> {
    let client = Client::of_machine()?;
    let text = |error: std::io::Error| error.to_string();
    mainstay_files::create_private_dir(target).map_err(text)?;
    if super::table::is_mounted(target).map_err(text)? {
        return Ok(());
    }
    match client {
        Client::Helper(program) => {
            let options = if export.read_only { "ro" } else { "rw" };
            let done = Command::new(program).arg(export.source()).arg(target).args(["-o", options]).output();
            let done = done.map_err(text)?;
            if done.status.success() {
                return Ok(());
            }
            Err(format!("mount.nfs {}: {}", export.source(), String::from_utf8_lossy(&done.stderr).trim()))
        }
        Client::Kernel => {
            let mut found = (export.server.as_str(), PORT).to_socket_addrs().map_err(text)?;
            let address = found.next().ok_or_else(|| format!("{:?} has no address", export.server))?.ip();
            let flags = if export.read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
            let options = format!("addr={address},vers=4.2");
            mount(Some(export.source().as_str()), target, Some("nfs4"), flags, Some(options.as_str()))
                .map_err(|errno| format!("mount {}: {errno}", export.source()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_preferred_and_a_machine_without_either_says_what_is_missing() {
        let helper = Path::new("/sbin/mount.nfs");
        assert_eq!(Client::choose(Some(helper), ""), Ok(Client::Helper(helper.to_owned())));
        assert_eq!(Client::choose(None, "nodev\tproc\nnodev\tnfs4\n"), Ok(Client::Kernel));
        assert!(Client::choose(None, "nodev\tnfsd\n").unwrap_err().contains("neither mount.nfs"));
    }

    #[test]
    fn addresses_of_version_six_are_bracketed() {
        let export = |server: &str| Export { server: server.into(), path: "/data".into(), read_only: false }.source();
        assert_eq!((export("nfs.example"), export("fd00::1")), ("nfs.example:/data".into(), "[fd00::1]:/data".into()));
    }
}
