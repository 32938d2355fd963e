//! Starts the DNS server of this node and gives it the catalogue.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use mainstay_network::{
    catalogue::Catalogue,
    dns::{Dns, DnsSettings},
    loopback,
};
use tokio_util::sync::CancellationToken;

use super::ServicesSettings;
use crate::spec;

const PORT: u16 = 53;
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How often it is looked whom the machine itself asks: another network gives others.
const LOOK: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct NamesSettings {
    /// `cluster.local`.
    pub domain: String,
    /// `consul`.
    pub alias_domain: String,
    pub datacentre: String,
    /// Who knows all other names; empty for those whom the machine itself asks.
    pub upstreams: Vec<SocketAddr>,
}

/// Answers for ever; tries again while it cannot.
pub async fn run(settings: &ServicesSettings, address: Ipv4Addr, catalogue: Arc<Catalogue>) {
    let mut warned = false;
    loop {
        match bind(settings, address, catalogue.clone()).await {
            Ok(dns) => {
                warned = false;
                let upstreams = dns.upstreams();
                let heed = async {
                    match settings.names.upstreams.is_empty() {
                        true => whenever_it_changes(of_machine, |servers| upstreams.set(servers)).await,
                        false => std::future::pending().await,
                    }
                };
                tokio::select! { () = dns.run(CancellationToken::new()) => {}, () = heed => {} }
            }
            Err(error) if !std::mem::replace(&mut warned, true) => {
                tracing::warn!(%error, %address, "cannot listen for DNS; will retry");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn bind(settings: &ServicesSettings, address: Ipv4Addr, catalogue: Arc<Catalogue>) -> Result<Dns, String> {
    loopback::assign(&settings.instance, address).await.map_err(|error| error.chain())?;
    let names = &settings.names;
    let dns = DnsSettings {
        address,
        port: PORT,
        domain: names.domain.clone(),
        alias_domain: names.alias_domain.clone(),
        datacentre: names.datacentre.clone(),
        upstreams: if names.upstreams.is_empty() { of_machine() } else { names.upstreams.clone() },
    };
    Dns::bind(dns, catalogue).await.map_err(|error| error.to_string())
}

/// Tells what is read whenever it is no longer what it was.
async fn whenever_it_changes<T: PartialEq + Clone>(read: impl Fn() -> T, tell: impl Fn(T)) {
    let mut known = read();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = read();
        if now != known {
            known = now.clone();
            tell(now);
        }
    }
}

/// Those that the machine itself asks.
fn of_machine() -> Vec<SocketAddr> {
    let servers = spec::dns::of_machine().servers;
    servers.iter().filter_map(|server| server.parse::<IpAddr>().ok()).map(|ip| SocketAddr::new(ip, PORT)).collect()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_changes_is_reported_once() {
        let (file, applied) = (Mutex::new("a"), Mutex::new(Vec::new()));
        let follow = whenever_it_changes(|| *file.lock(), |now| applied.lock().push(now));
        let change = async {
            for text in ["a", "b", "b", "c"] {
                *file.lock() = text;
                tokio::time::sleep(LOOK).await;
            }
            tokio::time::sleep(LOOK).await;
        };
        tokio::select! { () = follow => {}, () = change => {} }
        assert_eq!(*applied.lock(), ["b", "c"]);
    }
}
