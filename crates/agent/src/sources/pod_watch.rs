//! The one watch on the pods that are bound to this node. Feeds admission, workers and mirror pods.
//!
//! Each is also kept in a file ([`PodCheckpoints`]), so that an agent that starts while no server can be reached goes on
//! with the pods it had. Only what the API itself says makes a pod unwanted.

use std::{io, path::Path, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use mainstay_watch::{Event, Watch};
use tokio_util::sync::CancellationToken;

use super::{checkpoints::PodCheckpoints, mirror::Mirrors};
use crate::{
    offers::{OfferAdmission, Verdict, is_fresh},
    pods::{Pods, Source},
    watch_backoff::watch_fields,
};

pub struct PodWatch {
    client: Client,
    node_name: String,
    pods: Arc<Pods>,
    admission: Arc<OfferAdmission>,
    checkpoints: PodCheckpoints,
    mirrors: Arc<Mirrors>,
}

impl PodWatch {
    pub fn new(
        client: Client,
        node_name: String,
        pods: Arc<Pods>,
        admission: Arc<OfferAdmission>,
        directory: &Path,
        mirrors: Arc<Mirrors>,
    ) -> io::Result<Self> {
        let checkpoints = PodCheckpoints::open(directory.join("checkpoints"))?;
        Ok(Self { client, node_name, pods, admission, checkpoints, mirrors })
    }

    /// Takes up the pods of an earlier life, then follows the API until asked to stop.
    pub async fn run(self, stop: CancellationToken) {
        for pod in self.checkpoints.load() {
            self.pods.upsert(Source::Api, pod);
        }
        let api: Api<Pod> = Api::all(self.client.clone());
        let mut news = Watch::<Pod>::new(api, watch_fields(format!("spec.nodeName={}", self.node_name)));
        let (mut listed, mut warned) = (Vec::new(), false);
        while let Some(Some(event)) = stop.run_until_cancelled(news.next()).await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => listed.push(pod),
                Ok(Event::InitDone) => {
                    warned = false;
                    self.listed(std::mem::take(&mut listed), &stop).await;
                }
                Ok(Event::Apply(pod)) => {
                    self.mirrors.observe(&pod);
                    let observed = version(&pod);
                    if self.admission.admit(&pod, &stop).await == Verdict::Admitted {
                        self.checkpoints.write(&pod);
                        self.pods.upsert(Source::Api, pod);
                    }
                    self.pods.set_observed_version(observed);
                }
                Ok(Event::Delete(pod)) => {
                    self.mirrors.observe_deleted(&pod);
                    let observed = version(&pod);
                    let uid = PodUid(pod.metadata.uid.unwrap_or_default());
                    self.admission.forget(&uid);
                    self.checkpoints.remove(&uid);
                    self.pods.remove(Source::Api, &uid);
                    self.pods.set_observed_version(observed);
                }
                // Logged once, however long it lasts.
                Err(error) if !std::mem::replace(&mut warned, true) => {
                    tracing::warn!(
                        error = error_chain(&error),
                        "cannot watch the pods of this node; will retry until it can"
                    );
                }
                Err(error) => tracing::debug!(error = error_chain(&error), "still cannot watch the pods of this node"),
            }
        }
        self.admission.close().await;
    }

    /// Everything that is here by now. What has begun comes first: it is not for what is new to take its room.
    async fn listed(&self, mut all: Vec<Pod>, stop: &CancellationToken) {
        self.mirrors.observe_all(&all);
        self.admission.retain(&all);
        all.sort_by_key(|pod| (is_fresh(pod), version(pod)));
        let observed = all.iter().map(version).max().unwrap_or(0);
        let mut taken = Vec::new();
        for pod in all {
            if self.admission.admit(&pod, stop).await == Verdict::Admitted {
                self.pods.upsert(Source::Api, pod.clone());
                taken.push(pod);
            }
        }
        self.checkpoints.replace(&taken);
        self.pods.replace(Source::Api, taken);
        self.pods.set_observed_version(observed);
    }
}

fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
