//! An address of this machine's own that no interface to the outside has: that of DNS.
//!
//! It is put on the loopback interface under a label of ours, by which it is found again without a record.

use std::net::{IpAddr, Ipv4Addr};

use futures::StreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};

use crate::{
    bridge::bridge_name,
    error::{NetworkError, is},
    netns::Netlink,
};

const LOOPBACK: u32 = 1;

/// No longer than the 15 bytes that a label may have: `lo:mainstay0`, `lo:ms-01234567`.
fn label(instance: &str) -> String {
    let mut label = format!("lo:{}", bridge_name(instance));
    label.truncate(15);
    label
}

/// Gives this machine the address, and takes away any other that the instance had. May be repeated.
pub async fn hold(instance: &str, address: Ipv4Addr) -> Result<(), NetworkError> {
    let netlink = Netlink::here()?;
    for old in ours(&netlink, instance).await?.into_iter().filter(|old| local(old) != Some(address)) {
        delete(&netlink, old).await?;
    }
    let mut request = netlink.handle.address().add(LOOPBACK, IpAddr::V4(address), 32);
    request.message_mut().attributes.push(AddressAttribute::Label(label(instance)));
    match request.execute().await {
        Err(error) if !is(&error, Errno::EEXIST) => {
            Err(NetworkError::netlink(format!("give this machine the address {address}"))(error))
        }
        _ => Ok(()),
    }
}

/// Takes away what `hold` gave. May be repeated.
pub async fn release(instance: &str) -> Result<(), NetworkError> {
    let netlink = Netlink::here()?;
    for old in ours(&netlink, instance).await? {
        delete(&netlink, old).await?;
    }
    Ok(())
}

async fn ours(netlink: &Netlink, instance: &str) -> Result<Vec<AddressMessage>, NetworkError> {
    let label = AddressAttribute::Label(label(instance));
    let mut addresses = netlink.handle.address().get().execute();
    let mut found = Vec::new();
    while let Some(message) = addresses.next().await {
        let message = message.map_err(NetworkError::netlink("list addresses"))?;
        if message.attributes.contains(&label) {
            found.push(message);
        }
    }
    Ok(found)
}

fn local(message: &AddressMessage) -> Option<Ipv4Addr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
        _ => None,
    })
}

async fn delete(netlink: &Netlink, address: AddressMessage) -> Result<(), NetworkError> {
    match netlink.handle.address().del(address).execute().await {
        Err(error) if !is(&error, Errno::EADDRNOTAVAIL) => {
            Err(NetworkError::netlink("take away the address of DNS")(error))
        }
        _ => Ok(()),
    }
}
