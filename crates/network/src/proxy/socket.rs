//! Socket calls of the proxy, with the options that its sockets have.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::{Errno, Result},
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

/// Length of the accept queue; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 1 << 16;

/// TCP keepalive: a peer that vanished is noticed after two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Listens; port 0 is a free one. Several sockets may listen on the same port and share its connections
/// (`SO_REUSEPORT`).
pub fn listen(port: u16) -> std::io::Result<OwnedFd> {
    let socket = stream()?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Accepted sockets inherit these options.
    sockopt::set_tcp_nodelay(&socket, true)?;
    enable_keepalive(&socket)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub fn port(listener: &OwnedFd) -> std::io::Result<u16> {
    let address: SocketAddrV4 = rustix::net::getsockname(listener)?.try_into()?;
    Ok(address.port())
}

pub fn accept(listener: &OwnedFd) -> Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
}

/// Begins to connect. Returns whether the connection is established already. Keepalive is not enabled here: it takes
/// four calls, for which most connections are too short.
///
/// With data to send at once, the last ACK of the handshake is delayed and sent with the data: a packet less, and the
/// backend wakes up once instead of twice.
pub fn connect(to: SocketAddrV4, has_data: bool) -> Result<(OwnedFd, bool)> {
    let socket = stream()?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if has_data {
        sockopt::set_tcp_quickack(&socket, false)?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) => Ok((socket, true)),
        Err(Errno::INPROGRESS) => {
            // On this machine and its pods the handshake is over before the call returns, which only a second call
            // reports.
            match rustix::net::connect(&socket, &to) {
                Ok(()) | Err(Errno::ISCONN) => Ok((socket, true)),
                Err(Errno::ALREADY) => Ok((socket, false)),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Closes with an RST.
pub fn reset(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
}

pub fn peer(socket: BorrowedFd<'_>) -> Option<Ipv4Addr> {
    let address: SocketAddrV4 = rustix::net::getpeername(socket).ok().flatten()?.try_into().ok()?;
    Some(*address.ip())
}

/// Whether data has arrived that was not read; the end of the stream does not count.
pub fn has_unread(socket: BorrowedFd<'_>) -> bool {
    rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
}

fn stream() -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
}

pub fn enable_keepalive(socket: impl AsFd) -> Result<()> {
    let socket = socket.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)
}

/// The original destination of a redirected connection, if it is known.
pub type Destination = fn(BorrowedFd<'_>) -> Option<SocketAddrV4>;

/// `SO_ORIGINAL_DST`: the destination before the nftables redirect.
pub fn original_destination(connection: BorrowedFd<'_>) -> Option<SocketAddrV4> {
    sockopt::ip_original_dst(connection).ok()
}

/// The local address: for tests and benchmarks without nftables, whose frontends are loopback addresses.
pub fn local_address(connection: BorrowedFd<'_>) -> Option<SocketAddrV4> {
    rustix::net::getsockname(connection).ok()?.try_into().ok()
}
