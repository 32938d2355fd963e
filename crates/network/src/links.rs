//! Interfaces, addresses and routes, one verb each. All may be repeated.

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
    error::{NetworkError, is},
    range::Range,
};

/// The pod's side of its pair.
pub const INSIDE: &str = "eth0";
/// Marks our routes to other machines among the machine's own.
const OURS: RouteProtocol = RouteProtocol::Other(77);
const LOOPBACK: u32 = 1;
const USUAL_MTU: u32 = 1500;

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

/// An interface that never needs to be looked up again: whoever has the address has this hardware address, so that
/// neighbours remember nothing wrong when an address passes from one pod to another.
fn hardware(address: Ipv4Addr) -> Vec<u8> {
    [&[0x0a, 0x58][..], &address.octets()].concat()
}

pub async fn find(handle: &Handle, name: &str) -> Result<Option<Link>> {
    match handle.link().get().match_name(name).execute().try_next().await {
        Ok(found) => Ok(found.as_ref().map(link)),
        Err(error) if is(&error, Errno::ENODEV) => Ok(None),
        Err(error) => Err(NetworkError::netlink(format!("look for interface {name}"))(error)),
    }
}

pub async fn delete(handle: &Handle, name: &str) -> Result<()> {
    let Some(link) = find(handle, name).await? else { return Ok(()) };
    match handle.link().del(link.index).execute().await {
        Err(error) if !is(&error, Errno::ENODEV) => {
            Err(NetworkError::netlink(format!("delete interface {name}"))(error))
        }
        _ => Ok(()),
    }
}

pub async fn bridge(handle: &Handle, name: &str, range: Range, mtu: u32) -> Result<u32> {
    let index = match find(handle, name).await? {
        Some(link) => link.index,
        None => {
            let message = LinkBridge::new(name).mtu(mtu).address(hardware(range.gateway())).build();
            match handle.link().add(message).execute().await {
                Err(error) if !is(&error, Errno::EEXIST) => {
                    return Err(NetworkError::netlink(format!("make bridge {name}"))(error));
                }
                _ => {}
            }
            let made = find(handle, name).await?;
            made.ok_or_else(|| NetworkError::system(format!("make bridge {name}"))(Errno::ENODEV))?.index
        }
    };
    up(handle, index).await?;
    address(handle, index, range.gateway(), range.bits()).await?;
    Ok(index)
}

/// The interfaces attached to a bridge.
pub async fn ports(handle: &Handle, bridge: u32) -> Result<Vec<String>> {
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

/// All addresses of the machine.
pub async fn addresses(handle: &Handle) -> Result<BTreeSet<Ipv4Addr>> {
    let messages = handle.address().get().execute().try_collect::<Vec<_>>().await;
    let attributes = messages.map_err(NetworkError::netlink("list addresses"))?.into_iter().flat_map(|m| m.attributes);
    let own = attributes.filter_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(address),
        _ => None,
    });
    Ok(own.collect())
}

pub struct Pair<'a> {
    pub outside: &'a str,
    pub bridge: u32,
    pub netns: &'a OwnedFd,
    pub address: Ipv4Addr,
    pub mtu: u32,
}

/// Makes a pair with one end on the bridge and the other in the pod. `false` if the outer end is already there.
pub async fn pair(handle: &Handle, pair: &Pair<'_>) -> Result<bool> {
    let doing = || format!("make interface {}", pair.outside);
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(INSIDE)
        .mtu(pair.mtu)
        .address(hardware(pair.address))
        .setns_by_fd(pair.netns.as_raw_fd())
        .build();
    let message = LinkVeth::new(pair.outside, INSIDE)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .mtu(pair.mtu)
        .controller(pair.bridge)
        .up()
        .build();
    match handle.link().add(message).execute().await {
        Ok(()) => {}
        Err(error) if is(&error, Errno::EEXIST) => return Ok(false),
        Err(error) => return Err(NetworkError::netlink(doing())(error)),
    }
    let Some(link) = find(handle, pair.outside).await? else {
        return Err(NetworkError::system(doing())(Errno::ENODEV));
    };
    let hairpin = LinkBridgePort::new(link.index).hairpin(true).build();
    let port = handle.link().set_port(hairpin).execute().await;
    port.map_err(NetworkError::netlink(format!("let {} answer itself", pair.outside)))?;
    Ok(true)
}

/// The pod's own side: address, routes, loopback. `false` if its interface is not there.
///
/// Everything goes by way of the machine, to other pods on the same bridge as well. Answers that went straight back would miss
/// the machine that has to undo what it did to a connection through a Service; on some machines, not on all, a
/// kernel module shows the rules what the bridge carries.
pub async fn furnish(handle: &Handle, pod: Ipv4Addr, range: Range) -> Result<bool> {
    let Some(link) = find(handle, INSIDE).await? else { return Ok(false) };
    up(handle, LOOPBACK).await?;
    up(handle, link.index).await?;
    address(handle, link.index, pod, 32).await?;
    let gateway = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(range.gateway(), 32);
    let gateway = gateway.output_interface(link.index).scope(RouteScope::Link).build();
    let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(range.gateway()).build();
    for route in [gateway, default] {
        let added = handle.route().add(route).replace().execute().await;
        added.map_err(NetworkError::netlink("set the pod's routes"))?;
    }
    Ok(true)
}

async fn up(handle: &Handle, index: u32) -> Result<()> {
    let message = LinkUnspec::new_with_index(index).up().build();
    handle.link().change(message).execute().await.map_err(NetworkError::netlink("bring an interface up"))
}

async fn address(handle: &Handle, index: u32, address: Ipv4Addr, bits: u8) -> Result<()> {
    let added = handle.address().add(index, IpAddr::V4(address), bits).replace().execute().await;
    added.map_err(NetworkError::netlink(format!("give {address} to an interface")))
}

/// What packets to elsewhere may be as long as: that of the interface of the default route.
pub async fn uplink_mtu(handle: &Handle) -> Result<u32> {
    let routes = routes(handle).await?;
    let default = routes.iter().filter(|route| route.header.destination_prefix_length == 0);
    let default = default.min_by_key(|route| {
        route.attributes.iter().find_map(|a| if let RouteAttribute::Priority(p) = a { Some(*p) } else { None })
    });
    let oif = default.and_then(|route| {
        route.attributes.iter().find_map(|a| if let RouteAttribute::Oif(index) = a { Some(*index) } else { None })
    });
    let Some(oif) = oif else { return Ok(USUAL_MTU) };
    let found = handle.link().get().match_index(oif).execute().try_next().await;
    let found = found.map_err(NetworkError::netlink("look for the uplink"))?;
    Ok(found.as_ref().map(link).and_then(|link| link.mtu).unwrap_or(USUAL_MTU))
}

async fn routes(handle: &Handle) -> Result<Vec<RouteMessage>> {
    let all = handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
    let all: Vec<RouteMessage> = all.try_collect().await.map_err(NetworkError::netlink("list routes"))?;
    Ok(all.into_iter().filter(|route| route.header.table == RouteHeader::RT_TABLE_MAIN).collect())
}

fn route(to: Range, via: Ipv4Addr) -> RouteMessage {
    let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to.base(), to.bits());
    route.gateway(via).protocol(OURS).build()
}

/// `false` if that machine is not a neighbour: there is no way but over a router, which knows nothing of pods.
pub async fn add_route(handle: &Handle, to: Range, via: Ipv4Addr) -> Result<bool> {
    match handle.route().add(route(to, via)).replace().execute().await {
        Ok(()) => Ok(true),
        Err(error) if is(&error, Errno::ENETUNREACH) || is(&error, Errno::EHOSTUNREACH) => Ok(false),
        Err(error) => Err(NetworkError::netlink(format!("set the route to {to}"))(error)),
    }
}

pub async fn delete_route(handle: &Handle, to: Range, via: Ipv4Addr) -> Result<()> {
    match handle.route().del(route(to, via)).execute().await {
        Err(error) if !is(&error, Errno::ESRCH) => {
            Err(NetworkError::netlink(format!("delete the route to {to}"))(error))
        }
        _ => Ok(()),
    }
}

/// Lets the machine itself send to a range of addresses that no interface has, whatever other routes there are: exactly this
/// range, or none. The metric tells the routes of several of us apart.
pub async fn set_own_range(handle: &Handle, range: Option<Range>, metric: u32) -> Result<()> {
    let wanted = |route: &RouteMessage| {
        range.is_some_and(|range| {
            let to = RouteAttribute::Destination(RouteAddress::Inet(range.base()));
            route.header.destination_prefix_length == range.bits() && route.attributes.contains(&to)
        })
    };
    let ours = |route: &RouteMessage| {
        let marks = [RouteAttribute::Oif(LOOPBACK), RouteAttribute::Priority(metric)];
        route.header.protocol == OURS && marks.iter().all(|mark| route.attributes.contains(mark))
    };
    let (right, wrong): (Vec<_>, Vec<_>) = routes(handle).await?.into_iter().filter(ours).partition(wanted);
    for route in wrong {
        match handle.route().del(route).execute().await {
            Err(error) if !is(&error, Errno::ESRCH) => {
                return Err(NetworkError::netlink("delete a route to Services")(error));
            }
            _ => {}
        }
    }
    let Some(range) = range.filter(|_| right.is_empty()) else { return Ok(()) };
    let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(range.base(), range.bits());
    let route = route.output_interface(LOOPBACK).scope(RouteScope::Link).priority(metric).protocol(OURS).build();
    let added = handle.route().add(route).replace().execute().await;
    added.map_err(NetworkError::netlink(format!("set the machine's own route to {range}")))
}
