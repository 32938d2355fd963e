//! What a cluster has put on routers and ports, by the ledger.
//!
//! Routes and address pairs have neither an id nor a tag in the cloud: they are what they say. So an entry's name is derived from its content, writing
//! it twice is the same as once, and a crash between the entry and the call leaves an entry whose route the next look finds, or does not.

use std::collections::BTreeSet;

use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use mainstay_api::cloud::cloud_resource::{CloudResource, CloudResourceSpec, ResourceOwner, ResourceType};
use mainstay_controllers::runtime::{ApiError, error};
use sha2::{Digest, Sha256};

use super::{plan::RecordedPair, view::Route};

/// Says which cluster an entry belongs to: `own`, or the uid of a Kluster.
const CLUSTER_LABEL: &str = "mainstay.dev/routed-cluster";

/// The entries of one cluster's routes on one router.
#[derive(Clone)]
pub struct RouteRecords {
    pub client: Client,
    pub cloud: String,
    pub router: String,
    pub owner: ResourceOwner,
}

/// What the ledger has of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRoutes {
    pub routes: BTreeSet<Route>,
    pub pairs: BTreeSet<RecordedPair>,
}

impl RouteRecords {
    fn entries(&self) -> Api<CloudResource> {
        Api::all(self.client.clone())
    }

    fn cluster(&self) -> &str {
        if self.owner.uid.is_empty() { "own" } else { &self.owner.uid }
    }

    pub async fn list(&self) -> Result<RecordedRoutes, ApiError> {
        let params = ListParams::default().labels(&format!("{CLUSTER_LABEL}={}", self.cluster()));
        let listed = self.entries().list(&params).await.map_err(ApiError::when("list entries of routes"))?;
        let mut recorded = RecordedRoutes::default();
        for entry in listed.items.iter().map(|entry| &entry.spec) {
            match entry.resource {
                ResourceType::Route if entry.parent == self.router => {
                    recorded.routes.extend(parse_route(&entry.name));
                }
                ResourceType::AddressPair => {
                    let (port, range) = (entry.parent.clone(), entry.name.clone());
                    recorded.pairs.insert(RecordedPair { port, range });
                }
                _ => {}
            }
        }
        Ok(recorded)
    }

    pub async fn intend_route(&self, route: &Route) -> Result<(), ApiError> {
        self.intend(self.entry(ResourceType::Route, &route.to_string(), &self.router)).await
    }

    pub async fn route_gone(&self, route: &Route) -> Result<(), ApiError> {
        self.remove(&self.entry(ResourceType::Route, &route.to_string(), &self.router)).await
    }

    pub async fn intend_pair(&self, pair: &RecordedPair) -> Result<(), ApiError> {
        self.intend(self.entry(ResourceType::AddressPair, &pair.range, &pair.port)).await
    }

    pub async fn pair_gone(&self, pair: &RecordedPair) -> Result<(), ApiError> {
        self.remove(&self.entry(ResourceType::AddressPair, &pair.range, &pair.port)).await
    }

    fn entry(&self, resource: ResourceType, name: &str, parent: &str) -> CloudResource {
        let kind = if resource == ResourceType::Route { "route" } else { "pair" };
        let object = entry_name(kind, &[self.cluster(), &self.cloud, parent, name]);
        let mut entry = CloudResource::new(
            &object,
            CloudResourceSpec {
                cloud: self.cloud.clone(),
                resource,
                name: name.to_owned(),
                tag: object.clone(),
                parent: parent.to_owned(),
                owner: self.owner.clone(),
                ..CloudResourceSpec::default()
            },
        );
        entry.metadata.labels = Some([(CLUSTER_LABEL.to_owned(), self.cluster().to_owned())].into());
        entry
    }

    async fn intend(&self, entry: CloudResource) -> Result<(), ApiError> {
        match self.entries().create(&PostParams::default(), &entry).await {
            Ok(_) => Ok(()),
            Err(error) if error::has_code(&error, 409) => Ok(()), // named after what it says: it is the same
            Err(error) => Err(ApiError::new(format!("write entry {} of the ledger", entry.name()), error)),
        }
    }

    async fn remove(&self, entry: &CloudResource) -> Result<(), ApiError> {
        match self.entries().delete(entry.name(), &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(error) if error::is_not_found(&error, entry.name()) => Ok(()),
            Err(error) => Err(ApiError::new(format!("remove entry {} of the ledger", entry.name()), error)),
        }
    }
}

/// `route-` and 16 hex digits that follow from the parts.
fn entry_name(kind: &str, parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}-{digits}")
}

/// The route of an entry of this name.
pub fn parse_route(name: &str) -> Option<Route> {
    let (destination, next_hop) = name.split_once(" via ")?;
    Some(Route::new(destination, next_hop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_content_and_routes_can_be_read_back() {
        let route = Route::new("10.244.1.0/24", "10.0.0.5");
        assert_eq!(parse_route(&route.to_string()), Some(route));
        assert_eq!(parse_route("nonsense"), None);
        let name = entry_name("route", &["own", "cloud", "router", "a"]);
        assert_eq!(name, entry_name("route", &["own", "cloud", "router", "a"]));
        assert_ne!(name, entry_name("route", &["own", "cloud", "routera", ""]), "parts do not run together");
        assert_eq!(name.len(), "route-".len() + 16);
    }
}
