//! Where connections arrive, and where they go from there.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use crate::journal::Protocol;

/// An address, protocol and port that a Service answers at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Front {
    /// None is every address of this machine: a node port.
    pub address: Option<Ipv4Addr>,
    pub protocol: Protocol,
    pub port: u16,
}

/// What becomes of a connection to a front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Sorted, each once.
    pub backends: Vec<SocketAddrV4>,
    /// A client stays with its backend for so long after its last connection.
    pub affinity: Option<Duration>,
    /// Packets carry this machine's address, so that answers come back by way of it.
    pub masquerade: bool,
    /// Through our own process even while there are backends. TCP only.
    pub through_user_space: bool,
    pub without_backends: WithoutBackends,
    /// For processes of this machine and pods, if it is something else for them: at addresses only, and none in turn.
    pub inside: Option<Box<Target>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutBackends {
    /// The connection waits for a backend in our own process for so long, and is then refused. TCP only.
    Hold(Duration),
    /// The client hears at once.
    Refuse,
    /// The client hears nothing: other machines may well have backends.
    Drop,
}

impl Target {
    /// Whether new connections go to our own process.
    pub fn is_in_user_space(&self) -> bool {
        match self.without_backends {
            _ if self.through_user_space => true,
            WithoutBackends::Hold(_) => self.backends.is_empty(),
            WithoutBackends::Refuse | WithoutBackends::Drop => false,
        }
    }
}
