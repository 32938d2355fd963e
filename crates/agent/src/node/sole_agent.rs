//! Notices that a node already has an agent: one of another machine with the same name, or of a copy of this data directory.
//!
//! Every heartbeat says in the Lease which agent sent it: machine, boot and data directory. An agent that finds those of another there
//! waits whether that one renews the Lease once more. If it does, two would run under one name, fight over the Node, and each
//! stop the pods of the other: so the one that comes second does not start. After a restart of the agent nothing is
//! waited for, after one of the machine no longer than two heartbeats and a half.

use std::{fs, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use mainstay_api::wellknown::{mainstay::AGENT, namespace::NODE_LEASES};

use crate::settings::Settings;

#[derive(Debug, thiserror::Error)]
#[error(
    "node {node:?} has another agent, {other}, which renews its Lease: stop that one, or give this one a name \
     (--node-name) and a data directory (--data-dir) of its own"
)]
pub struct OtherAgent {
    pub node: String,
    pub other: String,
}

/// Names this agent in the Lease: `HOST/INSTANCE/BOOT`. The instance follows from the data directory.
pub fn agent_identity(settings: &Settings) -> String {
    let read = |file: &str| fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default();
    let (host, boot) = (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id"));
    format!("{host}/{}/{boot}", settings.instance)
}

/// Returns once it is certain enough that no other agent is at work. A server that does not answer is no reason to wait.
///
/// # Errors
/// Another agent renews the Lease of this node.
pub async fn check_sole_agent(client: &Client, settings: &Settings) -> Result<(), OtherAgent> {
    let (own, heartbeat) = (agent_identity(settings), settings.timing.heartbeat);
    let Some(first) = read_renewal(client, &settings.node_name, heartbeat).await else { return Ok(()) };
    if first.agent == own {
        return Ok(());
    }
    tracing::info!(other = first.agent, "the node had another agent; waiting whether it still sends heartbeats");
    // One heartbeat may be late, and reading takes time too.
    let until = tokio::time::Instant::now() + heartbeat * 5 / 2;
    while tokio::time::Instant::now() < until {
        tokio::time::sleep(heartbeat / 4).await;
        match read_renewal(client, &settings.node_name, heartbeat).await {
            Some(now) if now != first && now.agent != own => {
                return Err(OtherAgent { node: settings.node_name.clone(), other: now.agent });
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// Who renewed the Lease, and when.
#[derive(Debug, PartialEq, Eq)]
struct Renewal {
    agent: String,
    version: Option<String>,
}

async fn read_renewal(client: &Client, node: &str, patience: Duration) -> Option<Renewal> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NODE_LEASES);
    let lease = tokio::time::timeout(patience, leases.get_opt(node)).await.ok()?.ok()??;
    let agent = lease.metadata.annotations.and_then(|mut annotations| annotations.remove(AGENT))?;
    Some(Renewal { agent, version: lease.metadata.resource_version })
}
