//! One process per data directory, and how others find it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::exit::Exit;

/// A process that was killed while it started another leaves the lock with its child, until that becomes its own program.
const INHERITED: Duration = Duration::from_secs(5);

/// Held as long as the process runs; the kernel gives it back whatever happens.
pub struct Claim {
    _lock: File,
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("mainstay.pid")
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

impl Claim {
    pub fn take(data_dir: &Path) -> Result<Self, Exit> {
        fs::create_dir_all(data_dir).with_context(|| format!("create --data-dir {}", data_dir.display()))?;
        let path = path(data_dir);
        let mut lock = open(&path).with_context(|| format!("open {}", path.display()))?;
        let since = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut text));
                    let holder = text.trim();
                    let gone = !holder.is_empty() && !Path::new("/proc").join(holder).exists();
                    if !gone || since.elapsed() > INHERITED {
                        return Err(Exit::Refused(anyhow!(
                            "--data-dir {}: process {holder} runs here already; stop it with `mainstay stop`, or name another directory",
                            data_dir.display(),
                        )));
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(Exit::Failed(anyhow!(error).context(format!("lock {}", path.display()))));
                }
            }
        }
        // A full disk must not keep us from starting: the lock is what counts.
        let written =
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
        if let Err(error) = written {
            tracing::warn!(%error, file = %path.display(), "cannot write our process id");
        }
        Ok(Self { _lock: lock })
    }
}

/// Asks the process of this data directory to stop, and waits until it has. `false` if none runs.
pub fn stop(data_dir: &Path, patience: Duration) -> Result<bool, Exit> {
    let path = path(data_dir);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Exit::Failed(anyhow!(error).context(format!("open {}", path.display())))),
    };
    if is_free(&file) {
        return Ok(false);
    }
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(|| format!("read {}", path.display()))?;
    let pid: i32 = text.trim().parse().with_context(|| format!("{} holds no process id", path.display()))?;
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => return Err(Exit::Failed(anyhow!(error).context(format!("stop process {pid}")))),
    }
    let since = Instant::now();
    while !is_free(&file) {
        if since.elapsed() > patience {
            return Err(Exit::Failed(anyhow!("process {pid} did not stop within {} s", patience.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Whether nobody holds the lock; asking does not keep it.
fn is_free(file: &File) -> bool {
    let free = file.try_lock_shared().is_ok();
    if free {
        let _ = file.unlock();
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_claimed_once_and_found_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!stop(dir.path(), Duration::ZERO).is_ok_and(|ran| ran));
        let claim = Claim::take(dir.path());
        assert!(claim.is_ok());
        let Err(Exit::Refused(error)) = Claim::take(dir.path()) else { panic!("claimed twice") };
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(claim);
        assert!(!stop(dir.path(), Duration::ZERO).is_ok_and(|ran| ran));
        assert!(Claim::take(dir.path()).is_ok());
    }
}
