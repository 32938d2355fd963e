//! Pods bound to this machine, from the API.
//!
//! Each is also kept in a file, so that an agent that starts while no server can be reached goes on with
//! the pods it had. Only what the API itself says makes a pod unwanted.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use mainstay_runtime::PodUid;
use tokio_util::sync::CancellationToken;

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
    kept: Kept,
}

impl FromApi {
    pub fn new(
        client: Client,
        node_name: String,
        pods: Arc<Pods>,
        gate: Arc<Gate>,
        directory: &Path,
    ) -> io::Result<Self> {
        let directory = directory.join("checkpoints");
        fs::create_dir_all(&directory)?;
        Ok(Self { client, node_name, pods, gate, kept: Kept { directory } })
    }

    /// Takes up the pods of an earlier life, then follows the API until asked to stop.
    pub async fn run(self, stop: CancellationToken) {
        for pod in self.kept.load() {
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
                        self.kept.keep(&pod);
                        self.pods.put(Source::Api, pod);
                    }
                    self.pods.saw(seen);
                }
                Ok(watcher::Event::Delete(pod)) => {
                    let seen = version(&pod);
                    let uid = PodUid(pod.metadata.uid.unwrap_or_default());
                    self.gate.left(&uid);
                    self.kept.forget(&uid);
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
        self.kept.only(&taken);
        self.pods.replace(Source::Api, taken);
        self.pods.saw(seen);
    }
}

fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// Pods in files, one each.
struct Kept {
    directory: PathBuf,
}

impl Kept {
    fn path(&self, uid: &PodUid) -> PathBuf {
        self.directory.join(format!("{uid}.json"))
    }

    fn load(&self) -> Vec<Pod> {
        let Ok(files) = fs::read_dir(&self.directory) else { return vec![] };
        let mut pods = Vec::new();
        for file in files.flatten() {
            let path = file.path();
            match fs::read(&path).map_err(io::Error::other).and_then(|b| Ok(serde_json::from_slice::<Pod>(&b)?)) {
                Ok(pod) => pods.push(pod),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "a kept pod cannot be read");
                    let _ = fs::remove_file(path);
                }
            }
        }
        pods
    }

    /// With its status: it tells how often its containers have been made, and since when it runs.
    fn keep(&self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.clone().map(PodUid) else { return };
        let mut pod = pod.clone();
        pod.metadata.managed_fields = None;
        pod.metadata.resource_version = None;
        let path = self.path(&uid);
        let Ok(text) = serde_json::to_vec(&pod) else { return };
        if fs::read(&path).is_ok_and(|kept| kept == text) {
            return;
        }
        let partial = path.with_extension("partial");
        if let Err(error) = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &path)) {
            tracing::warn!(file = %path.display(), %error, "cannot keep a pod for the next start");
        }
    }

    fn forget(&self, uid: &PodUid) {
        let _ = fs::remove_file(self.path(uid));
    }

    fn only(&self, pods: &[Pod]) {
        let wanted: BTreeSet<PathBuf> =
            pods.iter().filter_map(|pod| Some(self.path(&PodUid(pod.metadata.uid.clone()?)))).collect();
        for file in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if !wanted.contains(&file.path()) {
                let _ = fs::remove_file(file.path());
            }
        }
        for pod in pods {
            self.keep(pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        pod
    }

    #[test]
    fn pods_are_kept_until_the_api_no_longer_has_them() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept { directory: directory.path().to_owned() };
        kept.keep(&pod("a"));
        kept.keep(&pod("b"));
        assert_eq!(kept.load().len(), 2);
        kept.only(&[pod("b"), pod("c")]);
        let mut uids: Vec<String> = kept.load().into_iter().filter_map(|pod| pod.metadata.uid).collect();
        uids.sort();
        assert_eq!(uids, ["b", "c"]);
        kept.forget(&PodUid("b".into()));
        fs::write(directory.path().join("d.json"), "{").unwrap();
        assert_eq!(kept.load().len(), 1, "a damaged file is no pod");
    }
}
