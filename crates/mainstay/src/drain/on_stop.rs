//! `--drain-on-stop`: evicts the pods of this machine before its agent stops.
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
    let deadline = Instant::now() + timeout.min(LONGEST);
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let all = Api::<Pod>::all(client.clone());
    let pods = match tokio::time::timeout_at(deadline, all.list(&of_node)).await {
        Ok(Ok(pods)) => pods.items,
        Ok(Err(error)) => {
            tracing::warn!(error = error_chain(&error), "cannot list the pods of this node; it stops without a drain");
            return;
        }
        Err(_) => {
            tracing::warn!("the API does not answer; this node stops without a drain");
            return;
        }
    };
    let consent = Consent { bare_pods: false, empty_dir_data: true };
    let pods: Vec<Pod> = pods.into_iter().filter(|pod| judge(pod, consent) == Disposition::Evict).collect();
    tracing::info!(pods = pods.len(), ?timeout, "draining this node before it stops");
    let report = |pod: &Pod, progress: super::evict::Progress| {
        let (namespace, name, uid) =
            (pod.namespace().unwrap_or_default(), pod.name_any(), pod.uid().unwrap_or_default());
        tracing::info!(namespace, name, uid, progress = describe(&progress), "drain");
    };
    let evictor = Evictor { client, grace_seconds: None, deadline: Some(deadline), is_own_node: true, report: &report };
    let Ok(left) = tokio::time::timeout_at(deadline + LAST_ANSWER, evictor.evict_all(pods)).await else {
        tracing::warn!("the API does not answer; this node stops, and pods that were not evicted run on");
        return;
    };
    for Remaining { namespace, name, why } in left {
        tracing::warn!(namespace, name, why, "a pod was not evicted in time and runs on");
    }
}
