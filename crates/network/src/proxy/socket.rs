//! What is asked of the kernel about sockets, with the settings that ours have.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::{Errno, Result},
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

/// Connections that nobody has accepted yet; the kernel lowers it to its own limit.
const BACKLOG: i32 = 1 << 16;

/// A peer that vanished is noticed after two minutes: a minute of silence, then four questions.
const SILENCE: Duration = Duration::from_secs(60);
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(15);
const QUESTIONS: u32 = 4;

/// Port 0 is one of the kernel's choice. Several may listen on the same port, and share its connections.
pub fn listen(port: u16) -> std::io::Result<OwnedFd> {
    let socket = stream()?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Accepted connections have the settings of their listener.
    sockopt::set_tcp_nodelay(&socket, true)?;
    notice_vanished_peers(&socket)?;
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

/// Begins to connect; whether it has succeeded already. That its peer vanished is noticed only once that was asked for, with
/// four calls that most connections are too short for.
///
/// With something to say at once, saying it is also the last step of the greeting: a packet less, and the backend
/// wakes up once instead of twice.
pub fn connect(to: SocketAddrV4, something_to_say: bool) -> Result<(OwnedFd, bool)> {
    let socket = stream()?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if something_to_say {
        sockopt::set_tcp_quickack(&socket, false)?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) => Ok((socket, true)),
        Err(Errno::INPROGRESS) => {
            // Towards this machine itself and its pods the answer is there before the call returns, which
            // only a second call tells.
            match rustix::net::connect(&socket, &to) {
                Ok(()) | Err(Errno::ISCONN) => Ok((socket, true)),
                Err(Errno::ALREADY) => Ok((socket, false)),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// The peer hears that this did not end as it should.
pub fn reset(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
}

pub fn peer(socket: BorrowedFd<'_>) -> Option<Ipv4Addr> {
    let address: SocketAddrV4 = rustix::net::getpeername(socket).ok().flatten()?.try_into().ok()?;
    Some(*address.ip())
}

/// Whether something has arrived that was not read, other than the end.
pub fn has_unread(socket: BorrowedFd<'_>) -> bool {
    rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
}

fn stream() -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
}

pub fn notice_vanished_peers(socket: impl AsFd) -> Result<()> {
    let socket = socket.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE)?;
    sockopt::set_tcp_keepintvl(socket, BETWEEN_QUESTIONS)?;
    sockopt::set_tcp_keepcnt(socket, QUESTIONS)
}
