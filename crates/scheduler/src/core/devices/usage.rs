//! Which devices are allocated, and how much of those that several claims may use at once.

use std::collections::HashMap;

use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;

use super::{
    capacity::{CapacitySum, ConsumedCapacity},
    pool::DeviceId,
    result::Allocation,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Allocations that need the device for themselves. More than one is a fault of whoever wrote them.
    exclusive: usize,
    shares: usize,
    pub consumed: CapacitySum,
}

impl DeviceUse {
    pub fn is_exclusive(&self) -> bool {
        self.exclusive > 0
    }
}

/// All allocations together. Administrative access uses nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage(HashMap<DeviceId, DeviceUse>);

impl DeviceUsage {
    pub fn get(&self, device: &DeviceId) -> Option<&DeviceUse> {
        self.0.get(device)
    }

    pub fn is_used(&self, device: &DeviceId) -> bool {
        self.0.contains_key(device)
    }

    pub fn add(&mut self, allocation: &Allocation) {
        for result in allocation.devices().iter().filter(|result| result.admin_access != Some(true)) {
            let device = self.0.entry(device_id(result)).or_default();
            match consumed(result) {
                Some(consumed) => {
                    device.shares += 1;
                    device.consumed.add(&consumed);
                }
                None => device.exclusive += 1,
            }
        }
    }

    pub fn remove(&mut self, allocation: &Allocation) {
        for result in allocation.devices().iter().filter(|result| result.admin_access != Some(true)) {
            let id = device_id(result);
            let Some(device) = self.0.get_mut(&id) else { continue };
            match consumed(result) {
                Some(consumed) => {
                    device.shares = device.shares.saturating_sub(1);
                    device.consumed.subtract(&consumed);
                }
                None => device.exclusive = device.exclusive.saturating_sub(1),
            }
            if device.exclusive == 0 && device.shares == 0 {
                self.0.remove(&id);
            }
        }
    }
}

/// Of an allocation that leaves room for others.
fn consumed(result: &DeviceRequestAllocationResult) -> Option<ConsumedCapacity> {
    result.share_id.as_ref()?;
    Some(result.consumed_capacity.as_ref().map(ConsumedCapacity::from_result).unwrap_or_default())
}

fn device_id(result: &DeviceRequestAllocationResult) -> DeviceId {
    DeviceId {
        driver: result.driver.as_str().into(),
        pool: result.pool.as_str().into(),
        device: result.device.as_str().into(),
    }
}
