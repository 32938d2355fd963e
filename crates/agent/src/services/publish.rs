//! Publishes this node's ServiceTable: up to which version EndpointSlices are in force here.
//!
//! Only changes that somebody may wait for are published: a backend or a node that went. The object lives in the server's memory, so it is
//! published again when that may have been lost.

use std::time::Duration;

use kube::{Api, Client};
use mainstay_api::service_table::{ServiceTable, ServiceTableSpec};
use tokio::sync::watch;

use super::TableVersion;
use crate::{publish_own::publish_own, watch_backoff::ApiRetries};

/// No call may hold up the next one longer.
const DEADLINE: Duration = Duration::from_secs(2);
/// How often it is made sure that the server still knows.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

pub struct Publisher {
    tables: Api<ServiceTable>,
    node_name: String,
    in_force: watch::Receiver<TableVersion>,
}

impl Publisher {
    pub fn new(client: Client, node_name: String, in_force: watch::Receiver<TableVersion>) -> Self {
        Self { tables: Api::all(client), node_name, in_force }
    }

    pub async fn run(mut self) {
        let mut retries = ApiRetries::new(Duration::from_millis(100), Duration::from_secs(5));
        // Nothing is published before the first table is in force.
        if self.in_force.wait_for(|now| now.owed > 0).await.is_err() {
            return;
        }
        loop {
            let now = *self.in_force.borrow_and_update();
            match tokio::time::timeout(DEADLINE, self.publish(now)).await {
                Ok(Ok(())) => {
                    retries.reset();
                    if self.wait().await.is_none() {
                        return;
                    }
                }
                failed => {
                    tracing::debug!(?failed, "cannot say how far the table of Services is; will try again");
                    tokio::time::sleep(retries.record_failure()).await;
                }
            }
        }
    }

    async fn publish(&self, now: TableVersion) -> kube::Result<()> {
        let spec = ServiceTableSpec { endpoints: now.endpoints.to_string(), nodes: now.nodes.to_string() };
        publish_own(&self.tables, &ServiceTable::new(&self.node_name, spec)).await.map(drop)
    }

    /// Until there is something to say, or nobody will ever say anything.
    async fn wait(&mut self) -> Option<()> {
        loop {
            match tokio::time::timeout(LOOK_AGAIN, self.in_force.changed()).await {
                Ok(changed) => return changed.ok(),
                Err(_) => {
                    let known = tokio::time::timeout(DEADLINE, self.tables.get_opt(&self.node_name)).await;
                    if matches!(known, Ok(Ok(None))) {
                        return Some(());
                    }
                }
            }
        }
    }
}
