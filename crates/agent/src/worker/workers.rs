//! Starts and ends the workers of all pods on this node.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use mainstay_runtime::{PodUid, RuntimeError};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast::error::RecvError};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use super::{WorkerContext, act::Failure, task};

/// How often all pods are reconciled even if nothing changes.
const SLOWLY: Duration = Duration::from_secs(60);
/// How often pods that nobody wants are looked for.
const ORPHANS: Duration = Duration::from_secs(10);
/// How long a pod whose loop panicked is left alone: the same fault may wait for it.
const AFTER_A_PANIC: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Workers {
    context: Arc<WorkerContext>,
    tasks: Arc<Mutex<BTreeMap<PodUid, Arc<Notify>>>>,
    tracker: TaskTracker,
}

impl Workers {
    pub fn new(context: Arc<WorkerContext>) -> Self {
        Self { context, tasks: Arc::default(), tracker: TaskTracker::new() }
    }

    /// Works until asked to stop. What runs, runs on.
    pub async fn run(self, stop: CancellationToken) {
        let mut wakeups = self.context.runtime.wakeups();
        let mut slowly = tokio::time::interval(SLOWLY);
        let mut orphans = tokio::time::interval(ORPHANS);
        let mut synced = self.context.pods.synced_sources();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                due = self.context.wake.due() => for uid in due {
                    self.look_at(uid, &stop);
                },
                woken = wakeups.recv() => match woken {
                    Ok(uid) => self.look_at(uid, &stop),
                    Err(RecvError::Lagged(_)) => self.look_at_all(&stop),
                    // The runtime is gone, and with it this process.
                    Err(RecvError::Closed) => tokio::time::sleep(Duration::from_secs(1)).await,
                },
                _ = slowly.tick() => self.look_at_all(&stop),
                _ = orphans.tick() => self.look_for_orphans(&stop).await,
                Ok(()) = synced.changed() => self.look_for_orphans(&stop).await,
            }
        }
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Pods that have a task: wanted ones, and those that are still ending.
    pub fn active(&self) -> BTreeSet<PodUid> {
        self.tasks.lock().keys().cloned().collect()
    }

    fn look_at_all(&self, stop: &CancellationToken) {
        for wanted in self.context.pods.all() {
            if let Some(uid) = &wanted.pod.metadata.uid {
                self.look_at(PodUid(uid.clone()), stop);
            }
        }
        for notify in self.tasks.lock().values() {
            notify.notify_one();
        }
    }

    fn look_at(&self, uid: PodUid, stop: &CancellationToken) {
        let mut tasks = self.tasks.lock();
        if let Some(task) = tasks.get(&uid) {
            task.notify_one();
        } else if self.context.pods.get(&uid).is_some() {
            self.spawn(&mut tasks, uid, stop);
        } else {
            self.context.pods.release(&uid);
        }
    }

    fn spawn(&self, tasks: &mut BTreeMap<PodUid, Arc<Notify>>, uid: PodUid, stop: &CancellationToken) {
        let notify = Arc::new(Notify::new());
        tasks.insert(uid.clone(), notify.clone());
        let span = tracing::info_span!("pod", %uid);
        let (workers, stop) = (self.clone(), stop.clone());
        let work = async move {
            let unwanted = workers.run_task(&uid, &notify, &stop).await;
            workers.tasks.lock().remove(&uid);
            if !stop.is_cancelled() {
                workers.context.pods.release(&uid);
            }
            if unwanted {
                // It may be wanted again by now: nobody else would look.
                workers.context.wake.pod(&uid);
            }
        };
        self.tracker.spawn(work.instrument(span));
    }

    /// The loop around one pod. One that panics begins anew: no pod is forgotten for a fault of ours.
    async fn run_task(&self, uid: &PodUid, notify: &Notify, stop: &CancellationToken) -> bool {
        loop {
            let run = AssertUnwindSafe(task::run(&self.context, uid, notify, stop));
            match run.catch_unwind().await {
                Ok(unwanted) => return unwanted,
                Err(panic) => {
                    let wanted = self.context.pods.get(uid);
                    let failure = Failure::panicked(&*panic);
                    self.context.report_panic(wanted.as_ref().map(|wanted| &*wanted.pod), &failure.message);
                    if stop.run_until_cancelled(tokio::time::sleep(AFTER_A_PANIC)).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }

    /// What runs here without anybody wanting it gets a task that ends it; not before every source has spoken.
    async fn look_for_orphans(&self, stop: &CancellationToken) {
        let synced = *self.context.pods.synced_sources().borrow();
        if !(synced.api && synced.file) {
            return;
        }
        match self.pods_on_node().await {
            Ok(held) => {
                let mut tasks = self.tasks.lock();
                for uid in held {
                    if !tasks.contains_key(&uid) && self.context.pods.get(&uid).is_none() {
                        tracing::info!(%uid, "removed a pod that no source wants any more");
                        self.spawn(&mut tasks, uid, stop);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "cannot list the pods of the runtime"),
        }
    }

    async fn pods_on_node(&self) -> Result<BTreeSet<PodUid>, RuntimeError> {
        let observed = self.context.runtime.observe(None).await?;
        let mut held = self.context.volumes.pods_on_disk();
        held.extend(observed.sandboxes.into_iter().map(|s| s.pod.uid));
        held.extend(observed.containers.into_iter().map(|c| c.pod.uid));
        Ok(held)
    }
}
