//! The lock file of a store: one process per data directory.

use std::{
    fs::{File, TryLockError},
    io::{Read, Seek, Write},
    path::Path,
    time::{Duration, Instant},
};

use super::{error::OpenError, paths};

/// A process that was killed while it started another leaves the lock with its child, until that becomes its own program.
const INHERITED: Duration = Duration::from_secs(5);

/// Held while the process lives; the kernel lets go of it however the process ends.
pub(super) struct DirLock {
    _file: File,
}

impl DirLock {
    pub(super) fn acquire(dir: &Path) -> Result<DirLock, OpenError> {
        let path = paths::lock(dir);
        let io = |source| OpenError::Io { path: path.clone(), source };
        let mut file = mainstay_files::open_private(&path).map_err(io)?;
        let deadline = Instant::now() + INHERITED;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let holder = read_pid(&mut file);
                    let gone = holder.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
                    if !gone || Instant::now() > deadline {
                        return Err(OpenError::Locked { dir: dir.to_path_buf(), holder });
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::Error(source)) => return Err(io(source)),
            }
        }
        // The number is a courtesy to whoever is refused: a full disk must not keep us from starting.
        let note = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        if let Err(error) = note(&mut file) {
            tracing::warn!(%error, path = %path.display(), "cannot write the process id to the lock file");
        }
        Ok(DirLock { _file: file })
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut holder = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut holder).ok()?;
    holder.trim().parse().ok()
}
