//! The bridge of one machine and the pods on it.
//!
//! Everything is made in an order that a kill cannot spoil: first the record of the address, then the
//! interface, then what is inside the pod; and unmade in the opposite order. Whatever is found half
//! made is completed by the next `attach`, or removed by `detach` and `retain`. The kernel removes a pair
//! by itself when the pod's namespace ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Mutex, watch};

use crate::{
    error::NetworkError,
    journal::{HostPort, Journal, Lease},
    links::{self, Pair},
    netns::{self, Netlink},
    range::Range,
    rules,
};

/// How long the first pod of all waits to be told the machine's range.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct Settings {
    /// Names the bridge, and what else belongs to this agent: `mainstay`, or `mainstay-<8 hex digits>`.
    pub instance: String,
    /// Where addresses are recorded.
    pub directory: PathBuf,
    /// All machines' pods. Packets from pods to elsewhere carry the machine's own address.
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
    /// Ranges that the bridge has its address of, and its index.
    ready: BTreeMap<Range, Ready>,
    /// The rules as last written.
    rules: Option<Vec<u8>>,
}

#[derive(Clone, Copy)]
struct Ready {
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

/// Made from the sandbox alone, so that it is found again without a record.
fn outside(instance: &str, sandbox: &str) -> String {
    format!("veth{:011x}", digest(&format!("{instance}/{sandbox}")) >> 20)
}

impl Bridge {
    /// Makes nothing yet: the bridge comes with the first pod.
    pub fn new(settings: Settings) -> Result<Arc<Self>> {
        let journal = Journal::open(settings.directory.join("addresses.json"));
        Ok(Arc::new(Self {
            name: bridge_name(&settings.instance),
            netlink: Netlink::here()?,
            range: watch::Sender::new(journal.range()),
            state: Mutex::new(State { journal, ready: BTreeMap::new(), rules: None }),
            settings,
        }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The machine's range, as the API says. Pods that have an address keep it.
    pub async fn set_range(&self, range: Range) -> Result<()> {
        self.state.lock().await.journal.set_range(range)?;
        self.range.send_if_modified(|known| known.replace(range) != Some(range));
        Ok(())
    }

    /// The range in use. A machine that was never told (its first pods are static, and there is no server) uses
    /// the last one of the cluster's, which is given to a machine last.
    async fn range(&self) -> Range {
        let mut told = self.range.subscribe();
        let told = tokio::time::timeout(PATIENCE, told.wait_for(Option::is_some)).await;
        let told = told.ok().and_then(|told| told.ok().and_then(|range| *range));
        told.unwrap_or_else(|| {
            let cluster = self.settings.cluster;
            let last = u32::from(cluster.base()) | !u32::from(cluster.mask());
            let last = Range::around(Ipv4Addr::from(last), cluster.bits().max(24)).unwrap_or(cluster);
            // Nobody waits a second time; what the API says later still counts.
            self.range.send_if_modified(|known| known.is_none() && known.replace(last).is_none());
            last
        })
    }

    /// Gives a pod's namespace its interface, address and routes. Asked twice, answers the same.
    pub async fn attach(&self, sandbox: &str, netns: &Path, ports: &[HostPort]) -> Result<Ipv4Addr> {
        let netns = netns::open(netns)?;
        let range = self.range().await;
        let (lease, range, ready) = {
            let mut state = self.state.lock().await;
            let lease = state.journal.take(sandbox, range, ports)?;
            // An address from before the range was changed keeps its own gateway.
            let range = if range.contains(lease.address) { Some(range) } else { Range::around(lease.address, 24) };
            let range = range.unwrap_or(self.settings.cluster);
            let ready = self.ready(&mut state, range).await?;
            self.write_rules(&mut state).await?;
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
        ready: Ready,
    ) -> Result<()> {
        let outside = outside(&self.settings.instance, sandbox);
        let handle = &self.netlink.handle;
        let pair = Pair { outside: &outside, bridge: ready.index, netns, address: lease.address, mtu: ready.mtu };
        let (made, inside) = tokio::join!(links::pair(handle, &pair), Netlink::inside(netns));
        let (made, inside) = (made?, inside?);
        if links::furnish(&inside.handle, lease.address, range).await? {
            return keep_to_gateway(netns).await;
        }
        if !made {
            // An earlier namespace of the same sandbox has the other end.
            links::delete(handle, &outside).await?;
            links::pair(handle, &pair).await?;
            if links::furnish(&inside.handle, lease.address, range).await? {
                return keep_to_gateway(netns).await;
            }
        }
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        Err(NetworkError::system(format!("look for {} in the pod", links::INSIDE))(missing))
    }

    /// Gives everything back, with or without the namespace, and more than once.
    pub async fn detach(&self, sandbox: &str) -> Result<()> {
        links::delete(&self.netlink.handle, &outside(&self.settings.instance, sandbox)).await?;
        let mut state = self.state.lock().await;
        state.journal.give_back(&[sandbox.to_owned()])?;
        self.write_rules(&mut state).await
    }

    /// Gives back what belongs to none of these. Those being made at this moment must be among them.
    pub async fn retain(&self, live: &BTreeSet<String>) -> Result<()> {
        let mut state = self.state.lock().await;
        let dead: Vec<String> = state.journal.held().keys().filter(|held| !live.contains(*held)).cloned().collect();
        let handle = &self.netlink.handle;
        if let Some(bridge) = links::find(handle, &self.name).await? {
            let keep: BTreeSet<String> = live.iter().map(|s| outside(&self.settings.instance, s)).collect();
            let ports = links::ports(handle, bridge.index).await?;
            for port in ports.iter().filter(|port| port.starts_with("veth") && !keep.contains(*port)) {
                links::delete(handle, port).await?;
            }
        }
        state.journal.give_back(&dead)?;
        self.write_rules(&mut state).await
    }

    /// Removes the bridge, all pairs, rules, routes and records.
    pub async fn down(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        let handle = &self.netlink.handle;
        if let Some(bridge) = links::find(handle, &self.name).await? {
            for port in links::ports(handle, bridge.index).await? {
                links::delete(handle, &port).await?;
            }
            links::delete(handle, &self.name).await?;
        }
        for (to, via) in state.journal.routes() {
            links::delete_route(handle, *to, *via).await?;
        }
        rules::remove(&self.name).await?;
        (state.ready, state.rules) = (BTreeMap::new(), None);
        state.journal.erase()?;
        Ok(())
    }

    /// Exactly these ranges lie behind these machines. Those that are not on a network of ours are left out, and
    /// named in the answer.
    pub async fn set_routes(&self, machines: &BTreeMap<Range, Ipv4Addr>) -> Result<Vec<Ipv4Addr>> {
        let mut state = self.state.lock().await;
        let handle = &self.netlink.handle;
        let before = state.journal.routes().clone();
        for (to, via) in before.iter().filter(|(to, via)| machines.get(to) != Some(via)) {
            links::delete_route(handle, *to, *via).await?;
        }
        // Recorded first: a route that was never made is deleted without complaint.
        state.journal.set_routes(machines.clone())?;
        let mut far = Vec::new();
        for (to, via) in machines {
            if !links::add_route(handle, *to, *via).await? {
                far.push(*via);
            }
        }
        Ok(far)
    }

    /// The bridge, with its address in this range. Somebody may have removed it: it is looked at each time.
    async fn ready(&self, state: &mut State, range: Range) -> Result<Ready> {
        let handle = &self.netlink.handle;
        if let (Some(ready), Some(link)) = (state.ready.get(&range), links::find(handle, &self.name).await?)
            && link.index == ready.index
        {
            return Ok(*ready);
        }
        for other in links::with_address_in(handle, range).await?.iter().filter(|other| **other != self.name) {
            tracing::warn!(interface = other, %range, "pods cannot all be reached: another interface has their range");
        }
        let mtu = links::uplink_mtu(handle).await?;
        let ready = Ready { index: links::bridge(handle, &self.name, range, mtu).await?, mtu };
        switch("net/ipv4/ip_forward")?;
        // So that the machine itself may use its pods' ports at 127.0.0.1.
        switch(&format!("net/ipv4/conf/{}/route_localnet", self.name))?;
        state.ready.retain(|_, known| known.index == ready.index);
        state.ready.insert(range, ready);
        state.rules = None;
        Ok(ready)
    }

    /// All rules at once, if they are not already so.
    async fn write_rules(&self, state: &mut State) -> Result<()> {
        if state.ready.is_empty() && links::find(&self.netlink.handle, &self.name).await?.is_none() {
            return Ok(()); // no pod yet
        }
        let batch = rules::batch(&self.name, self.settings.cluster, state.journal.held().values());
        if state.rules.as_ref() == Some(&batch) {
            return Ok(());
        }
        match rules::write(batch.clone()).await {
            Ok(()) => {}
            Err(error) if state.journal.held().values().any(|lease| !lease.ports.is_empty()) => return Err(error),
            // Pods still reach each other and the machine.
            Err(error) => tracing::warn!(error = error.chain(), "pods cannot reach beyond this machine"),
        }
        state.rules = Some(batch);
        Ok(())
    }
}

/// A pod does not believe that another can be reached without the machine, though the machine says so.
async fn keep_to_gateway(netns: &std::os::fd::OwnedFd) -> Result<()> {
    let set = netns::within(netns, || {
        for interface in ["all", links::INSIDE] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/accept_redirects"), "0")?;
        }
        Ok(())
    });
    set.await.map_err(NetworkError::system("keep the pod to its gateway"))
}

/// Sets a kernel switch to 1 unless it is. Of the namespace of the calling thread.
pub(crate) fn switch(name: &str) -> Result<()> {
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
    fn names_fit_an_interface_and_tell_instances_apart() {
        assert_eq!(bridge_name("mainstay"), "mainstay0");
        assert_eq!(bridge_name("mainstay-0a1b2c3d"), "ms-0a1b2c3d");
        assert!(bridge_name("an-instance-with-a-long-name").len() <= 15);
        let veth = outside("mainstay", "x");
        assert_eq!(veth.len(), 15);
        assert_ne!(veth, outside("mainstay-0a1b2c3d", "x"));
    }
}
