//! What instances have in this network namespace, found by how it is named and without any record of theirs: bridges with the
//! interfaces on them, labelled addresses, tables of packet rules.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use futures::StreamExt;
use rtnetlink::packet_route::{
    address::AddressAttribute,
    link::{InfoKind, LinkAttribute, LinkInfo},
};

use crate::{
    bridge::bridge_name,
    bridge_nat,
    error::NetworkError,
    links, loopback,
    netns::{self, Netlink},
    nft::{listing, socket::NetfilterSocket},
    services::Balancer,
};

/// Everything that could be an instance's, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedThings {
    /// Each bridge with the interfaces on it.
    pub bridges: BTreeMap<String, Vec<String>>,
    /// Each label of an address, with the address.
    pub labels: Vec<(String, Ipv4Addr)>,
    /// Tables of packet rules for IPv4.
    pub tables: Vec<String>,
}

/// Lists them.
pub async fn find() -> Result<NamedThings, NetworkError> {
    let netlink = Netlink::in_current_netns()?;
    let tables = netns::run_on_thread(|| listing::list_tables(&NetfilterSocket::open()?)).await;
    Ok(NamedThings {
        bridges: bridges(&netlink).await?,
        labels: labels(&netlink).await?,
        tables: tables.map_err(NetworkError::system("list tables of packet rules"))?,
    })
}

async fn bridges(netlink: &Netlink) -> Result<BTreeMap<String, Vec<String>>, NetworkError> {
    let mut links = netlink.handle.link().get().execute();
    let (mut bridges, mut ports) = (BTreeMap::new(), Vec::new());
    while let Some(message) = links.next().await {
        let message = message.map_err(NetworkError::netlink("list interfaces"))?;
        let (mut name, mut controller, mut is_bridge) = (None, None, false);
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(text) => name = Some(text),
                LinkAttribute::Controller(index) => controller = Some(index),
                LinkAttribute::LinkInfo(info) => is_bridge = info.contains(&LinkInfo::Kind(InfoKind::Bridge)),
                _ => {}
            }
        }
        let Some(name) = name else { continue };
        if is_bridge {
            bridges.insert(message.header.index, name.clone());
        }
        ports.extend(controller.map(|controller| (controller, name)));
    }
    let ports_of =
        |bridge: u32| ports.iter().filter(|(index, _)| *index == bridge).map(|(_, name)| name.clone()).collect();
    Ok(bridges.into_iter().map(|(index, name)| (name, ports_of(index))).collect())
}

async fn labels(netlink: &Netlink) -> Result<Vec<(String, Ipv4Addr)>, NetworkError> {
    let mut addresses = netlink.handle.address().get().execute();
    let mut found = Vec::new();
    while let Some(message) = addresses.next().await {
        let message = message.map_err(NetworkError::netlink("list addresses"))?;
        let (mut label, mut local) = (None, None);
        for attribute in message.attributes {
            match attribute {
                AddressAttribute::Label(text) => label = Some(text),
                AddressAttribute::Local(IpAddr::V4(address)) => local = Some(address),
                _ => {}
            }
        }
        found.extend(label.zip(local));
    }
    Ok(found)
}

/// Removes a bridge, what is on it, and all rules, addresses and marked routes of an instance. May be repeated.
pub async fn remove(instance: &str) -> Result<(), NetworkError> {
    let netlink = Netlink::in_current_netns()?;
    let bridge = bridge_name(instance);
    if let Some(link) = links::find_link(&netlink.handle, &bridge).await? {
        for port in links::list_bridge_ports(&netlink.handle, link.index).await? {
            links::delete_link(&netlink.handle, &port).await?;
        }
        links::delete_link(&netlink.handle, &bridge).await?;
    }
    bridge_nat::delete_table(&bridge).await?;
    Balancer::remove(instance).await?;
    loopback::remove(instance).await
}
