//! The healing record of each pod on disk: what was tried, so that a restarted agent goes on from the same rung.

use std::{collections::BTreeMap, path::PathBuf};

use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use mainstay_runtime::PodUid;
use serde::{Deserialize, Serialize};

use super::{Rung, ladder::History};

pub const FORMAT: Format = Format::new("the healing record of a pod", 1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealingRecord {
    #[serde(default)]
    pub history: History,
    /// By container: the last attempt that failed, and what was decided.
    #[serde(default, alias = "told")]
    pub decided: BTreeMap<String, (u32, Rung)>,
}

/// `<directory>/pods/<uid>/heal.json`. A record that cannot be read or written costs memory of past failures,
/// nothing else, so errors are only logged.
pub struct RecordFiles {
    directory: PathBuf,
}

impl RecordFiles {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory: directory.join("pods") }
    }

    pub fn read(&self, pod: &PodUid) -> HealingRecord {
        let Ok(text) = std::fs::read(self.path(pod)) else { return HealingRecord::default() };
        FORMAT.decode(&text).unwrap_or_else(|error| {
            tracing::warn!(uid = %pod, %error, "cannot read the record of past failures of a pod; it starts empty");
            HealingRecord::default()
        })
    }

    pub fn write(&self, pod: &PodUid, record: &HealingRecord) {
        if let Err(error) = self.try_write(pod, record) {
            tracing::warn!(uid = %pod, %error, "cannot write the record of failures of a pod");
        }
    }

    fn try_write(&self, pod: &PodUid, record: &HealingRecord) -> std::io::Result<()> {
        let path = self.path(pod);
        let directory = path.parent().unwrap_or(&self.directory);
        create_private_dir(directory)?;
        write_atomic(&path, &FORMAT.encode(record)?, PRIVATE_FILE, Durability::Volatile)
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
        let files = RecordFiles::new(directory.path().to_owned());
        let pod = PodUid("u".into());
        assert!(files.read(&pod).history.is_empty());
        let mut record = HealingRecord::default();
        record.history.record(&Rung::Restart, Timestamp::UNIX_EPOCH);
        record.decided.insert("web".into(), (3, Rung::Restart));
        files.write(&pod, &record);
        assert_eq!(files.read(&pod).history, record.history);
        assert_eq!(files.read(&pod).decided, record.decided);
        let written = std::fs::read(directory.path().join("pods/u/heal.json")).unwrap();
        let fixture =
            mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/healing-record.json", &written);
        std::fs::write(directory.path().join("pods/u/heal.json"), fixture).unwrap();
        assert_eq!(files.read(&pod), record);
        std::fs::write(directory.path().join("pods/u/heal.json"), "{").unwrap();
        assert!(files.read(&pod).history.is_empty());
        files.remove(&pod);
        assert!(!directory.path().join("pods/u/heal.json").exists());
    }
}
