//! The pod network of this node: implements the runtime's network port on the bridge, and follows Nodes for routes to theirs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use kube::{Api, Client};
use mainstay_network::{
    Bridge, HostPort, NetworkError, Protocol, Range,
    catalogue::{Catalogue, Key},
};
use mainstay_runtime::{PodNetwork, RuntimeError, SandboxId, SandboxSpec, port::Result, spec};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    fence::{Fence, peers::Peer},
    pod_routes::{RouteProblem, RoutedNode, judge_routes},
    route_check::NodeRanges,
    services::{
        TableVersion,
        follow::{WatchUpdate, follow, version},
        wire::Node,
    },
};

/// A bridge of this machine.
pub struct BridgeNetwork(pub Arc<Bridge>);

#[async_trait]
impl PodNetwork for BridgeNetwork {
    async fn attach(&self, sandbox: &SandboxId, netns: &Path, spec: &SandboxSpec) -> Result<Vec<IpAddr>> {
        let ports: Vec<HostPort> = spec.ports.iter().filter_map(host_port).collect();
        let address = self.0.attach(&sandbox.0, netns, &ports).await.map_err(failed("set up the pod's network"))?;
        Ok(vec![IpAddr::V4(address)])
    }

    async fn detach(&self, sandbox: &SandboxId) -> Result<()> {
        self.0.detach(&sandbox.0).await.map_err(failed("remove the pod's network"))
    }

    async fn retain(&self, live: &BTreeSet<SandboxId>) -> Result<()> {
        let live = live.iter().map(|sandbox| sandbox.0.clone()).collect();
        self.0.retain(&live).await.map_err(failed("remove the networks of pods that are gone"))
    }
}

/// Nothing for a port of an IPv6 address of the machine: pods have none.
fn host_port(port: &spec::HostPort) -> Option<HostPort> {
    let host_ip = match port.host_ip.as_str() {
        "" | "::" => None,
        ip => Some(ip.parse::<Ipv4Addr>().ok()?),
    };
    let protocol = match port.protocol {
        spec::Protocol::Tcp => Protocol::Tcp,
        spec::Protocol::Udp => Protocol::Udp,
        spec::Protocol::Sctp => Protocol::Sctp,
    };
    (port.host_port != 0).then_some(HostPort {
        protocol,
        host_ip,
        host_port: port.host_port,
        pod_port: port.container_port,
    })
}

fn failed(doing: &'static str) -> impl FnOnce(NetworkError) -> RuntimeError {
    move |error| RuntimeError::failed(doing, error.chain())
}

/// This machine's place among the others: its own range of addresses, routes to theirs, and their names. While the API is away
/// everything stays as it is.
pub struct NodeWatch {
    pub node_name: String,
    /// Where what the API says is kept for a start without it.
    pub file: PathBuf,
    /// None if the pod network is not ours.
    pub bridge: Option<Arc<Bridge>>,
    pub catalogue: Arc<Catalogue>,
    pub in_force: Arc<watch::Sender<TableVersion>>,
    /// Learns which nodes it can ask for their contact.
    pub fence: Arc<Fence>,
    /// Learns whether pods of other nodes can be reached.
    pub route_problem: RouteProblem,
    /// Learns the ranges of this node and of others.
    pub ranges: watch::Sender<NodeRanges>,
}

/// How soon routes that could not be set are tried again: a network of this machine may have come.
const RETRY_ROUTES: Duration = Duration::from_secs(10);
/// Nodes that may wait to be taken in.
const QUEUE: usize = 256;

impl NodeWatch {
    pub async fn run(self, client: Client, stop: CancellationToken) {
        let (updates, received) = mpsc::channel(QUEUE);
        let following = follow(Api::<Node>::all(client), self.file.clone(), updates);
        stop.run_until_cancelled(async { tokio::join!(following, self.apply_updates(received)) }).await;
    }

    async fn apply_updates(&self, mut received: mpsc::Receiver<WatchUpdate<Node>>) {
        let (mut known, mut complete, mut routed) = (BTreeMap::new(), false, Routed::default());
        let (mut newest, mut owes, mut is_listing) = (0, true, false);
        let mut retries = false;
        loop {
            let patience = if retries { RETRY_ROUTES } else { Duration::MAX };
            let mut next = match tokio::time::timeout(patience, received.recv()).await {
                Ok(None) => return,
                Ok(first) => first,
                Err(_) => None,
            };
            while let Some(update) = next {
                match update {
                    WatchUpdate::Applied(node) => {
                        newest = newest.max(version(&node));
                        self.catalogue.set_machine(&name(&node), node.address());
                        if name(&node) == self.node_name {
                            self.catalogue.set_zone(node.zone());
                        }
                        let peer = node.agent().map(|address| Peer { address, is_ready: node.is_ready() });
                        self.fence.set_peer(&name(&node), peer);
                        known.insert(name(&node), routed_node(&node));
                    }
                    WatchUpdate::Deleted(key) => {
                        owes |= known.remove(&*key.name).is_some();
                        self.fence.set_peer(&key.name, None);
                        self.catalogue.set_machine(&key.name, None);
                    }
                    WatchUpdate::Synced(all) => {
                        (complete, is_listing) = (true, false);
                        let gone = known.keys().filter(|name| !all.contains(&Key::new("", name)));
                        for name in gone.cloned().collect::<Vec<_>>() {
                            owes |= known.remove(&name).is_some();
                            self.fence.set_peer(&name, None);
                            self.catalogue.set_machine(&name, None);
                        }
                    }
                    WatchUpdate::Listing => is_listing = true,
                    WatchUpdate::Interrupted => {}
                }
                next = received.try_recv().ok();
            }
            if complete {
                let ranges = NodeRanges::from_nodes(&known, &self.node_name);
                self.ranges.send_if_modified(|now| std::mem::replace(now, ranges.clone()) != ranges);
            }
            let is_routed = complete && self.route(&known, &mut routed).await;
            retries = complete && routed.routes.is_none();
            // In the middle of a list an older change may still be missing.
            if is_routed && !is_listing {
                self.in_force.send_if_modified(|now| {
                    now.nodes = newest;
                    let owed = std::mem::take(&mut owes) && now.owed > 0;
                    now.owed += u64::from(owed);
                    owed
                });
            }
        }
    }

    /// Whether routes lead nowhere else than they should.
    async fn route(&self, known: &BTreeMap<String, RoutedNode>, routed: &mut Routed) -> bool {
        let Some(bridge) = &self.bridge else { return true };
        if let Some(RoutedNode { range: Some(range), .. }) = known.get(&self.node_name)
            && let Err(error) = bridge.set_range(*range).await
        {
            tracing::warn!(error = error.chain(), "cannot use the range of addresses for pods");
        }
        let wanted = routes(known, &self.node_name);
        if routed.routes.as_ref() == Some(&wanted) {
            return true;
        }
        match bridge.set_routes(&wanted).await {
            Ok(far) => {
                let far: BTreeSet<Ipv4Addr> = far.into_iter().collect();
                for machine in far.difference(&routed.far) {
                    tracing::warn!(%machine, "pods there cannot be reached: the machine is not on a network of this one");
                }
                self.route_problem.set(judge_routes(&self.node_name, known, &far));
                *routed = Routed { routes: far.is_empty().then_some(wanted), far };
                true
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot set the routes to other machines");
                self.route_problem.set(Some(format!("cannot set the routes to other nodes: {}", error.chain())));
                routed.routes = None;
                false
            }
        }
    }
}

/// What routes were last set to.
#[derive(Default)]
struct Routed {
    /// None if some are missing.
    routes: Option<BTreeMap<Range, Ipv4Addr>>,
    /// Machines to which there is none.
    far: BTreeSet<Ipv4Addr>,
}

fn name(node: &Node) -> String {
    node.metadata.name.clone().unwrap_or_default()
}

fn routed_node(node: &Node) -> RoutedNode {
    let created = node.metadata.creation_timestamp.as_ref().map(|created| created.0);
    RoutedNode { range: node.range(), address: node.address(), created }
}

/// Other machines' ranges; none behind an address of our own, which is a second agent on this machine.
fn routes(nodes: &BTreeMap<String, RoutedNode>, own: &str) -> BTreeMap<Range, Ipv4Addr> {
    let here = nodes.get(own).and_then(|node| node.address);
    let others = nodes.iter().filter(|(name, _)| *name != own);
    let others = others.filter_map(|(_, node)| Some((node.range?, node.address?)));
    others.filter(|(_, address)| Some(*address) != here && !address.is_loopback()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_lead_to_others_and_never_to_ourselves() {
        let view = |range: &str, address: &str| RoutedNode {
            range: range.parse().ok(),
            address: address.parse().ok(),
            created: None,
        };
        let nodes = BTreeMap::from([
            ("a".to_owned(), view("10.244.0.0/24", "10.0.0.1")),
            ("b".to_owned(), view("10.244.1.0/24", "10.0.0.2")),
            ("same-machine".to_owned(), view("10.244.2.0/24", "10.0.0.1")),
            ("new".to_owned(), view("", "10.0.0.4")),
        ]);
        let expected = BTreeMap::from([("10.244.1.0/24".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2))]);
        assert_eq!(routes(&nodes, "a"), expected);
    }
}
