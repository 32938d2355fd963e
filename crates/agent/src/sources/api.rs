//! Pods bound to this machine, from the API.
//!
//! Each is also kept in a file ([`PodCheckpoints`]), so that an agent that starts while no server can be reached goes on
//! with the pods it had. Only what the API itself says makes a pod unwanted.

use std::{io, path::Path, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use mainstay_runtime::PodUid;
use tokio_util::sync::CancellationToken;

use super::checkpoints::PodCheckpoints;
use crate::{
    offers::{Gate, Verdict, is_fresh},
    pause::Pause,
    pods::{Pods, Source},
};

pub struct FromApi {
    client: Client,
    node_name: String,
    pods: Arc<Pods>,
    gate: Arc<Gate>,
    checkpoints: PodCheckpoints,
}

impl FromApi {
    pub fn new(
        client: Client,
        node_name: String,
        pods: Arc<Pods>,
        gate: Arc<Gate>,
        directory: &Path,
    ) -> io::Result<Self> {
        let checkpoints = PodCheckpoints::open(directory.join("checkpoints"))?;
        Ok(Self { client, node_name, pods, gate, checkpoints })
    }

    /// Takes up the pods of an earlier life, then follows the API until asked to stop.
    pub async fn run(self, stop: CancellationToken) {
        for pod in self.checkpoints.load() {
            self.pods.put(Source::Api, pod);
        }
        let api: Api<Pod> = Api::all(self.client.clone());
        let only_ours = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node_name));
        let mut news = std::pin::pin!(watcher(api, only_ours).backoff(Pause::default()));
        let (mut listed, mut told) = (Vec::new(), false);
        while let Some(Some(event)) = stop.run_until_cancelled(news.next()).await {
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(pod)) => listed.push(pod),
                Ok(watcher::Event::InitDone) => {
                    told = false;
                    self.listed(std::mem::take(&mut listed), &stop).await;
                }
                Ok(watcher::Event::Apply(pod)) => {
                    let seen = version(&pod);
                    if self.gate.arrives(&pod, &stop).await == Verdict::Taken {
                        self.checkpoints.write(&pod);
                        self.pods.put(Source::Api, pod);
                    }
                    self.pods.saw(seen);
                }
                Ok(watcher::Event::Delete(pod)) => {
                    let seen = version(&pod);
                    let uid = PodUid(pod.metadata.uid.unwrap_or_default());
                    self.gate.left(&uid);
                    self.checkpoints.remove(&uid);
                    self.pods.remove(Source::Api, &uid);
                    self.pods.saw(seen);
                }
                // Said once, however long it lasts.
                Err(error) if !std::mem::replace(&mut told, true) => {
                    tracing::warn!(%error, "cannot follow the pods of this machine; will try until it can");
                }
                Err(error) => tracing::debug!(%error, "still cannot follow the pods of this machine"),
            }
        }
        self.gate.close().await;
    }

    /// Everything that is here by now. What has begun comes first: it is not for what is new to take its room.
    async fn listed(&self, mut all: Vec<Pod>, stop: &CancellationToken) {
        self.gate.only(&all);
        all.sort_by_key(|pod| (is_fresh(pod), version(pod)));
        let seen = all.iter().map(version).max().unwrap_or(0);
        let mut taken = Vec::new();
        for pod in all {
            if self.gate.arrives(&pod, stop).await == Verdict::Taken {
                self.pods.put(Source::Api, pod.clone());
                taken.push(pod);
            }
        }
        self.checkpoints.replace(&taken);
        self.pods.replace(Source::Api, taken);
        self.pods.saw(seen);
    }
}

fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
