//! The bridge of one machine: attaches pods to it with veth pairs, addresses and routes.
//!
//! A crash at any moment leaves nothing that is lost: the record of the address is written first, then the interface
//! is created, then the pod is configured; removing goes in the opposite order. What is found half done is completed
//! by the next `attach`, or removed by `detach` and `retain`. The kernel deletes a veth pair by itself when the pod's
//! network namespace ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Mutex, watch};

use crate::{
    bridge_nat,
    error::NetworkError,
    journal::{HostPort, Journal, Lease},
    links::{self, VethPair},
    netns::{self, Netlink},
    range::Range,
};

/// How long the first pod waits for the machine's range from the API.
const RANGE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct Settings {
    /// Names the bridge, and what else belongs to this agent: `mainstay`, or `mainstay-<8 hex digits>`.
    pub instance: String,
    /// Directory of the record of addresses.
    pub directory: PathBuf,
    /// The pods of all machines. What pods send to other addresses is masqueraded.
    pub cluster: Range,
}

pub struct Bridge {
    settings: Settings,
    name: String,
    netlink: Netlink,
    range: watch::Sender<Option<Range>>,
    state: Mutex<State>,
}

struct State {
    journal: Journal,
    /// The bridge, for each range whose gateway address it has.
    ready: BTreeMap<Range, BridgeLink>,
    /// The table as last written.
    nat_batch: Option<Vec<u8>>,
}

#[derive(Clone, Copy)]
struct BridgeLink {
    index: u32,
    mtu: u32,
}

type Result<T> = std::result::Result<T, NetworkError>;

/// `mainstay0` for the stock instance, `ms-<8 hex digits>` for another.
pub fn bridge_name(instance: &str) -> String {
    match instance.rsplit_once('-') {
        Some((_, id)) if id.len() == 8 => format!("ms-{id}"),
        _ if instance.len() <= 14 => format!("{instance}0"),
        _ => format!("ms-{:08x}", digest(instance) as u32),
    }
}

fn digest(text: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

/// Derived from the sandbox alone, so that it is found again without a record.
fn host_end(instance: &str, sandbox: &str) -> String {
    format!("veth{:011x}", digest(&format!("{instance}/{sandbox}")) >> 20)
}

impl Bridge {
    /// Creates nothing yet: the bridge comes with the first pod.
    pub fn new(settings: Settings) -> Result<Arc<Self>> {
        let journal = Journal::open(settings.directory.join("addresses.json"));
        Ok(Arc::new(Self {
            name: bridge_name(&settings.instance),
            netlink: Netlink::in_current_netns()?,
            range: watch::Sender::new(journal.range()),
            state: Mutex::new(State { journal, ready: BTreeMap::new(), nat_batch: None }),
            settings,
        }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the machine's range, as the API assigned it. Pods that have an address keep it.
    pub async fn set_range(&self, range: Range) -> Result<()> {
        self.state.lock().await.journal.set_range(range)?;
        self.range.send_if_modified(|known| known.replace(range) != Some(range));
        Ok(())
    }

    /// The range in use. A machine that has none yet (its first pods are static, and there is no server) uses the
    /// last one of the cluster's range, which is assigned last.
    async fn range(&self) -> Range {
        let mut range = self.range.subscribe();
        let range = tokio::time::timeout(RANGE_TIMEOUT, range.wait_for(Option::is_some)).await;
        let range = range.ok().and_then(|range| range.ok().and_then(|range| *range));
        range.unwrap_or_else(|| {
            let cluster = self.settings.cluster;
            let last = u32::from(cluster.base()) | !u32::from(cluster.mask());
            let last = Range::around(Ipv4Addr::from(last), cluster.bits().max(24)).unwrap_or(cluster);
            // Only the first pod waits; a range that the API assigns later still counts.
            self.range.send_if_modified(|known| known.is_none() && known.replace(last).is_none());
            last
        })
    }

    /// Gives a pod's network namespace its interface, address and routes. Idempotent.
    pub async fn attach(&self, sandbox: &str, netns: &Path, ports: &[HostPort]) -> Result<Ipv4Addr> {
        let netns = netns::open(netns)?;
        let range = self.range().await;
        let (lease, range, ready) = {
            let mut state = self.state.lock().await;
            let lease = state.journal.take(sandbox, range, ports)?;
            // An address from before the range changed keeps its own gateway.
            let range = if range.contains(lease.address) { Some(range) } else { Range::around(lease.address, 24) };
            let range = range.unwrap_or(self.settings.cluster);
            let ready = self.ensure_bridge(&mut state, range).await?;
            self.write_nat(&mut state).await?;
            (lease, range, ready)
        };
        self.connect(sandbox, &netns, &lease, range, ready).await?;
        Ok(lease.address)
    }

    async fn connect(
        &self,
        sandbox: &str,
        netns: &std::os::fd::OwnedFd,
        lease: &Lease,
        range: Range,
        ready: BridgeLink,
    ) -> Result<()> {
        let host_end = host_end(&self.settings.instance, sandbox);
        let handle = &self.netlink.handle;
        let pair = VethPair { host_end: &host_end, bridge: ready.index, netns, address: lease.address, mtu: ready.mtu };
        let (made, inside) = tokio::join!(links::create_veth_pair(handle, &pair), Netlink::in_netns(netns));
        let (made, inside) = (made?, inside?);
        if links::configure_pod(&inside.handle, lease.address, range).await? {
            return refuse_redirects(netns).await;
        }
        if !made {
            // The other end is in an earlier network namespace of the same sandbox.
            links::delete_link(handle, &host_end).await?;
            links::create_veth_pair(handle, &pair).await?;
            if links::configure_pod(&inside.handle, lease.address, range).await? {
                return refuse_redirects(netns).await;
            }
        }
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        Err(NetworkError::system(format!("look up {} in the pod", links::POD_INTERFACE))(missing))
    }

    /// Removes everything that a pod has, with or without its network namespace. Idempotent.
    pub async fn detach(&self, sandbox: &str) -> Result<()> {
        links::delete_link(&self.netlink.handle, &host_end(&self.settings.instance, sandbox)).await?;
        let mut state = self.state.lock().await;
        state.journal.give_back(&[sandbox.to_owned()])?;
        self.write_nat(&mut state).await
    }

    /// Removes what belongs to none of these sandboxes. Those that are being attached must be among them.
    pub async fn retain(&self, live: &BTreeSet<String>) -> Result<()> {
        let mut state = self.state.lock().await;
        let dead: Vec<String> = state.journal.leases().keys().filter(|held| !live.contains(*held)).cloned().collect();
        let handle = &self.netlink.handle;
        if let Some(bridge) = links::find_link(handle, &self.name).await? {
            let keep: BTreeSet<String> = live.iter().map(|s| host_end(&self.settings.instance, s)).collect();
            let ports = links::list_bridge_ports(handle, bridge.index).await?;
            for port in ports.iter().filter(|port| port.starts_with("veth") && !keep.contains(*port)) {
                links::delete_link(handle, port).await?;
            }
        }
        state.journal.give_back(&dead)?;
        self.write_nat(&mut state).await
    }

    /// Removes the bridge, all veth pairs, the nftables table, routes and records.
    pub async fn down(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        let handle = &self.netlink.handle;
        if let Some(bridge) = links::find_link(handle, &self.name).await? {
            for port in links::list_bridge_ports(handle, bridge.index).await? {
                links::delete_link(handle, &port).await?;
            }
            links::delete_link(handle, &self.name).await?;
        }
        for (to, via) in state.journal.routes() {
            links::delete_route(handle, *to, *via).await?;
        }
        bridge_nat::delete_table(&self.name).await?;
        (state.ready, state.nat_batch) = (BTreeMap::new(), None);
        state.journal.erase()?;
        Ok(())
    }

    /// Sets the routes to the pods of other machines. Returns machines that are on no directly connected network, to
    /// which there is no route.
    pub async fn set_routes(&self, machines: &BTreeMap<Range, Ipv4Addr>) -> Result<Vec<Ipv4Addr>> {
        let mut state = self.state.lock().await;
        let handle = &self.netlink.handle;
        let before = state.journal.routes().clone();
        for (to, via) in before.iter().filter(|(to, via)| machines.get(to) != Some(via)) {
            links::delete_route(handle, *to, *via).await?;
        }
        // Recorded first: deleting a route that was never added is no error.
        state.journal.set_routes(machines.clone())?;
        let mut far = Vec::new();
        for (to, via) in machines {
            if !links::add_route(handle, *to, *via).await? {
                far.push(*via);
            }
        }
        Ok(far)
    }

    /// Creates the bridge with its address in this range. Looks each time: somebody may have removed it.
    async fn ensure_bridge(&self, state: &mut State, range: Range) -> Result<BridgeLink> {
        let handle = &self.netlink.handle;
        if let (Some(ready), Some(link)) = (state.ready.get(&range), links::find_link(handle, &self.name).await?)
            && link.index == ready.index
        {
            return Ok(*ready);
        }
        for other in links::with_address_in(handle, range).await?.iter().filter(|other| **other != self.name) {
            tracing::warn!(interface = other, %range, "another interface has an address in the pod range: some pods cannot be reached");
        }
        let mtu = links::uplink_mtu(handle).await?;
        let ready = BridgeLink { index: links::ensure_bridge(handle, &self.name, range, mtu).await?, mtu };
        enable_sysctl("net/ipv4/ip_forward")?;
        // The machine itself may then use host ports at 127.0.0.1.
        enable_sysctl(&format!("net/ipv4/conf/{}/route_localnet", self.name))?;
        state.ready.retain(|_, known| known.index == ready.index);
        state.ready.insert(range, ready);
        state.nat_batch = None;
        Ok(ready)
    }

    /// Writes the nftables table if it differs from what was last written.
    async fn write_nat(&self, state: &mut State) -> Result<()> {
        if state.ready.is_empty() && links::find_link(&self.netlink.handle, &self.name).await?.is_none() {
            return Ok(()); // no pod yet
        }
        let batch = bridge_nat::table_batch(&self.name, self.settings.cluster, state.journal.leases().values());
        if state.nat_batch.as_ref() == Some(&batch) {
            return Ok(());
        }
        match bridge_nat::replace_table(batch.clone()).await {
            Ok(()) => {}
            Err(error) if state.journal.leases().values().any(|lease| !lease.ports.is_empty()) => return Err(error),
            // Pods still reach each other and the machine.
            Err(error) => tracing::warn!(
                error = error.chain(),
                "cannot write the nftables table of the bridge: pods reach nothing outside the cluster"
            ),
        }
        state.nat_batch = Some(batch);
        Ok(())
    }
}

/// Makes a pod ignore ICMP redirects: the machine sends them for pods on the same bridge, and traffic must go through
/// it.
async fn refuse_redirects(netns: &std::os::fd::OwnedFd) -> Result<()> {
    let set = netns::run_in_netns(netns, || {
        for interface in ["all", links::POD_INTERFACE] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/accept_redirects"), "0")?;
        }
        Ok(())
    });
    set.await.map_err(NetworkError::system("refuse ICMP redirects in the pod"))
}

/// Sets a sysctl of the calling thread's network namespace to 1.
pub(crate) fn enable_sysctl(name: &str) -> Result<()> {
    let path = Path::new("/proc/sys").join(name);
    let doing = || format!("set {}", path.display());
    let now = std::fs::read_to_string(&path).map_err(NetworkError::system(doing()))?;
    if now.trim() == "1" {
        return Ok(());
    }
    std::fs::write(&path, "1").map_err(NetworkError::system(doing()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_fit_ifnamsiz_and_differ_by_instance() {
        assert_eq!(bridge_name("mainstay"), "mainstay0");
        assert_eq!(bridge_name("mainstay-0a1b2c3d"), "ms-0a1b2c3d");
        assert!(bridge_name("an-instance-with-a-long-name").len() <= 15);
        let veth = host_end("mainstay", "x");
        assert_eq!(veth.len(), 15);
        assert_ne!(veth, host_end("mainstay-0a1b2c3d", "x"));
    }
}
