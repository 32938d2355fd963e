//! What this machine knows of Services: themselves, who stands behind them, and the machines.
//!
//! It is fed by the API and read by two: by the table that says where connections go, and by DNS for every
//! question. Nothing here asks anybody, so names and addresses are good for as long as this process lives.

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

/// How long a connection waits for the first backend, unless its Service says otherwise.
pub const HOLD: Duration = Duration::from_secs(10);

/// A namespace and a name in it.
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
    pub kind: Kind,
    pub ports: Vec<ServicePort>,
    /// Addresses of the world outside that lead here.
    pub external_ips: Vec<Ipv4Addr>,
    /// A client stays with its backend for so long after its last connection.
    pub affinity: Option<Duration>,
    /// Only backends on the machine that is asked, for clients inside and outside the cluster.
    pub internal_local: bool,
    pub external_local: bool,
    /// How long a connection waits while there is no backend.
    pub hold: Duration,
    /// All connections go through our own process, not only those that are held.
    pub through_user_space: bool,
    /// Backends count before they are ready.
    pub publish_not_ready: bool,
    /// By which the Service is also found, as `<tag>.<service>.service.<datacentre>.<domain>`.
    pub tags: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has an address of its own.
    Address(Ipv4Addr),
    /// Its name stands for its backends.
    Headless,
    /// Its name stands for another name.
    Alias(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty if it has none.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

/// Some of the backends of a Service, all with the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// In the slice's own namespace.
    pub service: Arc<str>,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// That of the Service's port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: Ipv4Addr,
    pub ready: bool,
    /// Able to answer, whether or not it is about to end.
    pub serving: bool,
    pub terminating: bool,
    /// The machine it is on.
    pub node: Option<Arc<str>>,
    /// What it is called within a headless Service.
    pub hostname: Option<Arc<str>>,
    /// Zones whose callers it is meant for; mostly none, and then it is for all.
    pub for_zones: Box<[Arc<str>]>,
}

/// A [`Key`], or the two words of one that somebody asks for: so that asking copies nothing.
trait Pair {
    fn words(&self) -> (&str, &str);
}

impl Pair for Key {
    fn words(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl Pair for (&str, &str) {
    fn words(&self) -> (&str, &str) {
        *self
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

impl Hash for dyn Pair + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

impl PartialEq for dyn Pair + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Eq for dyn Pair + '_ {}

impl<'a> Borrow<dyn Pair + 'a> for Key {
    fn borrow(&self) -> &(dyn Pair + 'a) {
        self
    }
}

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Service(Key),
    /// A backend in this slice.
    Slice(Key),
}

/// Everything known, at one moment.
#[derive(Debug, Default)]
pub struct Known {
    services: HashMap<Key, Service>,
    slices: HashMap<Key, Slice>,
    /// Which slices belong to a Service.
    slices_of: HashMap<Key, BTreeSet<Key>>,
    at_address: HashMap<Ipv4Addr, Vec<Place>>,
    /// Slices that have a backend of this hostname.
    with_hostname: HashMap<Arc<str>, Vec<Key>>,
    /// Services by name, whatever their namespace.
    by_name: HashMap<Arc<str>, BTreeSet<Key>>,
    /// How many Services each has.
    namespaces: HashMap<Arc<str>, usize>,
    machines: BTreeMap<Arc<str>, Ipv4Addr>,
    machines_at: BTreeSet<(Ipv4Addr, Arc<str>)>,
}

impl Known {
    pub fn service(&self, key: &Key) -> Option<&Service> {
        self.services.get(key)
    }

    /// The Service of this name, without making a [`Key`] of it first.
    pub fn service_named(&self, namespace: &str, name: &str) -> Option<(&Key, &Service)> {
        self.services.get_key_value(&(namespace, name) as &dyn Pair)
    }

    pub fn services(&self) -> impl Iterator<Item = (&Key, &Service)> {
        self.services.iter()
    }

    /// Services of this name, in the order of their namespaces.
    pub fn services_named(&self, name: &str) -> impl Iterator<Item = (&Key, &Service)> {
        let keys = self.by_name.get(name).into_iter().flatten();
        keys.filter_map(|key| self.services.get_key_value(key))
    }

    /// Whether there is a Service in it.
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

    /// Services that have this address themselves.
    pub fn services_at(&self, address: Ipv4Addr) -> impl Iterator<Item = &Key> {
        self.places(address).filter_map(|place| match place {
            Place::Service(key) => Some(key),
            Place::Slice(_) => None,
        })
    }

    /// Backends at this address, each with its Service, as far as that exists.
    pub fn backends_at(&self, address: Ipv4Addr) -> impl Iterator<Item = (&Key, &Service, &Endpoint)> {
        let slices = self.places(address).filter_map(|place| match place {
            Place::Service(_) => None,
            Place::Slice(key) => Some((key, self.slices.get(key)?)),
        });
        slices.filter_map(|(key, slice)| Some((slice, self.service_named(&key.namespace, &slice.service)?))).flat_map(
            move |(slice, (key, service))| {
                let here = slice.endpoints.iter().filter(move |endpoint| endpoint.address == address);
                here.map(move |endpoint| (key, service, endpoint))
            },
        )
    }

    /// Backends of a Service that are called so.
    pub fn backends_called(&self, service: &Key, hostname: &str) -> impl Iterator<Item = &Endpoint> {
        let slices = self.with_hostname.get(hostname).into_iter().flatten();
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

    fn places(&self, address: Ipv4Addr) -> impl Iterator<Item = &Place> {
        self.at_address.get(&address).into_iter().flatten()
    }

    fn set_service(&mut self, key: Key, service: Option<Service>) {
        let old = self.services.remove(&key);
        if let Some(Service { kind: Kind::Address(address), .. }) = old {
            remove_from(&mut self.at_address, &address, &Place::Service(key.clone()));
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
            if let Kind::Address(address) = service.kind {
                add_to(&mut self.at_address, address, Place::Service(key.clone()));
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
        let mut concerned = Vec::new();
        if let Some(old) = self.slices.remove(&key) {
            for endpoint in &old.endpoints {
                remove_from(&mut self.at_address, &endpoint.address, &Place::Slice(key.clone()));
                if let Some(hostname) = &endpoint.hostname {
                    remove_from(&mut self.with_hostname, hostname, &key);
                }
            }
            let service = Key { namespace: key.namespace.clone(), name: old.service.clone() };
            if let Some(names) = self.slices_of.get_mut(&service) {
                names.remove(&key);
                if names.is_empty() {
                    self.slices_of.remove(&service);
                }
            }
            concerned.push(service);
        }
        if let Some(new) = slice {
            for endpoint in &new.endpoints {
                add_to(&mut self.at_address, endpoint.address, Place::Slice(key.clone()));
                if let Some(hostname) = &endpoint.hostname {
                    add_to(&mut self.with_hostname, hostname.clone(), key.clone());
                }
            }
            let service = Key { namespace: key.namespace.clone(), name: new.service.clone() };
            self.slices_of.entry(service.clone()).or_default().insert(key.clone());
            self.slices.insert(key, new);
            if !concerned.contains(&service) {
                concerned.push(service);
            }
        }
        concerned
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

/// There is hardly ever more than one of an address, and there may be very many addresses.
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

/// What is known, for several to read while one writes.
#[derive(Debug, Default)]
pub struct Catalogue {
    known: RwLock<Known>,
    zone: watch::Sender<Option<Arc<str>>>,
}

impl Catalogue {
    pub fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read()
    }

    pub fn set_service(&self, key: Key, service: Option<Service>) {
        self.known.write().set_service(key, service);
    }

    /// The Services whose backends these were or are.
    pub fn set_slice(&self, key: Key, slice: Option<Slice>) -> Vec<Key> {
        self.known.write().set_slice(key, slice)
    }

    pub fn set_machine(&self, name: &str, address: Option<Ipv4Addr>) {
        self.known.write().set_machine(name, address);
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
