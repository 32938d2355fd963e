//! The address of cluster DNS on this machine's loopback interface.
//!
//! It is labelled with the instance, so that it is found again without a record.

use std::net::{IpAddr, Ipv4Addr};

use futures::StreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};

use crate::{
    bridge::bridge_name,
    error::{NetworkError, is_errno},
    netns::Netlink,
};

const LOOPBACK: u32 = 1;

/// At most 15 bytes (`IFNAMSIZ`): `lo:mainstay0`, `lo:ms-01234567`.
fn label(instance: &str) -> String {
    let mut label = format!("lo:{}", bridge_name(instance));
    label.truncate(15);
    label
}

/// Assigns the address, and removes any other that the instance had. Idempotent.
pub async fn assign(instance: &str, address: Ipv4Addr) -> Result<(), NetworkError> {
    let netlink = Netlink::in_current_netns()?;
    for old in list_labelled(&netlink, instance).await?.into_iter().filter(|old| local_address(old) != Some(address)) {
        delete(&netlink, old).await?;
    }
    let mut request = netlink.handle.address().add(LOOPBACK, IpAddr::V4(address), 32);
    request.message_mut().attributes.push(AddressAttribute::Label(label(instance)));
    match request.execute().await {
        Err(error) if !is_errno(&error, Errno::EEXIST) => {
            Err(NetworkError::netlink(format!("assign {address} to lo"))(error))
        }
        _ => Ok(()),
    }
}

/// Removes what `assign` added. Idempotent.
pub async fn remove(instance: &str) -> Result<(), NetworkError> {
    let netlink = Netlink::in_current_netns()?;
    for old in list_labelled(&netlink, instance).await? {
        delete(&netlink, old).await?;
    }
    Ok(())
}

async fn list_labelled(netlink: &Netlink, instance: &str) -> Result<Vec<AddressMessage>, NetworkError> {
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

fn local_address(message: &AddressMessage) -> Option<Ipv4Addr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
        _ => None,
    })
}

async fn delete(netlink: &Netlink, address: AddressMessage) -> Result<(), NetworkError> {
    match netlink.handle.address().del(address).execute().await {
        Err(error) if !is_errno(&error, Errno::EADDRNOTAVAIL) => {
            Err(NetworkError::netlink("remove the address of DNS from lo")(error))
        }
        _ => Ok(()),
    }
}
