//! One pod of a Deployment or a StatefulSet.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::Pod,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::{Kind, fleet::Fleet};

const PATIENCE: Duration = Duration::from_secs(120);

pub struct Workload {
    client: Client,
    kind: Kind,
    app: &'static str,
}

pub struct RunningPod {
    pub uid: String,
    pub node: String,
}

impl Workload {
    pub async fn create(fleet: &Fleet, kind: Kind) -> anyhow::Result<Self> {
        let app = match kind {
            Kind::Deployment => "deployed",
            Kind::StatefulSet => "stateful",
        };
        let workload = Self { client: fleet.client.clone(), kind, app };
        let created = PostParams::default();
        match kind {
            Kind::Deployment => drop(workload.deployments().create(&created, &workload.object()?).await?),
            Kind::StatefulSet => drop(workload.stateful_sets().create(&created, &workload.object()?).await?),
        }
        Ok(workload)
    }

    fn object<K: serde::de::DeserializeOwned>(&self) -> anyhow::Result<K> {
        let labels = json!({ "app": self.app });
        let container = json!({ "name": "c", "image": "host", "command": ["sleep", "100000"] });
        let mut spec: Value = json!({
            "replicas": 1, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": {
                "terminationGracePeriodSeconds": 1, "containers": [container],
            } },
        });
        if self.kind == Kind::StatefulSet {
            spec["serviceName"] = json!(self.app);
        }
        serde_json::from_value(json!({ "metadata": { "name": self.app }, "spec": spec })).context("make a workload")
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn stateful_sets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// The one pod, once it is Ready and the only one.
    pub async fn settled(&self) -> anyhow::Result<RunningPod> {
        self.until("one pod is ready", |pods| match pods {
            [pod] => ready_pod(pod),
            _ => None,
        })
        .await
    }

    /// Another pod, once it is Ready elsewhere.
    pub async fn replaced(&self, before: &RunningPod) -> anyhow::Result<RunningPod> {
        self.until("another pod is ready", |pods| {
            pods.iter().filter_map(ready_pod).find(|pod| pod.uid != before.uid && pod.node != before.node)
        })
        .await
    }

    async fn until(&self, what: &str, find: impl Fn(&[Pod]) -> Option<RunningPod>) -> anyhow::Result<RunningPod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let (own, deadline) = (ListParams::default().labels(&format!("app={}", self.app)), Instant::now() + PATIENCE);
        loop {
            if let Some(found) = find(&pods.list(&own).await?.items) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("not within {PATIENCE:?}: {what}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn delete(&self) -> anyhow::Result<()> {
        let params =
            DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..DeleteParams::default() };
        match self.kind {
            Kind::Deployment => drop(self.deployments().delete(self.app, &params).await?),
            Kind::StatefulSet => drop(self.stateful_sets().delete(self.app, &params).await?),
        }
        Ok(())
    }
}

fn ready_pod(pod: &Pod) -> Option<RunningPod> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let is_leaving = pod.metadata.deletion_timestamp.is_some();
    let node = pod.spec.as_ref()?.node_name.clone()?;
    (is_ready && !is_leaving).then_some(RunningPod { uid: pod.metadata.uid.clone()?, node })
}
