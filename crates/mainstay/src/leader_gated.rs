//! Work that only one of several servers on a store does at a time.

use std::future::Future;

use kube::Client;
use mainstay_leader::{LeaderElectionConfig, run_while_leading};
use tokio_util::sync::CancellationToken;

/// Does `work` until asked to stop, while this server holds `lease`. `rival` is the name by which it is known to the
/// others; without one it has the store to itself.
pub async fn one_at_a_time<F>(
    client: Client,
    lease: &str,
    rival: Option<String>,
    stop: CancellationToken,
    mut work: impl FnMut(CancellationToken) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    match rival {
        None => work(stop).await,
        Some(own) => run_while_leading(client, LeaderElectionConfig::new(lease, own), stop, work).await,
    }
}
