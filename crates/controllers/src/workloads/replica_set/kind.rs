//! The two kinds that the ReplicaSet controller reconciles.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    objects::{
        replica_set::{ReplicaSet, ReplicationController, Status},
        selector::Selector,
    },
    runtime::{Cache, CachedObject, Caches},
};

/// What ReplicaSet and ReplicationController have in common for their controller.
pub trait ReplicaSetKind: CachedObject + kube::Resource<Scope = k8s_openapi::NamespaceResourceScope> {
    /// The name of its work queue, as upstream has it.
    const QUEUE: &'static str;
    /// The name under which events are recorded.
    const COMPONENT: &'static str;
    /// Whether its status counts pods that are being deleted.
    const COUNTS_LEAVING: bool;

    fn cache(caches: &Caches) -> &Arc<Cache<Self>>;
    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn selector(&self) -> &Selector;
    fn template(&self) -> &Value;
    fn status(&self) -> &Status;
}

macro_rules! replica_set_kind {
    ($type:ty, $cache:ident, $name:literal, $component:literal, $counts_leaving:literal) => {
        impl ReplicaSetKind for $type {
            const QUEUE: &'static str = $name;
            const COMPONENT: &'static str = $component;
            const COUNTS_LEAVING: bool = $counts_leaving;

            fn cache(caches: &Caches) -> &Arc<Cache<Self>> {
                &caches.$cache
            }

            fn replicas(&self) -> i32 {
                self.spec.replicas.unwrap_or(1)
            }

            fn min_ready_seconds(&self) -> i32 {
                self.spec.min_ready_seconds
            }

            fn selector(&self) -> &Selector {
                &self.spec.selector
            }

            fn template(&self) -> &Value {
                &self.spec.template
            }

            fn status(&self) -> &Status {
                &self.status
            }
        }
    };
}

replica_set_kind!(ReplicaSet, replica_sets, "replicaset", "replicaset-controller", true);
replica_set_kind!(
    ReplicationController,
    replication_controllers,
    "replicationmanager",
    "replication-controller",
    false
);
