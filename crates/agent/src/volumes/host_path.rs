//! hostPath volumes: checks the path by its type, and creates it where the type says so.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// Checks the path against its type, and makes it where the type says so.
pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("hostPath type check failed: {shown}: {error}");
    let found = match fs::metadata(path) {
        Ok(meta) => Some(meta.file_type()),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => None,
        Err(error) => return Err(failed(error)),
    };
    let is_not = |what: &str| Err(format!("hostPath type check failed: {shown} is not {what}"));
    match (kind, found) {
        ("", Some(_)) => Ok(()),
        ("" | "DirectoryOrCreate", None) => {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(failed)
        }
        ("FileOrCreate", None) => {
            fs::OpenOptions::new().create_new(true).write(true).mode(0o644).open(path).map(drop).map_err(failed)
        }
        ("DirectoryOrCreate" | "Directory", Some(found)) if found.is_dir() => Ok(()),
        ("DirectoryOrCreate" | "Directory", _) => is_not("a directory"),
        ("FileOrCreate" | "File", Some(found)) if found.is_file() => Ok(()),
        ("FileOrCreate" | "File", _) => is_not("a file"),
        ("Socket", Some(found)) if found.is_socket() => Ok(()),
        ("Socket", _) => is_not("a socket file"),
        ("CharDevice", Some(found)) if found.is_char_device() => Ok(()),
        ("CharDevice", _) => is_not("a character device"),
        ("BlockDevice", Some(found)) if found.is_block_device() => Ok(()),
        ("BlockDevice", _) => is_not("a block device"),
        (kind, _) => Err(format!("unknown hostPath type {kind:?}")),
    }
}
