//! What deorbit reads of a cluster's objects, and the rules that say which of them have something in the cloud.
//!
//! * A claim counts if it is Bound, names a volume, and that PersistentVolume has a Cinder or any CSI source.
//! * A Service counts if its type is LoadBalancer. Every VolumeSnapshot counts.
//!
//! Everything else stays untouched.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Service},
};
use kube::api::DynamicObject;

/// Where the OpenStack cloud controller manager writes the load balancer of a Service.
const LOAD_BALANCER_ID: &str = "loadbalancer.openstack.org/load-balancer-id";
/// A Service's wish that its floating IP outlives it.
const KEEP_FLOATING_IP: &str = "loadbalancer.openstack.org/keep-floatingip";

/// Namespace, name and uid: enough to delete an object and no other of its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ObjectId {
    pub fn from_meta(meta: &kube::api::ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
        }
    }
}

/// All that was read of a cluster in one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterObjects {
    /// Major and minor version of its API server, if it says so.
    pub version: Option<(u32, u32)>,
    pub snapshots: Vec<SnapshotView>,
    pub contents: Vec<SnapshotContentView>,
    pub claims: Vec<ClaimView>,
    pub volumes: Vec<VolumeView>,
    pub services: Vec<ServiceView>,
    pub pods: Vec<PodView>,
    pub stateful_sets: Vec<StatefulSetView>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotView {
    pub id: ObjectId,
    pub deleting: bool,
}

/// A VolumeSnapshotContent: the snapshot in the cloud.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotContentView {
    pub name: String,
    pub handle: Option<String>,
    /// `namespace/name` of its VolumeSnapshot.
    pub snapshot: String,
    pub retained: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimView {
    pub id: ObjectId,
    pub bound: bool,
    pub volume: String,
    pub deleting: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeView {
    pub name: String,
    /// The Cinder volume's id, or the handle of a CSI volume.
    pub handle: Option<String>,
    pub phase: String,
    pub message: String,
    pub retained: bool,
    /// `namespace/name` of its claim.
    pub claim: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceView {
    pub id: ObjectId,
    pub is_load_balancer: bool,
    pub deleting: bool,
    /// Addresses of `status.loadBalancer.ingress`.
    pub addresses: Vec<String>,
    pub load_balancer_id: Option<String>,
    pub keeps_floating_ip: bool,
    /// `spec.loadBalancerIP`: an address that the user brought along.
    pub own_address: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    pub id: ObjectId,
    /// Names of the claims that it mounts.
    pub claims: Vec<String>,
    pub deleting: bool,
    pub stateful_set: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatefulSetView {
    pub id: ObjectId,
    pub replicas: i32,
    /// Whether it makes claims for its pods, also again.
    pub makes_claims: bool,
}

impl ClusterObjects {
    /// The PersistentVolume of a claim that the rule for claims covers.
    pub fn volume_of(&self, claim: &ClaimView) -> Option<&VolumeView> {
        if !claim.bound || claim.volume.is_empty() {
            return None;
        }
        self.volumes.iter().find(|volume| volume.name == claim.volume && volume.handle.is_some())
    }

    pub fn claims_to_delete(&self) -> impl Iterator<Item = &ClaimView> {
        self.claims.iter().filter(|claim| self.volume_of(claim).is_some())
    }

    pub fn load_balancer_services(&self) -> impl Iterator<Item = &ServiceView> {
        self.services.iter().filter(|service| service.is_load_balancer)
    }

    /// Pods that keep a claim which is being deleted, since they mount it.
    pub fn pods_that_hold_claims(&self) -> impl Iterator<Item = &PodView> {
        let deleting: BTreeSet<(&str, &str)> = self
            .claims_to_delete()
            .filter(|claim| claim.deleting)
            .map(|claim| (claim.id.namespace.as_str(), claim.id.name.as_str()))
            .collect();
        self.pods.iter().filter(move |pod| {
            pod.claims.iter().any(|claim| deleting.contains(&(pod.id.namespace.as_str(), claim.as_str())))
        })
    }

    /// Whether Services have no finalizer that keeps them until their load balancer is gone (before Kubernetes 1.17).
    pub fn is_before_service_finalizers(&self) -> bool {
        self.version.is_some_and(|version| version < (1, 17))
    }
}

impl From<&DynamicObject> for SnapshotView {
    fn from(object: &DynamicObject) -> Self {
        let deleting = object.metadata.deletion_timestamp.is_some();
        Self { id: ObjectId::from_meta(&object.metadata), deleting }
    }
}

impl From<&DynamicObject> for SnapshotContentView {
    fn from(object: &DynamicObject) -> Self {
        let text = |pointer: &str| object.data.pointer(pointer).and_then(|value| value.as_str()).map(str::to_owned);
        let part = |pointer: &str| text(pointer).unwrap_or_default();
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            handle: text("/status/snapshotHandle").or_else(|| text("/spec/source/snapshotHandle")),
            snapshot: format!("{}/{}", part("/spec/volumeSnapshotRef/namespace"), part("/spec/volumeSnapshotRef/name")),
            retained: part("/spec/deletionPolicy") == "Retain",
        }
    }
}

impl From<&PersistentVolumeClaim> for ClaimView {
    fn from(claim: &PersistentVolumeClaim) -> Self {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        Self {
            id: ObjectId::from_meta(&claim.metadata),
            bound: phase == Some("Bound"),
            volume: claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default(),
            deleting: claim.metadata.deletion_timestamp.is_some(),
        }
    }
}

impl From<&PersistentVolume> for VolumeView {
    fn from(volume: &PersistentVolume) -> Self {
        let spec = volume.spec.as_ref();
        let cinder = spec.and_then(|spec| spec.cinder.as_ref()).map(|cinder| cinder.volume_id.clone());
        let csi = || spec.and_then(|spec| spec.csi.as_ref()).map(|csi| csi.volume_handle.clone());
        let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
        let status = volume.status.as_ref();
        Self {
            name: volume.metadata.name.clone().unwrap_or_default(),
            handle: cinder.or_else(csi),
            phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
            message: status.and_then(|status| status.message.clone()).unwrap_or_default(),
            retained: spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) != Some("Delete"),
            claim: claim.map_or_else(String::new, |claim| {
                let part = |text: &Option<String>| text.clone().unwrap_or_default();
                format!("{}/{}", part(&claim.namespace), part(&claim.name))
            }),
        }
    }
}

impl From<&Service> for ServiceView {
    fn from(service: &Service) -> Self {
        let spec = service.spec.as_ref();
        let annotation = |name: &str| service.metadata.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = balancer.into_iter().flat_map(|balancer| balancer.ingress.iter().flatten());
        Self {
            id: ObjectId::from_meta(&service.metadata),
            is_load_balancer: spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer"),
            deleting: service.metadata.deletion_timestamp.is_some(),
            addresses: ingress.filter_map(|ingress| ingress.ip.clone()).collect(),
            load_balancer_id: annotation(LOAD_BALANCER_ID).filter(|id| !id.is_empty()),
            keeps_floating_ip: annotation(KEEP_FLOATING_IP).as_deref() == Some("true"),
            own_address: spec.and_then(|spec| spec.load_balancer_ip.clone()).filter(|address| !address.is_empty()),
        }
    }
}

impl From<&Pod> for PodView {
    fn from(pod: &Pod) -> Self {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let claims = volumes.filter_map(|volume| {
            let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
            claim.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{name}-{}", volume.name)))
        });
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == "StatefulSet");
        Self {
            id: ObjectId::from_meta(&pod.metadata),
            claims: claims.collect(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            stateful_set: owner.map(|owner| owner.name.clone()),
        }
    }
}

impl From<&StatefulSet> for StatefulSetView {
    fn from(set: &StatefulSet) -> Self {
        let templates = set.spec.volume_claim_templates.as_ref();
        Self {
            id: ObjectId::from_meta(&set.metadata),
            replicas: set.spec.replicas.unwrap_or(1),
            makes_claims: templates.is_some_and(|templates| !templates.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(name: &str, phase: &str, volume: &str) -> ClaimView {
        let object = json!({
            "metadata": { "namespace": "shop", "name": name, "uid": name },
            "spec": { "volumeName": volume }, "status": { "phase": phase },
        });
        ClaimView::from(&serde_json::from_value::<PersistentVolumeClaim>(object).unwrap())
    }

    fn volume(name: &str, source: serde_json::Value) -> VolumeView {
        let mut spec = json!({ "persistentVolumeReclaimPolicy": "Delete" });
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let object = json!({ "metadata": { "name": name }, "spec": spec, "status": { "phase": "Bound" } });
        VolumeView::from(&serde_json::from_value::<PersistentVolume>(object).unwrap())
    }

    #[test]
    fn only_bound_claims_of_cinder_and_csi_volumes_are_deleted() {
        let objects = ClusterObjects {
            claims: vec![
                claim("cinder", "Bound", "pv-cinder"),
                claim("csi", "Bound", "pv-csi"),
                claim("path", "Bound", "pv-path"),
                claim("pending", "Pending", ""),
                claim("lost", "Lost", "pv-cinder"),
                claim("absent", "Bound", "pv-none"),
            ],
            volumes: vec![
                volume("pv-cinder", json!({ "cinder": { "volumeID": "v1" } })),
                volume("pv-csi", json!({ "csi": { "driver": "d", "volumeHandle": "v2" } })),
                volume("pv-path", json!({ "hostPath": { "path": "/x" } })),
            ],
            ..ClusterObjects::default()
        };
        let names: Vec<&str> = objects.claims_to_delete().map(|claim| claim.id.name.as_str()).collect();
        assert_eq!(names, ["cinder", "csi"]);
    }

    #[test]
    fn only_services_of_type_load_balancer_are_deleted() {
        let service = |kind: &str| {
            let object = json!({ "metadata": { "name": kind, "namespace": "n" }, "spec": { "type": kind } });
            ServiceView::from(&serde_json::from_value::<Service>(object).unwrap())
        };
        let services = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"].map(service).to_vec();
        let objects = ClusterObjects { services, ..ClusterObjects::default() };
        let names: Vec<&str> = objects.load_balancer_services().map(|service| service.id.name.as_str()).collect();
        assert_eq!(names, ["LoadBalancer"]);
    }

    #[test]
    fn a_pod_holds_claims_by_name_and_by_ephemeral_volumes() {
        let object = json!({
            "metadata": { "name": "p", "namespace": "n", "ownerReferences": [
                { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": true }] },
            "spec": { "containers": [], "volumes": [
                { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
                { "name": "b", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } },
                { "name": "c", "emptyDir": {} }] },
        });
        let pod = PodView::from(&serde_json::from_value::<Pod>(object).unwrap());
        assert_eq!(pod.claims, ["data", "p-b"]);
        assert_eq!(pod.stateful_set.as_deref(), Some("db"));
    }
}
