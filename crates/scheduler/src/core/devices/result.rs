//! Allocations as they are written into the status of a claim.

use std::{hash::Hasher, ops::Deref, sync::Arc};

use k8s_openapi::api::{
    core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
    resource::v1::{
        AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
        DeviceToleration,
    },
};
use mainstay_api::matching::{Labels, NodeTerm as _};

use super::{
    capacity::ConsumedCapacity,
    pool::{Device, DeviceNodes},
    requests::{Alternative, ClaimRequests},
};

/// `status.allocation` of a claim, shared.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation(Arc<AllocationResult>);

/// What comes from JSON has no number that differs from itself.
impl Eq for Allocation {}

impl Allocation {
    pub fn new(result: AllocationResult) -> Self {
        Self(Arc::new(result))
    }

    pub fn devices(&self) -> &[DeviceRequestAllocationResult] {
        self.0.devices.as_ref().and_then(|devices| devices.results.as_deref()).unwrap_or_default()
    }

    /// Whether both are the same devices on the same nodes, whenever they were allocated.
    pub fn is_same(&self, other: &AllocationResult) -> bool {
        (&self.0.devices, &self.0.node_selector) == (&other.devices, &other.node_selector)
    }

    /// Whether the allocated devices can be used on the node.
    pub fn is_usable_on(&self, name: &str, labels: &Labels) -> bool {
        let Some(selector) = &self.0.node_selector else { return true };
        selector.node_selector_terms.iter().any(|term| term.matches(name, labels))
    }
}

impl Deref for Allocation {
    type Target = AllocationResult;

    fn deref(&self) -> &AllocationResult {
        &self.0
    }
}

/// A device chosen for a request.
#[derive(Clone, Debug)]
pub struct ChosenDevice<'a> {
    pub alternative: &'a Alternative,
    pub device: &'a Device,
    /// Of a device that others may use as well.
    pub consumed: Option<ConsumedCapacity>,
}

/// The allocation of one claim, on a node.
pub fn allocation(claim: &ClaimRequests, chosen: &[ChosenDevice<'_>], node: &str) -> Allocation {
    let results = chosen.iter().enumerate().map(|(nth, chosen)| device_result(claim, nth, chosen));
    let devices = DeviceAllocationResult {
        results: Some(results.collect()),
        config: Some(configurations(claim, chosen)).filter(|all| !all.is_empty()),
    };
    Allocation::new(AllocationResult {
        allocation_timestamp: None,
        devices: Some(devices),
        node_selector: node_selector(chosen, node),
    })
}

fn device_result(claim: &ClaimRequests, nth: usize, chosen: &ChosenDevice<'_>) -> DeviceRequestAllocationResult {
    let ChosenDevice { alternative, device, consumed } = chosen;
    let tolerations = Some(&alternative.tolerations).filter(|all| !all.is_empty());
    DeviceRequestAllocationResult {
        request: alternative.name.clone(),
        driver: device.id.driver.to_string(),
        pool: device.id.pool.to_string(),
        device: device.id.device.to_string(),
        admin_access: alternative.admin_access.then_some(true),
        tolerations: tolerations
            .map(|all| all.iter().map(|toleration| toleration.wire.clone()).collect::<Vec<DeviceToleration>>()),
        share_id: consumed.as_ref().map(|_| share_id(&claim.uid, &alternative.name, nth)),
        consumed_capacity: consumed.as_ref().map(ConsumedCapacity::quantities),
        binding_conditions: Some(device.binding_conditions.clone()).filter(|all| !all.is_empty()),
        binding_failure_conditions: Some(device.binding_failure_conditions.clone()).filter(|all| !all.is_empty()),
        skip_node_operations: Some(device.skip_node_operations.clone()).filter(|all| !all.is_empty()),
    }
}

/// A uid that follows from the claim and the place in its allocation: another claim has others.
fn share_id(claim_uid: &str, request: &str, nth: usize) -> String {
    let half = |salt: u8| {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write_u8(salt);
        for part in [claim_uid, request] {
            hasher.write(part.as_bytes());
            hasher.write_u8(0xff);
        }
        hasher.write_usize(nth);
        hasher.finish()
    };
    let (high, low) = (half(0), half(1));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0x0fff,
        0x8000 | ((low >> 48) & 0x3fff),
        low & 0xffff_ffff_ffff
    )
}

/// Of the classes first, then of the claim: what comes later overrides what came before.
fn configurations(claim: &ClaimRequests, chosen: &[ChosenDevice<'_>]) -> Vec<DeviceAllocationConfiguration> {
    let mut used: Vec<&Alternative> = Vec::new();
    for ChosenDevice { alternative, .. } in chosen {
        if !used.iter().any(|known| known.name == alternative.name) {
            used.push(alternative);
        }
    }
    let of_classes = used.iter().flat_map(|alternative| {
        alternative.class_config.iter().map(|config| DeviceAllocationConfiguration {
            source: "FromClass".to_owned(),
            requests: Some(vec![alternative.name.clone()]),
            opaque: config.opaque.clone(),
        })
    });
    let of_claim = claim.config.iter().filter_map(|config| {
        let requests = config.requests.as_deref().unwrap_or_default();
        let applies = |name: &&String| used.iter().any(|alternative| alternative.is_named(name));
        let applicable: Vec<String> = requests.iter().filter(applies).cloned().collect();
        (requests.is_empty() || !applicable.is_empty()).then(|| DeviceAllocationConfiguration {
            source: "FromClaim".to_owned(),
            requests: Some(applicable).filter(|names| !names.is_empty()),
            opaque: config.opaque.clone(),
        })
    });
    of_classes.chain(of_claim).collect()
}

/// Where all chosen devices are available: on the node alone, on what their selectors have in common, or everywhere.
fn node_selector(chosen: &[ChosenDevice<'_>], node: &str) -> Option<NodeSelector> {
    let is_local =
        |chosen: &ChosenDevice<'_>| matches!(chosen.device.place, DeviceNodes::Node(_)) || chosen.device.binds_to_node;
    let mut term = NodeSelectorTerm::default();
    if chosen.iter().any(is_local) {
        term.match_fields = Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]);
        return Some(NodeSelector { node_selector_terms: vec![term] });
    }
    for ChosenDevice { device, .. } in chosen {
        let DeviceNodes::Selected(selector) = &device.place else { continue };
        // Slices have exactly one term.
        for own in &selector.node_selector_terms {
            add_requirements(&mut term.match_expressions, own.match_expressions.as_deref());
            add_requirements(&mut term.match_fields, own.match_fields.as_deref());
        }
    }
    let restricts = term.match_expressions.is_some() || term.match_fields.is_some();
    restricts.then(|| NodeSelector { node_selector_terms: vec![term] })
}

fn add_requirements(all: &mut Option<Vec<NodeSelectorRequirement>>, more: Option<&[NodeSelectorRequirement]>) {
    for requirement in more.unwrap_or_default() {
        let all = all.get_or_insert_default();
        if !all.contains(requirement) {
            all.push(requirement.clone());
        }
    }
}
