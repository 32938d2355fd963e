//! Network interfaces, addresses and routes over rtnetlink. Every function is idempotent.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd, OwnedFd},
};

use futures::{StreamExt, TryStreamExt};
use nix::errno::Errno;
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        link::{InfoData, InfoVeth, LinkAttribute, LinkMessage},
        route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope},
    },
};

use crate::{
    error::{NetworkError, is_errno},
    range::Range,
};

/// The interface inside a pod.
pub const POD_INTERFACE: &str = "eth0";
/// Marks our routes among those of others (`RTPROT_*`; unassigned).
const ROUTE_PROTOCOL: RouteProtocol = RouteProtocol::Other(77);
const LOOPBACK: u32 = 1;
const DEFAULT_MTU: u32 = 1500;

type Result<T> = std::result::Result<T, NetworkError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub mtu: Option<u32>,
}

fn link(message: &LinkMessage) -> Link {
    let mtu = message.attributes.iter().find_map(|a| if let LinkAttribute::Mtu(mtu) = a { Some(*mtu) } else { None });
    Link { index: message.header.index, mtu }
}

/// A MAC address derived from the IP address: neighbours keep no wrong ARP entry when an address passes from one pod
/// to another.
fn mac_address(address: Ipv4Addr) -> Vec<u8> {
    [&[0x0a, 0x58][..], &address.octets()].concat()
}

pub async fn find_link(handle: &Handle, name: &str) -> Result<Option<Link>> {
    match handle.link().get().match_name(name).execute().try_next().await {
        Ok(found) => Ok(found.as_ref().map(link)),
        Err(error) if is_errno(&error, Errno::ENODEV) => Ok(None),
        Err(error) => Err(NetworkError::netlink(format!("look up interface {name}"))(error)),
    }
}

pub async fn delete_link(handle: &Handle, name: &str) -> Result<()> {
    let Some(link) = find_link(handle, name).await? else { return Ok(()) };
    match handle.link().del(link.index).execute().await {
        Err(error) if !is_errno(&error, Errno::ENODEV) => {
            Err(NetworkError::netlink(format!("delete interface {name}"))(error))
        }
        _ => Ok(()),
    }
}

pub async fn ensure_bridge(handle: &Handle, name: &str, range: Range, mtu: u32) -> Result<u32> {
    let index = match find_link(handle, name).await? {
        Some(link) => link.index,
        None => {
            let message = LinkBridge::new(name).mtu(mtu).address(mac_address(range.gateway())).build();
            match handle.link().add(message).execute().await {
                Err(error) if !is_errno(&error, Errno::EEXIST) => {
                    return Err(NetworkError::netlink(format!("create bridge {name}"))(error));
                }
                _ => {}
            }
            let made = find_link(handle, name).await?;
            made.ok_or_else(|| NetworkError::system(format!("create bridge {name}"))(Errno::ENODEV))?.index
        }
    };
    set_up(handle, index).await?;
    add_address(handle, index, range.gateway(), range.bits()).await?;
    Ok(index)
}

/// The interfaces of a bridge.
pub async fn list_bridge_ports(handle: &Handle, bridge: u32) -> Result<Vec<String>> {
    let mut links = handle.link().get().execute();
    let mut found = Vec::new();
    while let Some(message) = links.next().await {
        let message = message.map_err(NetworkError::netlink("list interfaces"))?;
        let of_bridge = message.attributes.contains(&LinkAttribute::Controller(bridge));
        let name = message.attributes.into_iter().find_map(|a| match a {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        });
        found.extend(name.filter(|_| of_bridge));
    }
    Ok(found)
}

/// The interfaces that have an address in a range.
pub async fn with_address_in(handle: &Handle, range: Range) -> Result<Vec<String>> {
    let mut addresses = handle.address().get().execute();
    let mut found = Vec::new();
    while let Some(message) = addresses.next().await {
        let message = message.map_err(NetworkError::netlink("list addresses"))?;
        let (mut inside, mut name) = (false, None);
        for attribute in message.attributes {
            match attribute {
                AddressAttribute::Local(IpAddr::V4(address)) => inside = range.contains(address),
                AddressAttribute::Label(label) => name = Some(label),
                _ => {}
            }
        }
        found.extend(name.filter(|_| inside));
    }
    Ok(found)
}

/// All IPv4 addresses of this network namespace.
pub async fn list_addresses(handle: &Handle) -> Result<BTreeSet<Ipv4Addr>> {
    let messages = handle.address().get().execute().try_collect::<Vec<_>>().await;
    let attributes = messages.map_err(NetworkError::netlink("list addresses"))?.into_iter().flat_map(|m| m.attributes);
    let own = attributes.filter_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(address),
        _ => None,
    });
    Ok(own.collect())
}

pub struct VethPair<'a> {
    pub host_end: &'a str,
    pub bridge: u32,
    pub netns: &'a OwnedFd,
    pub address: Ipv4Addr,
    pub mtu: u32,
}

/// Creates a veth pair with one end on the bridge and the other in the pod. `false` if the host end is already there.
pub async fn create_veth_pair(handle: &Handle, pair: &VethPair<'_>) -> Result<bool> {
    let doing = || format!("create veth pair {}", pair.host_end);
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(POD_INTERFACE)
        .mtu(pair.mtu)
        .address(mac_address(pair.address))
        .setns_by_fd(pair.netns.as_raw_fd())
        .build();
    let message = LinkVeth::new(pair.host_end, POD_INTERFACE)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .mtu(pair.mtu)
        .controller(pair.bridge)
        .up()
        .build();
    match handle.link().add(message).execute().await {
        Ok(()) => {}
        Err(error) if is_errno(&error, Errno::EEXIST) => return Ok(false),
        Err(error) => return Err(NetworkError::netlink(doing())(error)),
    }
    let Some(link) = find_link(handle, pair.host_end).await? else {
        return Err(NetworkError::system(doing())(Errno::ENODEV));
    };
    let hairpin = LinkBridgePort::new(link.index).hairpin(true).build();
    let port = handle.link().set_port(hairpin).execute().await;
    port.map_err(NetworkError::netlink(format!("set hairpin mode of {}", pair.host_end)))?;
    Ok(true)
}

/// Configures the pod's interface: addresses, routes, loopback. `false` if the interface is not there.
///
/// All traffic goes through the machine, also to pods on the same bridge. Replies that went straight back over the
/// bridge would miss the machine's conntrack, which has to undo the DNAT of a Service connection; only some machines
/// load `br_netfilter`, which would show conntrack what the bridge forwards.
pub async fn configure_pod(handle: &Handle, pod: Ipv4Addr, range: Range) -> Result<bool> {
    let Some(link) = find_link(handle, POD_INTERFACE).await? else { return Ok(false) };
    set_up(handle, LOOPBACK).await?;
    set_up(handle, link.index).await?;
    add_address(handle, link.index, pod, 32).await?;
    let gateway = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(range.gateway(), 32);
    let gateway = gateway.output_interface(link.index).scope(RouteScope::Link).build();
    let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(range.gateway()).build();
    for route in [gateway, default] {
        let added = handle.route().add(route).replace().execute().await;
        added.map_err(NetworkError::netlink("set the pod's routes"))?;
    }
    Ok(true)
}

async fn set_up(handle: &Handle, index: u32) -> Result<()> {
    let message = LinkUnspec::new_with_index(index).up().build();
    handle.link().change(message).execute().await.map_err(NetworkError::netlink("bring an interface up"))
}

async fn add_address(handle: &Handle, index: u32, address: Ipv4Addr, bits: u8) -> Result<()> {
    let added = handle.address().add(index, IpAddr::V4(address), bits).replace().execute().await;
    added.map_err(NetworkError::netlink(format!("assign {address} to an interface")))
}

/// The MTU of the interface of the default route.
pub async fn uplink_mtu(handle: &Handle) -> Result<u32> {
    let routes = list_routes(handle).await?;
    let default = routes.iter().filter(|route| route.header.destination_prefix_length == 0);
    let default = default.min_by_key(|route| {
        route.attributes.iter().find_map(|a| if let RouteAttribute::Priority(p) = a { Some(*p) } else { None })
    });
    let oif = default.and_then(|route| {
        route.attributes.iter().find_map(|a| if let RouteAttribute::Oif(index) = a { Some(*index) } else { None })
    });
    let Some(oif) = oif else { return Ok(DEFAULT_MTU) };
    let found = handle.link().get().match_index(oif).execute().try_next().await;
    let found = found.map_err(NetworkError::netlink("look up the uplink"))?;
    Ok(found.as_ref().map(link).and_then(|link| link.mtu).unwrap_or(DEFAULT_MTU))
}

async fn list_routes(handle: &Handle) -> Result<Vec<RouteMessage>> {
    let all = handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
    let all: Vec<RouteMessage> = all.try_collect().await.map_err(NetworkError::netlink("list routes"))?;
    Ok(all.into_iter().filter(|route| route.header.table == RouteHeader::RT_TABLE_MAIN).collect())
}

fn pod_route(to: Range, via: Ipv4Addr) -> RouteMessage {
    let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to.base(), to.bits());
    route.gateway(via).protocol(ROUTE_PROTOCOL).build()
}

/// `false` if that machine is on no directly connected network: the routers between know nothing of pods.
pub async fn add_route(handle: &Handle, to: Range, via: Ipv4Addr) -> Result<bool> {
    match handle.route().add(pod_route(to, via)).replace().execute().await {
        Ok(()) => Ok(true),
        Err(error) if is_errno(&error, Errno::ENETUNREACH) || is_errno(&error, Errno::EHOSTUNREACH) => Ok(false),
        Err(error) => Err(NetworkError::netlink(format!("set the route to {to}"))(error)),
    }
}

pub async fn delete_route(handle: &Handle, to: Range, via: Ipv4Addr) -> Result<()> {
    match handle.route().del(pod_route(to, via)).execute().await {
        Err(error) if !is_errno(&error, Errno::ESRCH) => {
            Err(NetworkError::netlink(format!("delete the route to {to}"))(error))
        }
        _ => Ok(()),
    }
}

/// Sets the machine's own route to a range of addresses that no interface has, or removes it. It only makes the
/// kernel choose a source address; nftables rewrites the destination before the packet leaves. The metric
/// distinguishes the routes of several instances.
pub async fn set_own_range(handle: &Handle, range: Option<Range>, metric: u32) -> Result<()> {
    let wanted = |route: &RouteMessage| {
        range.is_some_and(|range| {
            let to = RouteAttribute::Destination(RouteAddress::Inet(range.base()));
            route.header.destination_prefix_length == range.bits() && route.attributes.contains(&to)
        })
    };
    let ours = |route: &RouteMessage| {
        let marks = [RouteAttribute::Oif(LOOPBACK), RouteAttribute::Priority(metric)];
        route.header.protocol == ROUTE_PROTOCOL && marks.iter().all(|mark| route.attributes.contains(mark))
    };
    let (right, wrong): (Vec<_>, Vec<_>) = list_routes(handle).await?.into_iter().filter(ours).partition(wanted);
    for route in wrong {
        match handle.route().del(route).execute().await {
            Err(error) if !is_errno(&error, Errno::ESRCH) => {
                return Err(NetworkError::netlink("delete a route to Services")(error));
            }
            _ => {}
        }
    }
    let Some(range) = range.filter(|_| right.is_empty()) else { return Ok(()) };
    let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(range.base(), range.bits());
    let route =
        route.output_interface(LOOPBACK).scope(RouteScope::Link).priority(metric).protocol(ROUTE_PROTOCOL).build();
    let added = handle.route().add(route).replace().execute().await;
    added.map_err(NetworkError::netlink(format!("set the machine's own route to {range}")))
}
