//! Pools: the devices that a driver publishes in ResourceSlices.
//!
//! A pool consists of the slices of its newest generation. It is complete when there are as many of them as they say;
//! until then nothing is allocated from it. A pool that names a device twice is invalid.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::NodeSelector,
    resource::v1::{self as api, ResourceSliceSpec},
};
use mainstay_api::{
    matching::{NodeTerm as _, Taint},
    quantity::Quantity,
};
use mainstay_cel::{DeviceAttribute, DeviceFacts};

use super::capacity::DeviceCapacity;
use crate::core::view::NodeView;

/// A driver's pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    pub driver: Arc<str>,
    pub pool: Arc<str>,
}

impl PoolKey {
    pub fn from_slice(spec: &ResourceSliceSpec) -> Self {
        Self { driver: spec.driver.as_str().into(), pool: spec.pool.name.as_str().into() }
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    pub driver: Arc<str>,
    pub pool: Arc<str>,
    pub device: Arc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// From which nodes a device can be used.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceNodes {
    Node(Arc<str>),
    Selected(NodeSelector),
    Everywhere,
    Nowhere,
}

impl DeviceNodes {
    fn new(node: Option<&str>, selector: Option<&NodeSelector>, everywhere: bool) -> Self {
        match (node, selector, everywhere) {
            (Some(node), ..) => Self::Node(node.into()),
            (None, Some(selector), _) => Self::Selected(selector.clone()),
            (None, None, true) => Self::Everywhere,
            (None, None, false) => Self::Nowhere,
        }
    }

    pub fn includes(&self, node: &NodeView) -> bool {
        match self {
            Self::Node(name) => **name == *node.name,
            Self::Selected(selector) => {
                selector.node_selector_terms.iter().any(|term| term.matches(&node.name, &node.labels))
            }
            Self::Everywhere => true,
            Self::Nowhere => false,
        }
    }
}

/// What a device takes of a counter set that devices of its pool share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterUse {
    pub set: String,
    /// In thousandths.
    pub counters: BTreeMap<String, i128>,
    pub compatibility_groups: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub struct Device {
    pub id: DeviceId,
    /// The version of its slice.
    pub version: u64,
    pub place: DeviceNodes,
    pub facts: DeviceFacts,
    pub capacity: BTreeMap<String, DeviceCapacity>,
    pub taints: Vec<Taint>,
    pub counter_uses: Vec<CounterUse>,
    /// `allowMultipleAllocations`: several claims may use it at once, as far as its capacity goes.
    pub is_shared: bool,
    pub binds_to_node: bool,
    /// Conditions of the allocated device that have to be true before a pod is bound.
    pub binding_conditions: Vec<String>,
    /// Conditions of the allocated device of which none may become true.
    pub binding_failure_conditions: Vec<String>,
    /// Its pool has devices with binding conditions: they are considered after all pools that have none.
    pub is_considered_late: bool,
    pub skip_node_operations: Vec<String>,
}

impl Device {
    /// `None` if it needs something that nobody here does.
    fn new(pool: &PoolKey, slice: &Slice, device: &api::Device) -> Option<Self> {
        let spec = &slice.spec;
        if device.node_allocatable_resources.as_ref().is_some_and(|all| !all.is_empty()) {
            return None;
        }
        let place = if spec.per_device_node_selection == Some(true) {
            DeviceNodes::new(device.node_name.as_deref(), device.node_selector.as_ref(), device.all_nodes == Some(true))
        } else {
            DeviceNodes::new(spec.node_name.as_deref(), spec.node_selector.as_ref(), spec.all_nodes == Some(true))
        };
        let attributes = device.attributes.iter().flatten();
        let capacity = device.capacity.iter().flatten();
        let is_shared = device.allow_multiple_allocations == Some(true);
        Some(Self {
            id: DeviceId {
                driver: Arc::clone(&pool.driver),
                pool: Arc::clone(&pool.pool),
                device: device.name.as_str().into(),
            },
            version: slice.version,
            place,
            facts: DeviceFacts {
                driver: spec.driver.clone(),
                attributes: attributes.filter_map(|(name, value)| Some((name.clone(), attribute(value)?))).collect(),
                capacity: capacity.clone().map(|(name, capacity)| (name.clone(), capacity.value.0.clone())).collect(),
                allow_multiple_allocations: is_shared,
            },
            capacity: capacity.filter_map(|(name, own)| Some((name.clone(), DeviceCapacity::parse(own)?))).collect(),
            taints: device.taints.iter().flatten().filter_map(taint).collect(),
            counter_uses: device.consumes_counters.iter().flatten().map(counter_use).collect(),
            is_shared,
            binds_to_node: device.binds_to_node == Some(true),
            binding_conditions: device.binding_conditions.clone().unwrap_or_default(),
            binding_failure_conditions: device.binding_failure_conditions.clone().unwrap_or_default(),
            is_considered_late: false,
            skip_node_operations: spec.skip_node_operations.clone().unwrap_or_default(),
        })
    }

    /// An attribute by its whole name; the driver's domain may be left out where the device is described.
    pub fn attribute(&self, name: &str) -> Option<&DeviceAttribute> {
        let attributes = &self.facts.attributes;
        let own = || name.split_once('/').filter(|(domain, _)| **domain == *self.id.driver).map(|(_, name)| name);
        attributes.get(name).or_else(|| attributes.get(own()?))
    }
}

fn attribute(value: &api::DeviceAttribute) -> Option<DeviceAttribute> {
    let of_version = || value.version.as_deref().and_then(|text| semver::Version::parse(text).ok());
    None.or(value.bool.map(DeviceAttribute::Bool))
        .or(value.int.map(DeviceAttribute::Int))
        .or_else(|| value.string.clone().map(DeviceAttribute::String))
        .or_else(|| of_version().map(DeviceAttribute::Version))
}

/// `None` for one without effect.
pub fn taint(taint: &api::DeviceTaint) -> Option<Taint> {
    Taint::parse(taint.key.clone(), taint.value.clone(), &taint.effect)
}

fn milli(text: &str) -> i128 {
    Quantity::parse(text).map_or(0, |amount| amount.as_milli())
}

fn counters(all: &BTreeMap<String, api::Counter>) -> BTreeMap<String, i128> {
    all.iter().map(|(name, counter)| (name.clone(), milli(&counter.value.0))).collect()
}

fn counter_use(consumption: &api::DeviceCounterConsumption) -> CounterUse {
    CounterUse {
        set: consumption.counter_set.clone(),
        counters: counters(&consumption.counters),
        compatibility_groups: consumption.compatibility_groups.iter().flatten().cloned().collect(),
    }
}

#[derive(Clone, Debug)]
struct Slice {
    version: u64,
    spec: Arc<ResourceSliceSpec>,
}

/// The slices of a pool, and what they say together.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// By name.
    slices: BTreeMap<String, Slice>,
    pub is_complete: bool,
    /// Why nothing can be allocated from it.
    pub invalid: Option<String>,
    /// In the order of slices, then as the slice has them.
    pub devices: Vec<Arc<Device>>,
    /// What there is of each counter of each counter set, in thousandths.
    pub counters: BTreeMap<String, BTreeMap<String, i128>>,
}

impl Pool {
    pub fn update_slice(&mut self, key: &PoolKey, name: &str, version: u64, spec: ResourceSliceSpec) {
        self.slices.insert(name.to_owned(), Slice { version, spec: Arc::new(spec) });
        self.read_slices(key);
    }

    pub fn remove_slice(&mut self, key: &PoolKey, name: &str) {
        self.slices.remove(name);
        self.read_slices(key);
    }

    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    pub fn slice_version(&self, name: &str) -> Option<u64> {
        self.slices.get(name).map(|slice| slice.version)
    }

    fn read_slices(&mut self, key: &PoolKey) {
        let generation = self.slices.values().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
        let newest: Vec<&Slice> =
            self.slices.values().filter(|slice| slice.spec.pool.generation == generation).collect();
        let wanted = newest.first().map_or(0, |slice| slice.spec.pool.resource_slice_count);
        self.is_complete = i64::try_from(newest.len()).is_ok_and(|count| count == wanted);
        let (mut names, mut devices, mut all_counters) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
        self.invalid = None;
        for slice in newest {
            for set in slice.spec.shared_counters.iter().flatten() {
                if all_counters.insert(set.name.clone(), counters(&set.counters)).is_some() {
                    self.invalid = Some(format!("duplicate counter set name {}", set.name));
                }
            }
            for device in slice.spec.devices.iter().flatten() {
                if !names.insert(device.name.clone()) {
                    self.invalid = Some(format!("duplicate device name {}", device.name));
                }
                devices.extend(Device::new(key, slice, device));
            }
        }
        let has_binding_conditions = devices.iter().any(|device| !device.binding_conditions.is_empty());
        devices.iter_mut().for_each(|device| device.is_considered_late = has_binding_conditions);
        (self.devices, self.counters) = (devices.into_iter().map(Arc::new).collect(), all_counters);
    }
}
