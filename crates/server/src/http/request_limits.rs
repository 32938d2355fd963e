//! How many requests are at work, how many streams are open and how much memory request bodies take, by user.
//!
//! A request holds its seat while it is at work and until the client has taken the response, which is in memory so long; not
//! while its body is on its way: a body may take seconds to arrive, or never does. See [`crate::http::fairness`] for who gets how much.

use std::sync::Arc;

use crate::{
    documents::metrics::{InFlight, Metrics},
    http::{
        fairness::{FairLimit, Flow, Permit, Rejection},
        status::{ApiError, ApiResult},
    },
    settings::Settings,
};

/// What one user may have of all requests at work, in percent.
const FLOW_PERCENT: usize = 25;
/// What one user may have of all open streams, and of the memory for bodies.
const LASTING_FLOW_PERCENT: usize = 10;

/// Which limit a request counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    ReadOnly,
    Mutating,
    /// Watches, and what is relayed to agents: logs, exec, port-forward, proxy.
    LongRunning,
}

pub struct RequestLimits {
    reads: Arc<FairLimit>,
    writes: Arc<FairLimit>,
    long_running: Arc<FairLimit>,
    /// Bytes of request bodies in memory.
    bodies: Arc<FairLimit>,
}

impl RequestLimits {
    pub fn new(settings: &Settings) -> Self {
        Self {
            reads: FairLimit::new(settings.max_reads, FLOW_PERCENT),
            writes: FairLimit::new(settings.max_writes, FLOW_PERCENT),
            long_running: FairLimit::new(settings.max_long_running, LASTING_FLOW_PERCENT),
            bodies: FairLimit::new(settings.max_body_memory, LASTING_FLOW_PERCENT),
        }
    }

    fn limit_for(&self, kind: RequestKind) -> &Arc<FairLimit> {
        match kind {
            RequestKind::ReadOnly => &self.reads,
            RequestKind::Mutating => &self.writes,
            RequestKind::LongRunning => &self.long_running,
        }
    }
}

/// A request's place among those at work.
pub struct Seat<'a> {
    limits: &'a RequestLimits,
    metrics: &'a Metrics,
    /// `None` for parts of this process, which nothing holds back.
    flow: Option<Flow>,
    kind: RequestKind,
    taken: Option<TakenSeat>,
}

/// Counts as a request at work until it is dropped.
pub struct TakenSeat {
    _permit: Permit,
    _in_flight: InFlight,
}

impl<'a> Seat<'a> {
    pub fn new(limits: &'a RequestLimits, metrics: &'a Metrics, flow: Option<Flow>, kind: RequestKind) -> Self {
        Self { limits, metrics, flow, kind, taken: None }
    }

    /// Whether the request comes from this process itself.
    pub fn is_internal(&self) -> bool {
        self.flow.is_none()
    }

    pub fn take(&mut self) -> ApiResult<()> {
        let (Some(flow), None) = (self.flow, &self.taken) else { return Ok(()) };
        let permit = self.limits.limit_for(self.kind).acquire(flow, 1).map_err(|why| self.rejected(flow, why))?;
        self.taken = Some(TakenSeat { _permit: permit, _in_flight: self.metrics.in_flight(self.kind, flow.level()) });
        Ok(())
    }

    pub fn release(&mut self) {
        self.taken = None;
    }

    /// For what goes on after the answer has begun.
    pub fn hand_over(&mut self) -> Option<TakenSeat> {
        self.taken.take()
    }

    /// Accounts for the memory of this request's body.
    pub fn body_memory(&self) -> BodyMemory<'_, 'a> {
        BodyMemory { seat: self, permit: None }
    }

    fn rejected(&self, flow: Flow, why: Rejection) -> Box<ApiError> {
        self.metrics.rejected(flow.level(), why);
        ApiError::too_many_requests()
    }
}

/// The memory that a body takes, which grows as the body arrives.
pub struct BodyMemory<'s, 'a> {
    seat: &'s Seat<'a>,
    permit: Option<Permit>,
}

impl BodyMemory<'_, '_> {
    pub fn grow(&mut self, bytes: usize) -> ApiResult<()> {
        let Some(flow) = self.seat.flow else { return Ok(()) };
        let grown = match &mut self.permit {
            Some(permit) => permit.grow(bytes),
            None => self.seat.limits.bodies.acquire(flow, bytes).map(|permit| self.permit = Some(permit)),
        };
        grown.map_err(|why| self.seat.rejected(flow, why))
    }

    pub fn into_permit(self) -> Option<Permit> {
        self.permit
    }
}
