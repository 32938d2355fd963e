//! What this machine knows of Services, EndpointSlices and Nodes, indexed for the data paths and for DNS.
//!
//! It is fed from the API and read by two: the choice of backends, and DNS for every query. Nothing here waits for
//! anybody, so Services and their names work for as long as this process lives.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{Hash, Hasher},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;

use crate::journal::Protocol;

/// How long a connection is held unless its Service says otherwise.
pub const HOLD: Duration = Duration::from_secs(10);

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub kind: ServiceKind,
    pub ports: Vec<ServicePort>,
    /// `externalIPs` and load balancer addresses.
    pub external_ips: Vec<Ipv4Addr>,
    /// Session affinity: a client keeps its backend for so long after its last connection.
    pub affinity: Option<Duration>,
    /// `internalTrafficPolicy` and `externalTrafficPolicy` are `Local`.
    pub internal_local: bool,
    pub external_local: bool,
    /// How long a connection is held while there is no backend.
    pub hold: Duration,
    /// All connections go through the user-space proxy, not only those that are held.
    pub through_user_space: bool,
    /// `publishNotReadyAddresses`
    pub publish_not_ready: bool,
    /// Labelled `service.kubernetes.io/service-proxy-name` or `service.kubernetes.io/headless`: another proxy forwards
    /// its connections, or nobody does. It has its names in DNS all the same.
    pub has_other_proxy: bool,
    /// Consul tags: `<tag>.<service>.service.<datacentre>.<domain>`.
    pub tags: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    ClusterIp(Ipv4Addr),
    Headless,
    ExternalName(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty for an unnamed port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

/// An EndpointSlice: endpoints that all have the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The Service, in the namespace of the slice.
    pub service: Arc<str>,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<Endpoint>,
    /// Of a program that is not a pod; mostly none.
    pub host: Option<Box<HostInstance>>,
}

/// What only an instance of a service has that runs on a machine itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInstance {
    /// Consul tags of this instance, besides those of its Service.
    pub tags: Box<[Arc<str>]>,
    /// Interfaces of the machine and their addresses.
    pub interfaces: Box<[(Arc<str>, Ipv4Addr)]>,
}

impl Slice {
    pub fn has_tag(&self, tag: &str) -> bool {
        self.host.as_ref().is_some_and(|host| host.tags.iter().any(|own| own.eq_ignore_ascii_case(tag)))
    }

    /// The addresses of an interface of the machine that the instance runs on.
    pub fn interface_addresses(&self, interface: &str) -> impl Iterator<Item = Ipv4Addr> {
        let all = self.host.iter().flat_map(|host| host.interfaces.iter());
        all.filter(move |(name, _)| name.eq_ignore_ascii_case(interface)).map(|(_, address)| *address)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The name of the Service's port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: Ipv4Addr,
    pub ready: bool,
    /// Able to answer, whether or not it is terminating.
    pub serving: bool,
    pub terminating: bool,
    /// `nodeName`
    pub node: Option<Arc<str>>,
    /// Its name within a headless Service.
    pub hostname: Option<Arc<str>>,
    /// Mostly none.
    pub hints: Option<Box<TopologyHints>>,
}

/// From where an endpoint is to be used, if it can be chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyHints {
    /// `forZones`
    pub zones: Box<[Arc<str>]>,
    /// `forNodes`
    pub nodes: Box<[Arc<str>]>,
}

/// A [`Key`], or namespace and name that are looked up: a lookup copies nothing.
trait NamespacedName {
    fn parts(&self) -> (&str, &str);
}

impl NamespacedName for Key {
    fn parts(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl NamespacedName for (&str, &str) {
    fn parts(&self) -> (&str, &str) {
        *self
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl Hash for dyn NamespacedName + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for dyn NamespacedName + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn NamespacedName + '_ {}

impl<'a> Borrow<dyn NamespacedName + 'a> for Key {
    fn borrow(&self) -> &(dyn NamespacedName + 'a) {
        self
    }
}

/// What has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressOwner {
    Service(Key),
    /// An endpoint of this slice.
    Slice(Key),
}

/// Everything state, at one moment.
#[derive(Debug, Default)]
pub struct CatalogueState {
    services: HashMap<Key, Service>,
    slices: HashMap<Key, Slice>,
    /// Slices by their Service.
    slices_of: HashMap<Key, BTreeSet<Key>>,
    by_address: HashMap<Ipv4Addr, Vec<AddressOwner>>,
    /// Slices by the hostnames of their endpoints.
    by_hostname: HashMap<Arc<str>, Vec<Key>>,
    /// Services by name, whatever their namespace.
    by_name: HashMap<Arc<str>, BTreeSet<Key>>,
    /// Number of Services by namespace.
    namespaces: HashMap<Arc<str>, usize>,
    machines: BTreeMap<Arc<str>, Ipv4Addr>,
    machines_at: BTreeSet<(Ipv4Addr, Arc<str>)>,
    is_complete: bool,
}

impl CatalogueState {
    /// Whether all Services and slices were taken in once. Until then what is not here may exist all the same.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub fn service(&self, key: &Key) -> Option<&Service> {
        self.services.get(key)
    }

    /// Looks a Service up without making a [`Key`] first.
    pub fn service_named(&self, namespace: &str, name: &str) -> Option<(&Key, &Service)> {
        self.services.get_key_value(&(namespace, name) as &dyn NamespacedName)
    }

    pub fn services(&self) -> impl Iterator<Item = (&Key, &Service)> {
        self.services.iter()
    }

    /// Services of this name, in the order of their namespaces.
    pub fn services_named(&self, name: &str) -> impl Iterator<Item = (&Key, &Service)> {
        let keys = self.by_name.get(name).into_iter().flatten();
        keys.filter_map(|key| self.services.get_key_value(key))
    }

    /// Whether the namespace has a Service.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// In the order of their names.
    pub fn slices_of(&self, service: &Key) -> impl Iterator<Item = &Slice> {
        let names = self.slices_of.get(service).into_iter().flatten();
        names.filter_map(|name| self.slices.get(name))
    }

    pub fn slice(&self, name: &Key) -> Option<&Slice> {
        self.slices.get(name)
    }

    pub fn slices(&self) -> impl Iterator<Item = (&Key, &Slice)> {
        self.slices.iter()
    }

    /// Services with this cluster IP.
    pub fn services_at(&self, address: Ipv4Addr) -> impl Iterator<Item = &Key> {
        self.owners(address).filter_map(|place| match place {
            AddressOwner::Service(key) => Some(key),
            AddressOwner::Slice(_) => None,
        })
    }

    /// Endpoints with this address, each with its Service, if that exists.
    pub fn backends_at(&self, address: Ipv4Addr) -> impl Iterator<Item = (&Key, &Service, &Endpoint)> {
        let slices = self.owners(address).filter_map(|place| match place {
            AddressOwner::Service(_) => None,
            AddressOwner::Slice(key) => Some((key, self.slices.get(key)?)),
        });
        slices.filter_map(|(key, slice)| Some((slice, self.service_named(&key.namespace, &slice.service)?))).flat_map(
            move |(slice, (key, service))| {
                let here = slice.endpoints.iter().filter(move |endpoint| endpoint.address == address);
                here.map(move |endpoint| (key, service, endpoint))
            },
        )
    }

    /// Endpoints of a Service with this hostname.
    pub fn backends_with_hostname(&self, service: &Key, hostname: &str) -> impl Iterator<Item = &Endpoint> {
        let slices = self.by_hostname.get(hostname).into_iter().flatten();
        let slices = slices.filter(|key| key.namespace == service.namespace).filter_map(|key| self.slices.get(key));
        let endpoints = slices.filter(|slice| slice.service == service.name).flat_map(|slice| &slice.endpoints);
        endpoints.filter(move |endpoint| endpoint.hostname.as_deref() == Some(hostname))
    }

    pub fn machine(&self, name: &str) -> Option<Ipv4Addr> {
        self.machines.get(name).copied()
    }

    pub fn machines(&self) -> impl Iterator<Item = (&Arc<str>, Ipv4Addr)> {
        self.machines.iter().map(|(name, address)| (name, *address))
    }

    /// The names of the machines that have this address.
    pub fn machines_at(&self, address: Ipv4Addr) -> impl Iterator<Item = &Arc<str>> {
        let from = (address, Arc::from(""));
        self.machines_at.range(from..).take_while(move |(at, _)| *at == address).map(|(_, name)| name)
    }

    fn owners(&self, address: Ipv4Addr) -> impl Iterator<Item = &AddressOwner> {
        self.by_address.get(&address).into_iter().flatten()
    }

    fn set_service(&mut self, key: Key, service: Option<Service>) {
        let old = self.services.remove(&key);
        if let Some(Service { kind: ServiceKind::ClusterIp(address), .. }) = old {
            remove_from(&mut self.by_address, &address, &AddressOwner::Service(key.clone()));
        }
        match (&old, &service) {
            (None, Some(_)) => {
                self.by_name.entry(key.name.clone()).or_default().insert(key.clone());
                *self.namespaces.entry(key.namespace.clone()).or_default() += 1;
            }
            (Some(_), None) => self.forget_name(&key),
            (None, None) | (Some(_), Some(_)) => {}
        }
        if let Some(service) = service {
            if let ServiceKind::ClusterIp(address) = service.kind {
                add_to(&mut self.by_address, address, AddressOwner::Service(key.clone()));
            }
            self.services.insert(key, service);
        }
    }

    fn forget_name(&mut self, key: &Key) {
        if let Some(keys) = self.by_name.get_mut(&key.name) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_name.remove(&key.name);
            }
        }
        if let Some(count) = self.namespaces.get_mut(&key.namespace) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(&key.namespace);
            }
        }
    }

    fn set_slice(&mut self, key: Key, slice: Option<Slice>) -> Vec<Key> {
        let mut services = Vec::new();
        if let Some(old) = self.slices.remove(&key) {
            for endpoint in &old.endpoints {
                remove_from(&mut self.by_address, &endpoint.address, &AddressOwner::Slice(key.clone()));
                if let Some(hostname) = &endpoint.hostname {
                    remove_from(&mut self.by_hostname, hostname, &key);
                }
            }
            let service = Key { namespace: key.namespace.clone(), name: old.service.clone() };
            if let Some(names) = self.slices_of.get_mut(&service) {
                names.remove(&key);
                if names.is_empty() {
                    self.slices_of.remove(&service);
                }
            }
            services.push(service);
        }
        if let Some(new) = slice {
            for endpoint in &new.endpoints {
                add_to(&mut self.by_address, endpoint.address, AddressOwner::Slice(key.clone()));
                if let Some(hostname) = &endpoint.hostname {
                    add_to(&mut self.by_hostname, hostname.clone(), key.clone());
                }
            }
            let service = Key { namespace: key.namespace.clone(), name: new.service.clone() };
            self.slices_of.entry(service.clone()).or_default().insert(key.clone());
            self.slices.insert(key, new);
            if !services.contains(&service) {
                services.push(service);
            }
        }
        services
    }

    fn set_machine(&mut self, name: &str, address: Option<Ipv4Addr>) {
        if let Some((name, old)) = self.machines.remove_entry(name) {
            self.machines_at.remove(&(old, name));
        }
        if let Some(address) = address {
            let name: Arc<str> = name.into();
            self.machines_at.insert((address, name.clone()));
            self.machines.insert(name, address);
        }
    }
}

/// Mostly there is one value per key, and there may be very many keys.
fn add_to<K: Eq + Hash, V: PartialEq>(index: &mut HashMap<K, Vec<V>>, key: K, value: V) {
    let here = index.entry(key).or_insert_with(|| Vec::with_capacity(1));
    if !here.contains(&value) {
        here.push(value);
    }
}

fn remove_from<K: Eq + Hash, V: PartialEq>(index: &mut HashMap<K, Vec<V>>, key: &K, value: &V) {
    if let Some(here) = index.get_mut(key) {
        here.retain(|other| other != value);
        if here.is_empty() {
            index.remove(key);
        }
    }
}

/// What is state, for several to read while one writes.
#[derive(Debug, Default)]
pub struct Catalogue {
    state: RwLock<CatalogueState>,
    zone: watch::Sender<Option<Arc<str>>>,
    /// Counts changes of Services and slices.
    version: watch::Sender<u64>,
}

impl Catalogue {
    pub fn read(&self) -> RwLockReadGuard<'_, CatalogueState> {
        self.state.read()
    }

    pub fn set_service(&self, key: Key, service: Option<Service>) {
        self.state.write().set_service(key, service);
        self.version.send_modify(|version| *version += 1);
    }

    /// Returns the Services that the slice belonged to or belongs to.
    pub fn set_slice(&self, key: Key, slice: Option<Slice>) -> Vec<Key> {
        let services = self.state.write().set_slice(key, slice);
        self.version.send_modify(|version| *version += 1);
        services
    }

    /// All Services and slices that there are were taken in.
    pub fn set_complete(&self) {
        if !std::mem::replace(&mut self.state.write().is_complete, true) {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Changes whenever a Service or a slice does, and when all of them are known.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub fn set_machine(&self, name: &str, address: Option<Ipv4Addr>) {
        self.state.write().set_machine(name, address);
    }

    /// The zone that this machine is in.
    pub fn set_zone(&self, zone: Option<&str>) {
        self.zone.send_if_modified(|now| {
            let differs = now.as_deref() != zone;
            *now = zone.map(Arc::from);
            differs
        });
    }

    pub fn zone(&self) -> Option<Arc<str>> {
        self.zone.borrow().clone()
    }

    pub fn zone_changes(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.zone.subscribe()
    }
}

#[cfg(test)]
mod tests;
