//! Why a store could not be opened, backed up or restored.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use mainstay_files::NewerFormat;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("data directory {} is in use by {}", dir.display(), LockHolder(*holder))]
    Locked { dir: PathBuf, holder: Option<u32> },
    #[error("store file {} is damaged: {why}; {}", file.display(), BackupAdvice(backup.as_deref()))]
    Damaged { file: PathBuf, why: String, backup: Option<PathBuf> },
    #[error("{}", file.display())]
    Newer {
        file: PathBuf,
        #[source]
        source: NewerFormat,
    },
    #[error("a restore into {} was interrupted, run it again", dir.display())]
    HalfRestored { dir: PathBuf },
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("open store file {}", file.display())]
    Sqlite {
        file: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{} exists already", file.display())]
    Exists { file: PathBuf },
    #[error("write backup {}", file.display())]
    Write {
        file: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the backup just written does not verify")]
    Unusable(#[source] OpenError),
    #[error("read the store to back up")]
    Source(#[source] OpenError),
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("{} holds a store already", dir.display())]
    HoldsData { dir: PathBuf },
    #[error("backup is not usable")]
    Backup(#[source] OpenError),
    #[error("restore into {}", dir.display())]
    Target {
        dir: PathBuf,
        #[source]
        source: OpenError,
    },
    #[error("write {}", file.display())]
    Write {
        file: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What a reader of the file found wrong, before it is known which backup to recommend.
#[derive(Debug)]
pub(super) enum FileFault {
    Damaged(String),
    Newer(NewerFormat),
    Sqlite(rusqlite::Error),
    Io(io::Error),
}

impl FileFault {
    pub(super) fn damaged(why: impl fmt::Display) -> FileFault {
        FileFault::Damaged(why.to_string())
    }

    pub(super) fn into_open_error(self, file: &Path, backup: impl FnOnce() -> Option<PathBuf>) -> OpenError {
        let file = file.to_path_buf();
        match self {
            FileFault::Damaged(why) => OpenError::Damaged { file, why, backup: backup() },
            FileFault::Newer(source) => OpenError::Newer { file, source },
            FileFault::Sqlite(source) => OpenError::Sqlite { file, source },
            FileFault::Io(source) => OpenError::Io { path: file, source },
        }
    }
}

/// Only what speaks of the machine and not of the file is an error of its own; anything else that
/// SQLite says while reading means that the file is not what we wrote.
impl From<rusqlite::Error> for FileFault {
    fn from(error: rusqlite::Error) -> FileFault {
        use rusqlite::{ErrorCode, ffi};
        let machine = match &error {
            rusqlite::Error::SqliteFailure(e, _) => match e.code {
                ErrorCode::SystemIoFailure => {
                    !matches!(e.extended_code, ffi::SQLITE_IOERR_SHORT_READ | ffi::SQLITE_IOERR_CORRUPTFS)
                }
                ErrorCode::CannotOpen
                | ErrorCode::DiskFull
                | ErrorCode::PermissionDenied
                | ErrorCode::ReadOnly
                | ErrorCode::OutOfMemory
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked => true,
                _ => false,
            },
            _ => false,
        };
        if machine { FileFault::Sqlite(error) } else { FileFault::damaged(error) }
    }
}

impl From<io::Error> for FileFault {
    fn from(error: io::Error) -> FileFault {
        FileFault::Io(error)
    }
}

struct LockHolder(Option<u32>);

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

struct BackupAdvice<'a>(Option<&'a Path>);

impl fmt::Display for BackupAdvice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(backup) => write!(f, "the newest usable backup is {}", backup.display()),
            None => f.write_str("there is no usable backup in its directory"),
        }
    }
}
