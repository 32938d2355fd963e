//! The calls about routes and address pairs, each harmless when repeated.
//!
//! Routes are added and removed by Neutron's atomic calls (`add_extraroutes`, `remove_extraroutes`), which no other writer can undo. A cloud
//! without them gets the whole list, fenced by its revision (`If-Match`); so do the address pairs of a port, which are always written whole. A
//! write that a revision refuses (412) is decided anew on what is there now, up to five times.

use std::{collections::BTreeSet, net::IpAddr};

use super::view::Route;
use crate::openstack::{
    CloudError, Session,
    compute::ServerFilter,
    network::{AddressPair, NetworkClient, Port, PortFilter, Router, RouterRoute},
};

/// How often a write is tried that a newer revision refuses.
const TRIES: usize = 5;

#[derive(Clone)]
pub struct RouterClient {
    session: Session,
    network: NetworkClient,
    router: String,
}

/// Why routes were not added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    #[error("the router takes no further routes")]
    Exhausted {
        /// How many it takes, if it says so.
        limit: Option<usize>,
        #[source]
        source: CloudError,
    },
    /// The routes are refused as such: a next hop on no network of the router, say.
    #[error("the router refuses the route")]
    Refused(#[source] CloudError),
    #[error("cannot add routes")]
    Other(#[source] CloudError),
}

impl RouterClient {
    pub fn new(session: &Session, router: &str) -> Self {
        Self { session: session.clone(), network: session.network(), router: router.to_owned() }
    }

    pub fn router(&self) -> &str {
        &self.router
    }

    pub async fn show(&self) -> Result<Option<Router>, CloudError> {
        self.network.show_router(&self.router).await
    }

    /// Ports of the router's project, the router's own among them.
    pub async fn list_ports(&self, project: &str) -> Result<Vec<Port>, CloudError> {
        let mut ports = self.network.list_ports(&PortFilter::default()).await?;
        ports.retain(|port| port.project_id.is_empty() || port.project_id == project);
        Ok(ports)
    }

    /// The addresses of all servers of the project, in every state, fixed and floating.
    pub async fn server_addresses(&self) -> Result<BTreeSet<IpAddr>, CloudError> {
        let servers = self.session.compute().list_servers(&ServerFilter::default()).await?;
        let addresses = servers.iter().flat_map(|server| server.all_addresses());
        Ok(addresses.filter_map(|address| address.parse().ok()).collect())
    }

    pub async fn add(&self, routes: &[Route]) -> Result<(), AddError> {
        let added = match self.network.add_routes(&self.router, &to_neutron(routes)).await {
            Err(error) if error.is_not_found() => self.rewrite(|all| all.union(&set(routes)).cloned().collect()).await,
            added => added.map(drop),
        };
        added.map_err(classify)
    }

    pub async fn remove(&self, routes: &[Route]) -> Result<(), CloudError> {
        match self.network.remove_routes(&self.router, &to_neutron(routes)).await {
            Err(error) if error.is_not_found() => {
                self.rewrite(|all| all.difference(&set(routes)).cloned().collect()).await
            }
            removed => removed.map(drop),
        }
    }

    /// Replaces the whole list of routes, as a function of what it is; a router that is gone has none.
    async fn rewrite(&self, change: impl Fn(&BTreeSet<Route>) -> BTreeSet<Route>) -> Result<(), CloudError> {
        let mut tries = 0;
        loop {
            let Some(router) = self.show().await? else { return Ok(()) };
            let before: BTreeSet<Route> = routes_of(&router).into_iter().collect();
            let after = change(&before);
            if after == before {
                return Ok(());
            }
            let after: Vec<Route> = after.into_iter().collect();
            tries += 1;
            match self.network.set_routes(&self.router, router.revision_number, &to_neutron(&after)).await {
                Err(error) if error.status() == Some(412) && tries < TRIES => {}
                written => return written.map(drop),
            }
        }
    }

    /// Lets a port use a range besides its own addresses.
    pub async fn allow(&self, port: &str, range: &str) -> Result<(), CloudError> {
        self.change_pairs(port, |pairs| {
            let has_range = pairs.iter().any(|pair| pair.ip_address == range);
            (!has_range).then(|| pairs.iter().cloned().chain([pair(range)]).collect())
        })
        .await
    }

    /// Takes the range off it; other pairs stay as they are.
    pub async fn disallow(&self, port: &str, range: &str) -> Result<(), CloudError> {
        let gone = self.change_pairs(port, |pairs| {
            let left: Vec<AddressPair> = pairs.iter().filter(|pair| pair.ip_address != range).cloned().collect();
            (left.len() < pairs.len()).then_some(left)
        });
        match gone.await {
            Err(error) if error.is_not_found() => Ok(()),
            changed => changed,
        }
    }

    async fn change_pairs(
        &self,
        port: &str,
        change: impl Fn(&[AddressPair]) -> Option<Vec<AddressPair>>,
    ) -> Result<(), CloudError> {
        let mut tries = 0;
        loop {
            let Some(current) = self.network.show_port(port).await? else {
                // The write says that there is none, in the cloud's own words.
                return self.network.set_address_pairs(port, 0, &[]).await.map(drop);
            };
            let Some(pairs) = change(&current.allowed_address_pairs) else { return Ok(()) };
            tries += 1;
            match self.network.set_address_pairs(port, current.revision_number, &pairs).await {
                Err(error) if error.status() == Some(412) && tries < TRIES => {}
                written => return written.map(drop),
            }
        }
    }
}

/// A router's routes, as decisions see them.
pub fn routes_of(router: &Router) -> Vec<Route> {
    router.routes.iter().map(|route| Route::new(&route.destination, &route.nexthop)).collect()
}

fn to_neutron(routes: &[Route]) -> Vec<RouterRoute> {
    let route = |route: &Route| RouterRoute { destination: route.destination.clone(), nexthop: route.next_hop.clone() };
    routes.iter().map(route).collect()
}

fn set(routes: &[Route]) -> BTreeSet<Route> {
    routes.iter().cloned().collect()
}

fn pair(range: &str) -> AddressPair {
    AddressPair { ip_address: range.to_owned(), mac_address: None }
}

/// Neutron answers 400 at its limit, other services behind its API 409.
fn classify(error: CloudError) -> AddError {
    let text = error.message().to_ascii_lowercase();
    let is_exhausted = error.kind() == Some("RoutesExhausted") || text.contains("number of routes exceeds");
    match error.status() {
        Some(400 | 409) if is_exhausted => AddError::Exhausted { limit: parse_limit(&error.message()), source: error },
        Some(400 | 404 | 422) => AddError::Refused(error),
        _ => AddError::Other(error),
    }
}

/// The number at the end of `The number of routes exceeds the maximum 30.`
fn parse_limit(message: &str) -> Option<usize> {
    let (_, after) = message.rsplit_once("maximum ")?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::{Service, error::Call};

    fn refused(status: u16, kind: Option<&str>, message: &str) -> CloudError {
        let call =
            Call { service: Service::Network, operation: "add routes", method: "PUT", path: "/routers/r".to_owned() };
        let (kind, message) = (kind.map(str::to_owned), message.to_owned());
        CloudError::Refused { call, status, kind, message, retry_after: None }
    }

    #[test]
    fn a_full_router_is_told_by_400_and_by_409() {
        let words = "Unable to complete operation for r. The number of routes exceeds the maximum 30.";
        for status in [400, 409] {
            let AddError::Exhausted { limit, .. } = classify(refused(status, Some("RoutesExhausted"), words)) else {
                panic!("{status}")
            };
            assert_eq!(limit, Some(30));
        }
        let without_kind = classify(refused(409, None, words));
        assert!(matches!(without_kind, AddError::Exhausted { limit: Some(30), .. }));
        let without_number = classify(refused(400, Some("RoutesExhausted"), "full"));
        assert!(matches!(without_number, AddError::Exhausted { limit: None, .. }));
        assert!(matches!(classify(refused(400, Some("InvalidRoutes"), "not connected")), AddError::Refused(_)));
        assert!(matches!(classify(refused(409, None, "busy")), AddError::Other(_)));
        assert!(matches!(classify(refused(503, None, "down")), AddError::Other(_)));
    }
}
