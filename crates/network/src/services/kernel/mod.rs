//! The kernel data path of Services: one nftables table per instance.
//!
//! [`maps`] has the elements of frontends, [`chains`] and [`suppress_errors`] the chains, [`batches`] the
//! transactions, [`observed`] what the kernel really has, [`stale_udp`] which conntrack entries to delete,
//! [`conntrack_timeout`] how soon an unanswered SYN is balanced anew.
//!
//! What is in force is known here, so that a change costs what it changes. After an error, or when the ruleset
//! generation shows that somebody else changed rules, the table is read back and repaired.

mod batches;
mod chains;
mod conntrack_timeout;
mod maps;
mod observed;
mod stale_udp;
mod suppress_errors;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use self::{
    batches::{DesiredTable, TableChange},
    conntrack_timeout::ConntrackTimeout,
    maps::{Disposition, Element, frontend_elements, with_stable_order},
    observed::observe_table,
    stale_udp::StaleUdp,
};
use super::frontend::{BackendPool, Frontend};
use crate::{
    bridge,
    conntrack::{UdpEntry, delete_entries, list_udp_entries},
    error::NetworkError,
    journal::Protocol,
    links,
    netns::{self, Netlink},
    nft::{Batch, listing::get_generation, send_batch, socket::NetfilterSocket},
    range::Range,
};

/// Metric of this machine's own routes to Services: they come after all other routes. The lower bytes differ by
/// instance.
const LAST_METRIC: u32 = 0x4d00_0000;

/// How long a chain stays that no frontend uses: a packet may be on its way to it, and another frontend may need it.
const UNUSED_CHAIN_LIFETIME: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// Names the table: `mainstay`, or `mainstay-<8 hex digits>`.
    pub instance: String,
    /// Cluster IPs.
    pub services: Range,
    /// The pods of all machines.
    pub pods: Range,
    /// Where the user-space proxy listens.
    pub proxy_port: u16,
}

impl KernelSettings {
    /// The cluster IP of DNS, an address of this machine itself.
    pub fn dns(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.services.base()) + 10)
    }
}

/// The Services table of one machine.
pub struct KernelProxy {
    settings: KernelSettings,
    table: String,
    /// Backends are in the order of their indices.
    frontends: HashMap<Frontend, BackendPool>,
    dispositions: BTreeMap<Disposition, DispositionUse>,
    /// The ruleset generation at which the kernel had exactly this; unknown if it may have something else.
    generation: Option<u32>,
    socket: Option<NetfilterSocket>,
    /// The kernel refused the last transaction: the whole table has to be compared.
    needs_repair: bool,
    /// `None` before the first repair, and where the kernel has no `ct timeout`.
    timeout: Option<ConntrackTimeout>,
    kernel_has_ct_timeout: bool,
}

#[derive(Clone, Copy, Debug)]
enum DispositionUse {
    Used { frontends: usize },
    Unused { since: Instant },
}

/// How much the kernel's table differed from the desired one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    pub missing: usize,
    pub surplus: usize,
    /// Conntrack entries to backends that are gone.
    pub dead_connections: usize,
}

type Result<T> = std::result::Result<T, NetworkError>;

fn table_name(instance: &str) -> String {
    format!("{instance}-services")
}

fn route_metric(instance: &str) -> u32 {
    LAST_METRIC | xxhash_rust::xxh3::xxh3_64(instance.as_bytes()) as u32 >> 8
}

impl KernelProxy {
    /// Touches nothing yet: the first `replace` replaces what an earlier process left.
    pub fn new(settings: KernelSettings) -> Self {
        let table = table_name(&settings.instance);
        Self {
            settings,
            table,
            frontends: HashMap::new(),
            dispositions: BTreeMap::new(),
            generation: None,
            socket: None,
            needs_repair: false,
            timeout: None,
            kernel_has_ct_timeout: true,
        }
    }

    /// Makes these all the frontends there are, in one transaction, whatever the kernel has now.
    pub async fn replace(&mut self, frontends: BTreeMap<Frontend, BackendPool>) -> Result<()> {
        let dns = self.settings.dns();
        self.frontends = frontends.into_iter().filter(|(frontend, _)| frontend.address != Some(dns)).collect();
        self.dispositions.clear();
        for (frontend, pool) in &self.frontends {
            begin_use(&mut self.dispositions, frontend, pool);
        }
        if let Err(error) = bridge::enable_sysctl("net/ipv4/ip_forward") {
            tracing::warn!(error = error.chain(), "cannot enable ip_forward: Services do not work from other machines");
        }
        self.ensure_route().await;
        self.repair().await?;
        self.delete_stale_udp(&HashSet::new()).await;
        Ok(())
    }

    /// Changes frontends, or removes them. In force when this returns.
    pub async fn apply(&mut self, changes: BTreeMap<Frontend, Option<BackendPool>>) -> Result<()> {
        let mut change = TableChange::default();
        let before: BTreeSet<Disposition> = self.dispositions.keys().copied().collect();
        let (mut udp_changed, mut removed) = (false, HashSet::new());
        for (frontend, pool) in changes {
            udp_changed |= self.record_change(&mut change, frontend, pool) && frontend.protocol == Protocol::Udp;
            removed.extend((!self.frontends.contains_key(&frontend)).then_some(frontend));
        }
        change.first_used =
            self.dispositions.keys().copied().filter(|disposition| !before.contains(disposition)).collect();
        change.unused = self.take_unused();
        self.commit(change).await?;
        if udp_changed {
            self.delete_stale_udp(&removed).await;
        }
        Ok(())
    }

    /// Takes out the dispositions whose chains are to be deleted now.
    fn take_unused(&mut self) -> BTreeSet<Disposition> {
        let is_old = |used: &DispositionUse| match used {
            DispositionUse::Used { .. } => false,
            DispositionUse::Unused { since } => since.elapsed() >= UNUSED_CHAIN_LIFETIME,
        };
        let unused = self.dispositions.iter().filter(|(_, used)| is_old(used)).map(|(disposition, _)| *disposition);
        let unused: BTreeSet<Disposition> = unused.collect();
        self.dispositions.retain(|disposition, _| !unused.contains(disposition));
        unused
    }

    async fn commit(&mut self, change: TableChange) -> Result<()> {
        if self.needs_repair {
            return self.repair().await.map(|_| ());
        }
        let chains = change.chains_batch(&self.table, &self.settings, self.timeout);
        for batch in [chains, change.elements_batch(&self.table)] {
            if batch.is_empty() {
                continue;
            }
            let before = self.generation.take();
            match self.send(batch).await {
                Ok(now) => self.generation = before.filter(|before| before.wrapping_add(1) == now).map(|_| now),
                Err(error) => {
                    tracing::warn!(
                        error = error.chain(),
                        table = self.table,
                        "the nftables table is not as it was last written; repairing it"
                    );
                    return self.repair().await.map(|_| ());
                }
            }
        }
        Ok(())
    }

    /// Records a frontend's change in the desired state and in the transaction. Whether its backends differ from
    /// before.
    fn record_change(&mut self, change: &mut TableChange, frontend: Frontend, pool: Option<BackendPool>) -> bool {
        if frontend.address == Some(self.settings.dns()) {
            return false;
        }
        let old = self.frontends.remove(&frontend);
        let new = pool.map(|pool| with_stable_order(old.as_ref(), pool));
        if let Some(old) = &old {
            end_use(&mut self.dispositions, &frontend, old);
        }
        if let Some(new) = &new {
            begin_use(&mut self.dispositions, &frontend, new);
        }
        let elements = |pool: Option<&BackendPool>| pool.map(|pool| frontend_elements(&frontend, pool));
        change.replace_elements(elements(old.as_ref()).unwrap_or_default(), elements(new.as_ref()).unwrap_or_default());
        let differs = old.as_ref().map(backends) != new.as_ref().map(backends);
        self.frontends.extend(new.map(|new| (frontend, new)));
        differs
    }

    /// Deletes conntrack entries of UDP flows to what is no backend any more. Returns how many there were.
    async fn delete_stale_udp(&mut self, removed: &HashSet<Frontend>) -> usize {
        match self.try_delete_stale_udp(removed).await {
            Ok(count) => count,
            Err(error) => {
                let error = error.chain();
                tracing::warn!(error, "cannot delete stale conntrack entries: UDP may go to backends that are gone");
                0
            }
        }
    }

    async fn try_delete_stale_udp(&mut self, removed: &HashSet<Frontend>) -> Result<usize> {
        let node_addresses = links::list_addresses(&Netlink::in_current_netns()?.handle).await?;
        let entries = self.with_socket("list UDP conntrack entries", list_udp_entries).await?;
        let check =
            StaleUdp { settings: &self.settings, frontends: &self.frontends, removed, node_addresses: &node_addresses };
        let stale: Vec<UdpEntry> = entries.into_iter().filter(|entry| check.is_stale(entry)).collect();
        let count = stale.len();
        self.with_socket("delete UDP conntrack entries", move |socket| delete_entries(socket, &stale)).await?;
        Ok(count)
    }

    /// Compares with what the kernel really has, and repairs what differs.
    pub async fn reconcile(&mut self) -> Result<Drift> {
        self.ensure_route().await;
        // Every transaction of anybody increments the generation.
        let now = self.with_socket("read the ruleset generation", get_generation).await?;
        let is_unchanged = self.generation == Some(now) && self.timeout == self.desired_timeout();
        let drift = if is_unchanged { Drift::default() } else { self.repair().await? };
        let cleanup = TableChange { unused: self.take_unused(), ..TableChange::default() };
        self.commit(cleanup).await?;
        let dead_connections = self.delete_stale_udp(&HashSet::new()).await;
        Ok(Drift { dead_connections, ..drift })
    }

    /// Makes the kernel's table the desired one, whatever it is now.
    async fn repair(&mut self) -> Result<Drift> {
        (self.generation, self.needs_repair) = (None, true);
        self.timeout = self.desired_timeout();
        let name = self.table.clone();
        let observed = self.with_socket("read the nftables table", move |socket| observe_table(socket, &name)).await?;
        let generation = observed.as_ref().and_then(|observed| observed.generation);
        let repaired = match observed.and_then(|observed| self.desired().repair(observed)) {
            Some((batch, drift)) if batch.is_empty() => Some((generation, drift)),
            Some((batch, drift)) => match self.send(batch).await {
                Ok(now) => Some((generation.filter(|before| before.wrapping_add(1) == now).map(|_| now), drift)),
                Err(error) => {
                    tracing::warn!(
                        error = error.chain(),
                        table = self.table,
                        "cannot repair the nftables table; creating it anew"
                    );
                    None
                }
            },
            None => None,
        };
        let drift = match repaired {
            Some((generation, drift)) => {
                self.generation = generation;
                drift
            }
            None => {
                let before = self.with_socket("read the ruleset generation", get_generation).await?;
                let now = self.create_table().await?;
                self.generation = (before.wrapping_add(1) == now).then_some(now);
                Drift { missing: self.desired().elements.count() + self.dispositions.len(), ..Drift::default() }
            }
        };
        self.needs_repair = false;
        Ok(drift)
    }

    async fn create_table(&mut self) -> Result<u32> {
        let batch = self.desired().create();
        match self.send(batch).await {
            Err(error) if self.timeout.is_some() && error.is_unknown_to_kernel() => {
                tracing::warn!(
                    error = error.chain(),
                    "the kernel has no ct timeout (NF_CONNTRACK_TIMEOUT): new connections to a machine that died \
                     fail until it is removed from the endpoints, instead of trying another backend"
                );
                (self.timeout, self.kernel_has_ct_timeout) = (None, false);
                let batch = self.desired().create();
                self.send(batch).await
            }
            sent => sent,
        }
    }

    fn desired_timeout(&self) -> Option<ConntrackTimeout> {
        self.kernel_has_ct_timeout.then(ConntrackTimeout::from_sysctl)
    }

    /// Commits a transaction. Returns the ruleset generation after it.
    async fn send(&mut self, batch: Batch) -> Result<u32> {
        let bytes = batch.finish();
        let sent = self.with_socket("write the nftables table", move |socket| {
            socket.send_batch(&bytes)?;
            get_generation(socket)
        });
        sent.await
    }

    /// Uses the netfilter socket on a thread that may block. After an error the next call opens a new socket.
    async fn with_socket<T: Send + 'static>(
        &mut self,
        doing: &str,
        work: impl FnOnce(&NetfilterSocket) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let socket = self.socket.take();
        let done = netns::run_on_thread(move || {
            let socket = socket.map_or_else(NetfilterSocket::open, Ok)?;
            Ok((work(&socket)?, socket))
        });
        let (result, socket) = done.await.map_err(NetworkError::system(doing))?;
        self.socket = Some(socket);
        Ok(result)
    }

    fn desired(&self) -> DesiredTable<'_, impl Iterator<Item = Element>> {
        DesiredTable {
            settings: &self.settings,
            timeout: self.timeout,
            name: &self.table,
            dispositions: self.dispositions.keys().copied().collect(),
            elements: self.frontends.iter().flat_map(|(frontend, pool)| frontend_elements(frontend, pool)),
        }
    }

    /// This machine's own route to cluster IPs. Without it, processes of a machine that has a default route reach
    /// them all the same.
    async fn ensure_route(&self) {
        let metric = route_metric(&self.settings.instance);
        let set = async {
            let netlink = Netlink::in_current_netns()?;
            links::set_own_range(&netlink.handle, Some(self.settings.services), metric).await
        };
        if let Err(error) = set.await {
            let error = error.chain();
            tracing::warn!(error, "cannot set the route to cluster IPs: this machine itself may not reach Services");
        }
    }

    /// Deletes the table and route of an instance, whether or not a process that made them runs.
    pub async fn remove(instance: &str) -> Result<()> {
        let name = table_name(instance);
        let mut batch = Batch::new();
        batch.add_table(&name);
        batch.delete_table(&name);
        let removed = netns::run_on_thread(move || send_batch(&batch.finish())).await;
        removed.map_err(NetworkError::system("delete the nftables table"))?;
        links::set_own_range(&Netlink::in_current_netns()?.handle, None, route_metric(instance)).await
    }
}

/// The backends of a pool, and those of clients inside the cluster if they have their own.
fn backends(pool: &BackendPool) -> (&[SocketAddrV4], Option<&[SocketAddrV4]>) {
    (&pool.backends, pool.internal.as_ref().map(|internal| internal.backends.as_slice()))
}

fn begin_use(uses: &mut BTreeMap<Disposition, DispositionUse>, frontend: &Frontend, pool: &BackendPool) {
    for disposition in Disposition::of_frontend(frontend, pool) {
        let used = uses.entry(disposition).or_insert(DispositionUse::Used { frontends: 0 });
        *used = match *used {
            DispositionUse::Used { frontends } => DispositionUse::Used { frontends: frontends + 1 },
            DispositionUse::Unused { .. } => DispositionUse::Used { frontends: 1 },
        };
    }
}

fn end_use(uses: &mut BTreeMap<Disposition, DispositionUse>, frontend: &Frontend, pool: &BackendPool) {
    for disposition in Disposition::of_frontend(frontend, pool) {
        if let Some(used) = uses.get_mut(&disposition) {
            *used = match *used {
                DispositionUse::Used { frontends: frontends @ 2.. } => {
                    DispositionUse::Used { frontends: frontends - 1 }
                }
                DispositionUse::Used { .. } | DispositionUse::Unused { .. } => {
                    DispositionUse::Unused { since: Instant::now() }
                }
            };
        }
    }
}

#[cfg(test)]
mod tests;
