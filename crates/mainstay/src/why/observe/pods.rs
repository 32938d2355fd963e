//! Reads pods, and the workloads that own them.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    batch::v1::{CronJob, Job},
    core::v1::{ContainerStatus, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, LogParams, ObjectMeta},
};

use mainstay_api::{node_loss, wellknown::kubernetes::HOSTNAME};

use super::{Observer, PODS_EXPLAINED, is_owned_by, optional};
use crate::why::{
    explain::{
        AssignedNode, CronJobFacts, LocalVolume, OwnerName, PodFacts, RemovedPodFacts, WorkloadFacts, is_troubled,
    },
    target::WorkloadKind,
};

/// Of the end of a log, whose lines may be of any length, so much is read.
const MOST_LOG: i64 = 1 << 20;

impl Observer {
    pub async fn pod(&self, name: &str) -> anyhow::Result<Option<PodFacts>> {
        let Some(pod) = self.get::<Pod>(name).await? else { return Ok(None) };
        self.pod_facts(pod).await.map(Some)
    }

    pub(super) async fn pod_facts(&self, pod: Pod) -> anyhow::Result<PodFacts> {
        let awaited = self.awaited(&pod, 0).await;
        Ok(PodFacts { awaited, ..self.own_facts(pod).await? })
    }

    /// Without what it waits for.
    pub(super) async fn own_facts(&self, pod: Pod) -> anyhow::Result<PodFacts> {
        let spec = pod.spec.clone().unwrap_or_default();
        let node = match spec.node_name.filter(|node| !node.is_empty()) {
            Some(node) => match optional(Api::<Node>::all(self.client.clone()).get_opt(&node)).await {
                Some(Some(node)) => AssignedNode::Found(Box::new(node)),
                Some(None) => AssignedNode::Missing,
                None => AssignedNode::Unknown,
            },
            None => AssignedNode::Unknown,
        };
        let (mut unbound_claims, mut local_volumes, mut access_modes) = (Vec::new(), Vec::new(), BTreeMap::new());
        for name in node_loss::claims(&pod) {
            match optional(self.api::<PersistentVolumeClaim>().get_opt(&name)).await {
                Some(Some(claim)) => {
                    let spec = claim.spec.clone().unwrap_or_default();
                    access_modes.insert(name.clone(), spec.access_modes.unwrap_or_default());
                    if is_bound(&claim) {
                        local_volumes.extend(self.local_volume(&name, &spec.volume_name.unwrap_or_default()).await);
                    } else {
                        unbound_claims.push((name, Some(self.claim_facts(claim).await?)));
                    }
                }
                Some(None) => unbound_claims.push((name, None)),
                None => {}
            }
        }
        Ok(PodFacts {
            events: self.events("Pod", &pod.metadata).await?,
            last_lines: self.last_lines(&pod).await,
            unbound_claims,
            local_volumes,
            access_modes,
            node,
            awaited: None,
            owner: self.owner(&pod.metadata).await,
            pod,
        })
    }

    /// Where a bound claim's volume is, if that is one node alone.
    async fn local_volume(&self, claim: &str, volume: &str) -> Option<LocalVolume> {
        let volumes = Api::<PersistentVolume>::all(self.client.clone());
        let spec = optional(volumes.get_opt(volume)).await??.spec?;
        let terms = spec.node_affinity?.required?.node_selector_terms;
        let [term] = terms.as_slice() else { return None };
        let mut fields = term.match_fields.iter().flatten().chain(term.match_expressions.iter().flatten());
        let names =
            fields.find(|field| ["metadata.name", HOSTNAME].contains(&&*field.key) && field.operator == "In")?;
        let [node] = names.values.as_deref()? else { return None };
        let found = optional(Api::<Node>::all(self.client.clone()).get_opt(node)).await?;
        let (claim, volume) = (claim.to_owned(), volume.to_owned());
        Some(LocalVolume { claim, volume, node: node.clone(), found: found.map(Box::new) })
    }

    /// What events tell of a pod that is gone, and the pods that have its owner's names.
    pub async fn removed_pod(&self, name: &str) -> anyhow::Result<RemovedPodFacts> {
        let about = format!("involvedObject.kind=Pod,involvedObject.name={name}");
        let events =
            self.api::<Event>().list(&ListParams::default().fields(&about)).await.context("list its events")?;
        let owner = name.rsplit_once('-').map_or(name, |(owner, _)| owner);
        let is_sibling = |pod: &Pod| {
            let own = pod.metadata.name.as_deref().unwrap_or_default();
            own.rsplit_once('-').is_some_and(|(prefix, _)| prefix == owner)
        };
        let mut siblings = self.all_pods().await?;
        siblings.retain(is_sibling);
        siblings.truncate(PODS_EXPLAINED);
        Ok(RemovedPodFacts { namespace: self.namespace.clone(), name: name.to_owned(), events: events.items, siblings })
    }

    /// The last line of the log of each container that ended in failure.
    async fn last_lines(&self, pod: &Pod) -> BTreeMap<String, String> {
        let status = pod.status.iter();
        let statuses = status
            .flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()));
        let mut lines = BTreeMap::new();
        for status in statuses.filter(|status| has_failed(status)) {
            let previous = status.state.as_ref().is_some_and(|state| state.running.is_some());
            let container = Some(status.name.clone());
            let parameters = LogParams {
                container,
                previous,
                tail_lines: Some(5),
                limit_bytes: Some(MOST_LOG),
                ..LogParams::default()
            };
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let log = optional(self.api::<Pod>().logs(name, &parameters)).await.unwrap_or_default();
            if let Some(line) = log.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
                lines.insert(status.name.clone(), line.to_owned());
            }
        }
        lines
    }

    /// The object to edit in order to change a pod: its controller, or that one's controller.
    async fn owner(&self, pod: &ObjectMeta) -> Option<OwnerName> {
        let (kind, name) = controller(pod)?;
        let above = match kind.as_str() {
            "replicaset" => {
                optional(self.api::<ReplicaSet>().get(&name)).await.and_then(|set| controller(&set.metadata))
            }
            "job" => optional(self.api::<Job>().get(&name)).await.and_then(|job| controller(&job.metadata)),
            _ => None,
        };
        let (kind, name) = above.unwrap_or((kind, name));
        // A mirror pod is the node's: nothing in the API changes it.
        (kind != "node").then_some(OwnerName { kind, name })
    }

    pub async fn workload(&self, kind: WorkloadKind, name: &str) -> anyhow::Result<Option<WorkloadFacts>> {
        let (group, kind_name, plural) = kind.resource();
        let resource = ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version: if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") },
            kind: kind_name.to_owned(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let object = api.get_opt(name).await.with_context(|| format!("read {} {name}", kind_name.to_lowercase()))?;
        let Some(object) = object else { return Ok(None) };
        let mut events = self.events(kind_name, &object.metadata).await?;
        let mut owners = vec![object.metadata.clone()];
        if kind == WorkloadKind::Deployment {
            let sets = self.api::<ReplicaSet>().list(&ListParams::default()).await.context("list ReplicaSets")?;
            for set in sets.items.into_iter().filter(|set| is_owned_by(&set.metadata, &object.metadata)) {
                events.extend(self.events("ReplicaSet", &set.metadata).await?);
                owners.push(set.metadata);
            }
        }
        let mut pods = self.all_pods().await?;
        pods.retain(|pod| owners.iter().any(|owner| is_owned_by(&pod.metadata, owner)));
        // Those that are leaving come last: what replaces them is of more interest.
        pods.sort_by_key(|pod| (pod.metadata.deletion_timestamp.is_some(), pod.metadata.name.clone()));
        let mut troubled = Vec::new();
        for pod in pods.iter().filter(|pod| is_troubled(pod)).take(PODS_EXPLAINED) {
            troubled.push(self.pod_facts(pod.clone()).await?);
        }
        Ok(Some(WorkloadFacts { kind, object, events, pods, troubled }))
    }

    pub async fn cron_job(&self, name: &str) -> anyhow::Result<Option<CronJobFacts>> {
        let Some(cron_job) = self.get::<CronJob>(name).await? else { return Ok(None) };
        let events = self.events("CronJob", &cron_job.metadata).await?;
        let jobs = self.api::<Job>().list(&ListParams::default()).await.context("list Jobs")?.items;
        let own = jobs.into_iter().filter(|job| is_owned_by(&job.metadata, &cron_job.metadata));
        let last = own.max_by_key(|job| job.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let last_job = match last.and_then(|job| job.metadata.name) {
            Some(job) => self.workload(WorkloadKind::Job, &job).await?,
            None => None,
        };
        Ok(Some(CronJobFacts { cron_job, events, last_job }))
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn has_failed(status: &ContainerStatus) -> bool {
    let states = [status.state.as_ref(), status.last_state.as_ref()];
    let ends = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref());
    ends.into_iter().any(|end| end.exit_code != 0) && !status.ready
}

fn controller(meta: &ObjectMeta) -> Option<(String, String)> {
    let mut owners = meta.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some((owner.kind.to_lowercase(), owner.name.clone()))
}
