//! The table as the kernel's packet rules.
//!
//! [`layout`] says what elements a front needs, [`chains`] and [`unheard`] what packets pass, [`change`] how to get from one state to
//! another in one transaction, [`observed`] what the kernel really has, [`stale`]
//! which flows it sends nowhere, [`again`] when it lets go of connections that nobody answers. What is in force is known here, so that
//! a change costs what it changes; when in doubt the kernel is asked.

mod again;
mod chains;
mod change;
mod layout;
mod observed;
mod stale;
mod unheard;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use self::{
    again::Again,
    change::{Change, Wanted},
    layout::Way,
    observed::observe,
    stale::Judge,
};
use super::frontend::{Front, Target};
use crate::{
    bridge, conntrack,
    error::NetworkError,
    journal::Protocol,
    links,
    netns::{self, Netlink},
    nft::{Batch, listing, send, socket::Session},
    range::Range,
};

/// The machine's own routes to Services come after everybody else's; the rest of the number tells instances apart.
const LAST_METRIC: u32 = 0x4d00_0000;

/// For so long a chain stays that nothing leads to any more: a packet may be on its way there, and another front may need
/// it.
const IDLE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// Names our table: `mainstay`, or `mainstay-<8 hex digits>`.
    pub instance: String,
    pub services: Range,
    /// All machines' pods.
    pub pods: Range,
    /// Where our own process takes connections that the kernel does not deliver itself.
    pub proxy_port: u16,
}

impl KernelSettings {
    /// The address of the range that the machine itself has, and answers names at.
    pub fn dns(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.services.base()) + 10)
    }
}

/// The rules of one machine.
pub struct Kernel {
    settings: KernelSettings,
    table: String,
    /// Backends in the order of their numbers.
    fronts: HashMap<Front, Target>,
    ways: BTreeMap<Way, Use>,
    /// The kernel's count of changes when it last had exactly this; unknown if it may have something else.
    known: Option<u32>,
    session: Option<Session>,
    /// The kernel refused the last change, and everything is yet to be written.
    refused: bool,
    /// None before this is asked for, and where the kernel knows nothing of it.
    again: Option<Again>,
    knows_time_limits: bool,
}

/// Of a way.
#[derive(Clone, Copy, Debug)]
enum Use {
    By { fronts: usize },
    Idle { since: Instant },
}

/// How much the kernel's rules differed from what they should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    pub missing: usize,
    pub surplus: usize,
    /// Connections to backends that are gone.
    pub dead_connections: usize,
}

type Result<T> = std::result::Result<T, NetworkError>;

fn table(instance: &str) -> String {
    format!("{instance}-services")
}

fn metric(instance: &str) -> u32 {
    LAST_METRIC | xxhash_rust::xxh3::xxh3_64(instance.as_bytes()) as u32 >> 8
}

impl Kernel {
    /// Begins with an empty table: what an earlier process left is replaced by the first `replace`, not before.
    pub fn new(settings: KernelSettings) -> Self {
        let table = table(&settings.instance);
        Self {
            settings,
            table,
            fronts: HashMap::new(),
            ways: BTreeMap::new(),
            known: None,
            session: None,
            refused: false,
            again: None,
            knows_time_limits: true,
        }
    }

    /// Exactly these, in one transaction, whatever the kernel has now.
    pub async fn replace(&mut self, fronts: BTreeMap<Front, Target>) -> Result<()> {
        let dns = self.settings.dns();
        self.fronts = fronts.into_iter().filter(|(front, _)| front.address != Some(dns)).collect();
        self.ways.clear();
        for (front, target) in &self.fronts {
            begin(&mut self.ways, front, target);
        }
        if let Err(error) = bridge::switch("net/ipv4/ip_forward") {
            tracing::warn!(error = error.chain(), "this machine cannot pass on what arrives for Services");
        }
        self.route().await;
        self.mend().await?;
        self.end_flows(&HashSet::new()).await;
        Ok(())
    }

    /// These change, or go. In one transaction; in force when this returns.
    pub async fn apply(&mut self, changes: BTreeMap<Front, Option<Target>>) -> Result<()> {
        let mut change = Change::default();
        let before: BTreeSet<Way> = self.ways.keys().copied().collect();
        let (mut flows_end, mut gone) = (false, HashSet::new());
        for (front, target) in changes {
            flows_end |= self.note(&mut change, front, target) && front.protocol == Protocol::Udp;
            gone.extend((!self.fronts.contains_key(&front)).then_some(front));
        }
        change.begin = self.ways.keys().copied().filter(|way| !before.contains(way)).collect();
        change.end = self.idle_ways();
        self.write(change).await?;
        if flows_end {
            self.end_flows(&gone).await;
        }
        Ok(())
    }

    /// Those that are to be removed now, taken out of the books.
    fn idle_ways(&mut self) -> BTreeSet<Way> {
        let long = |way: &Use| matches!(way, Use::Idle { since } if since.elapsed() >= IDLE);
        self.ways.extract_if(.., |_, usage| long(usage)).map(|(way, _)| way).collect()
    }

    async fn write(&mut self, change: Change) -> Result<()> {
        if self.refused {
            return self.mend().await.map(|_| ());
        }
        for batch in [change.preparation(&self.table, &self.settings, self.again), change.batch(&self.table)] {
            if batch.is_empty() {
                continue;
            }
            let known = self.known.take();
            match self.submit(batch).await {
                Ok(now) => self.known = known.filter(|known| known.wrapping_add(1) == now).map(|_| now),
                Err(error) => {
                    tracing::warn!(
                        error = error.chain(),
                        table = self.table,
                        "packet rules are not what they were: mending"
                    );
                    return self.mend().await.map(|_| ());
                }
            }
        }
        Ok(())
    }

    /// Takes a front's change into the books and the batch. Whether it has other backends now.
    fn note(&mut self, change: &mut Change, front: Front, target: Option<Target>) -> bool {
        if front.address == Some(self.settings.dns()) {
            return false;
        }
        let old = self.fronts.remove(&front);
        let new = target.map(|target| layout::settled(old.as_ref(), target));
        if let Some(old) = &old {
            end(&mut self.ways, &front, old);
        }
        if let Some(new) = &new {
            begin(&mut self.ways, &front, new);
        }
        let elements = |target: Option<&Target>| target.map(|target| layout::elements(&front, target));
        change.elements(elements(old.as_ref()).unwrap_or_default(), elements(new.as_ref()).unwrap_or_default());
        let others = old.as_ref().map(backends) != new.as_ref().map(backends);
        self.fronts.extend(new.map(|new| (front, new)));
        others
    }

    /// Deletes flows to what is no backend any more. How many there were.
    async fn end_flows(&mut self, gone: &HashSet<Front>) -> usize {
        match self.try_end_flows(gone).await {
            Ok(count) => count,
            Err(error) => {
                tracing::warn!(error = error.chain(), "datagrams may go to backends that are gone");
                0
            }
        }
    }

    async fn try_end_flows(&mut self, gone: &HashSet<Front>) -> Result<usize> {
        let here = links::addresses(&Netlink::here()?.handle).await?;
        let flows = self.converse("list UDP flows", conntrack::udp).await?;
        let judge = Judge { settings: &self.settings, fronts: &self.fronts, gone, here: &here };
        let dead: Vec<conntrack::Flow> = flows.into_iter().filter(|flow| judge.is_dead(flow)).collect();
        let count = dead.len();
        self.converse("delete UDP flows", move |session| conntrack::delete(session, &dead)).await?;
        Ok(count)
    }

    /// Compares with what the kernel really has, and mends what differs.
    pub async fn reconcile(&mut self) -> Result<Drift> {
        self.route().await;
        let now = self.converse("ask for packet rules", listing::generation).await?;
        // Whoever changes any rule counts this up.
        let as_before = self.known == Some(now) && self.again == self.time_limits();
        let drift = if as_before { Drift::default() } else { self.mend().await? };
        let idle = Change { end: self.idle_ways(), ..Change::default() };
        self.write(idle).await?;
        let dead_connections = self.end_flows(&HashSet::new()).await;
        Ok(Drift { dead_connections, ..drift })
    }

    /// Makes the kernel's table what is in the books, whatever it is now.
    async fn mend(&mut self) -> Result<Drift> {
        (self.known, self.refused) = (None, true);
        self.again = self.time_limits();
        let name = self.table.clone();
        let observed = self.converse("read packet rules", move |session| observe(session, &name)).await?;
        let generation = observed.as_ref().and_then(|observed| observed.generation);
        let mended = match observed.and_then(|observed| self.wanted().mend(observed)) {
            Some((batch, drift)) if batch.is_empty() => Some((generation, drift)),
            Some((batch, drift)) => match self.submit(batch).await {
                Ok(now) => Some((generation.filter(|before| before.wrapping_add(1) == now).map(|_| now), drift)),
                Err(error) => {
                    tracing::warn!(error = error.chain(), table = self.table, "packet rules are made anew");
                    None
                }
            },
            None => None,
        };
        let drift = match mended {
            Some((known, drift)) => {
                self.known = known;
                drift
            }
            None => {
                let before = self.converse("ask for packet rules", listing::generation).await?;
                let now = self.make_anew().await?;
                self.known = (before.wrapping_add(1) == now).then_some(now);
                Drift { missing: self.wanted().elements.count() + self.ways.len(), ..Drift::default() }
            }
        };
        self.refused = false;
        Ok(drift)
    }

    async fn make_anew(&mut self) -> Result<u32> {
        let anew = self.wanted().anew();
        match self.submit(anew).await {
            Err(error) if self.again.is_some() && error.is_unknown_to_kernel() => {
                tracing::warn!(
                    error = error.chain(),
                    "this kernel has no time limits for some connections (NF_CONNTRACK_TIMEOUT): \
                     those to a machine that died fail until it is given up, instead of trying another"
                );
                (self.again, self.knows_time_limits) = (None, false);
                let anew = self.wanted().anew();
                self.submit(anew).await
            }
            submitted => submitted,
        }
    }

    fn time_limits(&self) -> Option<Again> {
        self.knows_time_limits.then(Again::here)
    }

    /// The kernel's count of changes after this one.
    async fn submit(&mut self, batch: Batch) -> Result<u32> {
        let bytes = batch.finish();
        let submitted = self.converse("write packet rules", move |session| {
            session.send(&bytes)?;
            listing::generation(session)
        });
        submitted.await
    }

    /// Talks to the kernel, on a thread that may wait. Where that failed, the next talk begins anew.
    async fn converse<T: Send + 'static>(
        &mut self,
        doing: &str,
        talk: impl FnOnce(&Session) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let session = self.session.take();
        let talked = netns::apart(move || {
            let session = session.map_or_else(Session::open, Ok)?;
            Ok((talk(&session)?, session))
        });
        let (said, session) = talked.await.map_err(NetworkError::system(doing))?;
        self.session = Some(session);
        Ok(said)
    }

    fn wanted(&self) -> Wanted<'_, impl Iterator<Item = layout::Element>> {
        Wanted {
            settings: &self.settings,
            again: self.again,
            table: &self.table,
            ways: self.ways.keys().copied().collect(),
            elements: self.fronts.iter().flat_map(|(front, target)| layout::elements(front, target)),
        }
    }

    /// The machine's own way to Services. Without it those of the machine that has a default route still work.
    async fn route(&self) {
        let metric = metric(&self.settings.instance);
        let set = async { links::set_own_range(&Netlink::here()?.handle, Some(self.settings.services), metric).await };
        if let Err(error) = set.await {
            tracing::warn!(error = error.chain(), "this machine itself may not reach Services");
        }
    }

    /// Removes all rules of an instance, with or without a process that made them.
    pub async fn remove(instance: &str) -> Result<()> {
        let name = table(instance);
        let mut batch = Batch::new();
        batch.table(&name);
        batch.delete_table(&name);
        let removed = netns::apart(move || send(&batch.finish())).await;
        removed.map_err(NetworkError::system("remove packet rules"))?;
        links::set_own_range(&Netlink::here()?.handle, None, metric(instance)).await
    }
}

/// Those of everybody, and those of callers inside if they have others.
fn backends(target: &Target) -> (&[SocketAddrV4], Option<&[SocketAddrV4]>) {
    (&target.backends, target.inside.as_ref().map(|inside| inside.backends.as_slice()))
}

fn begin(ways: &mut BTreeMap<Way, Use>, front: &Front, target: &Target) {
    for way in Way::all(front, target) {
        let usage = ways.entry(way).or_insert(Use::By { fronts: 0 });
        *usage = match *usage {
            Use::By { fronts } => Use::By { fronts: fronts + 1 },
            Use::Idle { .. } => Use::By { fronts: 1 },
        };
    }
}

fn end(ways: &mut BTreeMap<Way, Use>, front: &Front, target: &Target) {
    for way in Way::all(front, target) {
        if let Some(usage) = ways.get_mut(&way) {
            *usage = match *usage {
                Use::By { fronts: fronts @ 2.. } => Use::By { fronts: fronts - 1 },
                Use::By { .. } | Use::Idle { .. } => Use::Idle { since: Instant::now() },
            };
        }
    }
}

#[cfg(test)]
mod tests;
