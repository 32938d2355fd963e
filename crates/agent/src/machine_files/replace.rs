//! Reads, replaces and removes a file below an allowed directory, whatever somebody else does there meanwhile.
//!
//! Every directory on the way is opened without following links, so that a link below the allowed directory leads nowhere else. The allowed
//! directory itself may be a link: it is the administrator's. A reader sees the old content or the new one, never a part; the new file has its owner and
//! mode before it has its name. Directories are never made: whose they would be, and who may use them, is for the administrator to say.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::{Component, Path},
};

use mainstay_api::machine_file::{FileAttributes, parse_mode};
use nix::unistd::{Group, User};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    process::{Gid, Uid},
};

/// No file that we write is larger.
const LARGEST: u64 = 2 << 20;

/// Who may use a file, in numbers of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("mode {0:?} is not one")]
    Mode(String),
    #[error("this machine has no account {0:?}")]
    Owner(String),
    #[error("this machine has no group {0:?}")]
    Group(String),
}

impl Access {
    pub fn new(file: &FileAttributes, default_mode: &str) -> Result<Self, AccessError> {
        let mode = file.mode.as_deref().unwrap_or(default_mode);
        let owner = file.owner.as_deref().unwrap_or("0");
        let group = file.group.as_deref().unwrap_or("0");
        let user = |name: &str| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
        let members = |name: &str| Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
        Ok(Self {
            mode: parse_mode(mode).ok_or_else(|| AccessError::Mode(mode.to_owned()))?,
            owner: owner.parse().ok().or_else(|| user(owner)).ok_or_else(|| AccessError::Owner(owner.to_owned()))?,
            group: group.parse().ok().or_else(|| members(group)).ok_or_else(|| AccessError::Group(group.to_owned()))?,
        })
    }
}

/// A file by its directory, which is open, and its name in there.
pub struct FileLocation {
    directory: OwnedFd,
    name: OsString,
}

/// What there is at a location.
#[derive(Debug, PartialEq, Eq)]
pub enum LocationState {
    Nothing,
    File {
        content: Vec<u8>,
        access: Access,
    },
    /// A directory, a link, a device, or a file larger than any of ours.
    Other,
}

impl FileLocation {
    /// Fails if a directory on the way does not exist, or is none.
    pub fn open(allowed: &Path, below: &Path) -> io::Result<Self> {
        let mut names: Vec<&std::ffi::OsStr> = Vec::new();
        for component in below.components() {
            match component {
                Component::Normal(name) => names.push(name),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a path below the directory")),
            }
        }
        let Some((name, directories)) = names.split_last() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no name of a file"));
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = rustix::fs::open(allowed, flags, Mode::empty())?;
        for part in directories {
            directory = rustix::fs::openat(&directory, *part, flags | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(Self { directory, name: (*name).to_owned() })
    }

    pub fn read(&self) -> io::Result<LocationState> {
        // Without blocking, or a pipe would be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(LocationState::Nothing),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => return Ok(LocationState::Other),
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&file)?;
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile;
        if !is_file || u64::try_from(stat.st_size).is_ok_and(|size| size > LARGEST) {
            return Ok(LocationState::Other);
        }
        let mut content = Vec::new();
        file.take(LARGEST).read_to_end(&mut content)?;
        let access = Access { mode: stat.st_mode & 0o7777, owner: stat.st_uid, group: stat.st_gid };
        Ok(LocationState::File { content, access })
    }

    pub fn replace(&self, content: &[u8], access: Access) -> io::Result<()> {
        let temporary = self.temporary();
        // One that an earlier process left may have another mode, or be a link.
        match rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.directory, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
        let written = self.fill(file, content, access).and_then(|()| {
            rustix::fs::renameat(&self.directory, &temporary, &self.directory, &self.name)?;
            Ok(rustix::fs::fsync(&self.directory)?)
        });
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        written
    }

    fn fill(&self, mut file: File, content: &[u8], access: Access) -> io::Result<()> {
        let Access { mode, owner, group } = access;
        file.write_all(content)?;
        rustix::fs::fchown(&file, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        file.sync_all()
    }

    pub fn remove(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(rustix::fs::fsync(&self.directory)?),
            Err(error) => Err(error.into()),
        }
    }

    fn temporary(&self) -> OsString {
        let mut name = OsString::from(".");
        // Names have at most 255 bytes; two files with the same beginning are not written at the same time.
        let own = self.name.to_string_lossy();
        name.push(own.chars().take(48).collect::<String>());
        name.push(".mainstay-new");
        name
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn own_access(mode: u32) -> Access {
        Access { mode, owner: nix::unistd::getuid().as_raw(), group: nix::unistd::getgid().as_raw() }
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_read_and_removed_and_nothing_stays_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        let location = FileLocation::open(directory.path(), Path::new("sub/app.conf")).unwrap();
        assert_eq!(location.read().unwrap(), LocationState::Nothing);
        fs::write(directory.path().join("sub/.app.conf.mainstay-new"), "left by a crash").unwrap();
        for (content, mode) in [("one", 0o600), ("two", 0o644), ("", 0o640)] {
            location.replace(content.as_bytes(), own_access(mode)).unwrap();
            let found = LocationState::File { content: content.into(), access: own_access(mode) };
            assert_eq!(location.read().unwrap(), found);
            assert_eq!(fs::read_dir(directory.path().join("sub")).unwrap().count(), 1);
        }
        location.remove().unwrap();
        location.remove().unwrap();
        assert_eq!(location.read().unwrap(), LocationState::Nothing);
    }

    #[test]
    fn links_below_the_directory_lead_nowhere() {
        let (allowed, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(elsewhere.path().join("shadow"), "root").unwrap();
        symlink(elsewhere.path(), allowed.path().join("sub")).unwrap();
        assert!(FileLocation::open(allowed.path(), Path::new("sub/shadow")).is_err());
        assert!(FileLocation::open(allowed.path(), Path::new("../x")).is_err());
        assert!(FileLocation::open(allowed.path(), Path::new("missing/x")).is_err(), "directories are not made");
        symlink(elsewhere.path().join("shadow"), allowed.path().join("link")).unwrap();
        let location = FileLocation::open(allowed.path(), Path::new("link")).unwrap();
        assert_eq!(location.read().unwrap(), LocationState::Other);
        location.replace(b"new", own_access(0o600)).unwrap();
        assert_eq!(fs::read_to_string(elsewhere.path().join("shadow")).unwrap(), "root", "the link itself is replaced");
        symlink(elsewhere.path().join("shadow"), allowed.path().join(".app.mainstay-new")).unwrap();
        FileLocation::open(allowed.path(), Path::new("app")).unwrap().replace(b"new", own_access(0o600)).unwrap();
        assert_eq!(fs::read_to_string(elsewhere.path().join("shadow")).unwrap(), "root");
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("d")).unwrap();
        nix::unistd::mkfifo(&directory.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::File::create(directory.path().join("large")).unwrap().set_len(LARGEST + 1).unwrap();
        for name in ["d", "pipe", "large"] {
            let location = FileLocation::open(directory.path(), Path::new(name)).unwrap();
            assert_eq!(location.read().unwrap(), LocationState::Other, "{name}");
        }
    }

    #[test]
    fn accounts_are_those_of_the_machine() {
        let file = |owner: &str, group: &str| FileAttributes {
            path: "/x".to_owned(),
            mode: Some("0640".to_owned()),
            owner: Some(owner.to_owned()),
            group: Some(group.to_owned()),
        };
        let access = Access::new(&file("root", "12"), "0600").unwrap();
        assert_eq!(access, Access { mode: 0o640, owner: 0, group: 12 });
        assert_eq!(
            Access::new(&FileAttributes::default(), "0600").unwrap(),
            Access { mode: 0o600, owner: 0, group: 0 }
        );
        let error = Access::new(&file("no-such-account", "0"), "0600").unwrap_err();
        assert_eq!(error.to_string(), "this machine has no account \"no-such-account\"");
    }
}
