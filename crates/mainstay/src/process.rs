//! One process per data directory: a lock on `mainstay.pid`, and how other commands find who holds it.
//!
//! The lock on `mainstay.pid` says who runs. It stays with the process when the file is removed, and the kernel still shows it: so a
//! process whose data directory is gone is found too, and none is started beside it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use mainstay_agent::leftovers::locks::{self, Holder, LOCK_FILE};
use mainstay_files::open_private;
use rustix::{
    fs::OFlags,
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{data_dir, exit::Exit, formats};

/// A process that was killed while it started another leaves the lock with its child, until that becomes its own program.
const INHERITED: Duration = Duration::from_secs(5);

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// Held as long as the process runs; the kernel gives it back whatever happens.
pub struct DataDirLock {
    _lock: File,
    path: PathBuf,
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(LOCK_FILE)
}

/// The absolute path without symbolic links, as far as it exists; a link whose target is gone is followed all the same.
pub fn resolve(path: &Path) -> PathBuf {
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..MOST_LINKS {
        let Some((whole, real)) = path.ancestors().find_map(|whole| Some((whole, whole.canonicalize().ok()?))) else {
            return path;
        };
        let Ok(rest) = path.strip_prefix(whole) else { return path };
        let Some(first) = rest.components().next() else { return real };
        let Ok(target) = fs::read_link(real.join(first)) else { return real.join(rest) };
        let behind = rest.strip_prefix(first).unwrap_or(Path::new(""));
        path = real.join(target).join(behind).components().collect();
    }
    path
}

fn open(path: &Path) -> std::io::Result<File> {
    open_private(path)
}

impl DataDirLock {
    /// Comes before anything else: what fails here has opened, bound and written nothing. Afterwards the directory is ours, and
    /// closed to other users.
    pub fn acquire(data_dir: &Path) -> Result<Self, Exit> {
        let mut restricted = data_dir::create(data_dir)
            .with_context(|| format!("create --data-dir {}, closed to other users", data_dir.display()))?;
        let locked = Self::lock(data_dir);
        if locked.is_ok() {
            formats::check(data_dir)?;
            match data_dir::restrict_data(data_dir) {
                Ok(more) => restricted.extend(more),
                Err(error) => {
                    tracing::warn!(path = %data_dir.display(), %error, "cannot close all of the data directory")
                }
            }
        }
        data_dir::warn(&restricted);
        locked
    }

    fn lock(data_dir: &Path) -> Result<Self, Exit> {
        let path = path(data_dir);
        if !path.exists()
            && let Some(holder) = holder_of(data_dir)?
        {
            return Err(Exit::Refused(anyhow!(
                "--data-dir {}: process {} runs here already, though its files were removed; stop it with `mainstay stop`",
                data_dir.display(),
                holder.pid,
            )));
        }
        let mut lock = open(&path).with_context(|| format!("open {}", path.display()))?;
        let since = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) if is_file_at(&lock, &path) => break,
                // `mainstay down` removed it between our opening and locking it.
                Ok(()) => lock = open(&path).with_context(|| format!("open {}", path.display()))?,
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
        // Over what is there: a full disk has no room for it once it is gone, and `mainstay stop` needs it.
        let text = format!("{}\n", std::process::id());
        let written =
            lock.rewind().and_then(|()| lock.write_all(text.as_bytes())).and_then(|()| lock.set_len(text.len() as u64));
        if let Err(error) = written {
            tracing::warn!(%error, file = %path.display(), "cannot write our process id");
        }
        Ok(Self { _lock: lock, path })
    }

    /// For a process that is going to write to the directory.
    pub fn acquire_to_run(data_dir: &Path) -> Result<Self, Exit> {
        let lock = Self::acquire(data_dir)?;
        formats::record(data_dir);
        Ok(lock)
    }

    /// Gives the directory back and removes the file that names its holder.
    pub fn release(self) {
        // While it is still locked: whoever waits for it sees that it is gone.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, file = %self.path.display(), "cannot remove the file of our process id");
        }
    }
}

fn is_file_at(file: &File, path: &Path) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().map(id).ok() == fs::metadata(path).map(id).ok()
}

/// The process that holds a data directory, also if its lock file was removed.
fn holder_of(data_dir: &Path) -> Result<Option<Holder>, Exit> {
    let data_dir = resolve(data_dir);
    let all = locks::find().context("list processes")?;
    Ok(all.into_iter().find(|holder| holder.data_dir == data_dir))
}

/// Asks the process of this data directory to stop, and waits until it has. `false` if none runs.
pub fn stop(data_dir: &Path, patience: Duration) -> Result<bool, Exit> {
    let Some((pid, file)) = find_running(data_dir)? else { return Ok(false) };
    let failed = |error: Errno| Exit::Failed(anyhow!(error).context(format!("stop process {}", pid.as_raw_pid())));
    match pidfd_open(pid, PidfdFlags::empty()) {
        // It was seen to hold the lock, which is still held: so this is not a later process of its number.
        Ok(process) if !is_free(&file) => match pidfd_send_signal(&process, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(failed(error)),
        },
        Ok(_) | Err(Errno::SRCH) => {}
        Err(error) => return Err(failed(error)),
    }
    let since = Instant::now();
    while !is_free(&file) {
        if since.elapsed() > patience {
            let (pid, seconds) = (pid.as_raw_pid(), patience.as_secs());
            return Err(Exit::Failed(anyhow!("process {pid} did not stop within {seconds} s")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// The process that holds a data directory, with the file that it has locked.
pub fn find_running(data_dir: &Path) -> Result<Option<(Pid, File)>, Exit> {
    let path = path(data_dir);
    // Not through a link, which may lead to the file of another instance.
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
        Ok(file) if is_free(&file) => {}
        Ok(mut file) => {
            let mut text = String::new();
            file.read_to_string(&mut text).with_context(|| format!("read {}", path.display()))?;
            let pid = text.trim().parse().ok().and_then(Pid::from_raw);
            let pid: Pid = pid.with_context(|| format!("{} holds no process id", path.display()))?;
            // Its number is only what somebody wrote: a file of another user may name any process.
            let named = pid.as_raw_pid();
            let holds = |holder: &Holder| is_file_at(&file, &holder.descriptor);
            let has_ended = !Path::new("/proc").join(named.to_string()).exists();
            if has_ended || locks::find_in_process(named).iter().any(holds) {
                return Ok(Some((pid, file)));
            }
            let holder = locks::find().context("list processes")?.into_iter().find(holds);
            return match holder.and_then(|holder| Pid::from_raw(holder.pid)) {
                Some(holder) => Ok(Some((holder, file))),
                None if is_free(&file) => Ok(None),
                None => Err(Exit::Refused(anyhow!(
                    "{} names process {named}, which does not hold it, and who does cannot be seen from here",
                    path.display()
                ))),
            };
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Exit::Failed(anyhow!(error).context(format!("open {}", path.display())))),
    }
    // The file, or the directory, may have been removed under a process that runs on.
    let Some(holder) = holder_of(data_dir)? else { return Ok(None) };
    // It may have ended since.
    Ok(Pid::from_raw(holder.pid).zip(holder.open().ok()))
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
    fn a_shorter_process_id_replaces_a_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(path(dir.path()), "1234567890123\n").unwrap();
        let _lock = DataDirLock::acquire(dir.path());
        assert_eq!(fs::read_to_string(path(dir.path())).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_directory_is_locked_once_and_found_free_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!stop(dir.path(), Duration::ZERO).is_ok_and(|ran| ran));
        let lock = DataDirLock::acquire(dir.path());
        assert!(lock.is_ok());
        let Err(Exit::Refused(error)) = DataDirLock::acquire(dir.path()) else { panic!("locked twice") };
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(lock);
        assert!(!stop(dir.path(), Duration::ZERO).is_ok_and(|ran| ran));
        assert!(DataDirLock::acquire(dir.path()).is_ok());
    }

    #[test]
    fn the_holder_is_who_has_the_lock_and_not_who_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let Ok(_lock) = DataDirLock::acquire(dir.path()) else { panic!("not locked") };
        fs::write(path(dir.path()), "1\n").unwrap();
        let Ok(Some((pid, _))) = find_running(dir.path()) else { panic!("not found") };
        assert_eq!(pid.as_raw_pid(), std::process::id() as i32);
    }

    #[test]
    fn a_directory_whose_lock_file_was_removed_is_still_locked() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        let Ok(lock) = DataDirLock::acquire(&data_dir) else { panic!("not locked") };
        fs::remove_dir_all(&data_dir).unwrap();
        let Err(Exit::Refused(error)) = DataDirLock::acquire(&data_dir) else { panic!("locked twice") };
        assert!(error.to_string().contains("its files were removed"), "{error}");
        assert!(find_running(&data_dir).is_ok_and(|found| found.is_some()));
        drop(lock);
        assert!(find_running(&data_dir).is_ok_and(|found| found.is_none()));
    }

    #[test]
    fn a_released_directory_has_no_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        let Ok(lock) = DataDirLock::acquire(dir.path()) else { panic!("not locked") };
        lock.release();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(DataDirLock::acquire(dir.path()).is_ok());
    }
}
