//! Runs a task on one of several servers at a time: the one that holds a Lease.

use std::{future::Future, sync::Arc};

use kube::Client;
use mainstay_leader::{LeaderElectionConfig, LeaderTerm, run_while_leading};
use mainstay_server::fence::Fence;
use mainstay_store::Revision;
use tokio_util::sync::CancellationToken;

/// Runs `work` until asked to stop, while this server holds `lease` under the name `identity`; without an identity no
/// other server shares the store, and `work` runs at once. All that `work` writes has to be behind the fence it is given: then
/// the store refuses what it writes after another server has taken over, even if it was frozen and does not know.
pub async fn run_leader_gated<F>(
    client: Client,
    lease: &str,
    identity: Option<String>,
    stop: CancellationToken,
    mut work: impl FnMut(Option<Arc<Fence>>, CancellationToken) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let Some(identity) = identity else { return work(None, stop).await };
    run_while_leading(client, LeaderElectionConfig::new(lease, identity), stop, |term: LeaderTerm| {
        let fence = Fence::new(&term.namespace, &term.name, Revision(term.version), term.ended);
        work(Some(Arc::new(fence)), term.stop)
    })
    .await;
}
