//! What this machine knows of Services: themselves, who stands behind them, and the machines.
//!
//! It is fed by the API and read by two: by the table that says where connections go, and by DNS for every
//! question. Nothing here asks anybody, so names and addresses are good for as long as this process lives.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::journal::Protocol;

/// How long a connection waits for the first backend, unless its Service says otherwise.
pub const HOLD: Duration = Duration::from_secs(10);

/// A namespace and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
}

/// Everything known, at one moment.
#[derive(Default)]
pub struct Known {
    services: HashMap<Key, Service>,
    slices: HashMap<Key, Slice>,
    /// Which slices belong to a Service.
    slices_of: HashMap<Key, BTreeSet<Key>>,
    /// Which Services have a backend at an address, and how often; or that address themselves.
    at_address: HashMap<Ipv4Addr, Vec<(Key, u32)>>,
    /// Services by name, whatever their namespace.
    by_name: HashMap<Arc<str>, BTreeSet<Key>>,
    machines: BTreeMap<Arc<str>, Ipv4Addr>,
}

impl Known {
    pub fn service(&self, key: &Key) -> Option<&Service> {
        self.services.get(key)
    }

    pub fn services(&self) -> impl Iterator<Item = (&Key, &Service)> {
        self.services.iter()
    }

    /// Services of this name, in the order of their namespaces.
    pub fn services_named(&self, name: &str) -> impl Iterator<Item = (&Key, &Service)> {
        let keys = self.by_name.get(name).into_iter().flatten();
        keys.filter_map(|key| self.services.get_key_value(key))
    }

    /// In the order of their names.
    pub fn slices_of(&self, service: &Key) -> impl Iterator<Item = &Slice> {
        let names = self.slices_of.get(service).into_iter().flatten();
        names.filter_map(|name| self.slices.get(name))
    }

    pub fn slices(&self) -> impl Iterator<Item = (&Key, &Slice)> {
        self.slices.iter()
    }

    /// Services that have this address, or a backend at it.
    pub fn at_address(&self, address: Ipv4Addr) -> impl Iterator<Item = &Key> {
        self.at_address.get(&address).into_iter().flatten().map(|(key, _)| key)
    }

    pub fn machine(&self, name: &str) -> Option<Ipv4Addr> {
        self.machines.get(name).copied()
    }

    pub fn machines(&self) -> impl Iterator<Item = (&Arc<str>, Ipv4Addr)> {
        self.machines.iter().map(|(name, address)| (name, *address))
    }

    fn found(&mut self, address: Ipv4Addr, service: &Key) {
        // There is hardly ever more than one, and there may be very many addresses.
        let here = self.at_address.entry(address).or_insert_with(|| Vec::with_capacity(1));
        match here.iter_mut().find(|(key, _)| key == service) {
            Some((_, count)) => *count += 1,
            None => here.push((service.clone(), 1)),
        }
    }

    fn lost(&mut self, address: Ipv4Addr, service: &Key) {
        let Some(here) = self.at_address.get_mut(&address) else { return };
        if let Some((_, count)) = here.iter_mut().find(|(key, _)| key == service) {
            *count -= 1;
        }
        here.retain(|(_, count)| *count > 0);
        if here.is_empty() {
            self.at_address.remove(&address);
        }
    }

    fn set_service(&mut self, key: Key, service: Option<Service>) {
        if let Some(Service { kind: Kind::Address(address), .. }) = self.services.remove(&key) {
            self.lost(address, &key);
        }
        match service {
            Some(service) => {
                if let Kind::Address(address) = service.kind {
                    self.found(address, &key);
                }
                self.by_name.entry(key.name.clone()).or_default().insert(key.clone());
                self.services.insert(key, service);
            }
            None => {
                if let Some(keys) = self.by_name.get_mut(&key.name) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        self.by_name.remove(&key.name);
                    }
                }
            }
        }
    }

    fn set_slice(&mut self, key: Key, slice: Option<Slice>) -> Vec<Key> {
        let mut concerned = Vec::new();
        if let Some(old) = self.slices.remove(&key) {
            let service = Key { namespace: key.namespace.clone(), name: old.service.clone() };
            old.endpoints.iter().for_each(|endpoint| self.lost(endpoint.address, &service));
            if let Some(names) = self.slices_of.get_mut(&service) {
                names.remove(&key);
                if names.is_empty() {
                    self.slices_of.remove(&service);
                }
            }
            concerned.push(service);
        }
        if let Some(new) = slice {
            let service = Key { namespace: key.namespace.clone(), name: new.service.clone() };
            new.endpoints.iter().for_each(|endpoint| self.found(endpoint.address, &service));
            self.slices_of.entry(service.clone()).or_default().insert(key.clone());
            self.slices.insert(key, new);
            if !concerned.contains(&service) {
                concerned.push(service);
            }
        }
        concerned
    }
}

/// What is known, for several to read while one writes.
#[derive(Default)]
pub struct Catalogue {
    known: RwLock<Known>,
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
        let mut known = self.known.write();
        match address {
            Some(address) => known.machines.insert(name.into(), address),
            None => known.machines.remove(name),
        };
    }
}
