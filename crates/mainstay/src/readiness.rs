//! What a running process says of itself in `process.json` of its data directory: its version, and whether it is ready.
//!
//! Ready means that what it is for works: the server's `/readyz` passes, and the node's Lease was renewed by this very
//! process. It is said once; what goes wrong later is a matter of conditions and metrics. `mainstay upgrade` waits for it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use mainstay_api::wellknown::namespace::NODE_LEASES;
use mainstay_files::{Durability, Format, PRIVATE_FILE, VERSION, write_atomic};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// How often what is not ready yet is looked at again.
const INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessReport {
    pub pid: u32,
    pub version: String,
    pub started: Timestamp,
    pub ready: bool,
    /// Whether it drains its node when it is asked to stop. Earlier versions did not say so.
    #[serde(default)]
    pub drains_on_stop: Option<bool>,
}

impl ProcessReport {
    pub const FORMAT: Format = Format::new("the report of a running process", 1);

    fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("process.json")
    }

    /// None if there is none that can be read: it may be of a version that wrote none.
    pub fn read(data_dir: &Path) -> Option<Self> {
        Self::FORMAT.decode(&fs::read(Self::path(data_dir)).ok()?).ok()
    }

    fn write(&self, data_dir: &Path) {
        let written = Self::FORMAT.encode(self).map_err(io::Error::from);
        let path = Self::path(data_dir);
        let written = written.and_then(|text| write_atomic(&path, &text, PRIVATE_FILE, Durability::Volatile));
        if let Err(error) = written {
            tracing::warn!(file = %path.display(), %error, "cannot write whether this process is ready");
        }
    }
}

/// The parts of a process that have to work.
#[derive(Default)]
pub struct Readiness {
    /// A client of the server in this process.
    pub server: Option<Client>,
    /// A client of the node in this process, and the node's name.
    pub node: Option<(Client, String)>,
    pub drains_on_stop: bool,
}

impl Readiness {
    /// Reports at once that the process runs, and later that it is ready.
    pub async fn report(self, data_dir: PathBuf, stop: CancellationToken) {
        let mut report = ProcessReport {
            pid: std::process::id(),
            version: VERSION.to_owned(),
            started: Timestamp::now(),
            ready: false,
            drains_on_stop: Some(self.drains_on_stop),
        };
        report.write(&data_dir);
        let ready = async {
            while !self.is_ready(report.started).await {
                tokio::time::sleep(INTERVAL).await;
            }
        };
        if stop.run_until_cancelled(ready).await.is_some() {
            report.ready = true;
            report.write(&data_dir);
        }
    }

    async fn is_ready(&self, started: Timestamp) -> bool {
        if let Some(client) = &self.server {
            let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
            if client.request_text(request).await.is_err() {
                return false;
            }
        }
        if let Some((client, node)) = &self.node {
            let leases: Api<Lease> = Api::namespaced(client.clone(), NODE_LEASES);
            let Ok(Some(lease)) = leases.get_opt(node).await else { return false };
            // By the clock of this machine, which wrote it.
            let renewed = lease.spec.and_then(|spec| spec.renew_time);
            return renewed.is_some_and(|renewed| renewed.0 >= started);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_without_an_api_is_ready_once_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ProcessReport::read(dir.path()), None);
        Readiness::default().report(dir.path().to_owned(), CancellationToken::new()).await;
        let report = ProcessReport::read(dir.path()).unwrap();
        assert_eq!((report.pid, report.ready, report.version.as_str()), (std::process::id(), true, VERSION));
    }
}
