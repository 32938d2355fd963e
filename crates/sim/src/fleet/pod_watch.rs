//! Watches pods for a fleet: by one watch of all pods, or by one for each node.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures::StreamExt;
use kube::Api;
use mainstay_watch::{Event, Watch, WatchOptions};
use tokio_util::sync::CancellationToken;

use super::Fleet;
use crate::pod::Pod;

pub(super) async fn watch_all_pods(fleet: Arc<Fleet>, stop: CancellationToken) {
    let api: Api<Pod> = Api::all(fleet.access.admin.clone());
    let mut events = Watch::<Pod>::new(api, WatchOptions::default());
    // The node of each pod when it was last observed, and the uids that a new list has shown so far.
    let (mut nodes_of_pods, mut listed) = (HashMap::<String, usize>::new(), HashSet::<String>::new());
    while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.insert(pod.uid().to_owned());
                observe_pod(&fleet, &mut nodes_of_pods, &pod);
            }
            Ok(Event::InitDone) => nodes_of_pods.retain(|uid, number| {
                let retained = listed.contains(uid);
                if !retained {
                    fleet.pod_removed(*number, &pod_with_uid(uid));
                }
                retained
            }),
            Ok(Event::Apply(pod)) => observe_pod(&fleet, &mut nodes_of_pods, &pod),
            Ok(Event::Delete(pod)) => {
                fleet.pod_times.record_deleted(&pod);
                if let Some(number) = nodes_of_pods.remove(pod.uid()) {
                    fleet.pod_removed(number, &pod);
                }
            }
            Err(error) => tracing::debug!(%error, "cannot watch pods; will retry"),
        }
    }
}

fn observe_pod(fleet: &Fleet, nodes_of_pods: &mut HashMap<String, usize>, pod: &Pod) {
    fleet.pod_times.record_observed(pod);
    let now = fleet.by_name.get(&pod.spec.node_name).copied();
    let before = nodes_of_pods.get(pod.uid()).copied();
    if before != now {
        match now {
            Some(number) => drop(nodes_of_pods.insert(pod.uid().to_owned(), number)),
            None => drop(nodes_of_pods.remove(pod.uid())),
        }
        if let Some(number) = before {
            fleet.pod_removed(number, pod);
        }
    }
    if let Some(number) = now {
        fleet.pod_observed(number, pod);
    }
}

fn pod_with_uid(uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

pub(super) async fn watch_pods_of_node(fleet: Arc<Fleet>, number: usize, stop: CancellationToken) {
    let node = &fleet.nodes[number];
    let api: Api<Pod> = Api::all(node.client.clone());
    let mut events = Watch::<Pod>::new(api, WatchOptions::fields(format!("spec.nodeName={}", node.name)));
    let (mut held, mut listed) = (HashSet::<String>::new(), HashSet::<String>::new());
    while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.insert(pod.uid().to_owned());
                held.insert(pod.uid().to_owned());
                fleet.pod_times.record_observed(&pod);
                fleet.pod_observed(number, &pod);
            }
            Ok(Event::InitDone) => held.retain(|uid| {
                let retained = listed.contains(uid);
                if !retained {
                    fleet.pod_removed(number, &pod_with_uid(uid));
                }
                retained
            }),
            Ok(Event::Apply(pod)) => {
                held.insert(pod.uid().to_owned());
                fleet.pod_times.record_observed(&pod);
                fleet.pod_observed(number, &pod);
            }
            Ok(Event::Delete(pod)) => {
                // Deleted, or no longer bound here.
                if pod.is_terminating() {
                    fleet.pod_times.record_deleted(&pod);
                }
                held.remove(pod.uid());
                fleet.pod_removed(number, &pod);
            }
            Err(error) => tracing::debug!(node = node.name, %error, "cannot watch pods; will retry"),
        }
    }
}
