//! What was prepared for each claim, in a file of its own, so that it is undone also by an agent that did not do it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
};

use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

pub const FORMAT: Format = Format::new("the record of prepared devices", 1);

pub fn directory(settings: &Settings) -> PathBuf {
    settings.directory.join("devices")
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Uids of the pods here that use it.
    pub pods: BTreeSet<String>,
    /// By driver: its devices, once it has prepared them.
    pub drivers: BTreeMap<String, Option<Vec<PreparedDevice>>>,
    /// The start of the machine since which that holds.
    pub boot: String,
}

/// A device that a driver prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedDevice {
    /// The requests of the claim that it is for; all without any.
    pub requests: Vec<String>,
    pub pool: String,
    pub device: String,
    /// What it is to a container.
    pub cdi_devices: Vec<String>,
}

impl ClaimRecord {
    pub fn is_prepared(&self, boot: &str) -> bool {
        self.boot == boot && self.drivers.values().all(Option::is_some)
    }

    /// These drivers have to prepare it. What they did before the machine was started anew does not count.
    pub fn begin(&mut self, boot: &str, drivers: BTreeSet<String>) {
        if self.boot != boot {
            self.boot = boot.to_owned();
            self.drivers.values_mut().for_each(|prepared| *prepared = None);
        }
        for driver in drivers {
            self.drivers.entry(driver).or_default();
        }
    }

    pub fn unprepared(&self) -> Vec<String> {
        self.drivers.iter().filter(|(_, devices)| devices.is_none()).map(|(driver, _)| driver.clone()).collect()
    }

    /// The devices of a request, or of all, each with its driver.
    pub fn devices(&self, request: Option<&str>) -> impl Iterator<Item = (&str, &PreparedDevice)> {
        let is_wanted = move |device: &PreparedDevice| {
            let named =
                |own: &String| request.is_none_or(|request| own == request || own.split('/').next() == Some(request));
            device.requests.is_empty() || device.requests.iter().any(named)
        };
        let devices = self
            .drivers
            .iter()
            .flat_map(|(driver, devices)| devices.iter().flatten().map(move |device| (driver.as_str(), device)));
        devices.filter(move |(_, device)| is_wanted(device))
    }

    /// The devices of a request, or of all, as a container gets them.
    pub fn cdi_devices(&self, request: Option<&str>) -> Vec<String> {
        self.devices(request).flat_map(|(_, device)| device.cdi_devices.iter().cloned()).collect()
    }
}

/// All records, in memory and on disk.
pub struct Records {
    directory: PathBuf,
    /// The present start of the machine.
    pub boot: String,
    records: Mutex<BTreeMap<String, ClaimRecord>>,
}

impl Records {
    /// What is on disk. A file that cannot be read is left alone, and missed.
    pub fn load(directory: PathBuf) -> Self {
        let mut records = BTreeMap::new();
        for file in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let text = std::fs::read(file.path());
            match text
                .map_err(|error| error.to_string())
                .and_then(|text| FORMAT.decode::<ClaimRecord>(&text).map_err(|error| error.to_string()))
            {
                Ok(record) => drop(records.insert(record.uid.clone(), record)),
                Err(error) => tracing::warn!(file = ?file.path(), error, "cannot read a record of prepared devices"),
            }
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        Self { directory, boot, records: Mutex::new(records) }
    }

    pub fn get(&self, claim_uid: &str) -> Option<ClaimRecord> {
        self.records.lock().get(claim_uid).cloned()
    }

    /// The claim of this name that the pod uses.
    pub fn find(&self, namespace: &str, name: &str, pod_uid: &str) -> Option<ClaimRecord> {
        let records = self.records.lock();
        let is_it = |record: &&ClaimRecord| {
            record.namespace == namespace && record.name == name && record.pods.contains(pod_uid)
        };
        records.values().find(is_it).cloned()
    }

    pub fn used_by(&self, pod_uid: &str) -> Vec<String> {
        let records = self.records.lock();
        records.values().filter(|record| record.pods.contains(pod_uid)).map(|record| record.uid.clone()).collect()
    }

    /// Uids of all pods that use claims.
    pub fn pods(&self) -> BTreeSet<String> {
        self.records.lock().values().flat_map(|record| record.pods.iter().cloned()).collect()
    }

    pub fn store(&self, record: &ClaimRecord) -> io::Result<()> {
        create_private_dir(&self.directory)?;
        let text = FORMAT.encode(record)?;
        write_atomic(&self.file(&record.uid), &text, PRIVATE_FILE, Durability::Durable)?;
        self.records.lock().insert(record.uid.clone(), record.clone());
        Ok(())
    }

    pub fn remove(&self, claim_uid: &str) -> io::Result<()> {
        match std::fs::remove_file(self.file(claim_uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.records.lock().remove(claim_uid);
        Ok(())
    }

    /// Uids come from the API: whatever is in one, it names a file of this directory.
    fn file(&self, claim_uid: &str) -> PathBuf {
        let safe: String =
            claim_uid.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        self.directory.join(format!("{safe}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_outlives_the_agent_and_what_was_prepared_before_a_boot_is_prepared_again() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::load(directory.path().join("devices"));
        let mut record =
            ClaimRecord { namespace: "ns".into(), name: "c".into(), uid: "u".into(), ..Default::default() };
        record.pods.insert("p".to_owned());
        record.begin("boot-1", BTreeSet::from(["d".to_owned()]));
        assert_eq!((record.unprepared(), record.is_prepared("boot-1")), (vec!["d".to_owned()], false));
        let device = PreparedDevice {
            requests: vec!["gpu/large".into()],
            cdi_devices: vec!["v/c=0".into()],
            ..Default::default()
        };
        record.drivers.insert("d".to_owned(), Some(vec![device]));
        records.store(&record).unwrap();
        let written = std::fs::read(records.file("u")).unwrap();
        mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/prepared-devices.json", &written);
        let again = Records::load(directory.path().join("devices"));
        assert_eq!(again.find("ns", "c", "p"), Some(record.clone()));
        assert_eq!(again.find("ns", "c", "q"), None);
        assert!(record.is_prepared("boot-1"));
        for (request, expected) in [(None, 1), (Some("gpu"), 1), (Some("gpu/large"), 1), (Some("net"), 0)] {
            assert_eq!(record.cdi_devices(request).len(), expected, "{request:?}");
        }
        record.begin("boot-2", BTreeSet::new());
        assert_eq!(record.unprepared(), ["d"]);
        again.remove("u").unwrap();
        assert!(Records::load(directory.path().join("devices")).pods().is_empty());
    }

    #[test]
    fn a_uid_is_never_a_path() {
        let records = Records::load("/data".into());
        assert_eq!(records.file("../../etc/x"), PathBuf::from("/data/______etc_x.json"));
    }
}
