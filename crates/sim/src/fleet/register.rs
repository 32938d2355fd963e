//! Registers the nodes of a fleet: creates a Node and a Lease for each, or adopts those that exist.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use jiff::Timestamp;
use kube::Client;
use mainstay_api::wellknown::namespace::NODE_LEASES;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};

use super::{Access, Counters, Fleet, FleetActivity, FleetNode, REPORT_TASKS, ServiceTables, Settings, renewals};
use crate::{
    hollow_node::HollowNode,
    pod_times::PodTimes,
    requests::{self, CallError, JSON},
};

const CONCURRENT_REQUESTS: usize = 32;
pub(super) const NODES: &str = "/api/v1/nodes";

pub(super) fn leases_path() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASES}/leases")
}

impl Fleet {
    /// Registers all nodes. They begin to offer, and to take pods, with [`Fleet::run`].
    pub async fn register(
        access: Access,
        settings: Settings,
        pod_times: Arc<PodTimes>,
        done: &AtomicUsize,
    ) -> Result<Arc<Self>, CallError> {
        let offers = has_offers(&access.admin).await?;
        let template = Arc::new(settings.template.clone());
        let assign_behaviors = settings.faults.assign_behaviors(settings.count);
        let digits = settings.count.saturating_sub(1).max(1).to_string().len();
        let registered = Mutex::new(Vec::new());
        let registering = stream::iter(assign_behaviors.into_iter().enumerate())
            .map(|(number, behavior)| {
                let name = format!("{}-{number:0digits$}", settings.prefix);
                let (client, template, registered) = ((access.node_client)(&name), template.clone(), &registered);
                async move {
                    let range =
                        create_node_and_lease(&client, template.node_object(number, &name, Timestamp::now()), &name)
                            .await?;
                    done.fetch_add(1, Relaxed);
                    registered.lock().push(Arc::new((name.clone(), client.clone())));
                    let state = Mutex::new(HollowNode::new(template, behavior));
                    Ok(FleetNode { name, client, state, published: Mutex::default(), range })
                }
            })
            .buffered(CONCURRENT_REQUESTS)
            .try_collect::<Vec<FleetNode>>();
        let nodes = tokio::select! {
            nodes = registering => nodes?,
            never = renewals::renew_registered(&registered) => match never {},
        };
        let by_name = nodes.iter().enumerate().map(|(number, node)| (node.name.clone(), number)).collect();
        let (report_senders, report_receivers) = (0..REPORT_TASKS).map(|_| mpsc::unbounded_channel()).unzip();
        Ok(Arc::new(Self {
            service_tables: ServiceTables::new(nodes.len()),
            settings,
            access,
            nodes,
            by_name,
            started: Instant::now(),
            offers,
            activity: watch::Sender::new(FleetActivity::Offering),
            offers_changed: Notify::new(),
            report_senders,
            report_receivers: Mutex::new(report_receivers),
            pod_times,
            counters: Counters::default(),
        }))
    }
}

async fn has_offers(client: &Client) -> Result<bool, CallError> {
    match requests::call(client, Method::GET, "/apis/mainstay.dev/v1", JSON, Vec::new()).await {
        Ok(bytes) => {
            let resources: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let mut resources = resources["resources"].as_array().into_iter().flatten();
            Ok(resources.any(|resource| resource["name"] == "offers"))
        }
        Err(error) if error.code() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the first three numbers of the node's podCIDR, if it has one.
async fn create_node_and_lease(client: &Client, node: Value, name: &str) -> Result<Option<String>, CallError> {
    let created = requests::call(client, Method::POST, NODES, JSON, node.to_string().into()).await;
    let created = match created {
        Err(error) if error.code() == Some(409) => {
            requests::call(client, Method::GET, &format!("{NODES}/{name}"), JSON, Vec::new()).await?
        }
        created => created?,
    };
    let lease = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": { "name": name, "namespace": NODE_LEASES },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_time(Timestamp::now()) },
    });
    match requests::call(client, Method::POST, &leases_path(), JSON, lease.to_string().into()).await {
        Err(error) if error.code() != Some(409) => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let node: Value = serde_json::from_slice(&created).unwrap_or_default();
    let range = node["spec"]["podCIDR"].as_str().and_then(|range| range.rsplit_once('.'));
    Ok(range.map(|(begin, _)| begin.to_owned()))
}

pub(super) fn micro_time(at: Timestamp) -> String {
    at.strftime("%FT%T%.6fZ").to_string()
}
