//! Hooks: what runs after a container starts and before it is stopped.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1::{LifecycleHandler, Pod};
use mainstay_runtime::ContainerId;

pub struct Hooks {}

#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct HookError {
    pub why: String,
}

pub struct Place<'a> {
    pub pod: &'a Pod,
    pub container: &'a str,
    pub id: &'a ContainerId,
    pub address: Option<IpAddr>,
}

impl Hooks {
    /// Runs one hook to its end, or until `deadline` is over.
    pub async fn run(&self, _at: Place<'_>, _hook: &LifecycleHandler, _deadline: Duration) -> Result<(), HookError> {
        todo!()
    }
}
