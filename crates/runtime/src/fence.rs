//! The fence of a machine: until when pods that must be unique may run on it.
//!
//! The agent writes one small file, whenever it has had contact with a server. The shim of every unique pod reads it when its
//! time is up, by a timer on boot time, which goes on while the machine sleeps. So one write serves all pods, and an agent that
//! is frozen or was killed fences all the same. A file that cannot be read permits nothing, nor does one of an earlier start of the
//! machine, whose boot time was another.

use std::{fs, io, path::Path, time::Duration};

use mainstay_files::{Durability, PRIVATE_FILE, write_atomic};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::builtin::boot_id;

/// Between the stop signal and SIGKILL. With the time to be scheduled and to end it is within
/// `mainstay_api::node_loss::STOP_TIME`, which is what nodes promise.
pub const GRACE: Duration = Duration::from_millis(1500);

/// What the end of a container that was stopped for the fence is explained with. No program can write this message.
pub const FENCED: &str =
    "stopped because this machine had no contact with the cluster, which may run the pod elsewhere";

/// Time since the machine was started, sleep included.
pub fn boot_time() -> Duration {
    // The kernel always has this clock.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Until when unique pods may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceLimit {
    /// Nobody replaces pods of this machine.
    None,
    /// By [`boot_time`].
    Until(Duration),
}

#[derive(Serialize, Deserialize)]
struct FenceFile {
    /// Milliseconds of boot time.
    until: Option<u64>,
    /// Of which start of the machine. Absent in files of earlier versions.
    #[serde(default)]
    boot: Option<String>,
}

impl FenceLimit {
    pub fn permits(self, now: Duration) -> bool {
        match self {
            Self::None => true,
            Self::Until(until) => now < until,
        }
    }

    pub fn read(file: &Path) -> io::Result<Self> {
        let FenceFile { until, boot } = serde_json::from_slice(&fs::read(file)?)?;
        if boot.zip(current_boot()).is_some_and(|(written, current)| written != current) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is of an earlier start of the machine"));
        }
        Ok(until.map_or(Self::None, |until| Self::Until(Duration::from_millis(until))))
    }

    /// Read by others whole or not at all. Of no meaning after the machine's next start, as boot time is.
    pub fn write(self, file: &Path) -> io::Result<()> {
        let until = match self {
            Self::None => None,
            Self::Until(until) => Some(u64::try_from(until.as_millis()).unwrap_or(u64::MAX)),
        };
        write_atomic(
            file,
            &serde_json::to_vec(&FenceFile { until, boot: current_boot() })?,
            PRIVATE_FILE,
            Durability::Volatile,
        )
    }
}

fn current_boot() -> Option<String> {
    Some(boot_id()).filter(|boot| !boot.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_as_it_was_written_and_what_cannot_be_read_is_no_limit() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fence.json");
        assert!(FenceLimit::read(&file).is_err());
        for limit in [FenceLimit::None, FenceLimit::Until(Duration::from_millis(1234))] {
            limit.write(&file).unwrap();
            assert_eq!(FenceLimit::read(&file).unwrap(), limit);
        }
        fs::write(&file, r#"{"until":99999999999,"boot":"of-another-start"}"#).unwrap();
        assert!(FenceLimit::read(&file).is_err(), "the machine was started anew");
        fs::write(&file, r#"{"until":1234}"#).unwrap();
        assert!(FenceLimit::read(&file).is_ok(), "as earlier versions wrote it");
        fs::write(&file, "{").unwrap();
        assert!(FenceLimit::read(&file).is_err());
    }

    #[test]
    fn a_limit_ends_by_boot_time() {
        let now = boot_time();
        assert!(!now.is_zero());
        assert!(FenceLimit::None.permits(Duration::MAX));
        assert!(FenceLimit::Until(now + Duration::from_secs(60)).permits(boot_time()));
        assert!(!FenceLimit::Until(now).permits(boot_time()));
    }
}
