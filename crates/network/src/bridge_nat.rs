//! The nftables table of a bridge: masquerades what pods send out of the cluster, and DNATs host ports to pods.
//!
//! The table is always replaced as a whole, in one transaction. A host port works from outside, from the machine
//! itself, from other pods, and from the very pod that it belongs to.

use std::net::Ipv4Addr;

use crate::{
    error::NetworkError,
    journal::{HostPort, Lease},
    netns,
    nft::{
        Batch, Hook,
        expressions::{Expressions, Register, Side},
        send_batch,
    },
    range::Range,
};

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const POSTROUTING: &str = "postrouting";

const FIRST: Register = Register(0);
const SECOND: Register = Register(1);

/// The transaction that replaces the table.
pub fn table_batch<'a>(bridge: &str, cluster: Range, leases: impl Iterator<Item = &'a Lease> + Clone) -> Vec<u8> {
    let mut batch = Batch::new();
    // Deleting a table that is not there is an error, so it is added first.
    batch.add_table(bridge);
    batch.delete_table(bridge);
    batch.add_table(bridge);
    batch.add_base_chain(bridge, PREROUTING, Hook::Prerouting);
    batch.add_base_chain(bridge, OUTPUT, Hook::OutputNat);
    batch.add_base_chain(bridge, POSTROUTING, Hook::Postrouting);
    for lease in leases {
        for port in &lease.ports {
            for chain in [PREROUTING, OUTPUT] {
                batch.append_rule(bridge, chain, &host_port_dnat(port, lease.address));
            }
        }
        if !lease.ports.is_empty() {
            // Hairpin: a pod drops packets that come from its own address.
            let hairpin = Expressions::new().if_address(FIRST, Side::Source, lease.address).if_address(
                FIRST,
                Side::Destination,
                lease.address,
            );
            batch.append_rule(bridge, POSTROUTING, &hairpin.masquerade());
        }
    }
    if let Some(loopback) = Range::around(Ipv4Addr::LOCALHOST, 8) {
        let from_loopback = Expressions::new().if_address_in(FIRST, Side::Source, loopback).if_oifname(FIRST, bridge);
        batch.append_rule(bridge, POSTROUTING, &from_loopback.masquerade());
    }
    let out_of_cluster = Expressions::new().if_address_in(FIRST, Side::Source, cluster).if_address_not_in(
        FIRST,
        Side::Destination,
        cluster,
    );
    batch.append_rule(bridge, POSTROUTING, &out_of_cluster.masquerade());
    batch.finish()
}

fn host_port_dnat(port: &HostPort, pod: Ipv4Addr) -> Expressions {
    let rule = match port.host_ip.filter(|ip| !ip.is_unspecified()) {
        Some(address) => Expressions::new().if_address(FIRST, Side::Destination, address),
        None => Expressions::new().if_local_address(FIRST, Side::Destination),
    };
    rule.if_l4proto(FIRST, port.protocol.number())
        .if_destination_port(FIRST, port.host_port)
        .load_immediate(FIRST, &pod.octets())
        .load_immediate(SECOND, &port.pod_port.to_be_bytes())
        .dnat(FIRST, SECOND)
}

pub async fn replace_table(batch: Vec<u8>) -> Result<(), NetworkError> {
    let sent = netns::run_on_thread(move || send_batch(&batch)).await;
    sent.map_err(NetworkError::system("replace the nftables table of the bridge"))
}

pub async fn delete_table(bridge: &str) -> Result<(), NetworkError> {
    let mut batch = Batch::new();
    batch.add_table(bridge);
    batch.delete_table(bridge);
    replace_table(batch.finish()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{journal::Protocol, nft::tests::assert_golden};

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
        let bytes = table_batch("mainstay0", "10.244.0.0/16".parse().unwrap(), leases.iter());
        assert_golden("bridge.txt", include_str!("nft/tests/bridge.txt"), &[("batch", bytes)]);
    }
}
