//! Extracts a layer's archive into a directory that overlayfs understands.
//!
//! Archives come from strangers. Nothing is ever written outside the layer's directory: every path is
//! resolved by the kernel with that directory as its root (`openat2`, `RESOLVE_IN_ROOT`), so that a symbolic link
//! to `/etc` or `../..` leads to `etc` of the layer, and the last step of a path is never followed.
//! Whiteouts (`.wh.name`, `.wh..wh..opq`) become what overlayfs has for them: a character device 0/0, and
//! the attribute `trusted.overlay.opaque`.
//!
//! A small archive may claim to hold very much: what describes an entry (long names, extended headers, maps of holes) is read
//! into memory and is bounded, and so is the size of all files together, holes included.

use std::{
    cell::Cell,
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
    rc::Rc,
};

use mainstay_files::{DiskUsage, disk_usage, remove_tree};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags},
    io::Errno,
};
use tar::{Archive, Entry, EntryType};

pub const OPAQUE: &str = "trusted.overlay.opaque";
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";
/// Other marks of the union filesystem that the format was taken from: they say nothing to us.
const MARK: &[u8] = b".wh..wh.";
/// The most bytes that describe one entry.
const MAX_HEADERS: u64 = 4 << 20;
/// The most bytes that the files of a layer may seem to have.
const MAX_LAYER: u64 = 1 << 40;

#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    #[error("the archive cannot be read")]
    Read(#[source] io::Error),
    #[error("the archive holds {path:?}, which {why}")]
    Refused { path: PathBuf, why: &'static str },
    #[error("{doing} {path:?}")]
    Write {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, ExtractError>;

/// Extracts `archive` into the empty directory `into`. `lower` are the directories of the layers below, topmost first:
/// a directory that the archive only implies looks as it does there.
pub fn extract(archive: impl Read, into: &Path, lower: &[PathBuf]) -> Result<DiskUsage> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(into, flags, Mode::empty()).map_err(|e| failed("open", into)(e))?;
    let mut layer = Layer { root, lower, times: HashMap::new(), last: None, room: MAX_LAYER };
    let headers_left = Rc::new(Cell::new(Some(MAX_HEADERS)));
    let mut archive = Archive::new(HeaderLimit { inner: archive, headers_left: headers_left.clone() });
    for entry in archive.entries().map_err(ExtractError::Read)? {
        let mut entry = entry.map_err(ExtractError::Read)?;
        headers_left.set(None);
        layer.add(&mut entry)?;
        // Whatever of the content nobody wanted: from here to the next entry there are headers alone.
        io::copy(&mut entry, &mut io::sink()).map_err(ExtractError::Read)?;
        headers_left.set(Some(MAX_HEADERS));
    }
    layer.finish()?;
    disk_usage(into).map_err(|source| ExtractError::Write { doing: "measure", path: into.into(), source })
}

/// Ends with an error when more is read between the contents of two entries than may describe one.
struct HeaderLimit<R> {
    inner: R,
    /// Nothing while the content of an entry is read.
    headers_left: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for HeaderLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if let Some(left) = self.headers_left.get() {
            let left = left.checked_sub(read as u64).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("an entry has more than {MAX_HEADERS} bytes of headers"),
                )
            })?;
            self.headers_left.set(Some(left));
        }
        Ok(read)
    }
}

struct Layer<'a> {
    root: OwnedFd,
    lower: &'a [PathBuf],
    /// Of directories, set at the end: filling a directory changes its time.
    times: HashMap<PathBuf, Timespec>,
    /// The directory that the last entry was put into: the next mostly goes to the same.
    last: Option<(PathBuf, OwnedFd)>,
    /// How many more bytes its files may seem to have.
    room: u64,
}

/// What an archive says of a file besides its content.
struct Attributes {
    owner: (Uid, Gid),
    mode: Mode,
    time: Timespec,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Layer<'_> {
    fn add<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<()> {
        let path = inside(&entry.path_bytes())?;
        let attributes = attributes(entry, &path)?;
        let Some(name) = path.file_name() else {
            let root = self.root.try_clone().map_err(|source| write("open", &path, source))?;
            self.times.insert(path.clone(), attributes.time);
            return apply(&root, &attributes, &path);
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        if name.as_bytes() == OPAQUE_MARK {
            let directory = self.directory(parent)?;
            return opaque(&directory, parent);
        }
        if name.as_bytes().starts_with(MARK) {
            return Ok(());
        }
        let directory = self.directory(parent)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            return whiteout(&directory, hidden, &path);
        }
        let kind = entry.header().entry_type();
        let replaced = self.make_room(&directory, name, kind, &path)?;
        match kind {
            EntryType::Directory => {
                match rustix::fs::mkdirat(&directory, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(failed("create", &path)(e)),
                }
                let made = open_directory(&directory, name).map_err(failed("open", &path))?;
                if replaced == ReplacedEntry::Whiteout {
                    opaque(&made, &path)?;
                }
                self.times.insert(path.clone(), attributes.time);
                apply(&made, &attributes, &path)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&directory, name, flags, Mode::RUSR | Mode::WUSR)
                    .map_err(failed("create", &path))?;
                let mut file = File::from(file);
                self.room = self.room.checked_sub(entry.size()).ok_or_else(|| ExtractError::Refused {
                    path: path.clone(),
                    why: "makes the layer larger than 1 TiB",
                })?;
                fill(&mut file, entry, &path)?;
                apply(&file, &attributes, &path)?;
                let times = Timestamps { last_access: omit(), last_modification: attributes.time };
                rustix::fs::futimens(&file, &times).map_err(failed("set the time of", &path))
            }
            EntryType::Symlink => {
                let target = link_target(entry, &path)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &directory, name).map_err(failed("create", &path))?;
                apply_at(&directory, name, &attributes, &path, true)
            }
            EntryType::Link => {
                let target = inside(&link_target(entry, &path)?)?;
                let Some(target_name) = target.file_name() else {
                    return Err(ExtractError::Refused { path, why: "links to the root directory" });
                };
                let target_parent = self.resolve(target.parent().unwrap_or(Path::new("")));
                let target_parent = target_parent.map_err(failed("find what is linked by", &path))?;
                rustix::fs::linkat(&target_parent, target_name, &directory, name, AtFlags::empty())
                    .map_err(failed("link", &path))
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                let (kind, device) = match kind {
                    EntryType::Char => (FileType::CharacterDevice, device(entry)?),
                    EntryType::Block => (FileType::BlockDevice, device(entry)?),
                    _ => (FileType::Fifo, 0),
                };
                rustix::fs::mknodat(&directory, name, kind, Mode::empty(), device).map_err(failed("create", &path))?;
                apply_at(&directory, name, &attributes, &path, false)
            }
            // Headers of formats that only describe other entries.
            _ => Ok(()),
        }
    }

    /// What an earlier entry of this layer put there goes, unless a directory meets a directory.
    fn make_room(&mut self, directory: &OwnedFd, name: &OsStr, kind: EntryType, path: &Path) -> Result<ReplacedEntry> {
        let found = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(ReplacedEntry::Nothing),
            Err(e) => return Err(failed("look at", path)(e)),
        };
        if !is_directory(&found) {
            rustix::fs::unlinkat(directory, name, AtFlags::empty()).map_err(failed("replace", path))?;
            return Ok(if is_whiteout(&found) { ReplacedEntry::Whiteout } else { ReplacedEntry::Other });
        }
        if kind == EntryType::Directory {
            return Ok(ReplacedEntry::Nothing);
        }
        self.last = None;
        let inside = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        remove_tree(&inside).map_err(|error| write("replace", path, error.into()))?;
        Ok(ReplacedEntry::Other)
    }

    /// The directory `path` of the layer, made if it is missing.
    fn directory(&mut self, path: &Path) -> Result<OwnedFd> {
        if let Some((last, fd)) = &self.last
            && last == path
        {
            return fd.try_clone().map_err(|source| write("open", path, source));
        }
        let fd = match self.resolve(path) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => self.make_directory(path)?,
            Err(e) => return Err(failed("open", path)(e)),
        };
        let retained = fd.try_clone().map_err(|source| write("open", path, source))?;
        self.last = Some((path.into(), retained));
        Ok(fd)
    }

    fn make_directory(&mut self, path: &Path) -> Result<OwnedFd> {
        let Some(name) = path.file_name() else {
            return self.resolve(Path::new("")).map_err(failed("open", path));
        };
        let parent = self.directory(path.parent().unwrap_or(Path::new("")))?;
        match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {}
            // A symbolic link that leads to nothing in this layer.
            Err(Errno::EXIST) => {
                return Err(ExtractError::Refused { path: path.into(), why: "is below a link that leads nowhere" });
            }
            Err(e) => return Err(failed("create", path)(e)),
        }
        let made = open_directory(&parent, name).map_err(failed("open", path))?;
        if let Some(below) = self.lower.iter().find_map(|lower| implied(lower, path)) {
            self.times.insert(path.into(), below.time);
            apply(&made, &below, path)?;
        }
        Ok(made)
    }

    fn resolve(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        resolve(&self.root, path)
    }

    fn finish(self) -> Result<()> {
        for (path, time) in &self.times {
            let Ok(directory) = self.resolve(path) else { continue }; // replaced since
            let times = Timestamps { last_access: omit(), last_modification: *time };
            rustix::fs::futimens(&directory, &times).map_err(failed("set the time of", path))?;
        }
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum ReplacedEntry {
    Nothing,
    Whiteout,
    Other,
}

/// A directory below `root`, whatever links lie on the way.
pub fn resolve(root: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(&root, path, flags, Mode::empty(), how) {
            Err(Errno::AGAIN | Errno::INTR) => {} // a rename elsewhere on the machine came between
            done => return done,
        }
    }
}

fn open_directory(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// The path without what is around it; one that climbs is refused.
fn inside(raw: &[u8]) -> Result<PathBuf> {
    let raw = Path::new(OsStr::from_bytes(raw));
    let mut path = PathBuf::new();
    for component in raw.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(ExtractError::Refused { path: raw.into(), why: "climbs out of its directory" });
            }
        }
    }
    Ok(path)
}

fn link_target<R: Read>(entry: &Entry<'_, R>, path: &Path) -> Result<Vec<u8>> {
    match entry.link_name_bytes() {
        Some(target) if !target.is_empty() => Ok(target.into_owned()),
        _ => Err(ExtractError::Refused { path: path.into(), why: "is a link to nothing" }),
    }
}

fn device<R: Read>(entry: &Entry<'_, R>) -> Result<rustix::fs::Dev> {
    let major = entry.header().device_major().map_err(ExtractError::Read)?.unwrap_or(0);
    let minor = entry.header().device_minor().map_err(ExtractError::Read)?.unwrap_or(0);
    Ok(rustix::fs::makedev(major, minor))
}

fn whiteout(directory: &OwnedFd, hidden: &[u8], path: &Path) -> Result<()> {
    if matches!(hidden, b"" | b"." | b"..") {
        return Err(ExtractError::Refused { path: path.into(), why: "hides nothing that has a name" });
    }
    let name = OsStr::from_bytes(hidden);
    match rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0) {
        Ok(()) => Ok(()),
        // The layer itself has something of that name: only what lies below is hidden.
        Err(Errno::EXIST) => match open_directory(directory, name) {
            Ok(made) => opaque(&made, path),
            Err(_) => Ok(()),
        },
        Err(e) => Err(failed("hide", path)(e)),
    }
}

pub fn opaque(directory: impl AsFd, path: &Path) -> Result<()> {
    rustix::fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty()).map_err(failed("make opaque", path))
}

/// Copies the content, leaving holes where it is empty.
fn fill(file: &mut File, content: &mut impl Read, path: &Path) -> Result<()> {
    let mut buffer = [0; 64 << 10];
    let mut length = 0;
    let mut hole = false;
    loop {
        let read = match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(ExtractError::Read(e)),
        };
        length += read as u64;
        hole = buffer[..read].iter().all(|byte| *byte == 0);
        let written = if hole { file.seek(SeekFrom::Start(length)).map(drop) } else { file.write_all(&buffer[..read]) };
        written.map_err(|source| write("write", path, source))?;
    }
    if hole {
        file.set_len(length).map_err(|source| write("write", path, source))?;
    }
    Ok(())
}

fn attributes<R: Read>(entry: &mut Entry<'_, R>, path: &Path) -> Result<Attributes> {
    let refused = |why| ExtractError::Refused { path: path.into(), why };
    let header = entry.header();
    let id = |id: io::Result<u64>| id.ok().and_then(|id| u32::try_from(id).ok()).filter(|id| *id != u32::MAX);
    let old = header.as_old();
    let uid = id(unless_blank(&old.uid, header.uid())).ok_or_else(|| refused("belongs to no possible user"))?;
    let gid = id(unless_blank(&old.gid, header.gid())).ok_or_else(|| refused("belongs to no possible group"))?;
    let mode = unless_blank(&old.mode, header.mode()).map_err(|_| refused("has no readable mode"))?;
    let seconds = header.mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
    let mut time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let mut extended = Vec::new();
    for extension in entry.pax_extensions().map_err(ExtractError::Read)?.into_iter().flatten() {
        let extension = extension.map_err(ExtractError::Read)?;
        if let Some(name) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.") {
            // These steer overlayfs itself, and are ours alone to set.
            if !name.starts_with(b"trusted.overlay.") && !name.starts_with(b"user.overlay.") {
                extended.push((name.to_vec(), extension.value_bytes().to_vec()));
            }
        } else if extension.key_bytes() == b"mtime"
            && let Some(exact) = extension.value().ok().and_then(timespec)
        {
            time = exact;
        }
    }
    let owner = (Uid::from_raw(uid), Gid::from_raw(gid));
    Ok(Attributes { owner, mode: Mode::from_raw_mode(mode & 0o7777), time, extended })
}

/// A field that was left empty is zero, as for every other reader of archives.
fn unless_blank<T: Default>(field: &[u8], value: io::Result<T>) -> io::Result<T> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) { value.or_else(|_| Ok(T::default())) } else { value }
}

/// `1700000000.25`
fn timespec(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let (tv_sec, tv_nsec) = (seconds.parse().ok()?, digits.parse().ok()?);
    Some(Timespec { tv_sec, tv_nsec })
}

/// What the directory `path` looks like in a layer below.
fn implied(lower: &Path, path: &Path) -> Option<Attributes> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(lower, flags, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(resolve(&root, path).ok()?).ok()?;
    Some(Attributes {
        owner: (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid)),
        mode: Mode::from_raw_mode(found.st_mode & 0o7777),
        time: Timespec { tv_sec: found.st_mtime, tv_nsec: i64::try_from(found.st_mtime_nsec).unwrap_or(0) },
        extended: Vec::new(),
    })
}

/// The order matters: a change of owner clears mode bits and capabilities.
fn apply(file: impl AsFd, attributes: &Attributes, path: &Path) -> Result<()> {
    let (uid, gid) = attributes.owner;
    rustix::fs::fchown(&file, Some(uid), Some(gid)).map_err(failed("set the owner of", path))?;
    rustix::fs::fchmod(&file, attributes.mode).map_err(failed("set the mode of", path))?;
    for (name, value) in &attributes.extended {
        match rustix::fs::fsetxattr(&file, OsStr::from_bytes(name), value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {} // as everyone does where the filesystem has none
            Err(e) => return Err(failed("set an extended attribute of", path)(e)),
        }
    }
    Ok(())
}

/// For what cannot be opened.
fn apply_at(directory: &OwnedFd, name: &OsStr, attributes: &Attributes, path: &Path, link: bool) -> Result<()> {
    let (uid, gid) = attributes.owner;
    rustix::fs::chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(failed("set the owner of", path))?;
    if !link {
        rustix::fs::chmodat(directory, name, attributes.mode, AtFlags::empty())
            .map_err(failed("set the mode of", path))?;
    }
    let times = Timestamps { last_access: omit(), last_modification: attributes.time };
    rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("set the time of", path))
}

fn omit() -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }
}

fn is_directory(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
}

pub fn is_whiteout(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && found.st_rdev == 0
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl Fn(Errno) -> ExtractError + 'a {
    move |e| write(doing, path, e.into())
}

fn write(doing: &'static str, path: &Path, source: io::Error) -> ExtractError {
    ExtractError::Write { doing, path: path.into(), source }
}

#[cfg(test)]
#[path = "extract/tests.rs"]
mod tests;
