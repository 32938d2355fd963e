//! The clusters whose nodes get routes: this one, and every Kluster.

use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use mainstay_controllers::runtime::{ApiError, Cache, EventRecorder, ObjectKey};

use super::records::RouteRecords;
use crate::openstack::Session;

/// Which cluster is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterKey {
    /// The one that this server belongs to.
    Own,
    Kluster(ObjectKey),
}

/// Everything that keeping one cluster's routes takes.
#[derive(Clone)]
pub struct RoutedCluster {
    pub session: Session,
    pub router: String,
    /// Of which all pod ranges are parts.
    pub range: IpNet,
    /// Of the cluster's own API, where its Nodes and the list of ranges with routes are.
    pub client: Client,
    /// Its Nodes, filled.
    pub nodes: Arc<Cache<Node>>,
    /// Writes to the cluster's own API.
    pub events: EventRecorder,
    /// The ledger, which is here even if the cluster is a Kluster.
    pub records: RouteRecords,
    /// Whether all its Nodes are servers of this cloud.
    pub all_in_cloud: bool,
    /// Whether orphans are collected: only while a Kluster is Running.
    pub collects_orphans: bool,
}

/// Where controllers find clusters by their keys.
pub trait ClusterDirectory: Send + Sync + 'static {
    /// Nothing if there is no such cluster, or none that has routes now.
    fn find(&self, key: &ClusterKey) -> impl Future<Output = Result<Option<RoutedCluster>, ApiError>> + Send;
}
