//! The record of a machine's steps on disk, and the file with the version that runs.
//!
//! Both are written before anybody is told. A record that cannot be read starts empty, but one of a newer format keeps the agent
//! from starting (`formats.rs`).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mainstay_api::machine::version_violation;
use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use mainstay_machines::steps::StepRecord;

use crate::settings::Settings;

pub const FORMAT: Format = Format::new("the record of a machine's steps", 1);

/// Everybody may know which version runs.
const VERSION_FILE_MODE: u32 = 0o644;

/// `<data-dir>/agent/machine`.
pub fn directory(settings: &Settings) -> PathBuf {
    settings.directory.join("machine")
}

pub fn path(settings: &Settings) -> PathBuf {
    directory(settings).join("steps.json")
}

pub fn read(path: &Path) -> StepRecord {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return StepRecord::default(),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the record of this machine's steps; it starts empty");
            return StepRecord::default();
        }
    };
    FORMAT.decode(&text).unwrap_or_else(|error| {
        tracing::warn!(%error, path = %path.display(), "cannot read the record of this machine's steps; it starts empty");
        StepRecord::default()
    })
}

pub fn write(path: &Path, record: &StepRecord) {
    let written = FORMAT.encode(record).map_err(io::Error::from).and_then(|text| {
        create_private_dir(path.parent().unwrap_or(Path::new("/")))?;
        write_atomic(path, &text, PRIVATE_FILE, Durability::Durable)
    });
    if let Err(error) = written {
        tracing::warn!(%error, path = %path.display(), "cannot write the record of this machine's steps");
    }
}

/// The version in a version file; nothing if there is no file or nothing in it.
pub fn read_version(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|version| !version.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub fn write_version(path: &Path, version: &str) -> io::Result<()> {
    if let Some(why) = version_violation(version) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the version {version:?} {why}")));
    }
    write_atomic(path, format!("{version}\n").as_bytes(), VERSION_FILE_MODE, Durability::Durable)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use mainstay_machines::steps::{DesiredVersion, Step, StepOutcome};

    use super::*;

    fn record() -> StepRecord {
        let (began, ended) = (Timestamp::from_second(1_000).unwrap(), Timestamp::from_second(1_060).unwrap());
        let desired = DesiredVersion { version: Some("v2".to_owned()), drain: true };
        let mut record = StepRecord { desired, running: Some("v1".to_owned()), ..StepRecord::default() };
        record.begin(Step::Update, "v2", 7, began);
        record.end(
            Step::Update,
            StepOutcome::Failed { message: "exit code 1".to_owned(), output: String::new() },
            ended,
        );
        record.begin(Step::Static, "v2", 7, ended);
        record
    }

    #[test]
    fn a_record_of_format_1_is_read_by_all_later_versions() {
        let written = FORMAT.encode(&record()).unwrap();
        let fixture =
            mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/machine-steps.json", &written);
        assert_eq!(FORMAT.decode::<StepRecord>(&fixture).unwrap(), record());
    }

    #[test]
    fn a_record_comes_back_and_a_broken_one_starts_empty() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine/steps.json");
        assert_eq!(read(&path), StepRecord::default());
        write(&path, &record());
        assert_eq!(read(&path), record());
        fs::write(&path, "{").unwrap();
        assert_eq!(read(&path), StepRecord::default());
    }

    #[test]
    fn the_version_that_runs_is_a_line_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("current_version");
        assert_eq!(read_version(&path).unwrap(), None);
        write_version(&path, "v2").unwrap();
        assert_eq!(read_version(&path).unwrap().as_deref(), Some("v2"));
        assert!(write_version(&path, "a b").is_err());
        assert!(read_version(directory.path()).is_err(), "a directory is no file");
    }
}
