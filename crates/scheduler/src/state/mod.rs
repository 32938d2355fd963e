//! Everything the scheduler knows and means to do, without a clock, a socket or a thread.
//!
//! [`State::hear`] takes in news; [`State::turn`] takes in that time passes, decides about whoever is ready and
//! hands out [`Work`]; what becomes of the work comes back as news. Whoever drives it decides nothing.
//!
//! * [`pods`](self::pods): who waits, who has a machine; [`machines`](self::machines): offers and what they are of;
//!   [`outcome`](self::outcome): from verdicts to work, and from answers to what is known; [`hints`](self::hints): whom a
//!   change could help; [`tell`](self::tell): what people see below `/debug`

mod hints;
mod machines;
mod outcome;
mod pods;
#[cfg(test)]
mod properties;
mod tell;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use self::hints::{Changes, Class};
use crate::{
    bind::{Answer, Order},
    board::Board,
    core::{
        Cluster,
        verdict::{self, Strategy},
        view::{BudgetView, Labels, NodeView, OfferView, PodKey, PodView},
    },
    events::Note,
    follow::{Id, Item, Seen},
    metrics::{Kind, Metrics},
    preempt::Eviction,
    queue::Queue,
    reconcile::{Reconciler, Turn},
    say::{Desk, Statement},
    settings::{Placement, Settings},
    volumes::{ClaimWire, ClassWire, VolumeWire, Volumes},
    wire::{NamespaceWire, OfferWire},
};

/// Most pods decided about at a time.
const BATCH: usize = 2_000;
/// Most batches that may wait for their answer.
const BATCHES_ABREAST: usize = 4;
/// Most statements written at a time.
const SAY_ABREAST: usize = 16;

/// What is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    Pods,
    Nodes,
    Offers,
    Budgets,
    Namespaces,
    Claims,
    Volumes,
    Classes,
}

/// What has to be known before anything is decided. Offers are not among it: who does not offer gets nothing.
const NEEDED: [Source; 7] = [
    Source::Pods,
    Source::Nodes,
    Source::Budgets,
    Source::Namespaces,
    Source::Claims,
    Source::Volumes,
    Source::Classes,
];

#[expect(clippy::large_enum_variant, reason = "most news is about pods")]
pub enum News {
    Pods(Seen<PodView>),
    Nodes(Seen<NodeView>),
    Offers(Seen<OfferWire>),
    Budgets(Seen<BudgetView>),
    Namespaces(Seen<NamespaceWire>),
    Claims(Seen<ClaimWire>),
    Volumes(Seen<VolumeWire>),
    Classes(Seen<ClassWire>),
    /// What became of placements.
    Bound {
        orders: Vec<Order>,
        answers: Vec<Answer>,
        took: Duration,
    },
    /// Whether pods that have to make way do.
    Evicted {
        eviction: Eviction,
        done: bool,
    },
    /// Whether something said was written.
    Said {
        statement: Statement,
        done: bool,
    },
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Bind(Vec<Order>),
    Evict(Eviction),
    /// The pod no longer counts on a machine.
    Renounce {
        pod: PodKey,
        uid: String,
    },
    Say(Statement),
    Tell(Note),
    /// An offer that is not good any more, in the version that was seen.
    TearUp {
        machine: String,
        version: u64,
    },
    /// Everything is to be listed again.
    Relist {
        round: u64,
    },
}

/// A pod as last seen.
pub(crate) struct Known {
    pub view: Arc<PodView>,
    /// A placement of ours is under way, or done and not yet seen.
    pub binding: Option<Binding>,
}

pub(crate) struct Binding {
    pub node: String,
    /// Since this version the pod is there; the largest number if that is not known.
    pub version: Option<u64>,
}

pub struct State {
    settings: Settings,
    strategy: verdict::Settings,
    pub(crate) metrics: Metrics,
    started: Instant,
    cluster: Cluster,
    queue: Queue<PodKey, Class>,
    /// One pod of each class that waits.
    models: HashMap<Class, Arc<PodView>>,
    board: Board<OfferView>,
    /// The version of each offer.
    offers: HashMap<String, u64>,
    desk: Desk,
    volumes: Volumes,
    pods: HashMap<PodKey, Known>,
    by_uid: HashMap<String, PodKey>,
    /// Unplaced pods with claims.
    claiming: HashSet<PodKey>,
    /// Machines on which others make way, by the pod that waits for it.
    awaited: HashMap<PodKey, String>,
    nodes: HashSet<String>,
    /// By namespace and name.
    budgets: BTreeSet<(String, String)>,
    namespaces: HashMap<String, Labels>,
    reconciler: Reconciler,
    round: u64,
    heard: HashMap<Source, u64>,
    changes: Changes,
    /// Pods whose reasons were not told because it was too early.
    early: Vec<PodKey>,
    batches: usize,
    saying: usize,
    work: Vec<Work>,
}

impl State {
    pub fn new(settings: Settings, metrics: Metrics, now: Instant) -> Self {
        let strategy = match settings.placement {
            Placement::Spread => Strategy::Spread,
            Placement::Binpack => Strategy::Binpack,
        };
        Self {
            settings,
            strategy: verdict::Settings { strategy },
            metrics,
            started: now,
            cluster: Cluster::new(),
            queue: Queue::new(settings.backoff, settings.seed),
            models: HashMap::new(),
            board: Board::new(settings.board()),
            offers: HashMap::new(),
            desk: Desk::default(),
            volumes: Volumes::default(),
            pods: HashMap::new(),
            by_uid: HashMap::new(),
            claiming: HashSet::new(),
            awaited: HashMap::new(),
            nodes: HashSet::new(),
            budgets: BTreeSet::new(),
            namespaces: HashMap::new(),
            reconciler: Reconciler::new(settings.reconcile, now),
            round: 0,
            heard: HashMap::new(),
            changes: Changes::default(),
            early: Vec::new(),
            batches: 0,
            saying: 0,
            work: Vec::new(),
        }
    }

    pub fn hear(&mut self, news: News, now: Instant) {
        match news {
            News::Pods(seen) => self.hear_pods(seen, now),
            News::Nodes(seen) => self.hear_nodes(seen),
            News::Offers(seen) => self.hear_offers(seen, now),
            News::Budgets(seen) => self.hear_budgets(seen),
            News::Namespaces(seen) => self.hear_namespaces(seen),
            News::Claims(seen) => {
                self.keep(Source::Claims, seen, |volumes, id, claim| {
                    replace(&mut volumes.claims, (id.namespace, id.name), claim)
                });
                self.volumes_changed(now);
            }
            News::Volumes(seen) => {
                self.keep(Source::Volumes, seen, |volumes, id, volume| replace(&mut volumes.volumes, id.name, volume));
                self.volumes_changed(now);
            }
            News::Classes(seen) => {
                self.keep(Source::Classes, seen, |volumes, id, class| replace(&mut volumes.classes, id.name, class));
                self.volumes_changed(now);
            }
            News::Bound { orders, answers, took } => self.bound(&orders, answers, took, now),
            News::Evicted { eviction, done } => self.evicted(&eviction, done),
            News::Said { statement, done } => {
                self.saying = self.saying.saturating_sub(1);
                if !done {
                    self.desk.unsaid(&statement);
                }
            }
        }
    }

    /// Takes in that it is `now`, decides what can be decided, and says what is to be done.
    pub fn turn(&mut self, now: Instant) -> Vec<Work> {
        self.expire(now);
        if now >= self.started + self.settings.offer_ttl {
            for pod in std::mem::take(&mut self.early) {
                self.again(&pod, now);
            }
        }
        self.wake(now);
        if NEEDED.iter().all(|source| self.heard.contains_key(source)) {
            while self.batches < BATCHES_ABREAST && self.decide(now) {}
        }
        self.reconcile(now);
        let room = SAY_ABREAST.saturating_sub(self.saying);
        let said = self.desk.take(room, now);
        self.saying += said.len();
        self.work.extend(said.into_iter().map(Work::Say));
        self.metrics.pods_pending.set(i64::try_from(self.queue.len()).unwrap_or(i64::MAX));
        self.metrics.offers_viable.set(i64::try_from(self.board.len()).unwrap_or(i64::MAX));
        std::mem::take(&mut self.work)
    }

    /// When to take the next turn if there is no news until then.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let deciding = self.batches < BATCHES_ABREAST;
        let queue = self.queue.next(now).filter(|_| deciding);
        let desk = self.desk.next().filter(|_| self.saying < SAY_ABREAST);
        let early = (!self.early.is_empty()).then(|| self.started + self.settings.offer_ttl);
        [queue, desk, early, self.board.next(), Some(self.reconciler.next())].into_iter().flatten().min()
    }

    /// Somebody wants everything compared.
    pub fn request(&mut self, kind: Kind, now: Instant) {
        self.metrics.reconcile_requested(kind);
        if !self.reconciler.request(kind, now) {
            self.metrics.reconcile_cancelled(kind);
        }
    }

    /// A pod is to be tried at once, unless a placement is under way.
    fn again(&mut self, pod: &PodKey, now: Instant) {
        if self.pods.get(pod).is_some_and(|known| known.binding.is_none()) {
            self.queue.back(pod, now);
        }
    }

    fn reconcile(&mut self, now: Instant) {
        let compared = self.round > 0 && NEEDED.iter().all(|source| self.heard.get(source) >= Some(&self.round));
        if compared && let Some((kind, took)) = self.reconciler.done(now) {
            self.metrics.reconcile_executed(kind, took.as_secs_f64());
        }
        while let Some(turn) = self.reconciler.turn(now) {
            match turn {
                Turn::Begin(_) => {
                    self.round += 1;
                    self.work.push(Work::Relist { round: self.round });
                }
                Turn::Abort(kind) => self.metrics.reconcile_cancelled(kind),
            }
        }
    }

    /// Everything there is of something has been told.
    fn heard_all(&mut self, source: Source, round: u64) {
        self.heard.insert(source, round);
    }

    /// Keeps one of the tables of volumes as it is told.
    fn keep<T>(&mut self, source: Source, seen: Seen<T>, put: impl Fn(&mut Volumes, Id, Option<T>)) {
        match seen {
            Seen::All { items, round, .. } => {
                match source {
                    Source::Claims => self.volumes.claims.clear(),
                    Source::Volumes => self.volumes.volumes.clear(),
                    _ => self.volumes.classes.clear(),
                }
                for Item { id, view } in items {
                    put(&mut self.volumes, id, Some(view));
                }
                self.heard_all(source, round);
            }
            Seen::There(Item { id, view }) => put(&mut self.volumes, id, Some(view)),
            Seen::Gone(id) => put(&mut self.volumes, id, None),
        }
    }
}

fn replace<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Those of `known` that an account of everything does not mention.
fn missing<'a>(known: impl Iterator<Item = &'a String>, told: &BTreeSet<&str>) -> Vec<String> {
    known.filter(|name| !told.contains(name.as_str())).cloned().collect()
}
