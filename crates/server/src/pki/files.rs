//! Certificates and keys as files of one directory.

use std::{fs, path::Path};

use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};

use super::{Identity, PkiError};

fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> PkiError {
    let path = path.to_owned();
    move |source| PkiError::File { action, path: path.clone(), source }
}

pub fn prepare(dir: &Path) -> Result<(), PkiError> {
    create_private_dir(dir).map(drop).map_err(failed("create", dir))
}

/// Writes a file that only its owner may read, in one step.
pub fn write_private(path: &Path, content: &str) -> Result<(), PkiError> {
    write_atomic(path, content.as_bytes(), PRIVATE_FILE, Durability::Durable).map_err(failed("write", path))
}

pub fn load(dir: &Path, name: &str) -> Result<Option<Identity>, PkiError> {
    let read = |extension: &str| {
        let path = dir.join(format!("{name}.{extension}"));
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(PkiError::File { action: "read", path, source }),
        }
    };
    Ok(read("crt")?.zip(read("key")?).map(|(certificate, key)| Identity { certificate, key }))
}

pub fn store(dir: &Path, name: &str, identity: Identity) -> Result<Identity, PkiError> {
    write_private(&dir.join(format!("{name}.key")), &identity.key)?;
    write_private(&dir.join(format!("{name}.crt")), &identity.certificate)?;
    Ok(identity)
}
