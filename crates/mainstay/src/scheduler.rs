//! The scheduler of a server: its metrics and debug pages, and running it while this server holds the Lease.

use std::sync::Arc;

use mainstay_scheduler::{DebugReply, Handle, Metrics, Settings, metrics::Registry};
use mainstay_server::{
    SCHEDULER_USER, client,
    debug::{Debug, DebugResponse},
    handler::Handler,
};
use tokio_util::sync::CancellationToken;

use crate::leader_gated;

/// The lease that the server holds whose scheduler runs.
const LEASE: &str = "mainstay-scheduler";

pub struct Scheduler {
    settings: Settings,
    metrics: Metrics,
    handle: Handle,
}

impl Scheduler {
    /// With what it counts, to be shown.
    pub fn new(settings: Settings) -> (Self, Registry) {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        (Self { settings, metrics, handle: Handle::new(settings.debug_timeout) }, registry)
    }

    /// What it tells administrators.
    pub fn debug(&self) -> Debug {
        let handle = self.handle.clone();
        Arc::new(move |path| {
            let handle = handle.clone();
            Box::pin(async move {
                match handle.debug(&path).await {
                    DebugReply::Text(text) => DebugResponse::Text(text),
                    DebugReply::Done => DebugResponse::Done,
                    DebugReply::Unknown => DebugResponse::Unknown,
                    DebugReply::Unavailable(why) => DebugResponse::Unavailable(why.to_owned()),
                }
            })
        })
    }

    /// Schedules pods until asked to stop, while this server holds the Lease.
    pub async fn run(self, handler: Arc<Handler>, identity: Option<String>, stop: CancellationToken) {
        let Self { settings, metrics, handle } = self;
        let client = client::user(handler.clone(), SCHEDULER_USER, None);
        let place = move |fence, stop| {
            let client = client::user(handler.clone(), SCHEDULER_USER, fence);
            mainstay_scheduler::run(client, settings, metrics.clone(), handle.clone(), stop)
        };
        leader_gated::run_leader_gated(client, LEASE, identity, stop, place).await;
    }
}
