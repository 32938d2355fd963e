//! Evicts the pods of this machine, before its agent stops (`--drain-on-stop`) or the machine changes its version.
//!
//! The node offers nothing from then on, so that the scheduler sends nothing new; that needs no write to the Node, and
//! the next start offers again. Budgets are honoured until `--drain-on-stop-timeout`; what is left then runs on, as after
//! every stop. Pods of DaemonSets, static pods and pods that nobody would replace run on too.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use mainstay_errors::error_chain;
use tokio::time::Instant;

use super::{
    describe,
    evict::{Evictor, Remaining},
    plan::{Consent, Disposition, judge},
};

/// Whatever the flag says.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// For what is asked when time is up: a server that takes a request and does not answer holds up nobody.
const LAST_ANSWER: Duration = Duration::from_secs(5);

/// Never fails: whoever stops a machine wants it stopped.
pub async fn drain_own_node(client: Client, node: &str, timeout: Duration) {
    match evict_own_pods(client, node, timeout).await {
        Ok(left) => {
            for Remaining { namespace, name, why } in left {
                tracing::warn!(namespace, name, why, "a pod was not evicted in time and runs on");
            }
        }
        Err(error) => tracing::warn!(error, "this node stops without having evicted all of its pods; they run on"),
    }
}

/// The same before the machine changes its version: fails if pods are left that should have gone.
pub async fn drain_before_update(client: Client, node: String, timeout: Duration) -> Result<(), String> {
    let left = evict_own_pods(client, &node, timeout).await?;
    let describe = |own: &Remaining| format!("{}/{}: {}", own.namespace, own.name, own.why);
    match left.iter().map(describe).reduce(|all, one| format!("{all}; {one}")) {
        Some(left) => Err(format!("pods are left: {left}")),
        None => Ok(()),
    }
}

/// Evicts what somebody replaces; returns what is left when time is up.
async fn evict_own_pods(client: Client, node: &str, timeout: Duration) -> Result<Vec<Remaining>, String> {
    let deadline = Instant::now() + timeout.min(LONGEST);
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let all = Api::<Pod>::all(client.clone());
    let pods = match tokio::time::timeout_at(deadline, all.list(&of_node)).await {
        Ok(Ok(pods)) => pods.items,
        Ok(Err(error)) => return Err(format!("cannot list the pods of this node: {}", error_chain(&error))),
        Err(_) => return Err("the API does not answer".to_owned()),
    };
    let consent = Consent { bare_pods: false, empty_dir_data: true };
    let pods: Vec<Pod> = pods.into_iter().filter(|pod| judge(pod, consent) == Disposition::Evict).collect();
    tracing::info!(pods = pods.len(), ?timeout, "draining this node");
    let report = |pod: &Pod, progress: super::evict::Progress| {
        let (namespace, name, uid) =
            (pod.namespace().unwrap_or_default(), pod.name_any(), pod.uid().unwrap_or_default());
        tracing::info!(namespace, name, uid, progress = describe(&progress), "drain");
    };
    let evictor = Evictor { client, grace_seconds: None, deadline: Some(deadline), is_own_node: true, report: &report };
    let evicted = tokio::time::timeout_at(deadline + LAST_ANSWER, evictor.evict_all(pods)).await;
    evicted.map_err(|_| "the API does not answer".to_owned())
}
