//! The pod network as the runtime asks for it, and its place among the other machines.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use mainstay_network::{Bridge, HostPort, NetworkError, Protocol, Range};
use mainstay_runtime::{PodNetwork, RuntimeError, SandboxId, SandboxSpec, port::Result, spec};
use tokio_util::sync::CancellationToken;

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

/// Keeps the bridge in the range that the API gave this machine, and routes to the others' ranges. While the API is
/// away everything stays as it is.
pub async fn follow(bridge: Arc<Bridge>, client: Client, node_name: String, stop: CancellationToken) {
    stop.run_until_cancelled(follow_nodes(&bridge, client, &node_name)).await;
}

async fn follow_nodes(bridge: &Bridge, client: Client, own: &str) {
    let events = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let (mut known, mut complete) = (BTreeMap::new(), false);
    let mut routed = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => (known, complete) = (BTreeMap::new(), false),
            Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) => known.extend(view(&node)),
            Ok(watcher::Event::Delete(node)) => {
                view(&node).map(|(name, _)| known.remove(&name));
            }
            Ok(watcher::Event::InitDone) => complete = true,
            Err(error) => {
                tracing::debug!(%error, "cannot watch nodes; will watch again");
                continue;
            }
        }
        if let Some((Some(range), _)) = known.get(own)
            && let Err(error) = bridge.set_range(*range).await
        {
            tracing::warn!(error = error.chain(), "cannot use the range of addresses for pods");
        }
        let wanted = routes(&known, own);
        if !complete || routed.as_ref() == Some(&wanted) {
            continue;
        }
        match bridge.set_routes(&wanted).await {
            Ok(far) => {
                for machine in far {
                    tracing::warn!(%machine, "pods there cannot be reached: the machine is not on a network of this one");
                }
                routed = Some(wanted);
            }
            Err(error) => tracing::warn!(error = error.chain(), "cannot set the routes to other machines"),
        }
    }
}

type View = (Option<Range>, Option<Ipv4Addr>);

/// A Node's range and address.
fn view(node: &Node) -> Option<(String, View)> {
    let range = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_ref()?.parse().ok());
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let mut internal = addresses.filter(|address| address.type_ == "InternalIP");
    Some((node.metadata.name.clone()?, (range, internal.find_map(|address| address.address.parse().ok()))))
}

/// Other machines' ranges; none behind an address of our own, which is a second agent on this machine.
fn routes(nodes: &BTreeMap<String, View>, own: &str) -> BTreeMap<Range, Ipv4Addr> {
    let here = nodes.get(own).and_then(|(_, address)| *address);
    let others = nodes.iter().filter(|(name, _)| *name != own);
    let others = others.filter_map(|(_, (range, address))| Some(((*range)?, (*address)?)));
    others.filter(|(_, address)| Some(*address) != here && !address.is_loopback()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_lead_to_others_and_never_to_ourselves() {
        let view = |range: &str, address: &str| -> View { (range.parse().ok(), address.parse().ok()) };
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
