//! What there is of a node: pods run, and their files follow the versions that the pods are given.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use mainstay_api::{
    config_template::CONSUMER_ANNOTATION,
    config_versions::{self, FILES_CONDITION},
};
use serde_json::{Value, json};

/// Pods that are told at the same time.
const AT_ONCE: usize = 64;

/// Counts versions that consumers were told of.
pub struct HollowNode {
    told: Arc<Mutex<NotifiedVersions>>,
}

#[derive(Default)]
struct NotifiedVersions {
    /// The version that each pod was last told of.
    versions: HashMap<String, String>,
    count: usize,
}

impl HollowNode {
    pub fn start(client: Client) -> Self {
        let told = Arc::<Mutex<NotifiedVersions>>::default();
        tokio::spawn(follow(Api::namespaced(client, "default"), told.clone()));
        Self { told }
    }

    pub fn count_told(&self) -> usize {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    pub async fn until_told(&self, count: usize, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.count_told() < count {
            anyhow::ensure!(begun.elapsed() < patience, "{} of {count} consumers were told", self.count_told());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

async fn follow(pods: Api<Pod>, told: Arc<Mutex<NotifiedVersions>>) {
    let config = watcher::Config::default().labels("bench=config");
    let changes = watcher(pods.clone(), config).default_backoff().applied_objects();
    changes
        .for_each_concurrent(AT_ONCE, |pod| {
            let (pods, told) = (pods.clone(), told.clone());
            async move {
                let Ok(pod) = pod else { return };
                note_told(&pod, &told);
                report(&pods, &pod).await;
            }
        })
        .await;
}

/// A version counts when the controller has written that the consumer was told of it.
fn note_told(pod: &Pod, told: &Mutex<NotifiedVersions>) {
    let Some(states) = pod.annotations().get(CONSUMER_ANNOTATION) else { return };
    let states: Value = serde_json::from_str(states).unwrap_or_default();
    for state in states.as_object().into_iter().flat_map(|states| states.values()) {
        let version = state["version"].as_str().unwrap_or_default();
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if state["step"] == "Notified" && told.versions.get(&pod.name_any()).is_none_or(|known| known != version) {
            told.versions.insert(pod.name_any(), version.to_owned());
            told.count += 1;
        }
    }
}

async fn report(pods: &Api<Pod>, pod: &Pod) {
    let status = pod.status.clone().unwrap_or_default();
    let wanted = pod.annotations().get(config_versions::ANNOTATION);
    let shown = status.conditions.iter().flatten().find(|own| own.type_ == FILES_CONDITION);
    let is_running = status.phase.as_deref() == Some("Running");
    if is_running && shown.and_then(|own| own.message.as_ref()) == wanted {
        return;
    }
    let mut conditions = vec![json!({ "type": "Ready", "status": "True" })];
    conditions.extend(wanted.map(|versions| json!({ "type": FILES_CONDITION, "status": "True", "message": versions })));
    let running = json!({
        "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} },
    });
    let change = json!({ "status": { "phase": "Running", "conditions": conditions, "containerStatuses": [running] } });
    if let Err(error) = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(change)).await {
        eprintln!("report pod {}: {error}", pod.name_any());
    }
}
