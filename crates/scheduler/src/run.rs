//! Runs the scheduler: passes events to [`SchedulerState`] and carries out the actions it returns.
//!
//! One task owns the state, so there is nothing to lock. Reflectors decode objects in tasks of their own; actions are
//! carried out in tasks of their own, and their results come back as events. The loop wakes for events and for the next
//! deadline of the state, and for nothing else.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
};
use mainstay_api::offer::Offer;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{
        mpsc::{self, UnboundedSender},
        watch,
    },
    time::{Instant, sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    bind::Binder,
    claim_writer::ClaimWriter,
    event_recorder::EventRecorder,
    handle::Handle,
    metrics::Metrics,
    preemptor::Preemptor,
    reflector::{Delta, Reflector, Relist},
    settings::Settings,
    state::{Action, SchedulerEvent, SchedulerState},
    status_writer::StatusWriter,
};

/// Most events applied before the state schedules.
const EVENT_BATCH: usize = 4_096;

/// Schedules pods until asked to stop, and returns when all tasks have ended.
pub async fn run(client: Client, settings: Settings, metrics: Metrics, handle: Handle, stop: CancellationToken) {
    let (sender, mut events) = mpsc::unbounded_channel();
    let (relist_sender, relist) = watch::channel(0);
    let tasks = TaskTracker::new();
    let reflectors =
        Reflectors { client: client.clone(), events: sender.clone(), relist, tasks: &tasks, stop: stop.clone() };
    reflectors.start("/api/v1/pods", SchedulerEvent::Pods);
    reflectors.start("/api/v1/nodes", SchedulerEvent::Nodes);
    reflectors.start("/apis/mainstay.dev/v1/offers", SchedulerEvent::Offers);
    reflectors.start("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", SchedulerEvent::Leases);
    reflectors.start("/apis/policy/v1/poddisruptionbudgets", SchedulerEvent::Budgets);
    reflectors.start("/api/v1/namespaces", SchedulerEvent::Namespaces);
    reflectors.start("/api/v1/persistentvolumeclaims", SchedulerEvent::Claims);
    reflectors.start("/api/v1/persistentvolumes", SchedulerEvent::Volumes);
    reflectors.start("/apis/storage.k8s.io/v1/storageclasses", SchedulerEvent::StorageClasses);
    reflectors.start("/apis/resource.k8s.io/v1/resourceclaims", SchedulerEvent::ResourceClaims);
    reflectors.start("/apis/resource.k8s.io/v1/resourceslices", SchedulerEvent::ResourceSlices);
    reflectors.start("/apis/resource.k8s.io/v1/deviceclasses", SchedulerEvent::DeviceClasses);
    reflectors.start("/apis/resource.k8s.io/v1/devicetaintrules", SchedulerEvent::DeviceTaintRules);
    let (event_recorder, writer) = EventRecorder::new();
    tasks.spawn(writer.run(client.clone(), stop.clone()));
    let executor = Arc::new(Executor::new(client, event_recorder));
    let (_registration, mut debug_requests) = handle.register();
    let mut state = SchedulerState::new(settings, metrics, Instant::now().into_std());
    let mut buffer = Vec::new();
    loop {
        let now = Instant::now();
        for action in state.schedule(now.into_std()) {
            match action {
                Action::Relist { round } => {
                    relist_sender.send_replace(round);
                }
                action => {
                    let (executor, events) = (executor.clone(), sender.clone());
                    tasks.spawn(async move { executor.execute(action, &events).await });
                }
            }
        }
        let deadline = state.next_deadline(Instant::now().into_std()).map(Instant::from_std);
        let timer = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(pending) = debug_requests.recv() => {
                let reply = state.debug(pending.request, Instant::now().into_std(), Timestamp::now());
                let _ = pending.reply.send(reply);
            }
            count = events.recv_many(&mut buffer, EVENT_BATCH) => {
                if count > 0 && settings.collect > Duration::ZERO {
                    sleep(settings.collect).await;
                }
                let now = Instant::now().into_std();
                buffer.drain(..).for_each(|event| state.apply(event, now));
                while let Ok(event) = events.try_recv() {
                    state.apply(event, now);
                }
            }
            () = timer => {}
        }
    }
    tasks.close();
    tasks.wait().await;
}

struct Reflectors<'a> {
    client: Client,
    events: UnboundedSender<SchedulerEvent>,
    relist: Relist,
    tasks: &'a TaskTracker,
    stop: CancellationToken,
}

impl Reflectors<'_> {
    fn start<T: DeserializeOwned + Send + 'static>(&self, path: &'static str, wrap: fn(Delta<T>) -> SchedulerEvent) {
        let events = self.events.clone();
        let handler = move |delta| {
            let _ = events.send(wrap(delta));
        };
        let reflector = Reflector::new(self.client.clone(), path, self.relist.clone(), handler);
        self.tasks.spawn(reflector.run(self.stop.clone()));
    }
}

/// Carries out actions of the state.
struct Executor {
    binder: Binder,
    claims: ClaimWriter,
    status_writer: StatusWriter,
    preemptor: Preemptor,
    event_recorder: EventRecorder,
    offers: Api<Offer>,
}

impl Executor {
    fn new(client: Client, event_recorder: EventRecorder) -> Self {
        Self {
            binder: Binder::new(client.clone(), event_recorder.clone()),
            claims: ClaimWriter::new(client.clone()),
            status_writer: StatusWriter::new(client.clone(), event_recorder.clone()),
            preemptor: Preemptor::new(client.clone(), event_recorder.clone()),
            event_recorder,
            offers: Api::all(client),
        }
    }

    async fn execute(&self, action: Action, events: &UnboundedSender<SchedulerEvent>) {
        let result = match action {
            Action::Bind(requests) => {
                let begun = Instant::now();
                let (results, claims) = self.binder.bind_with_claims(&requests).await;
                SchedulerEvent::BindFinished { requests, results, claims, took: begun.elapsed() }
            }
            Action::Preempt(preemption) => {
                let done = self.preemptor.preempt(&preemption).await;
                SchedulerEvent::PreemptionFinished { preemption, done }
            }
            Action::WriteStatus(update) => {
                let done = self.status_writer.write(&update).await;
                SchedulerEvent::StatusWritten { update, done }
            }
            Action::RecordEvent(event) => return self.event_recorder.record(event),
            Action::ClearNomination { pod, uid } => return self.preemptor.clear_nomination(&pod, &uid).await,
            Action::Deallocate { claim, version, pod_uid } => {
                match self.claims.deallocate(&claim, version, &pod_uid).await {
                    Some(claim) => SchedulerEvent::Deallocated { claim },
                    None => return,
                }
            }
            Action::DeleteOffer { node, version } => return self.delete_offer(&node, version).await,
            Action::Relist { .. } => return,
        };
        let _ = events.send(result); // nobody receives once the scheduler stops
    }

    /// Deletes an offer unless it has been renewed meanwhile.
    async fn delete_offer(&self, node: &str, version: u64) {
        let preconditions = Preconditions { uid: None, resource_version: Some(version.to_string()) };
        match self.offers.delete(node, &DeleteParams::default().preconditions(preconditions)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => tracing::debug!(node, %error, "cannot delete an expired offer"),
        }
    }
}
