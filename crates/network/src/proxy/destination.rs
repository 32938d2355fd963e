//! Where a connection was going before the kernel sent it to us.

use std::{net::SocketAddrV4, os::fd::BorrowedFd};

use rustix::net::{getsockname, sockopt};

/// None if nobody knows.
pub type Destination = fn(BorrowedFd<'_>) -> Option<SocketAddrV4>;

/// As the packet rules found it.
pub fn original_destination(connection: BorrowedFd<'_>) -> Option<SocketAddrV4> {
    sockopt::ip_original_dst(connection).ok()
}

/// Where it arrived: for tests and measurements without packet rules, which name their frontends by loopback addresses.
pub fn local_address(connection: BorrowedFd<'_>) -> Option<SocketAddrV4> {
    getsockname(connection).ok()?.try_into().ok()
}
