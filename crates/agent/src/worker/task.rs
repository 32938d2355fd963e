//! The worker of one pod: a loop that observes, plans, starts actions and reports.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use mainstay_api::{
    config_versions::ConfigVersions,
    needs::{self, Needs},
};
use mainstay_errors::error_chain;
use mainstay_runtime::{ContainerId, ContainerState, Observed, PodUid, RuntimeError};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    WorkerContext, act,
    act::{Failure, Subject},
    drain::Drain,
    drain_turns::DrainTurn,
    plan::{self, Action, Plan, StopWhy},
    report,
    resize::{self, Allocation, PendingResize},
    retry_state::{FailureKind, Operation, PodRetryState, Step, StepFailure},
    slow_start::{self, SlowStart},
    status::{self, Facts},
    termination_message,
    view::{EndingWhy, PodView},
    world::World,
};
use crate::{
    admission::{self, Host},
    container_lists::find_container,
    dependencies::NeedsObservation,
    events::EventType,
    heal::{Diagnosis, HealingDecision, HealingObservation},
    hook::full_name,
    metrics::{Phase, SlowStartLabels, StatusUpdateLabels},
    node::Eviction,
    offers::{PodDemand, is_fresh},
    pods::Source,
    probe,
    services::is_drained,
    settings::RestartBackoff,
};

/// How soon to look again when the runtime did not answer.
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);
/// Volumes are brought up to date no more often than this.
const REFRESH: Duration = Duration::from_secs(1);
/// How soon to look whether a resize that did not fit does: other pods and the node change without waking this one.
const RESIZE_RETRY: Duration = Duration::from_secs(1);
/// What a pod that nobody remembers gets to stop in.
const GRACE_OF_STRANGERS: Duration = Duration::from_secs(10);

/// Works until nothing is left to do. Returns whether the pod was ended because nobody wanted it.
pub async fn run(context: &Arc<WorkerContext>, uid: &PodUid, notify: &Notify, stop: &CancellationToken) -> bool {
    let mut worker = Worker {
        context,
        uid,
        retry_state: PodRetryState::default(),
        last: None,
        unwanted_since: None,
        allocated: None,
        known: None,
        reported_to: None,
        starting_since: None,
        reported_slow: false,
        reported_waiting: false,
        reported_overdue: false,
        reported_turn: false,
        messages: BTreeMap::new(),
        refreshed: None,
        volumes_outdated: false,
        starts: CancellationToken::new(),
        tasks: JoinSet::new(),
    };
    loop {
        let wake_at = match worker.reconcile(Timestamp::now()).await {
            WorkerStep::Finished => break,
            WorkerStep::WakeAt(at) => at,
        };
        let pause = async {
            match wake_at {
                Some(at) => {
                    tokio::time::sleep(at.duration_since(Timestamp::now()).try_into().unwrap_or_default()).await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return false,
            () = notify.notified() => worker.refresh(),
            () = pause => {}
            Some(done) = worker.tasks.join_next() => worker.done(done),
        }
        // Whatever else is done by now is one look's worth of news.
        while let Some(done) = worker.tasks.try_join_next() {
            worker.done(done);
        }
    }
    let unwanted = worker.unwanted_since.is_some();
    worker.forget().await;
    unwanted
}

enum WorkerStep {
    Finished,
    WakeAt(Option<Timestamp>),
}

struct Worker<'a> {
    context: &'a Arc<WorkerContext>,
    uid: &'a PodUid,
    retry_state: PodRetryState,
    /// The pod as it was last known, and where it came from.
    last: Option<(Arc<Pod>, Source)>,
    unwanted_since: Option<Timestamp>,
    /// The resources that containers may use.
    allocated: Option<Allocation>,
    /// The status as it was last reported.
    known: Option<PodStatus>,
    /// The uid of whom the API showed it by: a static pod's mirror may be replaced by one without any status.
    reported_to: Option<String>,
    /// Since when the pod is being started by this worker.
    starting_since: Option<Timestamp>,
    /// That it takes long was said.
    reported_slow: bool,
    /// That it waits for its needs was said.
    reported_waiting: bool,
    /// That it has waited longer than it should was said.
    reported_overdue: bool,
    /// That it waits for its turn to be stopped was said.
    reported_turn: bool,
    /// Termination messages of containers.
    messages: BTreeMap<ContainerId, String>,
    /// When volumes were last brought up to date, and whether they are to be looked at again.
    refreshed: Option<(Instant, bool)>,
    /// What volumes are made from has changed since they were last begun to be prepared.
    volumes_outdated: bool,
    /// Of starts under way: cancelled when the pod ends.
    starts: CancellationToken,
    tasks: JoinSet<FinishedOperation>,
}

struct FinishedOperation {
    what: Operation,
    action: Option<Action>,
    result: Result<(), Failure>,
    /// With the uid it was reported for.
    reported: Option<(PodStatus, String)>,
    took: Duration,
}

impl Worker<'_> {
    async fn reconcile(&mut self, now: Timestamp) -> WorkerStep {
        let mut wanted = self.context.pods.get(self.uid);
        let mut pending_resize = None;
        if let Some(wanted) = &mut wanted {
            (wanted.pod, pending_resize) = self.allocate(&wanted.pod);
            self.last = Some((wanted.pod.clone(), wanted.source));
            self.unwanted_since = None;
        }
        let view = match (&wanted, &self.last) {
            (Some(wanted), _) => {
                let limits = |container: &_| self.context.specs.resources(&wanted.pod, container);
                let failed = self.context.evictions.evicted(self.uid);
                let failed =
                    failed.or_else(|| self.refuse(&wanted.pod)).or_else(|| self.give_up_waiting(&wanted.pod, now));
                PodView::from_pod(&wanted.pod, limits, failed, now)
            }
            (None, last) => {
                let since = *self.unwanted_since.get_or_insert(now);
                let known = last.as_ref().and_then(|(pod, _)| pod.spec.as_ref().map(super::view::grace));
                PodView::unwanted(known.unwrap_or(GRACE_OF_STRANGERS), since)
            }
        };
        let observed = match self.context.runtime.observe(Some(self.uid)).await {
            Ok(observed) => observed,
            Err(error) => return self.retry_after_runtime_error(&error, now),
        };
        let mut world = world(view, observed, self.retry_state.clone(), self.context.settings.restart_backoff);
        world.pending_resize = pending_resize;
        world.config_versions = self.context.volumes.shown_versions(self.uid);
        world.is_cut_off =
            self.last.as_ref().is_some_and(|(pod, source)| !self.context.fence.permits_start(pod, *source));
        if world.pod.ending.is_some() || world.pod.finished || self.retry_state.recreate.is_some() {
            std::mem::take(&mut self.starts).cancel();
        }
        if let Some((pod, source)) = &self.last {
            let (pod, source) = (pod.clone(), *source);
            world.needs = self.context.dependencies.observe(self.uid, &pod, source);
            self.probe(&pod, &mut world);
            if world.pod.ending.is_none() && !world.pod.finished {
                world.healing = self.context.healer.observe(&pod, now);
                self.cure(&pod, &world).await;
            }
        }
        if self.retry_state.recreate.is_some() && world.sandboxes.is_empty() {
            self.retry_state.recreate = None;
            self.retry_state.volumes = Step::Undone;
        }
        let refresh_at = self.refresh_volumes(now);
        world.retry_state = self.retry_state.clone();
        world.drains_until = self.drains_until(&world, now);
        world.turn = self.take_turn(&world, now);
        let plan = plan::plan(&world, now);
        self.record_healing(&plan, &mut world, now);
        let over = plan.over && self.tasks.is_empty();
        let report_at = self.report_status(&world, now, &plan).await;
        let overdue_at = self.report_waiting(&world, now);
        let slow_at = self.report_slow_start(&world, now);
        let resize_at = world.pending_resize.as_ref().map(|_| now + RESIZE_RETRY);
        let wake_at = [plan.wake_at, report_at, refresh_at, resize_at, slow_at, overdue_at, self.deadline(&world)]
            .into_iter()
            .flatten()
            .min();
        for action in plan.actions {
            self.begin(action, &world, now);
        }
        if over { WorkerStep::Finished } else { WorkerStep::WakeAt(wake_at) }
    }

    /// A pod that is never started a second time fails once it has waited for its needs as long as it says. Others wait on.
    fn give_up_waiting(&self, pod: &Pod, now: Timestamp) -> Option<Eviction> {
        let never = pod.spec.as_ref().is_some_and(|spec| spec.restart_policy.as_deref() == Some("Never"));
        let status = self.known.as_ref().or(pod.status.as_ref()).filter(|_| never)?;
        let within = Needs::from_annotations(&pod.metadata.annotations).within?;
        let missing = status::dependencies::overdue(status, within, now)?;
        let message = format!("The needs of the pod were not met within {} s: {missing}", within.as_secs());
        self.context.events.pod(pod, EventType::Warning, needs::TIMEOUT, &message);
        self.context.evictions.reject(self.uid, needs::TIMEOUT.to_owned(), message);
        self.context.evictions.evicted(self.uid)
    }

    /// Says when the pod begins to wait for its needs, when that takes longer than it should, and when it goes on.
    /// Returns when to look again.
    fn report_waiting(&mut self, world: &World, now: Timestamp) -> Option<Timestamp> {
        let (pod, _) = self.last.as_ref()?;
        let is_over = world.pod.ending.is_some() || world.pod.finished;
        let waits_for = world.waits_for().filter(|_| !is_over);
        match (&waits_for, self.reported_waiting) {
            (Some(missing), false) => {
                let text = format!("Waiting for {missing}");
                self.context.events.pod(pod, EventType::Normal, "WaitingForDependencies", text);
            }
            (None, true) if !is_over => {
                let text = "All needs of the pod are met; its containers are started";
                self.context.events.pod(pod, EventType::Normal, needs::CONDITION, text);
            }
            (Some(_), true) | (None, _) => {}
        }
        self.reported_waiting = waits_for.is_some();
        if self.reported_waiting {
            // Waiting is not being slow.
            self.starting_since = None;
        }
        let missing = waits_for?;
        let due = status::dependencies::due_at(self.known.as_ref().or(pod.status.as_ref())?, world.needs.within?)?;
        if now < due {
            return Some(due);
        }
        if !std::mem::replace(&mut self.reported_overdue, true) {
            let text = format!("Still waiting after {} s: {missing}", world.needs.within?.as_secs());
            self.context.events.pod(pod, EventType::Warning, needs::TIMEOUT, text);
        }
        None
    }

    /// Says once that the pod takes long to start, and in which step it hangs; else returns when to look again.
    fn report_slow_start(&mut self, world: &World, now: Timestamp) -> Option<Timestamp> {
        let (pod, _) = self.last.as_ref()?;
        let (since, limit) = (*self.starting_since.get_or_insert(now), self.context.settings.slow_start_limit);
        if self.reported_slow {
            return None;
        }
        match slow_start::judge(world, since, limit, now) {
            Err(look_again) => look_again,
            Ok(SlowStart { step, failure }) => {
                self.reported_slow = true;
                let seconds = limit.as_secs();
                let why = failure.map(|failure| format!(": {failure}")).unwrap_or_default();
                let text = format!("Pod has not started a container within {seconds} s: {}{why}", step.text());
                self.context.events.pod(pod, EventType::Warning, "SlowStart", text);
                self.context.metrics.slow_starts.get_or_create(&SlowStartLabels { step }).inc();
                None
            }
        }
    }

    /// The pod as it is allocated: with the resources that its spec asks for, unless they are a resize that does not fit.
    fn allocate(&mut self, pod: &Arc<Pod>) -> (Arc<Pod>, Option<PendingResize>) {
        let allocated = self.allocated.get_or_insert_with(|| resize::recorded(pod));
        if !resize::is_requested(pod, allocated) {
            return (pod.clone(), None);
        }
        let node = self.context.node.borrow().clone();
        let checked = node.map_or(Ok(()), |node| {
            let held = self.context.pods.active_pods().into_iter().filter(|(uid, _)| uid != self.uid);
            let others: Vec<PodDemand> = held.map(|(_, pod)| PodDemand::from_pod(&pod)).collect();
            resize::check(pod, &self.context.settings.offering.capacity(&node), &others)
        });
        match checked {
            Ok(()) => {
                *allocated = resize::desired(pod);
                (pod.clone(), None)
            }
            Err(pending) => (Arc::new(resize::with_allocation(pod, allocated)), Some(pending)),
        }
    }

    /// Writes down what was decided about failures.
    fn record_healing(&mut self, plan: &Plan, world: &mut World, now: Timestamp) {
        let Some((pod, _)) = &self.last else { return };
        for decision in &plan.healing {
            self.retry_state.apply(decision);
            world.retry_state.apply(decision);
            self.context.healer.record(pod, decision, now);
            if let Diagnosis::Failed { backs_off: true, .. } = decision.diagnosis {
                let HealingDecision { container, .. } = decision;
                let text = format!("Back-off restarting failed container {container} in pod {}", full_name(pod));
                self.context.events.container(pod, container, EventType::Warning, "BackOff", text);
            }
        }
    }

    /// Why nothing is done for a pod that asks for more protection than there is. One that has begun goes on.
    fn refuse(&self, pod: &Pod) -> Option<Eviction> {
        if !is_fresh(pod) {
            return None;
        }
        let refusal = admission::admit(pod, &Host::read(self.context.is_cri)).err()?;
        let message = format!("Pod was rejected: {}", refusal.message);
        self.context.events.pod(pod, EventType::Warning, refusal.reason, refusal.message);
        self.context.pods.reject(self.uid);
        // Rejected once: from now on the pod has to end.
        self.context.evictions.reject(self.uid, refusal.reason.to_owned(), message);
        self.context.evictions.evicted(self.uid)
    }

    /// A pod that Services send to is not asked to stop before they no longer do. Whether they do is judged when it begins to
    /// end: from then on it is no longer reported as ready.
    fn drains_until(&mut self, world: &World, now: Timestamp) -> Option<Timestamp> {
        let ending = world.pod.ending.as_ref().filter(|ending| ending.why == EndingWhy::Deleted)?;
        let (pod, _) = self.last.as_ref()?;
        let WorkerContext { traffic, settings, .. } = &**self.context;
        let begin = || Drain::begin(now, ending.deadline, settings.drain_timeout, traffic.may_reach(pod));
        let drain = self.retry_state.drain.get_or_insert_with(begin);
        (!is_drained(pod)).then(|| drain.until(now, traffic.sends_to(pod)).min(ending.deadline))
    }

    /// Whether a pod that is deleted may be stopped by now; says once that it waits. The turn ends when nothing of the pod runs any more.
    fn take_turn(&mut self, world: &World, now: Timestamp) -> DrainTurn {
        let Some((pod, _)) = self.last.as_ref() else { return DrainTurn::Free };
        if !world.pod.ending.as_ref().is_some_and(|ending| ending.why == EndingWhy::Deleted) {
            return DrainTurn::Free;
        }
        if world.all().all(|container| container.state.has_ended()) {
            self.context.turns.release(self.uid);
            return DrainTurn::Free;
        }
        let turn = self.context.turns.observe(pod, now);
        if let DrainTurn::Waiting { why, retry_at } = &turn
            && now < *retry_at
            && !std::mem::replace(&mut self.reported_turn, true)
        {
            let text = format!("Waiting for its turn to be stopped: {why}");
            self.context.events.pod(pod, EventType::Normal, "WaitingForTurn", text);
        }
        turn
    }

    /// Something has changed, perhaps what a volume shows.
    fn refresh(&mut self) {
        if let Some((_, again)) = &mut self.refreshed {
            *again = true;
        }
    }

    /// Volumes are looked at again when something has changed, though not all the time. Says when.
    fn refresh_volumes(&mut self, now: Timestamp) -> Option<Timestamp> {
        let (since, again) = self.refreshed?;
        if !again || !self.retry_state.volumes.is_done() {
            return None;
        }
        match REFRESH.checked_sub(since.elapsed()) {
            Some(left) => Some(now + left),
            None => {
                self.refreshed = None;
                self.retry_state.volumes = Step::Undone;
                None
            }
        }
    }

    fn retry_after_runtime_error(&self, error: &RuntimeError, now: Timestamp) -> WorkerStep {
        tracing::warn!(%error, "cannot observe the containers of the pod; will retry");
        WorkerStep::WakeAt(Some(now + AFTER_AN_ERROR))
    }

    /// Exactly the running containers are probed; none of a pod that ends.
    fn probe(&self, pod: &Arc<Pod>, world: &mut World) {
        let running: Vec<probe::Running> = if world.pod.ending.is_some() || world.pod.finished {
            vec![]
        } else {
            let newest = world.containers.values().filter_map(|list| list.first());
            newest
                .filter_map(|c| match c.state {
                    ContainerState::Running { started_at } => {
                        Some(probe::Running { name: c.name.clone(), id: c.id.clone(), started_at })
                    }
                    _ => None,
                })
                .collect()
        };
        let host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        let own = world.sandbox().and_then(|sandbox| sandbox.addresses.first().copied());
        let address = if host { self.context.settings.addresses.first().copied() } else { own };
        self.context.probes.follow(pod, &running, address);
        world.probes = self.context.probes.results(self.uid);
    }

    /// Ends back-offs whose cause is gone.
    async fn cure(&mut self, pod: &Arc<Pod>, world: &World) {
        let generation = self.context.objects.generation(self.uid);
        let changed = std::mem::replace(&mut self.retry_state.objects, generation) != generation;
        let troubled: Vec<String> = self.retry_state.containers.keys().cloned().collect();
        for name in troubled {
            let Some(retry_state) = self.retry_state.containers.get_mut(&name) else { continue };
            let Some(trouble) = &retry_state.failure else {
                if changed && let Some(found) = world.newest(&name).filter(|found| found.state.has_ended()) {
                    retry_state.forgiven = found.attempt;
                }
                continue;
            };
            let cured = match trouble.kind {
                FailureKind::Config => changed,
                FailureKind::Pull | FailureKind::NeverPull => {
                    let image = find_container(pod, &name).and_then(|c| c.image).unwrap_or_default();
                    let asked = world.pod.container(&name).is_none_or(|view| view.image != image);
                    changed || asked || matches!(self.context.runtime.images().find(&image).await, Ok(Some(_)))
                }
                FailureKind::InvalidImageName
                | FailureKind::Create
                | FailureKind::Run
                | FailureKind::PendingVolume
                | FailureKind::Devices
                | FailureKind::Other => false,
            };
            if cured && let Some(retry_state) = self.retry_state.containers.get_mut(&name) {
                retry_state.failure =
                    retry_state.failure.take().map(|t| StepFailure { retry_at: Timestamp::UNIX_EPOCH, ..t });
            }
        }
        if changed {
            self.retry_state.volumes.retry_now();
            self.volumes_outdated = self.retry_state.in_progress.contains(&Operation::Volumes);
        }
    }

    /// When the pod's own time limit ends it.
    fn deadline(&self, world: &World) -> Option<Timestamp> {
        if world.pod.ending.is_some() || world.pod.finished {
            return None;
        }
        let (pod, _) = self.last.as_ref()?;
        let allowed = super::view::seconds(pod.spec.as_ref()?.active_deadline_seconds?);
        Some(pod.status.as_ref()?.start_time.as_ref()?.0 + allowed)
    }

    fn begin(&mut self, action: Action, world: &World, now: Timestamp) {
        let what = operation(&action);
        tracing::debug!(?action, "apply");
        if let Action::Stop { container, id, grace, why } = &action {
            self.context.probes.set_stopping(self.uid, id, true);
            let attempt = world.newest(container).map(|c| c.attempt);
            let retry_state = self.retry_state.containers.entry(container.clone()).or_default();
            retry_state.stop_deadline = Some(now + *grace);
            let is_on_purpose = match why {
                StopWhy::Changed | StopWhy::Resized | StopWhy::PodRecreated(_) | StopWhy::AllRestart { .. } => true,
                StopWhy::PodEnds | StopWhy::Unhealthy(_) | StopWhy::Lost => false,
            };
            if is_on_purpose {
                retry_state.stopped_on_purpose = attempt;
            }
        }
        if let Action::Remove { ids } = &action {
            world.all().filter(|c| ids.contains(&c.id)).for_each(|c| self.retry_state.record_removal(c));
        }
        self.retry_state.in_progress.insert(what.clone());
        let on = Subject {
            pod: self.last.as_ref().map(|(pod, _)| pod.clone()),
            source: self.last.as_ref().map(|(_, source)| *source),
            sandbox: world.sandbox().cloned(),
            give_up: self.starts.clone(),
        };
        let (context, uid) = (self.context.clone(), self.uid.clone());
        self.tasks.spawn(async move {
            let since = Instant::now();
            let acted = AssertUnwindSafe(act::act(&context, &uid, &on, action.clone())).catch_unwind().await;
            let result = acted.unwrap_or_else(|panic| {
                let failure = Failure::panicked(&*panic);
                context.report_panic(on.pod.as_deref(), &failure.message);
                Err(failure)
            });
            FinishedOperation { what, action: Some(action), result, reported: None, took: since.elapsed() }
        });
    }

    fn done(&mut self, finished: Result<FinishedOperation, tokio::task::JoinError>) {
        let Ok(FinishedOperation { what, action, result, reported, took }) = finished else {
            // Nothing but writing the status is outside of what catches panics; it is written again.
            self.retry_state.in_progress.remove(&Operation::Report);
            return;
        };
        self.retry_state.in_progress.remove(&what);
        if let Err(failure) = &result
            && failure.kind != FailureKind::PendingVolume
        {
            tracing::warn!(?action, error = %failure.message, ?took, "an action failed; will retry");
        }
        let now = Timestamp::now();
        let step = match &what {
            Operation::Volumes => &mut self.retry_state.volumes,
            Operation::Sandbox => &mut self.retry_state.sandbox,
            Operation::Release => &mut self.retry_state.release,
            Operation::ApiRemoval => &mut self.retry_state.api_removal,
            Operation::Cleanup => &mut self.retry_state.cleanup,
            Operation::Report => {
                if let Some((status, uid)) = reported {
                    (self.known, self.reported_to) = (Some(status), Some(uid));
                }
                &mut self.retry_state.report
            }
            // Its outcome is observed.
            Operation::RestartRequest | Operation::TurnRequest => return,
            Operation::Container(name) => {
                let name = name.clone();
                return self.container_done(&name, action, result, now);
            }
        };
        match result {
            Err(Failure { kind: FailureKind::PendingVolume, message }) => {
                if step.wait(message.clone(), now)
                    && let Some((pod, _)) = &self.last
                {
                    self.context.events.pod(pod, EventType::Warning, "FailedMount", message);
                }
            }
            Err(Failure { kind: FailureKind::Devices, message }) => {
                step.fail_without_backoff(FailureKind::Devices, message, now);
            }
            Err(failure) => step.fail(failure.kind, failure.message, now),
            Ok(()) => *step = Step::Done,
        }
        if what == Operation::Volumes {
            // What changed while they were prepared may not be in them.
            if std::mem::take(&mut self.volumes_outdated) {
                step.retry_now();
            }
            self.refreshed = Some((Instant::now(), false));
        }
    }

    fn container_done(&mut self, name: &str, action: Option<Action>, result: Result<(), Failure>, now: Timestamp) {
        let resized = match (&action, &self.last) {
            (Some(Action::Resize { id, .. }), Some((pod, _))) => {
                find_container(pod, name).map(|c| (id.clone(), self.context.specs.resources(pod, &c)))
            }
            _ => None,
        };
        let retry_state = self.retry_state.containers.entry(name.to_owned()).or_default();
        retry_state.stop_deadline = None;
        match result {
            Ok(()) => {
                retry_state.failure = None;
                retry_state.has_image |= matches!(action, Some(Action::PullImage { .. }));
                if resized.is_some() {
                    retry_state.applied = resized;
                }
            }
            Err(failure) => {
                if let Some(Action::Stop { id, .. }) = &action {
                    self.context.probes.set_stopping(self.uid, id, false);
                }
                let before = retry_state.failure.as_ref().map_or(0, |trouble| trouble.failures);
                retry_state.failure = Some(StepFailure::after(before, failure.kind, failure.message, now));
            }
        }
    }

    /// Reports the status if it is news; says when to try again.
    async fn report_status(&mut self, world: &World, now: Timestamp, plan: &Plan) -> Option<Timestamp> {
        let unwanted = world.pod.ending.as_ref().is_some_and(|e| e.why == EndingWhy::Unwanted);
        if unwanted || plan.over {
            return None;
        }
        self.remember_messages(world);
        let (pod, _) = self.last.clone()?;
        let api = pod.status.clone().unwrap_or_default();
        let previous = status::keep_terminal_phase(self.known.clone().unwrap_or_else(|| api.clone()), &api);
        let facts = Facts {
            pod: &pod,
            previous: &previous,
            host_addresses: &self.context.settings.addresses,
            runtime: &self.context.runtime_name,
            messages: &self.messages,
            now,
        };
        let mut status = status::status(world, &facts);
        self.context.devices.report_health(&pod, &previous, &mut status);
        let ready = mainstay_api::pod::has_ready_condition(&status);
        if ready && world.pod.ending.is_none() {
            self.context.healer.record_healthy(&pod, now);
        }
        let identity = self.context.mirrors.api_identity(&pod)?;
        let is_known = self.known.as_ref() == Some(&status) && self.reported_to.as_ref() == Some(&identity.uid);
        if is_known && !status::is_overruled(&api) || self.retry_state.in_progress.contains(&Operation::Report) {
            return None;
        }
        if let Err(Some(at)) = self.retry_state.report.due(now) {
            return Some(at);
        }
        self.retry_state.in_progress.insert(Operation::Report);
        let (context, known) = (self.context.clone(), self.known.clone().unwrap_or(api));
        self.tasks.spawn(async move {
            let since = Instant::now();
            let written = report::report(&context.client, &identity, &status, Some(&known)).await;
            let (result, reported) = match written {
                Ok(()) => {
                    let labels = StatusUpdateLabels { phase: Phase::parse(status.phase.as_deref()) };
                    context.metrics.status_updates.get_or_create(&labels).inc();
                    (Ok(()), Some((status, identity.uid)))
                }
                Err(error) => (Err(Failure { kind: FailureKind::Other, message: error_chain(&error) }), None),
            };
            FinishedOperation { what: Operation::Report, action: None, result, reported, took: since.elapsed() }
        });
        None
    }

    fn remember_messages(&mut self, world: &World) {
        let Some((pod, _)) = &self.last else { return };
        let mut messages = BTreeMap::new();
        for found in world.all().filter(|c| c.state.has_ended()) {
            let message_text = match self.messages.remove(&found.id) {
                Some(message_text) => message_text,
                None => find_container(pod, &found.name)
                    .map(|container| termination_message::read(&self.context.specs, &container, found))
                    .unwrap_or_default(),
            };
            messages.insert(found.id.clone(), message_text);
        }
        self.messages = messages;
    }

    /// The pod is over: nobody needs to remember it.
    async fn forget(self) {
        self.context.probes.forget(self.uid);
        self.context.healer.forget(self.uid);
        self.context.dependencies.forget(self.uid);
        self.context.turns.release(self.uid);
        self.context.objects.forget(self.uid);
        crate::logs::remove(&self.context.settings.log_directory, self.uid).await;
    }
}

fn operation(action: &Action) -> Operation {
    match action {
        Action::PrepareVolumes => Operation::Volumes,
        Action::CreateSandbox { .. } => Operation::Sandbox,
        Action::PullImage { container }
        | Action::Start { container, .. }
        | Action::Stop { container, .. }
        | Action::Resize { container, .. } => Operation::Container(container.clone()),
        Action::Remove { .. } | Action::RemoveSandboxes { .. } => Operation::Cleanup,
        Action::ReleaseVolumes => Operation::Release,
        Action::RemoveFromApi | Action::Move { .. } => Operation::ApiRemoval,
        Action::RequestRestart => Operation::RestartRequest,
        Action::RequestTurn => Operation::TurnRequest,
    }
}

fn world(pod: PodView, observed: Observed, retry_state: PodRetryState, restart_backoff: RestartBackoff) -> World {
    let Observed { mut sandboxes, containers: found } = observed;
    sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
    let mut containers: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for container in found {
        containers.entry(container.name.clone()).or_default().push(container);
    }
    for list in containers.values_mut() {
        list.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
    }
    World {
        pod,
        sandboxes,
        containers,
        probes: BTreeMap::new(),
        retry_state,
        healing: HealingObservation::default(),
        restart_backoff,
        pending_resize: None,
        drains_until: None,
        is_cut_off: false,
        needs: NeedsObservation::default(),
        config_versions: ConfigVersions::default(),
        turn: DrainTurn::default(),
    }
}
