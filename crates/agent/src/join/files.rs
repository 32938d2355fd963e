//! What a machine keeps of its membership: `ca.crt`, `client.pem` and `serving.pem`, readable by their owner
//! alone. A certificate and its key are one file, so that a crash never leaves halves that do not match.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};

use crate::tls::Pair;

#[derive(Debug, thiserror::Error)]
#[error("{action} {}", path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { action, path: path.clone(), source }
}

pub struct Files(PathBuf);

impl Files {
    pub fn open(directory: &Path) -> Result<Self, FileError> {
        create_private_dir(directory).map_err(failed("create", directory))?;
        Ok(Self(directory.to_owned()))
    }

    pub fn ca(&self) -> Result<Option<String>, FileError> {
        self.read("ca.crt")
    }

    pub fn set_ca(&self, pem: &str) -> Result<(), FileError> {
        self.write("ca.crt", pem)
    }

    pub fn pair(&self, name: &str) -> Result<Option<Pair>, FileError> {
        Ok(self.read(&format!("{name}.pem"))?.and_then(|text| split(&text)))
    }

    pub fn set_pair(&self, name: &str, pair: &Pair) -> Result<(), FileError> {
        self.write(&format!("{name}.pem"), &format!("{}{}", pair.certificate, pair.key))?;
        let _ = fs::remove_file(self.0.join(format!("{name}.key.pending")));
        Ok(())
    }

    /// The key of a request that was sent and whose answer has not come.
    pub fn pending_key(&self, name: &str) -> Result<Option<String>, FileError> {
        self.read(&format!("{name}.key.pending"))
    }

    pub fn set_pending_key(&self, name: &str, key: &str) -> Result<(), FileError> {
        self.write(&format!("{name}.key.pending"), key)
    }

    pub fn drop_pending_key(&self, name: &str) {
        let _ = fs::remove_file(self.0.join(format!("{name}.key.pending")));
    }

    fn read(&self, name: &str) -> Result<Option<String>, FileError> {
        let path = self.0.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    fn write(&self, name: &str, content: &str) -> Result<(), FileError> {
        let path = self.0.join(name);
        write_atomic(&path, content.as_bytes(), PRIVATE_FILE, Durability::Durable).map_err(failed("write", &path))
    }
}

fn split(text: &str) -> Option<Pair> {
    let at =
        ["-----BEGIN PRIVATE KEY-----", "-----BEGIN EC PRIVATE KEY-----"].iter().find_map(|mark| text.find(mark))?;
    let (certificate, key) = text.split_at(at);
    Some(Pair { certificate: certificate.to_owned(), key: key.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_kept_is_read_back_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(&dir.path().join("pki")).unwrap();
        assert!(files.pair("client").unwrap().is_none());
        let made = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
        let pair = Pair { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() };
        files.set_pending_key("client", &pair.key).unwrap();
        files.set_pair("client", &pair).unwrap();
        files.set_ca(&pair.certificate).unwrap();
        let read = files.pair("client").unwrap().unwrap();
        assert_eq!((read.certificate, read.key), (pair.certificate, pair.key));
        assert_eq!(files.pending_key("client").unwrap(), None);
        for file in fs::read_dir(dir.path().join("pki")).unwrap() {
            assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
