//! Reports of programs about their TTL checks, and the record of all instances: files below `<data-dir>/agent/host-services`.
//!
//! `mainstay service check` writes a report and reads the record, the agent the other way round. The directory is root's alone, so whoever
//! can report could as well write a definition. A file needs no agent that runs: what was reported meanwhile counts at its next start.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    definition::{CheckStatus, ServiceDefinition},
    health::{CheckReport, InstanceHealth},
};

pub const FORMAT: Format = Format::new("the record of a machine's services", 1);

/// So much of what a program says is kept.
pub const LONGEST_OUTPUT: usize = 4 << 10;
/// A report has little more than its output.
const LARGEST_REPORT: u64 = 64 << 10;

/// `<data-dir>/agent/host-services`.
pub fn directory(agent_directory: &Path) -> PathBuf {
    agent_directory.join("host-services")
}

pub fn reports_directory(agent_directory: &Path) -> PathBuf {
    directory(agent_directory).join("reports")
}

pub fn record_path(agent_directory: &Path) -> PathBuf {
    directory(agent_directory).join("services.json")
}

/// Everything about the instances of this machine, for commands, and for the next start of the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicesRecord {
    /// By id.
    pub services: BTreeMap<String, InstanceRecord>,
    /// What is wrong with files, by their names.
    pub problems: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRecord {
    pub file: String,
    pub definition: ServiceDefinition,
    pub health: InstanceHealth,
    /// Where it is reached; nothing if its interface has no address.
    pub address: Option<std::net::Ipv4Addr>,
}

impl ServicesRecord {
    /// Nothing if there is none, or none that can be read.
    pub fn read(path: &Path) -> Option<Self> {
        FORMAT.decode(&fs::read(path).ok()?).ok()
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        create_private_dir(path.parent().unwrap_or(Path::new("/")))?;
        write_atomic(path, &FORMAT.encode(self)?, PRIVATE_FILE, Durability::Volatile)
    }
}

/// Where the report about a check of an instance is; no name can lead elsewhere.
pub fn report_path(agent_directory: &Path, service: &str, check: &str) -> PathBuf {
    let mut hash = Sha256::new();
    hash.update(service.len().to_be_bytes());
    hash.update(service);
    hash.update(check);
    let name: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    reports_directory(agent_directory).join(format!("{name}.json"))
}

pub fn write_report(agent_directory: &Path, service: &str, check: &str, report: &CheckReport) -> io::Result<()> {
    create_private_dir(&reports_directory(agent_directory))?;
    let path = report_path(agent_directory, service, check);
    write_atomic(&path, &serde_json::to_vec(report)?, PRIVATE_FILE, Durability::Volatile)
}

/// Nothing if there is none; one that cannot be read says so.
pub fn read_report(path: &Path) -> Option<CheckReport> {
    let read = || {
        if fs::metadata(path)?.len() > LARGEST_REPORT {
            return Err(io::Error::other("it is too long"));
        }
        serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
    };
    match read() {
        Ok(report) => Some(report),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let output = format!("cannot read {}: {error}", path.display());
            Some(CheckReport { status: CheckStatus::Critical, output, time: Timestamp::UNIX_EPOCH })
        }
    }
}

/// Reports as they were first seen: a clock that was ahead does not keep a program alive.
#[derive(Default)]
pub struct ReportLog {
    last: BTreeMap<PathBuf, (CheckReport, Timestamp)>,
}

impl ReportLog {
    pub fn read(&mut self, path: &Path, now: Timestamp) -> Option<CheckReport> {
        let Some(report) = read_report(path) else {
            self.last.remove(path);
            return None;
        };
        let time = match self.last.get(path) {
            Some((before, time)) if *before == report => *time,
            _ => report.time.min(now),
        };
        self.last.insert(path.to_owned(), (report.clone(), time));
        Some(CheckReport { time, ..report })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_services::definition::parse_definitions;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_report_is_read_as_it_was_first_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = report_path(directory.path(), "web", "beats");
        let mut log = ReportLog::default();
        assert_eq!(log.read(&path, time(5)), None);
        let ahead = CheckReport { status: CheckStatus::Passing, output: "fine".to_owned(), time: time(1_000) };
        write_report(directory.path(), "web", "beats", &ahead).unwrap();
        assert_eq!(log.read(&path, time(10)).unwrap().time, time(10));
        assert_eq!(log.read(&path, time(20)).unwrap().time, time(10), "it does not become younger");
        fs::write(&path, "{").unwrap();
        assert_eq!(log.read(&path, time(30)).unwrap().status, CheckStatus::Critical);
        assert_ne!(path, report_path(directory.path(), "we", "bbeats"));
    }

    #[test]
    fn a_record_of_format_1_is_read_by_all_later_versions() {
        let text = r#"{"name": "web", "port": 80, "tags": ["a"], "checks": [
            {"id": "b", "ttl": "9s"}, {"script": "true"}, {"tcp": "x:1"}, {"http": "http://x/"}]}"#;
        let definition = parse_definitions(text.as_bytes()).unwrap().remove(0);
        let mut health = InstanceHealth::default();
        health.follow(&definition, time(7));
        let (file, address) = ("web.json".to_owned(), Some([10, 0, 0, 1].into()));
        let instance = InstanceRecord { file, definition, health, address };
        let problems = [("x.json".to_owned(), "port: must be a number".to_owned())].into();
        let record = ServicesRecord { services: [("web".to_owned(), instance)].into(), problems };
        let written = FORMAT.encode(&record).unwrap();
        let fixture =
            mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/host-services.json", &written);
        assert_eq!(FORMAT.decode::<ServicesRecord>(&fixture).unwrap(), record);
    }
}
