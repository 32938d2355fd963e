//! Authorities from elsewhere: puts those of `--authorities` where a server keeps its own.
//!
//! For servers whose clients know the authority before the server has ever started. A server that already has others gets these, and makes its own certificates anew.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, remove_file_if_exists, write_atomic};

const AUTHORITIES: [&str; 2] = ["ca", "node-ca"];
/// Certificates that an authority has signed.
const SIGNED: [&str; 4] = ["server.crt", "server.key", "admin.crt", "admin.key"];

#[derive(Debug, thiserror::Error)]
#[error("{action} {}", path.display())]
pub struct AuthoritiesError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AuthoritiesError {
    let path = path.to_owned();
    move |source| AuthoritiesError { action, path, source }
}

/// Copies the authorities of one directory into another, which is a server's.
pub fn adopt(from: &Path, pki: &Path) -> Result<(), AuthoritiesError> {
    // All of them are read before any is written.
    let mut files = Vec::new();
    for name in AUTHORITIES.iter().flat_map(|name| [format!("{name}.crt"), format!("{name}.key")]) {
        let path = from.join(&name);
        files.push((pki.join(name), fs::read(&path).map_err(failed("read", &path))?));
    }
    if files.iter().all(|(path, content)| fs::read(path).is_ok_and(|known| known == *content)) {
        return Ok(());
    }
    create_private_dir(pki).map_err(failed("create", pki))?;
    for name in SIGNED {
        let path = pki.join(name);
        remove_file_if_exists(&path).map_err(failed("remove", &path))?;
    }
    for (path, content) in files {
        write_atomic(&path, &content, PRIVATE_FILE, Durability::Durable).map_err(failed("write", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(directory: &Path, text: &str) {
        for name in ["ca.crt", "ca.key", "node-ca.crt", "node-ca.key"] {
            fs::write(directory.join(name), format!("{name} {text}")).unwrap();
        }
    }

    #[test]
    fn authorities_replace_others_and_what_those_signed() {
        let (from, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let pki = data.path().join("pki");
        given(from.path(), "1");
        adopt(from.path(), &pki).unwrap();
        assert_eq!(fs::read_to_string(pki.join("ca.key")).unwrap(), "ca.key 1");
        fs::write(pki.join("server.crt"), "signed").unwrap();
        adopt(from.path(), &pki).unwrap();
        assert!(pki.join("server.crt").exists(), "the same ones change nothing");
        given(from.path(), "2");
        adopt(from.path(), &pki).unwrap();
        assert!(!pki.join("server.crt").exists());
        assert_eq!(fs::read_to_string(pki.join("node-ca.crt")).unwrap(), "node-ca.crt 2");
    }

    #[test]
    fn a_file_that_is_missing_is_named_and_nothing_is_written() {
        let (from, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        given(from.path(), "1");
        fs::remove_file(from.path().join("node-ca.key")).unwrap();
        let error = adopt(from.path(), &data.path().join("pki")).unwrap_err().to_string();
        assert!(error.ends_with("node-ca.key"), "{error}");
        assert!(!data.path().join("pki").exists());
    }
}
