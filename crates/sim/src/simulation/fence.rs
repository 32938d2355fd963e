//! The fence of a simulated machine: the agent's real decisions ([`FenceCore`]) over a modelled disk, shims and peers.
//!
//! The loop is that of `mainstay_agent::fence`: it asks witnesses while there is no contact, has shims obey, and reads Node and pods
//! before unique pods start again. Files are written at once and survive the agent; the one that shims obey is lost with power.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use http::Method;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use mainstay_agent::fence::{
    ContactAnswer, RenewalOutcome,
    fence_core::FenceCore,
    state::{FenceCommand, PodList},
};
use mainstay_api::{
    node_loss::{FencePromise, Timing},
    wellknown::taint::UNREACHABLE,
};
use mainstay_sim::requests::JSON;
use mainstay_watch::{Event, Watch, WatchOptions};
use tokio::time::{sleep, timeout};

use super::{agent::Agent, machine::Machine, network::Host};

/// What a question to a witness has come to.
struct FinishedQuestion {
    witness: String,
    asked: Duration,
    answer: Option<ContactAnswer>,
}

impl Agent {
    /// What a peer is told that asks.
    pub fn witness_answer(&self) -> ContactAnswer {
        self.fence.lock().answer(&self.timing, self.machine.boot_time())
    }

    /// Since its last renewal that was accepted, by boot time.
    pub fn silent_for(&self) -> Duration {
        self.fence.lock().silent_for(self.machine.boot_time())
    }

    /// Whether a pod that must be unique may be started now.
    pub(super) fn permits_start(&self, pod: &Pod) -> bool {
        let version = pod.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.fence.lock().permits_start(uid, version, self.machine.boot_time())
    }

    /// What the next heartbeat is to promise.
    pub(super) fn promise(&self) -> Option<FencePromise> {
        let (mut core, peers) = (self.fence.lock(), self.peers.lock());
        let known: BTreeMap<&str, bool> = peers.iter().map(|(name, ready)| (name.as_str(), *ready)).collect();
        let promise = core.propose(&self.machine.name, &self.timing, true, &known)?;
        if let Some(groups) = core.groups_with(&promise) {
            self.machine.write_promises(groups.clone());
            core.set_groups(groups);
        }
        core.bind(&self.timing, self.machine.boot_time());
        write_limit(&mut core, &self.machine);
        core.set_enforced();
        Some(promise)
    }

    /// What became of a heartbeat with this promise.
    pub(super) fn record_renewal(&self, sent: Duration, promise: Option<&FencePromise>, outcome: RenewalOutcome) {
        let mut core = self.fence.lock();
        let groups = core.record_renewal(sent, promise, outcome, &self.timing, self.machine.boot_time());
        write_limit(&mut core, &self.machine);
        if let Some(groups) = groups {
            self.machine.write_promises(groups.clone());
            core.set_groups(groups);
        }
        drop(core);
        self.fence_changed.notify_one();
    }

    pub(super) async fn watch_contact(&self) {
        let mut questions: FuturesUnordered<BoxFuture<'_, FinishedQuestion>> = FuturesUnordered::new();
        let mut outstanding = BTreeSet::new();
        loop {
            let pause = self.fence.lock().next_look(&self.timing, self.machine.boot_time());
            tokio::select! {
                biased;
                Some(finished) = questions.next(), if !questions.is_empty() => {
                    let FinishedQuestion { witness, asked, answer } = finished;
                    outstanding.remove(&witness);
                    self.fence.lock().record_reply(&witness, asked, answer);
                }
                () = self.fence_changed.notified() => {}
                () = self.machine.sleep(pause) => {}
            }
            let witnesses = self.fence.lock().witnesses_to_ask(&self.timing, self.machine.boot_time());
            for witness in witnesses {
                if outstanding.insert(witness.clone()) {
                    questions.push(Box::pin(self.question(witness)));
                }
            }
            let command = {
                let mut core = self.fence.lock();
                let command = core.tick(&self.timing, self.machine.boot_time());
                write_limit(&mut core, &self.machine);
                command
            };
            if command == Some(FenceCommand::Start) {
                self.changed.notify_one();
            }
            self.return_to_service().await;
        }
    }

    async fn question(&self, witness: String) -> FinishedQuestion {
        let wait = self.fence.lock().wait_before_asking(&witness, self.machine.boot_time());
        self.machine.sleep(wait).await;
        let asked = self.machine.boot_time();
        let answer = timeout(self.timing.heartbeat, self.ask(&witness)).await.ok().flatten();
        FinishedQuestion { witness, asked, answer }
    }

    async fn ask(&self, witness: &str) -> Option<ContactAnswer> {
        let other = self.simulation.machines.iter().find(|machine| machine.name == witness)?;
        let (here, there) = (Host::Machine(self.machine.number), Host::Machine(other.number));
        if !self.simulation.network.deliver(here, there).await {
            return None;
        }
        while *other.frozen.borrow() {
            sleep(Duration::from_millis(50)).await;
        }
        let agent = self.simulation.agents.lock()[other.number].clone().filter(|_| other.has_agent())?;
        let answer = agent.witness_answer();
        self.simulation.network.deliver(there, here).await.then_some(answer)
    }

    /// After contact: unique pods that nobody has replaced may start again.
    async fn return_to_service(&self) {
        let contact = self.fence.lock().wants_list(&self.timing, self.machine.boot_time());
        let Some(contact) = contact else { return };
        let listed = timeout(2 * self.timing.heartbeat, self.list_pods()).await;
        let Ok(Some(list)) = listed else { return };
        let mut core = self.fence.lock();
        core.record_list(list, contact, &self.timing, self.machine.boot_time());
        write_limit(&mut core, &self.machine);
        drop(core);
        self.changed.notify_one();
    }

    /// The pods of this node as the API has them, unless the node is still tainted. What the API no longer has is stopped.
    async fn list_pods(&self) -> Option<PodList> {
        let path = format!("/api/v1/nodes/{}", self.machine.name);
        let node: Node = serde_json::from_slice(&self.call(Method::GET, &path, JSON, Vec::new()).await?).ok()?;
        let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        if taints.any(|taint| taint.key == UNREACHABLE && taint.effect == "NoExecute") {
            return None;
        }
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.machine.name);
        let list = self.call(Method::GET, &path, JSON, Vec::new()).await?;
        let list: kube::core::ObjectList<Pod> = serde_json::from_slice(&list).ok()?;
        let version = list.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0);
        let uid = |pod: &Pod| pod.metadata.uid.clone();
        self.forget_missing(&list.items.iter().filter_map(uid).collect(), version);
        let stay = list.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Some(PodList { uids: stay.filter_map(uid).collect(), version })
    }

    /// Follows Nodes: who may be a witness.
    pub(super) async fn follow_peers(&self) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut news = Watch::<Node>::new(nodes, WatchOptions::default());
        let mut listed = BTreeMap::new();
        let read = |node: &Node| (node.metadata.name.clone().unwrap_or_default(), mainstay_api::node::is_ready(node));
        while let Some(event) = news.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(node)) => listed.extend([read(&node)]),
                Ok(Event::InitDone) => *self.peers.lock() = std::mem::take(&mut listed),
                Ok(Event::Apply(node)) => self.peers.lock().extend([read(&node)]),
                Ok(Event::Delete(node)) => drop(self.peers.lock().remove(&read(&node).0)),
                Err(_) => {}
            }
        }
    }
}

/// The fence as an agent finds it on the machine's disk.
pub fn recall(machine: &Machine) -> FenceCore {
    let mut core = FenceCore::new(machine.promises(), machine.limit(), &Timing::default(), machine.boot_time());
    write_limit(&mut core, machine);
    core
}

fn write_limit(core: &mut FenceCore, machine: &Machine) {
    if let Some(limit) = core.pending_limit(machine.boot_time()) {
        machine.write_limit(limit);
        core.set_limit(limit);
    }
}
