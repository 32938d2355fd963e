//! What the API shows of pods, and when it first did.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::bail;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

/// Waits are bounded by this.
const PATIENCE: Duration = Duration::from_secs(120);

/// Follows all pods of a namespace.
pub struct PodWatch {
    state: Arc<Mutex<State>>,
    changed: watch::Receiver<()>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// By pod and count of restarts: when its container was first seen running.
    running: HashMap<(String, i32), Instant>,
    /// By pod: when its condition Ready was first True.
    ready: HashMap<String, Instant>,
    there: HashMap<String, String>,
}

impl PodWatch {
    pub fn follow(pods: Api<Pod>) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (changes, changed) = watch::channel(());
        let seen = state.clone();
        let task = tokio::spawn(async move {
            let mut events = watcher(pods, watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => seen.lock().note(&pod),
                    Ok(Event::Delete(pod)) => {
                        seen.lock().there.remove(&pod.metadata.name.unwrap_or_default());
                    }
                    Ok(Event::Init | Event::InitDone) => {}
                    Err(error) => eprintln!("watch: {error}"),
                }
                changes.send_replace(());
            }
        });
        Self { state, changed, task }
    }

    /// When this pod's container was first seen running after so many restarts.
    pub async fn running(&self, pod: &str, restarts: i32) -> anyhow::Result<Instant> {
        let key = (pod.to_owned(), restarts);
        self.wait(pod, "run", |state| state.running.get(&key).copied()).await
    }

    /// When this pod was first ready.
    pub async fn ready(&self, pod: &str) -> anyhow::Result<Instant> {
        self.wait(pod, "become ready", |state| state.ready.get(pod).copied()).await
    }

    async fn wait(&self, pod: &str, what: &str, find: impl Fn(&State) -> Option<Instant>) -> anyhow::Result<Instant> {
        let mut changed = self.changed.clone();
        let found = async {
            loop {
                if let Some(when) = find(&self.state.lock()) {
                    return when;
                }
                let _ = changed.changed().await;
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(when) => Ok(when),
            Err(_) => {
                let last = self.state.lock().there.get(pod).cloned().unwrap_or_else(|| "not observed".to_owned());
                bail!("{pod} does not {what}: {last}")
            }
        }
    }

    pub fn stop(&self) {
        self.task.abort();
    }

    /// Waits until no pod is left.
    pub async fn all_gone(&self) -> anyhow::Result<()> {
        let mut changed = self.changed.clone();
        let found = async {
            while !self.state.lock().there.is_empty() {
                let _ = changed.changed().await;
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(()) => Ok(()),
            Err(_) => bail!("{} pods do not go", self.state.lock().there.len()),
        }
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn note(&mut self, pod: &Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let status = pod.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
        for container in containers {
            if container.state.as_ref().is_some_and(|state| state.running.is_some()) {
                self.running.entry((name.clone(), container.restart_count)).or_insert_with(Instant::now);
            }
        }
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            self.ready.entry(name.clone()).or_insert_with(Instant::now);
        }
        self.there.insert(name, serde_json::to_string(&status).unwrap_or_default());
    }
}
