//! The directory of the image store: its layout and its locks.
//!
//! ```text
//! index.json       what there is; replaced whole
//! lock             held by whoever changes the index, or counts on it while making a root filesystem
//! layers/<hex>/    fs/ and layer.json; complete, because renamed into place from scratch/
//! ingest/<hex>     a blob being fetched, continued after an interruption
//! scratch/<x>/     work under way; locked by whoever works in it, removed when nobody does
//! rootfs/<id>/     the root filesystems of containers
//! used/<hex>       its time says when the image was last used
//! ```
//!
//! Several processes work on one store: the agent, and `mainstay image`. Locks are `flock`s: they end with
//! the process.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use mainstay_files::{create_private_dir, open_private, remove_tree};

use super::{index::Index, name};

#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
}

pub type IndexSignature = Option<(u64, i64, i64, u64)>;

/// Interrupted downloads are kept this long.
const INGEST_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Files {
    pub fn open(root: &Path) -> io::Result<Self> {
        create_private_dir(root)?;
        let root = root.canonicalize()?;
        for part in ["layers", "ingest", "scratch", "rootfs", "used"] {
            create_private_dir(&root.join(part))?;
        }
        let files = Self { root };
        create_image_root(&files.empty())?;
        Ok(files)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn index(&self) -> PathBuf {
        self.root.join("index.json")
    }

    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// `None` for what cannot be a layer's id.
    pub fn layer(&self, chain_id: &str) -> Option<PathBuf> {
        Some(self.layers().join(name::hex(chain_id)?))
    }

    pub fn ingest(&self, hex: &str) -> PathBuf {
        self.root.join("ingest").join(hex)
    }

    pub fn rootfs(&self) -> PathBuf {
        self.root.join("rootfs")
    }

    /// What images without layers consist of.
    pub fn empty(&self) -> PathBuf {
        self.root.join("empty")
    }

    pub fn used(&self, id: &str) -> Option<PathBuf> {
        Some(self.root.join("used").join(name::hex(id)?))
    }

    /// Alone with the store until the file is dropped.
    pub fn lock(&self) -> io::Result<File> {
        let file = self.lock_file()?;
        file.lock()?;
        Ok(file)
    }

    /// Nothing disappears until the file is dropped.
    pub fn lock_shared(&self) -> io::Result<File> {
        let file = self.lock_file()?;
        file.lock_shared()?;
        Ok(file)
    }

    fn lock_file(&self) -> io::Result<File> {
        open_private(&self.root.join("lock"))
    }

    /// Changes whenever the index does.
    pub fn signature(&self) -> IndexSignature {
        let found = fs::metadata(self.index()).ok();
        found.map(|found| (found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
    }

    pub fn read_index(&self) -> io::Result<Index> {
        match fs::read(self.index()) {
            Ok(json) => Ok(serde_json::from_slice(&json)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Index::default()),
            Err(e) => Err(e),
        }
    }

    /// Only with [`Files::lock`] held.
    pub fn write_index(&self, index: &Index) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".index-").tempfile_in(&self.root)?;
        file.write_all(&serde_json::to_vec_pretty(index)?)?;
        file.as_file().sync_all()?;
        file.persist(self.index())?;
        File::open(&self.root)?.sync_all()
    }

    pub fn scratch(&self) -> io::Result<Scratch> {
        let _lock = self.lock_shared()?;
        let path = tempfile::Builder::new().prefix("").tempdir_in(self.root.join("scratch"))?.keep();
        let lock = File::open(&path)?;
        lock.lock()?;
        Ok(Scratch { path, _lock: lock })
    }

    /// Removes what those left who were killed at work.
    pub fn tidy(&self) -> io::Result<()> {
        let mut abandoned = Vec::new();
        {
            let _lock = self.lock()?;
            for entry in fs::read_dir(self.root.join("scratch"))? {
                let entry = entry?;
                let file = File::open(entry.path())?;
                match file.try_lock() {
                    Ok(()) => abandoned.push((entry.path(), file)),
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(e)) => return Err(e),
                }
            }
            for entry in fs::read_dir(&self.root)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(".index-") {
                    fs::remove_file(entry.path())?;
                }
            }
        }
        for (path, _lock) in &abandoned {
            remove_tree(path)?;
        }
        for entry in fs::read_dir(self.root.join("ingest"))? {
            let entry = entry?;
            let age = SystemTime::now().duration_since(entry.metadata()?.modified()?).unwrap_or_default();
            if age > INGEST_AGE {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    pub fn touch(&self, id: &str) -> io::Result<()> {
        let Some(path) = self.used(id) else { return Ok(()) };
        let file = open_private(&path)?;
        file.set_modified(SystemTime::now())
    }

    pub fn last_used(&self, id: &str) -> Option<SystemTime> {
        fs::metadata(self.used(id)?).and_then(|found| found.modified()).ok()
    }
}

/// A directory that a container sees as its `/`, unless the image says something else: open to its users.
pub fn create_image_root(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A directory to work in that disappears afterwards, at the latest when the store is next opened.
pub struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove_tree(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_under_way_survives_tidying_and_abandoned_work_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        let busy = files.scratch().unwrap();
        let dead = files.root().join("scratch/dead");
        fs::create_dir_all(dead.join("half/layer")).unwrap();
        fs::write(files.root().join(".index-half"), "{").unwrap();
        files.tidy().unwrap();
        assert!(busy.path().exists() && !dead.exists());
        assert!(!files.root().join(".index-half").exists());
        let path = busy.path().to_owned();
        drop(busy);
        assert!(!path.exists());
    }
}
