//! The pod network as the runtime asks for it.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use mainstay_network::{Bridge, HostPort, NetworkError, Protocol};
use mainstay_runtime::{PodNetwork, RuntimeError, SandboxId, SandboxSpec, port::Result, spec};

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
