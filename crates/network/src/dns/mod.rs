//! Cluster DNS, on every machine, from the machine's own memory.
//!
//! * [`query`], [`name`], [`response`]: wire format
//! * [`zones`]: authoritative answers, for the names of Kubernetes ([`cluster`]), of Consul ([`consul`]) and for
//!   addresses ([`reverse`]); pure
//! * [`forward`]: forwards all other names to upstream servers, with a cache
//! * [`udp`], [`tcp`]: transports; [`server`]: from a packet to its response
//!
//! The loops are our own. That of `hickory-server` spawns a task and writes two log lines per query, reached two
//! thirds of the rate of a bare packet echo where ours reaches more than four fifths, and limits neither connections
//! nor pending queries.
//!
//! No answer of our zones depends on another machine: with all servers down, names resolve as they last were.

mod cluster;
mod consul;
mod forward;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod name;
mod query;
mod response;
mod reverse;
mod server;
mod tcp;
mod udp;
mod zones;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{forward::Forwarder, server::Server, zones::Zones};
use crate::catalogue::Catalogue;

/// With more sockets, threads would wait for each other in the kernel.
const MAX_SOCKETS: usize = 8;

#[derive(Clone, Debug)]
pub struct DnsSettings {
    /// Address of cluster DNS, the same on every machine.
    pub address: Ipv4Addr,
    /// 53; in tests 0 takes a free port.
    pub port: u16,
    /// `cluster.local`.
    pub domain: String,
    /// `consul`.
    pub alias_domain: String,
    /// `dc1`.
    pub datacentre: String,
    /// Servers for all names outside our zones.
    pub upstreams: Vec<SocketAddr>,
}

/// Bound sockets; `run` answers queries.
pub struct Dns {
    server: Arc<Server>,
    address: SocketAddrV4,
    sockets: Vec<UdpSocket>,
    listener: TcpListener,
}

impl Dns {
    /// Binds UDP and TCP. The address must be one of this machine's.
    pub async fn bind(settings: DnsSettings, catalogue: Arc<Catalogue>) -> io::Result<Self> {
        let zones = Zones::new(&settings).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let wanted = SocketAddrV4::new(settings.address, settings.port);
        let listener = listen(wanted).map_err(|error| explain(error, wanted, "TCP"))?;
        let address = SocketAddrV4::new(settings.address, listener.local_addr()?.port());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sockets = udp::bind(address, cores.min(MAX_SOCKETS)).map_err(|error| explain(error, address, "UDP"))?;
        let forwarder = Arc::new(Forwarder::new(address.into(), settings.upstreams));
        Ok(Self { server: Arc::new(Server { zones, catalogue, forwarder }), address, sockets, listener })
    }

    pub fn address(&self) -> SocketAddr {
        self.address.into()
    }

    /// A handle to change the upstream servers while it runs.
    pub fn upstreams(&self) -> Upstreams {
        Upstreams(self.server.forwarder.clone())
    }

    /// Answers queries until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        tasks.spawn(tcp::serve(self.listener, self.server.clone(), stop.clone()));
        for socket in self.sockets {
            tasks.spawn(udp::serve(socket, self.server.clone(), stop.clone()));
        }
        tasks.close();
        tasks.wait().await;
    }
}

/// The upstream servers. The machine's own list may change at any time.
#[derive(Clone)]
pub struct Upstreams(Arc<Forwarder>);

impl Upstreams {
    pub fn set(&self, upstreams: Vec<SocketAddr>) {
        self.0.set_upstreams(upstreams);
    }
}

fn listen(address: SocketAddrV4) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    // Allows connections in TIME_WAIT; another listener is still an error.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

fn explain(error: io::Error, address: SocketAddrV4, transport: &str) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there; stop it, or give the cluster's DNS another address",
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has the address; add it, say to lo, first",
        io::ErrorKind::PermissionDenied => "ports below 1024 want root or CAP_NET_BIND_SERVICE",
        _ => "see the reason",
    };
    io::Error::new(error.kind(), format!("DNS cannot listen on {address} ({transport}): {what}: {error}"))
}
