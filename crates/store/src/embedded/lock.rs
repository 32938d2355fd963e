//! One process per data directory.

use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
};

use super::{error::OpenError, paths};

/// Held while the process lives; the kernel lets go of it however the process ends.
pub(super) struct DirLock {
    _file: File,
}

impl DirLock {
    pub(super) fn acquire(dir: &Path) -> Result<DirLock, OpenError> {
        let path = paths::lock(dir);
        let io = |source| OpenError::Io { path: path.clone(), source };
        let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(OpenError::Locked { dir: dir.to_path_buf(), holder: holder.trim().parse().ok() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // The number is a courtesy to whoever is refused: a full disk must not keep us from starting.
        let note = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        if let Err(error) = note(&mut file) {
            tracing::warn!(%error, path = %path.display(), "could not note the process id");
        }
        Ok(DirLock { _file: file })
    }
}
