//! Atomic update of the files of a volume, by exchanging a symbolic link as upstream does.
//!
//! The files of a volume lie in a directory with a new name each time (`..2026_01_31_…`). `..data` is a link to it, and
//! each name that containers see is a link through `..data`. Exchanging that one link exchanges everything:
//! no reader ever sees half of an update, and one that holds an old file open keeps it. Programs that watch
//! for changes know this layout.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink},
    path::{Component, Path, PathBuf},
};

use jiff::Timestamp;
use mainstay_files::remove_tree;
use xxhash_rust::xxh3::Xxh3;

use super::owner::{self, Group};

pub const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Root by default.
    pub owner: Option<u32>,
}

/// Paths within the volume, and what is to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    pub files: BTreeMap<String, File>,
}

impl Payload {
    pub fn add_file(&mut self, path: &str, data: impl Into<Vec<u8>>, mode: u32) {
        self.files.insert(path.to_owned(), File { data: data.into(), mode, owner: None });
    }

    /// Differs whenever the payload does.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut part = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for (path, File { data, mode, owner }) in &self.files {
            part(path.as_bytes());
            part(data);
            part(&mode.to_le_bytes());
            part(&owner.map(u64::from).unwrap_or(u64::MAX).to_le_bytes());
        }
        hash.digest()
    }

    /// The first part of each path: what is seen in the volume's root.
    fn roots(&self) -> BTreeSet<&str> {
        self.files.keys().filter_map(|path| path.split('/').find(|part| !part.is_empty())).collect()
    }
}

/// Makes the directory show exactly these files; does nothing if it does already.
pub fn write(directory: &Path, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    let group = group.map(|id| Group { id, on_mismatch: false });
    for path in payload.files.keys() {
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside || path.starts_with("..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path {path:?} in a volume")));
        }
    }
    let current = fs::read_link(directory.join(DATA)).ok().map(|name| directory.join(name));
    let unchanged = current.as_ref().is_some_and(|current| {
        found(current, Path::new("")).is_ok_and(|found| same(&found, payload, current, group.as_ref()))
    });
    if !unchanged {
        let fresh = fill(directory, payload, group.as_ref())?;
        if let Some(group) = &group {
            owner::give_one(directory, group, true)?;
        }
        let temporary = directory.join(DATA_TMP);
        gone(fs::remove_file(&temporary))?;
        symlink(fresh.file_name().unwrap_or_default(), &temporary)?;
        fs::rename(&temporary, directory.join(DATA))?;
    }
    show(directory, payload)?;
    sweep(directory)
}

/// Writes all files into a new directory.
fn fill(directory: &Path, payload: &Payload, group: Option<&Group>) -> io::Result<PathBuf> {
    let time = Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S").to_string();
    let fresh = loop {
        let fresh = directory.join(format!("{time}.{}", fastrand::u32(..)));
        match fs::DirBuilder::new().mode(0o755).create(&fresh) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => break made.map(|()| fresh)?,
        }
    };
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    for (path, file) in &payload.files {
        let mut parent = fresh.clone();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        let Some((name, above)) = parts.split_last() else { continue };
        for part in above {
            parent.push(part);
            match fs::create_dir(&parent) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.and_then(|()| fs::set_permissions(&parent, fs::Permissions::from_mode(0o755)))?,
            }
        }
        let at = parent.join(name);
        fs::write(&at, &file.data)?;
        if let Some(uid) = file.owner {
            chown(&at, Some(uid), None)?;
        }
        fs::set_permissions(&at, fs::Permissions::from_mode(file.mode & 0o7777))?;
    }
    if let Some(group) = group {
        owner::set_group(&fresh, group, true)?;
    }
    Ok(fresh)
}

/// Makes the links that containers see.
fn show(directory: &Path, payload: &Payload) -> io::Result<()> {
    let roots = payload.roots();
    for root in &roots {
        let (link, target) = (directory.join(root), Path::new(DATA).join(root));
        if fs::read_link(&link).ok().as_deref() != Some(&target) {
            match symlink(&target, &link) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
    }
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let retained = name.to_str().is_some_and(|name| name.starts_with("..") || roots.contains(name));
        if !retained {
            remove_tree(&directory.join(name)).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// Removes what earlier updates left, also those that were cut short.
fn sweep(directory: &Path) -> io::Result<()> {
    let current = fs::read_link(directory.join(DATA))?;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let stale = name.to_str().is_some_and(|name| name.starts_with("..") && name != DATA);
        if stale && Path::new(&name) != current {
            remove_tree(&directory.join(name)).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// All files below a directory, by their paths within it.
fn found(directory: &Path, within: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory.join(within))? {
        let entry = entry?;
        let path = within.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            all.extend(found(directory, &path)?);
        } else {
            all.insert(path.to_string_lossy().into_owned(), entry.path());
        }
    }
    Ok(all)
}

fn same(found: &BTreeMap<String, PathBuf>, payload: &Payload, current: &Path, group: Option<&Group>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let normal =
        |path: &str| path.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/");
    let wanted: BTreeMap<String, &File> = payload.files.iter().map(|(path, file)| (normal(path), file)).collect();
    let group_fits = group.is_none_or(|group| fs::metadata(current).is_ok_and(|meta| meta.gid() == group.id));
    group_fits
        && wanted.len() == found.len()
        && wanted.iter().all(|(path, file)| {
            let Some(at) = found.get(path) else { return false };
            let Ok(meta) = fs::metadata(at) else { return false };
            let mode = if group.is_some() { owner::with_group(file.mode, false, true) } else { file.mode };
            meta.len() == file.data.len() as u64
                && meta.mode() & 0o7777 == mode & 0o7777
                && meta.uid() == file.owner.unwrap_or(meta.uid())
                && fs::read(at).is_ok_and(|data| data == file.data)
        })
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
