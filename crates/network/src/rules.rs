//! Our packet rules: one table per bridge, always written as a whole.
//!
//! * What leaves the pods for the world beyond carries the machine's own address.
//! * A machine's port that belongs to a pod leads there: from outside, from the machine itself, from other
//!   pods, and from that very pod.

use std::net::Ipv4Addr;

use crate::{
    error::NetworkError,
    journal::{HostPort, Lease, Protocol},
    netns,
    nft::{Batch, Hook, Step, send},
    range::Range,
};

const ARRIVING: &str = "arriving";
const OWN: &str = "own";
const LEAVING: &str = "leaving";

pub fn batch<'a>(bridge: &str, cluster: Range, leases: impl Iterator<Item = &'a Lease> + Clone) -> Vec<u8> {
    let mut batch = Batch::new();
    // Deleting what may not be there needs it to be there.
    batch.table(bridge);
    batch.delete_table(bridge);
    batch.table(bridge);
    batch.chain(bridge, ARRIVING, Hook::Arriving);
    batch.chain(bridge, OWN, Hook::Own);
    batch.chain(bridge, LEAVING, Hook::Leaving);
    for lease in leases.clone() {
        for port in &lease.ports {
            for chain in [ARRIVING, OWN] {
                batch.rule(bridge, chain, &diverted(port, lease.address));
            }
        }
        if !lease.ports.is_empty() {
            // To itself by way of the machine: it would not take an answer from itself.
            let itself = [Step::FromExactly(lease.address), Step::ToExactly(lease.address), Step::Masquerade];
            batch.rule(bridge, LEAVING, &itself);
        }
    }
    if let Some(loopback) = Range::around(Ipv4Addr::LOCALHOST, 8) {
        batch.rule(bridge, LEAVING, &[Step::From(loopback), Step::LeavesBy(bridge), Step::Masquerade]);
    }
    batch.rule(bridge, LEAVING, &[Step::From(cluster), Step::NotTo(cluster), Step::Masquerade]);
    batch.finish()
}

fn diverted(port: &HostPort, pod: Ipv4Addr) -> Vec<Step<'static>> {
    let protocol = match port.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    };
    let to = port.host_ip.filter(|ip| !ip.is_unspecified()).map_or(Step::ToHere, Step::ToExactly);
    vec![to, Step::Protocol(protocol), Step::ToPort(port.host_port), Step::Divert(pod, port.pod_port)]
}

pub async fn write(batch: Vec<u8>) -> Result<(), NetworkError> {
    netns::apart(move || send(&batch)).await.map_err(NetworkError::system("write packet rules"))
}

pub async fn remove(bridge: &str) -> Result<(), NetworkError> {
    let mut batch = Batch::new();
    batch.table(bridge);
    batch.delete_table(bridge);
    write(batch.finish()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::tests::assert_golden;

    #[test]
    fn the_bytes_of_a_bridges_table_are_the_golden_ones() {
        let port = |protocol, host_ip, host_port| HostPort { protocol, host_ip, host_port, pod_port: 8080 };
        let leases = [
            Lease { address: [10, 244, 3, 2].into(), ports: vec![] },
            Lease {
                address: [10, 244, 3, 3].into(),
                ports: vec![
                    port(Protocol::Tcp, None, 80),
                    port(Protocol::Udp, Some([192, 168, 77, 1].into()), 53),
                    port(Protocol::Sctp, Some([0, 0, 0, 0].into()), 9),
                ],
            },
        ];
        let bytes = batch("mainstay0", "10.244.0.0/16".parse().unwrap(), leases.iter());
        assert_golden("bridge.txt", include_str!("nft/tests/bridge.txt"), &[("batch", bytes)]);
    }
}
