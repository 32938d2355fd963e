//! `spec.providerID` of nodes: the Nova server that a node is, found by its address, as upstream's cloud controller sets it.
//!
//! It is set once and never changed: the API refuses another. A node whose address no server of the project has, or several, is left without.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Plan, Runnable, error};
use serde_json::json;

use crate::{
    context::{CloudContext, Pace},
    openstack::compute::ServerFilter,
};

pub struct ProviderIds {
    context: Arc<CloudContext>,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<ProviderIds>();
    context.caches.nodes.on_change({
        let queue = queue.clone();
        move |change| {
            let addresses = |node: Option<&Node>| node.map(internal_addresses).unwrap_or_default();
            let is_new = change.before.is_none() || addresses(change.before) != addresses(change.after);
            if is_new && change.after.is_some_and(|node| !has_provider_id(node)) {
                queue.add(change.key.name.clone());
            }
        }
    });
    context.runnable(Arc::new(ProviderIds { context: context.clone() }), queue, Limits::default())
}

fn has_provider_id(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).is_some_and(|id| !id.is_empty())
}

fn internal_addresses(node: &Node) -> Vec<String> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.filter(|address| address.type_ == "InternalIP").map(|address| address.address.clone()).collect()
}

/// A server of the project, as far as it tells which node it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerView {
    id: String,
    name: String,
    addresses: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct World {
    name: String,
    version: String,
    addresses: Vec<String>,
    servers: Vec<ServerView>,
    pace: Pace,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SetProviderId {
    version: String,
    server: String,
}

fn plan(world: &World, now: Timestamp) -> Plan<SetProviderId, ()> {
    let has_address = |server: &&ServerView| server.addresses.iter().any(|own| world.addresses.contains(own));
    let mut found: Vec<&ServerView> = world.servers.iter().filter(has_address).collect();
    if found.len() > 1 {
        // Networks of a project may have the same addresses.
        found.retain(|server| server.name == world.name);
    }
    match found[..] {
        [server] => Plan::act([SetProviderId { version: world.version.clone(), server: server.id.clone() }]),
        _ => Plan { requeue_at: Some(now + world.pace.resync), ..Plan::default() },
    }
}

impl Controller for ProviderIds {
    const NAME: &'static str = "provider-ids";
    type Key = String;
    type World = World;
    type Action = SetProviderId;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let node = self.context.caches.nodes.get(&ObjectKey::new("", name));
        let Some(node) = node.filter(|node| !has_provider_id(node)) else { return Ok(None) };
        let session = self.context.clouds.own_session();
        let session = session.map_err(|error| ApiError::other("read the configuration of the cloud", error))?;
        let servers = session.compute().list_servers(&ServerFilter::default()).await;
        let servers = servers.map_err(|error| ApiError::other("list servers", error))?;
        let servers = servers.into_iter().map(|server| ServerView {
            addresses: server.all_addresses().map(str::to_owned).collect(),
            id: server.id,
            name: server.name,
        });
        Ok(Some(World {
            name: name.clone(),
            version: node.metadata.resource_version.clone().unwrap_or_default(),
            addresses: internal_addresses(&node),
            servers: servers.collect(),
            pace: self.context.pace,
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<SetProviderId, ()> {
        plan(world, now)
    }

    async fn apply(&self, name: &String, SetProviderId { version, server }: SetProviderId) -> Result<(), ApiError> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let id = format!("openstack:///{server}");
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"providerID": id}});
        match nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => {
                self.context.caches.nodes.wrote(written);
                Ok(())
            }
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("set spec.providerID of node {name}"), failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: &str, name: &str, address: &str) -> ServerView {
        ServerView { id: id.into(), name: name.into(), addresses: vec![address.into()] }
    }

    #[test]
    fn a_node_is_the_one_server_with_its_address() {
        let now = Timestamp::UNIX_EPOCH;
        let found = |servers: Vec<ServerView>| {
            let addresses = vec!["10.0.0.5".to_owned()];
            let world = World { name: "a".into(), version: "7".into(), addresses, servers, pace: Pace::default() };
            plan(&world, now).actions.into_iter().next().map(|action| action.server)
        };
        assert_eq!(found(vec![server("1", "x", "10.0.0.5"), server("2", "a", "10.0.0.6")]).as_deref(), Some("1"));
        assert_eq!(found(vec![server("1", "x", "10.0.0.5"), server("2", "a", "10.0.0.5")]).as_deref(), Some("2"));
        assert_eq!(found(vec![server("1", "x", "10.0.0.5"), server("2", "y", "10.0.0.5")]), None);
        assert_eq!(found(vec![server("1", "a", "10.0.0.6")]), None, "a name alone says nothing");
    }
}
