//! IPv4 addresses of the machine's network interfaces, without loopback and what belongs to pods.

use std::net::Ipv4Addr;

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

use super::definition::is_usable;

/// More are not published.
const MOST: usize = 64;

/// In the order of names and addresses. Nothing if the kernel does not say.
pub fn interface_addresses(instance: &str) -> Vec<(String, Ipv4Addr)> {
    let bridge = mainstay_network::bridge_name(instance);
    let all = match getifaddrs() {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!(%error, "cannot list the network interfaces of this machine");
            return Vec::new();
        }
    };
    let mut addresses = Vec::new();
    for interface in all {
        let is_up = interface.flags.contains(InterfaceFlags::IFF_UP);
        let is_loopback = interface.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let name = interface.interface_name;
        let address = interface.address.as_ref().and_then(|address| address.as_sockaddr_in()).map(|own| own.ip());
        if let Some(address) = address.filter(|address| is_up && !is_loopback && is_usable(*address))
            && name != bridge
            && !name.contains([',', '='])
        {
            addresses.push((name, address));
        }
    }
    addresses.sort();
    addresses.dedup();
    addresses.truncate(MOST);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_no_address_that_others_reach() {
        assert!(interface_addresses("mainstay").iter().all(|(name, address)| name != "lo" && !address.is_loopback()));
    }
}
