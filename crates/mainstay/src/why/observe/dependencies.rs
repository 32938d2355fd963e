//! Follows the needs of a pod that waits to the pods behind them.

use std::collections::BTreeMap;

use futures::{FutureExt, future::LocalBoxFuture};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use mainstay_api::needs::{self, NeedTarget, Needs, WorkloadKind};

use super::{Observer, optional};
use crate::{
    needs::message::{find_missing, needed_name},
    why::explain::{AwaitedFacts, is_troubled},
};

/// No chain that people can follow is longer, and a cycle has no end.
const LONGEST_CHAIN: usize = 8;

impl Observer {
    /// What a pod waits for first, with a pod behind it, down to the root.
    pub(super) fn awaited<'a>(&'a self, pod: &'a Pod, depth: usize) -> LocalBoxFuture<'a, Option<AwaitedFacts>> {
        async move {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let waits = conditions.into_iter().find(|c| c.type_ == needs::CONDITION && c.status == "False")?;
            let message = waits.message.as_deref().unwrap_or_default();
            let (name, target) = first_unmet(pod, message)?;
            let behind = self.pods_behind(pod, &target).await.unwrap_or_default();
            let pod = match behind.into_iter().find(is_troubled).filter(|_| depth < LONGEST_CHAIN) {
                Some(pod) => {
                    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                    let there = Self::new(self.client.clone(), &namespace);
                    let awaited = there.awaited(&pod, depth + 1).await;
                    let mut facts = there.own_facts(pod).await.ok()?;
                    facts.awaited = awaited;
                    Some(Box::new(facts))
                }
                None => None,
            };
            Some(AwaitedFacts { name, pod })
        }
        .boxed_local()
    }

    async fn pods_behind(&self, pod: &Pod, target: &NeedTarget) -> Option<Vec<Pod>> {
        let own = pod.metadata.namespace.as_deref().unwrap_or_default();
        let (namespace, labels) = match target {
            NeedTarget::Service { service, .. } => {
                let namespace = service.namespace(own).unwrap_or(own);
                let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
                let found = optional(services.get_opt(service.name())).await??;
                (namespace, found.spec?.selector?)
            }
            NeedTarget::Workload { kind, name } => (own, self.selected_labels(own, *kind, name).await?),
            NeedTarget::Object { .. } => return None,
        };
        let selector = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<String>>().join(",");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        Some(optional(pods.list(&ListParams::default().labels(&selector))).await?.items)
    }

    async fn selected_labels(
        &self,
        namespace: &str,
        kind: WorkloadKind,
        name: &str,
    ) -> Option<BTreeMap<String, String>> {
        let (group, plural) = match kind {
            WorkloadKind::Deployment => ("apps", "deployments"),
            WorkloadKind::StatefulSet => ("apps", "statefulsets"),
            WorkloadKind::DaemonSet => ("apps", "daemonsets"),
            WorkloadKind::Job => ("batch", "jobs"),
        };
        let resource = ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{group}/v1"),
            kind: kind.kind().to_owned(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let object = optional(api.get_opt(name)).await??;
        serde_json::from_value(object.data["spec"]["selector"]["matchLabels"].clone()).ok()
    }
}

/// The first need that the condition's message is about, and how the pod names it.
fn first_unmet(pod: &Pod, message: &str) -> Option<(String, NeedTarget)> {
    let needs = Needs::from_annotations(&pod.metadata.annotations);
    let named = needs.needs.into_iter().map(|need| (needed_name(&need.target), need.target));
    named.into_iter().find(|(name, _)| find_missing(message, name).is_some())
}
