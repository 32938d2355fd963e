//! What was tried for each pod, on disk.

use std::{collections::BTreeMap, path::PathBuf};

use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};
use mainstay_runtime::PodUid;
use serde::{Deserialize, Serialize};

use super::{Rung, ladder::History};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    #[serde(default)]
    pub history: History,
    /// By container: the last attempt that failed, and what was answered.
    #[serde(default)]
    pub told: BTreeMap<String, (u32, Rung)>,
}

/// `<directory>/pods/<uid>/heal.json`. A record that cannot be read or written costs memory of past failures,
/// nothing else, so errors are told to the log alone.
pub struct Files {
    directory: PathBuf,
}

impl Files {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory: directory.join("pods") }
    }

    pub fn read(&self, pod: &PodUid) -> Record {
        let Ok(text) = std::fs::read(self.path(pod)) else { return Record::default() };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(uid = %pod, %error, "the record of past failures cannot be read and begins anew");
            Record::default()
        })
    }

    pub fn write(&self, pod: &PodUid, record: &Record) {
        if let Err(error) = self.try_write(pod, record) {
            tracing::warn!(uid = %pod, %error, "the record of failures cannot be written");
        }
    }

    fn try_write(&self, pod: &PodUid, record: &Record) -> std::io::Result<()> {
        let path = self.path(pod);
        let directory = path.parent().unwrap_or(&self.directory);
        create_private_dir(directory)?;
        write_atomic(&path, &serde_json::to_vec(record)?, PRIVATE_FILE, Durability::Volatile)
    }

    pub fn remove(&self, pod: &PodUid) {
        let _ = std::fs::remove_file(self.path(pod));
    }

    fn path(&self, pod: &PodUid) -> PathBuf {
        self.directory.join(&pod.0).join("heal.json")
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_record_survives_and_a_broken_one_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(directory.path().to_owned());
        let pod = PodUid("u".into());
        assert!(files.read(&pod).history.is_empty());
        let mut record = Record::default();
        record.history.record(&Rung::Restart, Timestamp::UNIX_EPOCH);
        record.told.insert("web".into(), (3, Rung::Restart));
        files.write(&pod, &record);
        assert_eq!(files.read(&pod).history, record.history);
        assert_eq!(files.read(&pod).told, record.told);
        std::fs::write(directory.path().join("pods/u/heal.json"), "{").unwrap();
        assert!(files.read(&pod).history.is_empty());
        files.remove(&pod);
        assert!(!directory.path().join("pods/u/heal.json").exists());
    }
}
