//! `status.volumesInUse` of the Node: the volumes that this machine has mounted, or is about to mount.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use mainstay_api::cinder::unique_volume_name;
use mainstay_errors::error_chain;
use serde_json::json;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use super::record::DiskRecords;

const ANSWER: Duration = Duration::from_secs(8);
const RETRY: Duration = Duration::from_secs(2);

pub struct VolumesInUse {
    client: Client,
    node: String,
    records: DiskRecords,
    /// What the API has, once this process has written it.
    written: Mutex<Option<Vec<String>>>,
    changed: Notify,
}

impl VolumesInUse {
    pub fn new(client: Client, node: &str, records: DiskRecords) -> Self {
        Self { client, node: node.to_owned(), records, written: Mutex::default(), changed: Notify::new() }
    }

    /// Writes what is in use now, unless the API has it. A volume may be mounted only after this has succeeded.
    pub async fn write_now(&self) -> Result<(), String> {
        let mut written = self.written.lock().await;
        let volumes: Vec<String> = self.records.volumes().iter().map(|handle| unique_volume_name(handle)).collect();
        if written.as_ref() == Some(&volumes) {
            return Ok(());
        }
        // Without an answer, what the API has is not known.
        *written = None;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"status": {"volumesInUse": volumes}}));
        match tokio::time::timeout(ANSWER, nodes.patch_status(&self.node, &PatchParams::default(), &patch)).await {
            Ok(Ok(_)) => {
                *written = Some(volumes);
                Ok(())
            }
            Ok(Err(error)) => Err(error_chain(&error)),
            Err(_) => Err("the API does not answer".to_owned()),
        }
    }

    /// Writes it in the background.
    pub fn write_soon(&self) {
        self.changed.notify_one();
    }

    /// Keeps the Node current until asked to stop. An agent that was started anew writes what its predecessor left.
    pub async fn run(&self, stop: CancellationToken) {
        let mut is_written = false;
        loop {
            if !is_written {
                match self.write_now().await {
                    Ok(()) => is_written = true,
                    Err(error) => tracing::debug!(error, "cannot report the volumes in use; will retry"),
                }
            }
            let next = async {
                if is_written {
                    self.changed.notified().await;
                } else {
                    tokio::time::sleep(RETRY).await;
                }
            };
            if stop.run_until_cancelled(next).await.is_none() {
                return;
            }
            is_written = false;
        }
    }
}
