//! Lets requests in by their priority level and flow: at once, after a wait in a queue, or not at all.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::{
    classify::RequestDigest,
    config::{FlowConfig, ParsedFlowSchema},
    metrics::{FlowCounters, FlowMetrics},
    seats::{Admission, Claim, RefusalReason, Seats},
};
use crate::objects::store_cache::StoreCache;

pub(super) const FLOW_SCHEMAS: &str = "flowschemas";
pub(super) const PRIORITY_LEVELS: &str = "prioritylevelconfigurations";

pub struct FlowControl {
    /// FlowSchemas and PriorityLevelConfigurations.
    pub(crate) objects: StoreCache,
    config: RwLock<Option<Arc<ActiveConfig>>>,
    shared: Arc<Shared>,
    hasher: RandomState,
    /// How long a request may wait in a queue.
    patience: Duration,
}

/// The configuration as of one version of the objects.
struct ActiveConfig {
    version: u64,
    flows: FlowConfig,
    /// Of every FlowSchema, in the same order.
    counters: Vec<Arc<FlowCounters>>,
}

struct Shared {
    seats: Mutex<Seats<Ticket>>,
    metrics: FlowMetrics,
}

/// Of a request that waits; its other end is dropped when the request has gone.
struct Ticket {
    turn: oneshot::Sender<FlowSeat>,
    counters: Arc<FlowCounters>,
}

impl Ticket {
    fn is_gone(&self) -> bool {
        self.turn.is_closed()
    }
}

/// The flow that a request belongs to.
#[derive(Clone)]
pub struct RequestFlow {
    pub schema: Arc<ParsedFlowSchema>,
    counters: Arc<FlowCounters>,
    hash: u64,
}

/// Seats that a request has until this is dropped.
pub struct FlowSeat {
    claim: Claim,
    counters: Arc<FlowCounters>,
    shared: Arc<Shared>,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
}

impl Refusal {
    /// As upstream's metric has it.
    fn reason(self) -> &'static str {
        match self {
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
        }
    }
}

impl From<RefusalReason> for Refusal {
    fn from(reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::ConcurrencyLimit => Self::ConcurrencyLimit,
            RefusalReason::QueueFull => Self::QueueFull,
        }
    }
}

impl FlowControl {
    pub fn new(registry: &mainstay_api::registry::Registry, total: usize, request_timeout: Duration) -> Self {
        let kinds = [(super::GROUP, FLOW_SCHEMAS), (super::GROUP, PRIORITY_LEVELS)];
        Self {
            objects: StoreCache::new(registry, &kinds),
            config: RwLock::default(),
            shared: Arc::new(Shared { seats: Mutex::new(Seats::new(total)), metrics: FlowMetrics::default() }),
            hasher: RandomState::new(),
            patience: request_timeout / 4,
        }
    }

    /// What `/metrics` shows of it.
    pub fn register(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
    }

    fn config(&self) -> Arc<ActiveConfig> {
        let version = self.objects.version();
        if let Some(config) = self.config.read().as_ref().filter(|config| config.version == version) {
            return config.clone();
        }
        let flows = FlowConfig::new(self.stored(FLOW_SCHEMAS), self.stored(PRIORITY_LEVELS));
        let counters = flows.schemas.iter().map(|schema| self.shared.metrics.counters_for(schema)).collect();
        let config = Arc::new(ActiveConfig { version, flows, counters });
        let mut known = self.config.write();
        self.shared.seats.lock().configure(&config.flows);
        *known = Some(config.clone());
        drop(known);
        self.shared.dispatch();
        config
    }

    /// What is stored of a kind. What is not as the kind says counts as not there.
    fn stored<T: DeserializeOwned>(&self, plural: &str) -> Vec<T> {
        let objects = self.objects.list(plural, None);
        objects.iter().filter_map(|object| T::deserialize(&*object.value).ok()).collect()
    }

    pub fn classify(&self, request: &RequestDigest<'_>) -> Option<RequestFlow> {
        let config = self.config();
        let (place, schema) = config.flows.classify(request)?;
        Some(RequestFlow {
            schema: schema.clone(),
            counters: config.counters.get(place)?.clone(),
            hash: self.hasher.hash_one((&schema.name, schema.distinguish(request))),
        })
    }

    /// Seats for a request of this flow, as soon as it is its turn.
    pub async fn acquire(&self, flow: &RequestFlow, seats: usize) -> Result<FlowSeat, Refusal> {
        let level = &flow.schema.level.name;
        let mut waits = None;
        let (claim, admission) = {
            let mut all = self.shared.seats.lock();
            let claim = Claim { level: level.clone(), flow: flow.hash, seats: all.bounded(level, seats) };
            let ticket = || {
                let (turn, its_turn) = oneshot::channel();
                waits = Some(its_turn);
                Ticket { turn, counters: flow.counters.clone() }
            };
            let admission = all.claim(&claim, ticket, Ticket::is_gone);
            (claim, admission)
        };
        let mut its_turn = match (admission, waits) {
            (Admission::Seated, _) => return Ok(FlowSeat::new(claim, flow.counters.clone(), self.shared.clone())),
            (Admission::Refused(why), _) => return Err(self.refuse(flow, why.into())),
            (Admission::Queued, Some(its_turn)) => its_turn,
            (Admission::Queued, None) => return Err(self.refuse(flow, Refusal::QueueFull)), // no ticket was made: cannot be
        };
        let _waiting = Waiting::new(flow.counters.waiting.clone());
        // Its queue may be the one whose turn it is.
        self.shared.dispatch();
        let since = Instant::now();
        let seat = tokio::time::timeout(self.patience, &mut its_turn).await;
        flow.counters.waits.observe(since.elapsed().as_secs_f64());
        match seat {
            Ok(Ok(seat)) => Ok(seat),
            Ok(Err(_)) | Err(_) => Err(self.refuse(flow, Refusal::TimeOut)),
        }
    }

    fn refuse(&self, flow: &RequestFlow, why: Refusal) -> Refusal {
        self.shared.metrics.count_refusal(&flow.schema, why.reason());
        why
    }

    /// `/debug/api_priority_and_fairness/dump_priority_levels`, in upstream's columns.
    pub fn dump_priority_levels(&self) -> String {
        self.config();
        let mut text = String::from(
            "PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests, NominalSeats, ExecutingSeats\n",
        );
        for level in self.shared.seats.lock().views() {
            text += &format!(
                "{}, {}, {}, false, {}, {}, -, -, -, -, {}, {}\n",
                level.spec.name,
                level.queues.len(),
                level.executing == 0 && level.waiting == 0,
                level.waiting,
                level.executing,
                level.nominal,
                level.used,
            );
        }
        text
    }

    /// `/debug/api_priority_and_fairness/dump_queues`: queues in which somebody waits.
    pub fn dump_queues(&self) -> String {
        let mut text = String::from("PriorityLevelName, Index, PendingRequests\n");
        for level in self.shared.seats.lock().views() {
            for (index, waiting) in &level.queues {
                text += &format!("{}, {index}, {waiting}\n", level.spec.name);
            }
        }
        text
    }
}

impl Shared {
    /// Seats whoever can be seated.
    fn dispatch(self: &Arc<Self>) {
        let seated = self.seats.lock().dispatch(Ticket::is_gone);
        self.hand_out(seated);
    }

    /// Takes seats back, and gives them to whoever waits for them.
    fn release(self: &Arc<Self>, claim: &Claim) {
        let seated = {
            let mut seats = self.seats.lock();
            seats.release(claim);
            seats.dispatch(Ticket::is_gone)
        };
        self.hand_out(seated);
    }

    /// A seat that nobody takes any more comes back by itself, so it is sent without the lock.
    fn hand_out(self: &Arc<Self>, seated: Vec<(Claim, Ticket)>) {
        for (claim, ticket) in seated {
            // Who has gone gives its seat back by dropping it.
            let _ = ticket.turn.send(FlowSeat::new(claim, ticket.counters, self.clone()));
        }
    }
}

impl FlowSeat {
    fn new(claim: Claim, counters: Arc<FlowCounters>, shared: Arc<Shared>) -> Self {
        counters.executing.inc();
        counters.seats.inc_by(claim.seats as i64);
        counters.dispatched.inc();
        Self { claim, counters, shared }
    }
}

impl Drop for FlowSeat {
    fn drop(&mut self) {
        self.counters.executing.dec();
        self.counters.seats.dec_by(self.claim.seats as i64);
        self.shared.release(&self.claim);
    }
}

/// Counts as waiting until it is dropped.
struct Waiting(Gauge);

impl Waiting {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}
