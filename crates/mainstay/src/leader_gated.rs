//! Runs a task on one of several servers at a time: the one that holds a Lease.

use std::future::Future;

use kube::Client;
use mainstay_leader::{LeaderElectionConfig, run_while_leading};
use tokio_util::sync::CancellationToken;

/// Runs `work` until asked to stop, while this server holds `lease` under the name `identity`; without an identity no
/// other server shares the store, and `work` runs at once.
pub async fn run_leader_gated<F>(
    client: Client,
    lease: &str,
    identity: Option<String>,
    stop: CancellationToken,
    mut work: impl FnMut(CancellationToken) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    match identity {
        None => work(stop).await,
        Some(own) => run_while_leading(client, LeaderElectionConfig::new(lease, own), stop, work).await,
    }
}
