//! Route collection (`routegc`): removes routes whose next hop no server of the project has.
//!
//! One round is: read the router; stop if it has no routes; list the servers, all pages; remove what is orphaned, in one call. If the
//! servers cannot be listed, nothing is changed: a server that is not seen is no server that is not there. Rounds are five minutes apart, and up to half as much again, so
//! that those of many clusters spread.

use std::sync::Arc;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use mainstay_controllers::runtime::{ApiError, Controller, Outcomes, Plan};

use super::{
    cluster::{ClusterDirectory, ClusterKey},
    metrics::{RouteMetrics, RouteOperation},
    orphans::find_orphans,
    router::{RouterClient, routes_of},
    view::Route,
};
use crate::openstack::CloudError;

pub const PERIOD: SignedDuration = SignedDuration::from_mins(5);

pub struct RouteCollector<D> {
    pub directory: Arc<D>,
    pub metrics: RouteMetrics,
}

pub struct CollectionWorld {
    cluster: IpNet,
    routes: Vec<Route>,
    /// Nothing if the router has no routes, so that they were not listed.
    server_addresses: Option<std::collections::BTreeSet<std::net::IpAddr>>,
    until_next: SignedDuration,
}

impl<D: ClusterDirectory> Controller for RouteCollector<D> {
    const NAME: &'static str = "routegc";
    type Key = ClusterKey;
    type World = CollectionWorld;
    type Action = Vec<Route>;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ClusterKey) -> Result<Option<CollectionWorld>, ApiError> {
        let Some(cluster) = self.directory.find(key).await? else { return Ok(None) };
        if !cluster.collects_orphans {
            return Ok(None);
        }
        let client = RouterClient::new(&cluster.session, &cluster.router);
        let observed = async {
            let Some(router) = client.show().await? else { return Ok((Vec::new(), None)) };
            let routes = routes_of(&router);
            let server_addresses = if routes.is_empty() { None } else { Some(client.server_addresses().await?) };
            Ok::<_, CloudError>((routes, server_addresses))
        };
        let (routes, server_addresses) = observed.await.map_err(|error| {
            self.metrics.count_collection_failure();
            ApiError::other("look for orphaned routes", error)
        })?;
        let until_next = PERIOD + SignedDuration::from_millis(fastrand::i64(0..=PERIOD.as_millis() as i64 / 2));
        Ok(Some(CollectionWorld { cluster: cluster.range, routes, server_addresses, until_next }))
    }

    fn plan(world: &CollectionWorld, now: Timestamp) -> Plan<Vec<Route>, ()> {
        let orphans = match &world.server_addresses {
            Some(addresses) => find_orphans(&world.routes, &world.cluster, addresses),
            None => Vec::new(),
        };
        let actions = if orphans.is_empty() { vec![] } else { vec![orphans] };
        Plan { actions, status: None, requeue_at: Some(now + world.until_next) }
    }

    async fn apply(&self, key: &ClusterKey, orphans: Vec<Route>) -> Result<(), ApiError> {
        let Some(cluster) = self.directory.find(key).await? else { return Ok(()) };
        let removed = RouterClient::new(&cluster.session, &cluster.router).remove(&orphans).await;
        removed.map_err(|error| {
            self.metrics.count_collection_failure();
            ApiError::other("remove orphaned routes", error)
        })?;
        tracing::info!(?key, ?orphans, "removed orphaned routes");
        self.metrics.count_orphans(orphans.len());
        self.metrics.count(RouteOperation::Remove, orphans.len());
        for route in &orphans {
            cluster.records.route_gone(route).await?;
        }
        Ok(())
    }

    async fn report(&self, _: &ClusterKey, _: (), _: &Outcomes<()>) -> Result<(), ApiError> {
        Ok(())
    }
}
