//! A fleet: many hollow nodes, driven together by a few tasks.
//!
//! * [`register`]: creates their Nodes and Leases
//! * [`renewals`]: one timer for all offers (renewed before they expire and when resources come back) and heartbeats
//! * [`pod_watch`]: one watch of all pods, or one for each node as real agents have ([`WatchMode::PerNode`]), to find
//!   out what those cost the server
//! * [`service_tables`]: if asked to, each node follows EndpointSlices and acknowledges them
//!
//! A few tasks write pods' statuses; a write that fails is retried with backoff. A node itself is a few hundred bytes.

mod pod_watch;
mod register;
mod renewals;
mod service_tables;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use kube::Client;
use mainstay_api::offer::OfferSpec;
use mainstay_backoff::Backoff;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use service_tables::ServiceTables;

use crate::{
    faults::{Faults, NodeBehavior},
    hollow_node::{HollowNode, NodeTemplate, PodAction},
    pod::Pod,
    pod_report::{PodReport, PodReportKind},
    pod_times::PodTimes,
};

/// Tasks that write pods' statuses, and how many writes each has under way.
const REPORT_TASKS: usize = 4;
const REPORTS_PER_TASK: usize = 16;
/// For writes and watches that the API did not take.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5), 0.5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// One watch of all pods.
    Shared,
    /// One watch for each node, as agents have.
    PerNode,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub count: usize,
    /// Nodes are named `<prefix>-<number>`.
    pub prefix: String,
    pub template: NodeTemplate,
    /// From a pod's arrival to its report that it is ready; never, if there is none.
    pub start_delay: Option<Duration>,
    /// How long a pod takes to stop; never longer than its grace period.
    pub stop_delay: Duration,
    pub faults: Faults,
    pub watch_mode: WatchMode,
    /// Each node follows EndpointSlices and acknowledges them in its ServiceTable.
    pub service_tables: bool,
}

impl Settings {
    pub fn new(count: usize) -> Self {
        Self {
            count,
            prefix: "hollow".to_owned(),
            template: NodeTemplate::default(),
            start_delay: Some(Duration::ZERO),
            stop_delay: Duration::ZERO,
            faults: Faults::default(),
            watch_mode: WatchMode::Shared,
            service_tables: false,
        }
    }
}

/// How the API is reached.
#[derive(Clone)]
pub struct Access {
    /// May do everything.
    pub admin: Client,
    /// For the node of this name.
    pub node_client: Arc<dyn Fn(&str) -> Client + Send + Sync>,
}

impl Access {
    /// One client for everything.
    pub fn shared(client: Client) -> Self {
        let admin = client.clone();
        Self { admin, node_client: Arc::new(move |_| client.clone()) }
    }
}

/// What the nodes write about themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetActivity {
    /// Offers and heartbeats.
    Offering,
    /// No offers: no pod can be bound.
    HeartbeatsOnly,
    /// Nothing at all; the Nodes stay.
    Silent,
}

/// What the nodes have done so far.
#[derive(Debug, Default)]
pub struct Counters {
    pub offers: AtomicU64,
    pub heartbeats: AtomicU64,
    pub started: AtomicU64,
    pub stopped: AtomicU64,
    pub refused: AtomicU64,
    /// Requests that failed; each is retried.
    pub failed: AtomicU64,
}

struct FleetNode {
    name: String,
    client: Client,
    state: Mutex<HollowNode>,
    /// The offer as it was last written, and its version.
    published: Mutex<Option<(OfferSpec, u64)>>,
    /// The first three numbers of its pods' addresses, if it has a podCIDR.
    range: Option<String>,
}

pub struct Fleet {
    settings: Settings,
    access: Access,
    nodes: Vec<FleetNode>,
    by_name: HashMap<String, usize>,
    started: Instant,
    /// Whether the API serves offers; if not, nodes are cordoned instead of withdrawing offers.
    offers: bool,
    activity: watch::Sender<FleetActivity>,
    /// A node's offer has to be renewed early.
    offers_changed: Notify,
    report_senders: Vec<mpsc::UnboundedSender<PodReport>>,
    report_receivers: Mutex<Vec<mpsc::UnboundedReceiver<PodReport>>>,
    pod_times: Arc<PodTimes>,
    pub counters: Counters,
    pub service_tables: ServiceTables,
}

impl Fleet {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn pod_times(&self) -> &Arc<PodTimes> {
        &self.pod_times
    }

    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// How many pods each node holds.
    pub fn pods_per_node(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.state.lock().pod_count()).collect()
    }

    /// Changes how a node behaves from now on.
    pub fn set_behavior(&self, node: usize, behavior: NodeBehavior) {
        self.nodes[node].state.lock().behavior = behavior;
    }

    /// Runs the nodes until asked to stop. Their Node objects stay.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        for reports in self.report_receivers.lock().drain(..) {
            tasks.spawn(self.clone().run_reporter(reports, stop.clone()));
        }
        tasks.spawn(renewals::run(self.clone(), stop.clone()));
        match self.settings.watch_mode {
            WatchMode::Shared => drop(tasks.spawn(pod_watch::watch_all_pods(self.clone(), stop.clone()))),
            WatchMode::PerNode => {
                for node in 0..self.nodes.len() {
                    tasks.spawn(pod_watch::watch_pods_of_node(self.clone(), node, stop.clone()));
                }
            }
        }
        for node in (0..self.nodes.len()).filter(|_| self.settings.service_tables) {
            tasks.spawn(service_tables::run(self.clone(), node, stop.clone()));
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Changes what the nodes write; returns once offers are withdrawn or nodes cordoned.
    pub async fn set_activity(&self, activity: FleetActivity) {
        let before = self.activity.send_replace(activity);
        match (before, activity) {
            (FleetActivity::Offering, FleetActivity::HeartbeatsOnly) => renewals::withdraw_offers(self).await,
            (FleetActivity::HeartbeatsOnly, FleetActivity::Offering) if !self.offers => {
                renewals::set_cordoned(self, false).await
            }
            _ => {}
        }
    }

    fn is_silent(&self, node: &HollowNode) -> bool {
        matches!(node.behavior, NodeBehavior::Silent { after } if self.started.elapsed() >= after)
    }

    /// A pod is bound to a node, or changed there.
    fn pod_observed(&self, number: usize, pod: &Pod) {
        let mut node = self.nodes[number].state.lock();
        if self.is_silent(&node) {
            return;
        }
        let action = node.observe_pod(pod);
        drop(node);
        let (kind, delay) = match action {
            PodAction::Ignore => return,
            PodAction::Start => {
                let Some(delay) = self.settings.start_delay else { return };
                let containers = pod.spec.containers.iter();
                let containers = containers.map(|container| (container.name.clone(), container.image.clone()));
                (PodReportKind::Runs { containers: containers.collect() }, delay)
            }
            PodAction::Stop => {
                let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
                (PodReportKind::Gone, self.settings.stop_delay.min(grace))
            }
            PodAction::Refuse { reason, message } => {
                self.offers_changed.notify_one();
                (PodReportKind::Refused { reason, message }, Duration::ZERO)
            }
        };
        self.queue_report(PodReport::new(number, pod, kind), delay);
    }

    /// A pod was deleted or is no longer bound to a node.
    fn pod_removed(&self, number: usize, pod: &Pod) {
        self.nodes[number].state.lock().forget_pod(pod);
        self.offers_changed.notify_one();
    }

    fn queue_report(&self, report: PodReport, delay: Duration) {
        let to = self.report_senders[report.node % self.report_senders.len()].clone();
        if delay.is_zero() {
            let _ = to.send(report);
        } else {
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = to.send(report);
            });
        }
    }

    async fn run_reporter(self: Arc<Self>, reports: mpsc::UnboundedReceiver<PodReport>, stop: CancellationToken) {
        let sending = UnboundedReceiverStream::new(reports).for_each_concurrent(REPORTS_PER_TASK, |report| {
            let fleet = self.clone();
            async move { fleet.send_report(report).await }
        });
        stop.run_until_cancelled(sending).await;
    }

    async fn send_report(&self, mut report: PodReport) {
        let node = &self.nodes[report.node];
        if self.is_silent(&node.state.lock()) {
            return;
        }
        let address = node.range.as_ref().map(|range| {
            let number = self.counters.started.load(Relaxed) % 250 + 2;
            format!("{range}.{number}")
        });
        if let Err(error) = report.send(&node.client, address).await {
            self.counters.failed.fetch_add(1, Relaxed);
            tracing::debug!(node = node.name, %error, "cannot write the status of a pod; will retry");
            report.failures = report.failures.saturating_add(1);
            let delay = RETRY_BACKOFF.delay(report.failures, fastrand::f64());
            self.queue_report(report, delay);
            return;
        }
        let counter = match report.kind {
            PodReportKind::Runs { .. } => &self.counters.started,
            PodReportKind::Gone => &self.counters.stopped,
            PodReportKind::Refused { .. } => &self.counters.refused,
        };
        counter.fetch_add(1, Relaxed);
    }
}
