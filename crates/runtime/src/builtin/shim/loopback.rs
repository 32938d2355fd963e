//! Brings up `lo` in a new network namespace, with one netlink message.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;
/// The first interface of every namespace.
const LOOPBACK: i32 = 1;

pub fn bring_up() -> io::Result<()> {
    let socket: OwnedFd =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(SockProtocol::NetlinkRoute))?;
    let mut message = Vec::with_capacity(32);
    // struct nlmsghdr
    message.extend(32_u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    // struct ifinfomsg
    message.extend([0, 0, 0, 0]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    sendto(socket.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;

    let mut answer = [0; 256];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let kind = answer.get(4..6).and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
    let code = answer.get(16..20).and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) if length >= 20 => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) if length >= 20 => Err(io::Error::from_raw_os_error(-code)),
        _ => Err(io::Error::other("an answer that is none")),
    }
}
