//! The controller of Services of type LoadBalancer: observes, and carries out what [`plan`](super::plan) says.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use mainstay_api::cloud::cloud_resource::{ResourceOwner, ResourceType};
use mainstay_controllers::runtime::{ApiError, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, error};
use mainstay_events::EventNote;
use parking_lot::Mutex;
use serde_json::json;

use super::{
    observe::{external_network, observe_address, observe_balancer, subnet_of_address},
    plan::{self, Action, FINALIZER, IngressStatus, ServiceView, World, internal_address, member_nodes},
};
use crate::{
    context::CloudContext,
    ledger::{
        Intent, LedgerEntry, Removal,
        drivers::{FloatingIpDriver, LoadBalancerDriver},
    },
    openstack::{
        CloudError, Session,
        load_balancer::{NewHealthMonitor, NewListener, NewLoadBalancer, NewMember, NewPool},
        network::{NewFloatingIp, Subnet},
    },
};

const COMPONENT: &str = "service-controller";

pub struct LoadBalancers {
    context: Arc<CloudContext>,
    /// Where load balancers are, once that is known.
    place: Mutex<Option<BalancerNetwork>>,
}

#[derive(Clone, Debug)]
struct BalancerNetwork {
    subnet: Subnet,
    floating_network: Option<String>,
}

#[derive(Debug, thiserror::Error)]
enum NetworkError {
    #[error("no node has an internal address yet: the subnet of load balancers is not known")]
    AddressUnknown,
    #[error(
        "no subnet of the project holds the node address {0}: name the subnet of load balancers (--cloud-lb-subnet)"
    )]
    SubnetUnknown(IpAddr),
    #[error("there is no subnet {0} (--cloud-lb-subnet)")]
    NoSuchSubnet(String),
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<LoadBalancers>();
    let concerns_us = |service: &Service| {
        let is_balancer = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
        is_balancer || service.metadata.finalizers.iter().flatten().any(|own| own == FINALIZER)
    };
    context.caches.services.on_change({
        let queue = queue.clone();
        move |change| {
            if [change.before, change.after].into_iter().flatten().any(concerns_us) {
                queue.add(change.key.clone());
            }
        }
    });
    // Entries whose Service vanished have nobody else who would look.
    context.caches.resources.on_change({
        let queue = queue.clone();
        move |change| {
            let Some(entry) = change.latest().filter(|_| !change.own) else { return };
            if entry.spec.owner.kind == "Service" {
                queue.add(ObjectKey::new(&entry.spec.owner.namespace, &entry.spec.owner.name));
            }
        }
    });
    context.caches.nodes.on_change({
        let (queue, services) = (queue.clone(), context.caches.services.clone());
        move |change| {
            let members = |node: Option<&_>| member_nodes(node.into_iter());
            if members(change.before) != members(change.after) {
                for service in services.select(concerns_us) {
                    queue.add(ObjectKey::from_meta(&service.metadata));
                }
            }
        }
    });
    let controller = LoadBalancers { context: context.clone(), place: Mutex::default() };
    context.runnable(Arc::new(controller), queue, Limits::default())
}

fn in_cloud(doing: impl Into<String>) -> impl FnOnce(CloudError) -> ApiError {
    move |source| ApiError::other(doing, source)
}

impl LoadBalancers {
    fn session(&self) -> Result<Session, ApiError> {
        self.context.clouds.own_session().map_err(|error| ApiError::other("read the configuration of the cloud", error))
    }

    /// The entries of a Service of this name: of this uid, and of earlier ones.
    fn entries(&self, key: &ObjectKey, uid: Option<&str>) -> (Vec<LedgerEntry>, Vec<LedgerEntry>) {
        let of_name = self.context.caches.resources.select(|entry| {
            let owner = &entry.spec.owner;
            owner.kind == "Service" && owner.namespace == key.namespace && owner.name == key.name
        });
        let mut entries: Vec<_> = of_name.iter().map(|entry| LedgerEntry::from((**entry).clone())).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries.into_iter().partition(|entry| uid.is_none_or(|uid| entry.owner.uid == uid))
    }

    fn intent(&self, key: &ObjectKey, uid: &str, resource: ResourceType, project: String) -> Intent {
        let cluster = self.context.ledger.cluster();
        let owner = ResourceOwner {
            api_version: "v1".to_owned(),
            kind: "Service".to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: uid.to_owned(),
        };
        // As upstream's cloud provider names them; Neutron and Octavia take 255 characters.
        let name = format!("kube_service_{cluster}_{}_{}", key.namespace, key.name);
        Intent {
            cloud: self.context.clouds.own_name().to_owned(),
            project,
            resource,
            name: name.chars().take(255).collect(),
            owner,
            ..Intent::default()
        }
    }

    async fn balancer_network(&self, session: &Session) -> Result<BalancerNetwork, ApiError> {
        if let Some(place) = self.place.lock().clone() {
            return Ok(place);
        }
        let doing = "find the subnet of load balancers";
        let configured = &self.context.network;
        let subnet = match &configured.load_balancer_subnet {
            Some(id) => {
                let found = session.network().show_subnet(id).await.map_err(in_cloud(doing))?;
                found.ok_or_else(|| ApiError::other(doing, NetworkError::NoSuchSubnet(id.clone())))?
            }
            None => {
                let nodes = self.context.caches.nodes.all();
                // Of any node: that all are silent must not keep load balancers from being made or changed.
                let address = nodes.iter().find_map(|node| internal_address(node)?.parse::<IpAddr>().ok());
                let address = address.ok_or_else(|| ApiError::other(doing, NetworkError::AddressUnknown))?;
                let subnets = session.network().list_subnets(None).await.map_err(in_cloud(doing))?;
                let found = subnet_of_address(&subnets, address).cloned();
                found.ok_or_else(|| ApiError::other(doing, NetworkError::SubnetUnknown(address)))?
            }
        };
        let floating_network = match &configured.floating_network {
            Some(id) => Some(id.clone()),
            None => external_network(session, &subnet).await.map_err(in_cloud(doing))?,
        };
        let place = BalancerNetwork { subnet, floating_network };
        *self.place.lock() = Some(place.clone());
        Ok(place)
    }

    fn balancer_driver(&self, session: &Session, subnet: &str, name: &str) -> LoadBalancerDriver {
        let balancer =
            NewLoadBalancer { name: name.to_owned(), vip_subnet_id: subnet.to_owned(), ..NewLoadBalancer::default() };
        LoadBalancerDriver { session: session.clone(), balancer }
    }

    async fn remove(&self, session: &Session, entry: &LedgerEntry) -> Result<(), ApiError> {
        let removal = match entry.resource {
            ResourceType::FloatingIP => {
                let driver = FloatingIpDriver { session: session.clone(), address: NewFloatingIp::default() };
                self.context.ledger.remove(entry, &driver).await
            }
            _ => self.context.ledger.remove(entry, &self.balancer_driver(session, "", "")).await,
        };
        match removal {
            Ok(Removal::Done | Removal::Pending) => Ok(()),
            Err(error) if error.settles_at().is_some() => Ok(()), // looked at again soon
            Err(error) => Err(error.into_api_error(format!("remove {:?} {}", entry.resource, entry.cloud_name))),
        }
    }

    /// Ends the entry of something that is gone in the cloud, so that it is created anew.
    async fn forget(&self, session: &Session, entry: &LedgerEntry) -> Result<(), ApiError> {
        let forgotten = match entry.resource {
            ResourceType::FloatingIP => {
                let driver = FloatingIpDriver { session: session.clone(), address: NewFloatingIp::default() };
                self.context.ledger.forget_gone(entry, &driver).await
            }
            _ => self.context.ledger.forget_gone(entry, &self.balancer_driver(session, "", "")).await,
        };
        let forgotten = forgotten
            .map_err(|error| error.into_api_error(format!("look for {:?} {}", entry.resource, entry.cloud_name)))?;
        if !forgotten {
            tracing::warn!(entry = entry.name, "the cloud did not show a resource that it has: its answers are stale");
        }
        Ok(())
    }

    fn record_event(&self, key: &ObjectKey, uid: &str, note: EventNote) {
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.context.events.record_as(COMPONENT, involved, note);
    }

    async fn ensure(&self, key: &ObjectKey, uid: &str, action: &Action) -> Result<(), ApiError> {
        let session = self.session()?;
        let project = session.project_id().await.map_err(in_cloud("log in"))?;
        let ensured = match action {
            Action::EnsureBalancer => {
                let place = self.balancer_network(&session).await?;
                let intent = self.intent(key, uid, ResourceType::LoadBalancer, project);
                self.record_event(key, uid, EventNote::normal("EnsuringLoadBalancer", "Ensuring load balancer"));
                let driver = self.balancer_driver(&session, &place.subnet.id, &intent.name);
                self.context.ledger.ensure(&intent, &driver).await
            }
            Action::EnsureAddress { network, port } => {
                let intent = self.intent(key, uid, ResourceType::FloatingIP, project);
                let address = NewFloatingIp {
                    floating_network_id: network.clone(),
                    port_id: Some(port.clone()),
                    ..NewFloatingIp::default()
                };
                self.context.ledger.ensure(&intent, &FloatingIpDriver { session, address }).await
            }
            _ => return Ok(()),
        };
        match ensured {
            Ok(_) => Ok(()),
            Err(error) if error.settles_at().is_some() => Ok(()),
            Err(error) => Err(error.into_api_error("create what the Service needs in the cloud")),
        }
    }

    async fn change(&self, key: &ObjectKey, uid: &str, action: Action) -> Result<(), ApiError> {
        let session = self.session()?;
        let client = session.load_balancer();
        let entry = |resource| {
            let (current, _) = self.entries(key, Some(uid));
            current.into_iter().find(|entry| entry.resource == resource)
        };
        let balancer = entry(ResourceType::LoadBalancer).and_then(|entry| entry.id).unwrap_or_default();
        let restriction = |allowed: &BTreeSet<String>| (!allowed.is_empty()).then(|| allowed.iter().cloned().collect());
        let result = match action {
            Action::CreateListener { protocol, port, allowed } => {
                let name = format!("{}-{port}", protocol.to_lowercase());
                let allowed_cidrs = restriction(&allowed);
                let (loadbalancer_id, protocol_port) = (balancer, port);
                let listener = NewListener { loadbalancer_id, name, protocol, protocol_port, allowed_cidrs };
                client.create_listener(&listener).await.map(drop)
            }
            Action::RestrictListener { id, allowed } => {
                client.update_listener(&id, &json!({"allowed_cidrs": restriction(&allowed)})).await
            }
            Action::DeleteListener { id } => {
                // Its pool stays otherwise.
                let listeners = client.list_listeners(&balancer).await.map_err(in_cloud("list listeners"))?;
                let pool = listeners.into_iter().find(|own| own.id == id).and_then(|own| own.default_pool_id);
                match pool {
                    Some(pool) => client.delete_pool(&pool).await.map(drop),
                    None => client.delete_listener(&id).await.map(drop),
                }
            }
            Action::CreatePool { listener, protocol, name } => {
                let pool = NewPool {
                    listener_id: listener,
                    name,
                    protocol,
                    lb_algorithm: "ROUND_ROBIN".to_owned(),
                    session_persistence: None,
                };
                client.create_pool(&pool).await.map(drop)
            }
            Action::CreateMonitor { pool, protocol } => {
                let monitor_type = if protocol == "UDP" { "UDP-CONNECT" } else { "TCP" }.to_owned();
                let monitor = NewHealthMonitor {
                    pool_id: pool,
                    monitor_type,
                    delay: 5,
                    timeout: 3,
                    max_retries: 2,
                    url_path: None,
                };
                client.create_health_monitor(&monitor).await
            }
            Action::SetMembers { pool, port, nodes } => {
                let subnet = self.balancer_network(&session).await?.subnet.id;
                let members: Vec<_> = nodes
                    .into_iter()
                    .map(|(name, address)| NewMember {
                        name,
                        address,
                        protocol_port: port,
                        subnet_id: Some(subnet.clone()),
                    })
                    .collect();
                client.set_members(&pool, &members).await
            }
            Action::AssociateAddress { id, port } => {
                session.network().associate_floating_ip(&id, Some(&port)).await.map(drop)
            }
            _ => Ok(()),
        };
        match result {
            // Being changed by somebody else: the next look tells when it is over.
            Err(error) if error.is_conflict() => Ok(()),
            other => other.map_err(in_cloud("change the load balancer")),
        }
    }
}

impl Controller for LoadBalancers {
    const NAME: &'static str = "service-lb";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = IngressStatus;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let service = self.context.caches.services.get(key);
        let service = service.as_deref().map(ServiceView::from);
        let uid = service.as_ref().map(|service| service.uid.as_str());
        let (current, stale) = self.entries(key, uid);
        if service.as_ref().is_none_or(|service| !service.is_wanted) && current.is_empty() && stale.is_empty() {
            return Ok(service.map(|service| World {
                service: Some(service),
                pace: self.context.pace,
                ..World::default()
            }));
        }
        let session = self.session()?;
        let find = |resource| current.iter().find(|entry| entry.resource == resource);
        let doing = || format!("look at the load balancer of Service {key:?}");
        let balancer = observe_balancer(&session, find(ResourceType::LoadBalancer)).await.map_err(in_cloud(doing()))?;
        let address = observe_address(&session, find(ResourceType::FloatingIP)).await.map_err(in_cloud(doing()))?;
        let is_wanted = service.as_ref().is_some_and(|service| service.is_wanted);
        let mut floating_network = None;
        if is_wanted && matches!(balancer, plan::Observed::Present(_)) {
            floating_network = self.balancer_network(&session).await?.floating_network;
        }
        let nodes = self.context.caches.nodes.all();
        Ok(Some(World {
            service,
            nodes: member_nodes(nodes.iter().map(|node| &**node)),
            balancer,
            address,
            floating_network,
            stale_entries: stale.into_iter().map(|entry| entry.name).collect(),
            pace: self.context.pace,
        }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, IngressStatus> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let service = self.context.caches.services.get(key);
        let uid = service.as_ref().and_then(|service| service.metadata.uid.clone());
        let (current, stale) = self.entries(key, uid.as_deref());
        let uid = uid.unwrap_or_default();
        let remove = async |resource| match current.iter().find(|entry| entry.resource == resource) {
            Some(entry) => self.remove(&self.session()?, entry).await,
            None => Ok(()),
        };
        let forget = async |resource| match current.iter().find(|entry| entry.resource == resource) {
            Some(entry) => self.forget(&self.session()?, entry).await,
            None => Ok(()),
        };
        let result = match action {
            Action::SetFinalizers { version, finalizers } => {
                let services: Api<Service> = Api::namespaced(self.context.client.clone(), &key.namespace);
                let is_removal = !finalizers.iter().any(|own| own == FINALIZER);
                let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                match services.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    Ok(written) => {
                        if is_removal {
                            self.record_event(
                                key,
                                &uid,
                                EventNote::normal("DeletedLoadBalancer", "Deleted load balancer"),
                            );
                        }
                        // One that is gone with its finalizer is told by the watch.
                        if written.metadata.deletion_timestamp.is_none() {
                            self.context.caches.services.wrote(written);
                        }
                        Ok(())
                    }
                    Err(failure) if error::has_code(&failure, 404) => Ok(()),
                    Err(failure) => Err(ApiError::new(format!("set the finalizers of Service {key:?}"), failure)),
                }
            }
            Action::RemoveBalancer => remove(ResourceType::LoadBalancer).await,
            Action::RemoveAddress => remove(ResourceType::FloatingIP).await,
            Action::ForgetBalancer => forget(ResourceType::LoadBalancer).await,
            Action::ForgetAddress => forget(ResourceType::FloatingIP).await,
            Action::RemoveStale { entry } => match stale.iter().find(|own| own.name == entry) {
                Some(entry) => self.remove(&self.session()?, entry).await,
                None => Ok(()),
            },
            ensure @ (Action::EnsureBalancer | Action::EnsureAddress { .. }) => self.ensure(key, &uid, &ensure).await,
            change => self.change(key, &uid, change).await,
        };
        if let Err(error) = &result
            && !uid.is_empty()
        {
            let message = format!("Error syncing load balancer: {}", error.chain());
            self.record_event(key, &uid, EventNote::warning("SyncLoadBalancerFailed", message));
        }
        result
    }

    async fn report(&self, key: &ObjectKey, status: IngressStatus, _: &Outcomes<()>) -> Result<(), ApiError> {
        let IngressStatus { version, addresses } = status;
        let ingress: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        let patch = json!({"metadata": {"resourceVersion": version}, "status": {"loadBalancer": {"ingress": ingress}}});
        let services: Api<Service> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match services.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(written) => {
                if !addresses.is_empty() {
                    let uid = written.metadata.uid.clone().unwrap_or_default();
                    self.record_event(key, &uid, EventNote::normal("EnsuredLoadBalancer", "Ensured load balancer"));
                }
                self.context.caches.services.wrote(written);
                Ok(())
            }
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("write the status of Service {key:?}"), failure)),
        }
    }
}
