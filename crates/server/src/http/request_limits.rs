//! How many requests are at work, how many streams are open and how much memory request bodies take, by user.
//!
//! A request holds its seat while it is at work and until the client has taken the response, which is in memory so long; not
//! while its body is on its way: a body may take seconds to arrive, or never does. Requests at work are let in by
//! [`crate::flowcontrol`]; for streams and memory see [`crate::http::fairness`].

use std::sync::Arc;

use crate::{
    documents::metrics::{InFlight, Metrics},
    flowcontrol::{FlowControl, FlowSeat, RequestFlow},
    http::{
        fairness::{FairLimit, Flow, Permit, Rejection},
        status::{ApiError, ApiResult},
    },
    settings::Settings,
};

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
    long_running: Arc<FairLimit>,
    /// Bytes of request bodies in memory.
    bodies: Arc<FairLimit>,
}

impl RequestLimits {
    pub fn new(settings: &Settings) -> Self {
        Self {
            long_running: FairLimit::without_heartbeats(settings.max_long_running, LASTING_FLOW_PERCENT),
            bodies: FairLimit::new(settings.max_body_memory, LASTING_FLOW_PERCENT),
        }
    }
}

/// A request's place among those at work.
pub struct Seat<'a> {
    limits: &'a RequestLimits,
    flow_control: &'a FlowControl,
    metrics: &'a Metrics,
    /// `None` for parts of this process, which nothing holds back.
    flow: Option<SeatOwner>,
    kind: RequestKind,
    /// How many seats it takes while it is at work.
    width: usize,
    taken: Option<TakenSeat>,
}

/// Whose request it is.
pub struct SeatOwner {
    /// For what streams and bodies use.
    pub user: Flow,
    /// For its turn among requests at work.
    pub classified: Option<RequestFlow>,
}

/// Counts as a request at work until it is dropped.
pub struct TakenSeat {
    _held: HeldSeat,
    _in_flight: InFlight,
}

#[expect(dead_code, reason = "held until it is dropped")]
enum HeldSeat {
    Stream(Permit),
    AtWork(Option<FlowSeat>),
}

impl<'a> Seat<'a> {
    pub fn new(
        limits: &'a RequestLimits,
        flow_control: &'a FlowControl,
        metrics: &'a Metrics,
        flow: Option<SeatOwner>,
        kind: RequestKind,
        width: usize,
    ) -> Self {
        Self { limits, flow_control, metrics, flow, kind, width, taken: None }
    }

    /// Whether the request comes from this process itself.
    pub fn is_internal(&self) -> bool {
        self.flow.is_none()
    }

    /// Takes the seat, when it is the request's turn.
    pub async fn take(&mut self) -> ApiResult<()> {
        let (Some(flow), None) = (&self.flow, &self.taken) else { return Ok(()) };
        let held = match (self.kind, &flow.classified) {
            (RequestKind::LongRunning, _) => {
                let permit = self.limits.long_running.acquire(flow.user, 1);
                HeldSeat::Stream(permit.map_err(|why| self.rejected(flow.user, why))?)
            }
            (RequestKind::ReadOnly | RequestKind::Mutating, Some(classified)) => {
                let seat = self.flow_control.acquire(classified, self.width).await;
                HeldSeat::AtWork(Some(seat.map_err(|_| ApiError::too_many_requests())?))
            }
            (RequestKind::ReadOnly | RequestKind::Mutating, None) => HeldSeat::AtWork(None),
        };
        let in_flight = self.metrics.in_flight(self.kind);
        self.taken = Some(TakenSeat { _held: held, _in_flight: in_flight });
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
        let Some(flow) = self.seat.flow.as_ref().map(|owner| owner.user) else { return Ok(()) };
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
