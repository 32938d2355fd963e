//! Which files of this machine are ours: a record on disk, written before the files are.
//!
//! A file is ours if its content is one that the record has. So a file that an administrator made or changed is left alone, also by an agent that was killed
//! between writing a file and recording it, and what a template no longer asks for is removed although it went while the agent did not run.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::settings::Settings;

pub const FORMAT: Format = Format::new("the record of a machine's files", 1);

/// `<data-dir>/agent/machine/files.json`.
pub fn path(settings: &Settings) -> PathBuf {
    settings.directory.join("machine").join("files.json")
}

/// By namespace and name of the MachineFile, as `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecords {
    #[serde(default)]
    pub files: BTreeMap<String, FileRecord>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileRecord {
    /// Of the MachineFile.
    pub uid: String,
    pub path: PathBuf,
    /// Digests of what the file may have in it: what it had, and what is being written.
    pub digests: Vec<String>,
    /// The version that was written last.
    #[serde(default)]
    pub version: String,
    /// The generation of the MachineFile that is done, the command on a change included.
    #[serde(default)]
    pub done: Option<i64>,
    /// Whether the command on a change has run since the content changed.
    #[serde(default)]
    pub announced: bool,
    /// How that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl FileRecord {
    pub fn has_written(&self, content: &[u8]) -> bool {
        self.digests.contains(&digest(content))
    }
}

pub fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A record that cannot be read is not taken for an empty one: its files would be taken for somebody else's.
pub fn read(path: &Path) -> io::Result<FileRecords> {
    match fs::read(path) {
        Ok(text) => FORMAT.decode(&text).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FileRecords::default()),
        Err(error) => Err(error),
    }
}

pub fn write(path: &Path, records: &FileRecords) -> io::Result<()> {
    create_private_dir(path.parent().unwrap_or(Path::new("/")))?;
    write_atomic(path, &FORMAT.encode(records)?, PRIVATE_FILE, Durability::Durable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> FileRecords {
        let record = FileRecord {
            uid: "u".to_owned(),
            path: "/etc/app/app.conf".into(),
            digests: vec![digest(b"a"), digest(b"b")],
            version: "0123456789".to_owned(),
            done: Some(2),
            announced: true,
            failure: None,
        };
        FileRecords { files: [("shop/zones.n1".to_owned(), record)].into() }
    }

    #[test]
    fn a_record_of_format_1_is_read_by_all_later_versions() {
        let written = FORMAT.encode(&records()).unwrap();
        let fixture =
            mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/machine-files.json", &written);
        assert_eq!(FORMAT.decode::<FileRecords>(&fixture).unwrap(), records());
    }

    #[test]
    fn a_record_comes_back_and_a_broken_one_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine/files.json");
        assert_eq!(read(&path).unwrap(), FileRecords::default());
        write(&path, &records()).unwrap();
        assert_eq!(read(&path).unwrap(), records());
        assert!(
            records().files["shop/zones.n1"].has_written(b"b") && !records().files["shop/zones.n1"].has_written(b"c")
        );
        fs::write(&path, "{").unwrap();
        assert!(read(&path).is_err());
    }
}
