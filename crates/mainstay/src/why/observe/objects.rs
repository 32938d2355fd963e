//! Reads Services, claims, nodes and namespaces.

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    discovery::v1::EndpointSlice,
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use mainstay_api::{
    descriptor::Scope,
    matching,
    offer::Offer,
    registry::Registry,
    wellknown::{kubernetes::SERVICE_NAME, namespace},
};

use super::{Observer, optional};
use crate::why::explain::{ClaimFacts, NamespaceFacts, NodeFacts, RemainingObject, ServiceFacts, is_troubled};

impl Observer {
    pub async fn service(&self, name: &str) -> anyhow::Result<Option<ServiceFacts>> {
        let Some(service) = self.get::<Service>(name).await? else { return Ok(None) };
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
        let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
        let (pods, others): (Vec<Pod>, Vec<Pod>) = self.all_pods().await?.into_iter().partition(|pod| {
            !selector.is_empty()
                && matching::has_labels(&selector, &labels(pod))
                && pod.metadata.deletion_timestamp.is_none()
        });
        let slices = ListParams::default().labels(&format!("{SERVICE_NAME}={name}"));
        let slices = optional(self.api::<EndpointSlice>().list(&slices)).await.map_or_else(Vec::new, |list| list.items);
        let any_ready = pods.iter().any(mainstay_api::pod::is_ready);
        let troubled = match pods.iter().find(|pod| is_troubled(pod)).filter(|_| !any_ready) {
            Some(pod) => Some(self.pod_facts(pod.clone()).await?),
            None => None,
        };
        let events = self.events("Service", &service.metadata).await?;
        let other_labels = others.iter().map(labels).collect();
        Ok(Some(ServiceFacts { service, events, slices, pods, troubled, other_labels }))
    }

    pub async fn claim(&self, name: &str) -> anyhow::Result<Option<ClaimFacts>> {
        let Some(claim) = self.get::<PersistentVolumeClaim>(name).await? else { return Ok(None) };
        self.claim_facts(claim).await.map(Some)
    }

    pub(super) async fn claim_facts(&self, claim: PersistentVolumeClaim) -> anyhow::Result<ClaimFacts> {
        let events = self.events("PersistentVolumeClaim", &claim.metadata).await?;
        let classes = Api::<StorageClass>::all(self.client.clone());
        let classes = optional(classes.list(&ListParams::default())).await.map_or_else(Vec::new, |list| list.items);
        let volume = match claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) {
            Some(volume) => optional(Api::<PersistentVolume>::all(self.client.clone()).get_opt(volume)).await.flatten(),
            None => None,
        };
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let uses_claim = |pod: &Pod| {
            let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            volumes.any(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name == name))
        };
        let pods = self.all_pods().await?;
        let users = pods.iter().filter(|pod| uses_claim(pod)).filter_map(|pod| pod.metadata.name.clone()).collect();
        Ok(ClaimFacts { claim, events, classes, volume, users })
    }

    pub async fn node(&self, name: &str) -> anyhow::Result<Option<NodeFacts>> {
        let Some(node) = Api::<Node>::all(self.client.clone()).get_opt(name).await? else { return Ok(None) };
        let leases = Api::<Lease>::namespaced(self.client.clone(), namespace::NODE_LEASES);
        let lease = optional(leases.get_opt(name)).await.flatten();
        let renewed = lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time);
        let offers = optional(Api::<Offer>::all(self.client.clone()).get_opt(name)).await.flatten().is_some();
        // Nodes have no namespace; their events are in `default`, and name them by uid or by name.
        let about = format!("involvedObject.kind=Node,involvedObject.name={name}");
        let events = Api::<Event>::namespaced(self.client.clone(), namespace::DEFAULT);
        let events = optional(events.list(&ListParams::default().fields(&about))).await;
        Ok(Some(NodeFacts { node, events: events.map_or_else(Vec::new, |list| list.items), renewed, offers }))
    }

    pub async fn namespace(&self, name: &str) -> anyhow::Result<Option<NamespaceFacts>> {
        let Some(namespace) = Api::<Namespace>::all(self.client.clone()).get_opt(name).await? else { return Ok(None) };
        let terminating = namespace.metadata.deletion_timestamp.is_some();
        let remaining = if terminating { self.remaining_objects(name).await } else { Vec::new() };
        Ok(Some(NamespaceFacts { namespace, remaining }))
    }

    /// Every object of every kind that is left in a namespace.
    async fn remaining_objects(&self, namespace: &str) -> Vec<RemainingObject> {
        let mut remaining = Vec::new();
        for descriptor in Registry::builtin().stored().filter(|descriptor| descriptor.scope == Scope::Namespaced) {
            let resource = ApiResource {
                group: descriptor.group.to_string(),
                version: descriptor.version.to_string(),
                api_version: descriptor.api_version(),
                kind: descriptor.kind.to_string(),
                plural: descriptor.plural.to_string(),
            };
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
            let Some(list) = optional(api.list_metadata(&ListParams::default())).await else { continue };
            remaining.extend(list.items.into_iter().map(|object| RemainingObject {
                resource: descriptor.qualified(),
                name: object.metadata.name.unwrap_or_default(),
                finalizers: object.metadata.finalizers.unwrap_or_default(),
            }));
        }
        remaining
    }
}
