//! The agent of a simulated machine: offers and pods; [`super::heartbeat`] and [`super::fence`] are the rest of it.
//!
//! Decisions are the real ones where they are pure: what fits the machine and what it offers (`mainstay_agent::offers`), which
//! pods are unique and whether they may run on (`mainstay_agent::fence`), how long a pod that ends waits for traffic
//! (`mainstay_agent::worker::drain`). What remains is modelled: a pod is one container that starts and stops after some time, without
//! volumes, images and probes; the real loops around it need a disk and threads.
//!
//! The agent is one future. Dropping it is `kill -9`, not polling it is SIGSTOP.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, Client};
use mainstay_agent::{
    fence::fence_core::FenceCore,
    offers::{NodeCapacity, PodDemand, check_pod, is_fresh},
    worker::drain::Drain,
};
use mainstay_api::{
    node_loss::{Timing, is_unique},
    offer::{Offer, OfferSpec},
};
use mainstay_sim::{
    pod::Pod as HollowPod,
    pod_report::{PodReport, PodReportKind},
    requests,
};
use mainstay_watch::{Event, Watch, WatchOptions};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Simulation, fence,
    machine::{ContainerPhase, Machine, StopReason},
    network, workload,
};

const OFFERS: &str = "/apis/mainstay.dev/v1/offers";
const OFFER_TTL: Duration = Duration::from_secs(5);
/// How long other machines get to stop sending to a pod that ends: as agents have it by default.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Agent {
    pub(super) simulation: Arc<Simulation>,
    pub(super) machine: Arc<Machine>,
    pub(super) client: Client,
    pub(super) timing: Timing,
    pub(super) state: Mutex<AgentState>,
    /// A pod, the Node or what may run has changed.
    pub(super) changed: Notify,
    pub(super) fence: Mutex<FenceCore>,
    /// A heartbeat has come to something.
    pub(super) fence_changed: Notify,
    /// All nodes that it has heard of, and whether they are ready.
    pub(super) peers: Mutex<BTreeMap<String, bool>>,
}

#[derive(Default)]
pub(super) struct AgentState {
    pub(super) node: Option<Node>,
    /// Every pod that was admitted, by uid.
    pods: BTreeMap<String, Pod>,
    /// Given back, until the API says so too.
    refused: BTreeSet<String>,
    synced: bool,
    observed_version: u64,
    pub(super) offer: Option<(OfferSpec, u64)>,
    /// Work under way, by the pod's uid.
    busy: BTreeSet<String>,
    reported: BTreeSet<String>,
    /// Pods that wait for traffic to end, by uid.
    draining: BTreeMap<String, Drain>,
}

/// Starts the machine's agent. It runs until the machine gets another, or none.
pub fn start(simulation: &Arc<Simulation>, machine: usize) {
    let machine = simulation.machines[machine].clone();
    let agent = Agent {
        client: network::node_client(simulation, machine.number),
        simulation: simulation.clone(),
        timing: Timing::default(),
        state: Mutex::default(),
        changed: Notify::new(),
        fence: Mutex::new(fence::recall(&machine)),
        fence_changed: Notify::new(),
        peers: Mutex::default(),
        machine: machine.clone(),
    };
    let agent = Arc::new(agent);
    simulation.agents.lock()[machine.number] = Some(agent.clone());
    let stop = CancellationToken::new();
    machine.set_agent(Some(stop.clone()));
    machine.frozen.send_replace(false);
    simulation.trace.record(format_args!("{}: agent starts", machine.name));
    let frozen = machine.frozen.subscribe();
    tokio::spawn(async move {
        let work: BoxFuture<'static, ()> = Box::pin(agent.run());
        stop.run_until_cancelled(Freezable { work, frozen: Box::pin(wait_thawed(frozen.clone())), state: frozen })
            .await;
    });
}

/// Polls its future only while the process is not frozen.
struct Freezable {
    work: BoxFuture<'static, ()>,
    frozen: BoxFuture<'static, ()>,
    state: watch::Receiver<bool>,
}

async fn wait_thawed(mut frozen: watch::Receiver<bool>) {
    let _ = frozen.wait_for(|frozen| !*frozen).await;
}

impl Future for Freezable {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if *self.state.borrow() {
            let state = self.state.clone();
            self.frozen = Box::pin(wait_thawed(state));
            if self.frozen.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        self.work.as_mut().poll(context)
    }
}

impl Agent {
    async fn run(self: Arc<Self>) {
        let parts: [BoxFuture<'_, ()>; 7] = [
            Box::pin(self.send_heartbeats()),
            Box::pin(self.follow_pods()),
            Box::pin(self.work()),
            Box::pin(self.publish_offers()),
            Box::pin(self.watch_contact()),
            Box::pin(self.follow_peers()),
            Box::pin(self.keep_service_table()),
        ];
        // Only those are polled that were woken: that is much less work than to poll all of them.
        let mut parts = FuturesUnordered::from_iter(parts);
        while parts.next().await.is_some() {}
    }

    pub(super) async fn call(&self, method: Method, path: &str, content: &str, body: Vec<u8>) -> Option<Vec<u8>> {
        let answer = timeout(self.timing.heartbeat, requests::call(&self.client, method, path, content, body)).await;
        answer.ok()?.ok().map(|bytes| bytes.to_vec())
    }

    async fn follow_pods(&self) {
        let api: Api<Pod> = Api::all(self.client.clone());
        let only_ours = WatchOptions::fields(format!("spec.nodeName={}", self.machine.name));
        let mut news = Watch::<Pod>::new(api, only_ours);
        let mut listed = Vec::new();
        while let Some(event) = news.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => listed.push(pod),
                Ok(Event::InitDone) => self.take_list(std::mem::take(&mut listed)).await,
                Ok(Event::Apply(pod)) => {
                    self.observe(&pod);
                    self.admit(pod).await;
                }
                Ok(Event::Delete(pod)) => {
                    self.observe(&pod);
                    let uid = pod.metadata.uid.unwrap_or_default();
                    let mut state = self.state.lock();
                    state.pods.remove(&uid);
                    state.refused.remove(&uid);
                }
                Err(_) => {}
            }
            self.changed.notify_one();
        }
    }

    /// A list of this version does not have what is not among these.
    pub(super) fn forget_missing(&self, found: &BTreeSet<String>, version: u64) {
        let known = |pod: &Pod| pod.metadata.resource_version.as_ref().and_then(|own| own.parse::<u64>().ok());
        self.state.lock().pods.retain(|uid, pod| found.contains(uid) || known(pod).unwrap_or(0) >= version);
    }

    fn observe(&self, pod: &Pod) {
        let version = pod.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0);
        let mut state = self.state.lock();
        state.observed_version = state.observed_version.max(version);
    }

    async fn take_list(&self, mut all: Vec<Pod>) {
        all.sort_by_key(is_fresh);
        let here: BTreeSet<String> = all.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        {
            let mut state = self.state.lock();
            state.pods.retain(|uid, _| here.contains(uid));
            state.refused.retain(|uid| here.contains(uid));
        }
        for pod in all {
            self.observe(&pod);
            self.admit(pod).await;
        }
        self.state.lock().synced = true;
        self.changed.notify_one();
    }

    fn demands(state: &AgentState, machine: &Machine) -> Vec<PodDemand> {
        let mut demands: BTreeMap<&String, PodDemand> = BTreeMap::new();
        let containers = machine.containers();
        for (uid, pod) in state.pods.iter().filter(|(_, pod)| !mainstay_api::pod::is_finished(pod)) {
            demands.insert(uid, PodDemand::from_pod(pod));
        }
        for (uid, container) in &containers {
            demands.entry(uid).or_insert_with(|| container.demand.clone());
        }
        demands.into_values().collect()
    }

    /// Takes a pod, or gives it back if it does not fit beside what is here.
    async fn admit(&self, pod: Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let rejection = {
            let mut state = self.state.lock();
            if state.refused.contains(&uid) {
                return;
            }
            let known = state.pods.contains_key(&uid);
            let node = state.node.clone().unwrap_or_default();
            let capacity = capacity(&node);
            let rejected = if known || !is_fresh(&pod) {
                None
            } else {
                check_pod(&pod, &node, &capacity, &Self::demands(&state, &self.machine)).err()
            };
            match rejected {
                None => {
                    state.pods.insert(uid, pod);
                    return;
                }
                Some(rejection) => {
                    state.refused.insert(uid);
                    rejection
                }
            }
        };
        let name = super::machine::full_name(&pod);
        self.simulation.trace.record(format_args!("{}: gives {name} back: {}", self.machine.name, rejection.reason));
        let kind = PodReportKind::Refused { reason: rejection.reason, message: rejection.message };
        self.report(&pod, kind).await;
    }

    async fn report(&self, pod: &Pod, kind: PodReportKind) -> bool {
        let Ok(hollow) = serde_json::to_value(pod).and_then(serde_json::from_value::<HollowPod>) else { return false };
        let uid = hollow.uid().to_owned();
        let address = self.machine.containers().get(&uid).map(|container| container.address.clone());
        let report = PodReport::new(self.machine.number, &hollow, kind);
        matches!(timeout(Duration::from_secs(5), report.send(&self.client, address)).await, Ok(Ok(())))
    }

    /// Looks at all pods again whenever something changes, and once a second.
    async fn work(&self) {
        let (mut under_way, mut look) = (FuturesUnordered::new(), true);
        loop {
            if look {
                under_way.extend(self.due().into_iter().map(|uid| self.advance(uid)));
            }
            look = tokio::select! {
                biased;
                Some(()) = under_way.next(), if !under_way.is_empty() => false,
                () = self.changed.notified() => true,
                () = self.simulation.changed.notified() => true,
                () = self.machine.sleep(Duration::from_millis(500)) => true,
            };
        }
    }

    /// Pods for which something can be done and nothing is under way.
    fn due(&self) -> Vec<String> {
        let containers = self.machine.containers();
        let mut state = self.state.lock();
        if !state.synced {
            return Vec::new();
        }
        let all: BTreeSet<String> = state.pods.keys().chain(containers.keys()).cloned().collect();
        let idle: Vec<String> = all.into_iter().filter(|uid| !state.busy.contains(uid)).collect();
        state.busy.extend(idle.iter().cloned());
        idle
    }

    /// One step for one pod.
    async fn advance(&self, uid: String) {
        let pod = self.state.lock().pods.get(&uid).cloned();
        let phase = self.machine.containers().get(&uid).map(|container| container.phase);
        match (&pod, phase) {
            (Some(pod), None) if pod.metadata.deletion_timestamp.is_none() => self.start(&uid, pod).await,
            (Some(pod), None) => {
                if self.report(pod, PodReportKind::Gone).await {
                    self.state.lock().pods.remove(&uid);
                }
            }
            (Some(pod), Some(ContainerPhase::Running)) if pod.metadata.deletion_timestamp.is_some() => {
                self.drain_and_stop(&uid, pod).await;
            }
            (Some(pod), Some(ContainerPhase::Running)) => {
                if !self.state.lock().reported.contains(&uid) || !is_ready(pod) {
                    let containers = vec![("c".to_owned(), "host".to_owned())];
                    if self.report(pod, PodReportKind::Runs { containers }).await {
                        self.state.lock().reported.insert(uid.clone());
                    }
                    self.machine.sleep(Duration::from_millis(500)).await;
                }
            }
            (None, Some(ContainerPhase::Running)) => {
                self.machine.stop(&self.simulation, &uid, Duration::from_secs(2), StopReason::Unwanted);
            }
            (_, Some(ContainerPhase::Stopping)) => {}
            // A pod that was fenced starts anew from nothing; one that ends is gone.
            (_, Some(ContainerPhase::Ended)) => {
                self.machine.remove(&uid);
                self.state.lock().reported.remove(&uid);
                self.changed.notify_one();
            }
            (None, None) => {}
        }
        self.state.lock().busy.remove(&uid);
    }

    async fn start(&self, uid: &str, pod: &Pod) {
        if mainstay_api::pod::is_finished(pod) {
            return;
        }
        self.machine.sleep(self.simulation.chance.up_to(Duration::from_millis(600))).await;
        // Asked again right before it runs: much may have happened since.
        let wanted = self.state.lock().pods.get(uid).filter(|pod| pod.metadata.deletion_timestamp.is_none()).cloned();
        let is_safe =
            |pod: &Pod| !is_unique(pod, |_| None) || self.permits_start(pod) || self.simulation.broken.fencing;
        if let Some(pod) = wanted.filter(is_safe) {
            self.machine.start(&self.simulation, &pod);
        }
    }

    /// Nobody is to send to a pod that has stopped: so others have to say that they do not, or have had their time.
    async fn drain_and_stop(&self, uid: &str, pod: &Pod) {
        let now = self.machine.monotonic();
        let grace = pod.metadata.deletion_grace_period_seconds.and_then(|grace| u64::try_from(grace).ok()).unwrap_or(0);
        let grace = Duration::from_secs(grace);
        let sends = {
            let address = self.machine.containers().get(uid).map(|container| container.address.clone());
            let endpoints = self.machine.endpoints.lock();
            address.is_some_and(|address| endpoints.values().any(|all| all.contains(&address)))
        };
        let until = {
            let mut state = self.state.lock();
            let begin = || Drain::begin(now, now + grace, DRAIN_TIMEOUT, is_ready(pod) && is_in_service(pod));
            state.draining.entry(uid.to_owned()).or_insert_with(begin).until(now, sends)
        };
        let is_over = until <= now;
        if !is_over && !mainstay_agent::services::is_drained(pod) && !self.simulation.broken.drain {
            return;
        }
        self.state.lock().draining.remove(uid);
        if !is_over {
            self.simulation.check_drained(&self.machine, uid);
        }
        self.machine.stop(&self.simulation, uid, grace, StopReason::PodDeleted);
    }

    async fn publish_offers(&self) {
        loop {
            let spec = {
                let state = self.state.lock();
                let ready = state.node.as_ref().filter(|node| mainstay_api::node::is_ready(node) && state.synced);
                ready.map(|node| {
                    let offered = capacity(node).offered(&Self::demands(&state, &self.machine));
                    let seen = state.observed_version.to_string();
                    OfferSpec { ttl_seconds: OFFER_TTL.as_secs() as i32, seen, ..offered }
                })
            };
            let published = self.state.lock().offer.clone();
            let same = |spec: &OfferSpec, last: &OfferSpec| {
                let rest = |spec: &OfferSpec| OfferSpec { seen: String::new(), ..spec.clone() };
                rest(spec) == rest(last)
            };
            if let Some(spec) = spec
                && !published.is_some_and(|(last, _)| same(&spec, &last) && !self.simulation.chance.per_mille(100))
            {
                self.state.lock().offer = None;
                let renewed = OfferSpec { renew_time: Some(MicroTime(Timestamp::now())), ..spec.clone() };
                let offer = Offer::new(&self.machine.name, renewed);
                let written = requests::create_or_replace(&self.client, OFFERS, &self.machine.name, &offer);
                if let Ok(Ok(version)) = timeout(self.timing.heartbeat, written).await {
                    self.state.lock().offer = Some((spec, version));
                }
            }
            self.machine.sleep(Duration::from_millis(400)).await;
        }
    }
}

fn capacity(node: &Node) -> NodeCapacity {
    let ranges = |text: &str| mainstay_api::ports::PortRanges::parse_valid([text]);
    NodeCapacity::new(
        node,
        ranges(mainstay_api::ports::DEFAULT_AUTOMATIC_PORTS),
        ranges(mainstay_api::ports::DEFAULT_EXPLICIT_PORTS),
    )
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a Service selects the pod.
fn is_in_service(pod: &Pod) -> bool {
    pod.metadata.labels.iter().flatten().any(|(key, value)| key == "app" && value == workload::WEB)
}
