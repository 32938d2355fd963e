//! From a pod's words to what the runtime is asked to make.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use mainstay_runtime::{ContainerSpec, SandboxSpec, images::Image};

/// Makes specs. Reads the API's objects and the pod's volumes; changes nothing.
pub struct Specs {}

/// The container to be made.
pub struct Wanted<'a> {
    pub pod: &'a Pod,
    /// Of a container, init container or ephemeral container.
    pub name: &'a str,
    pub attempt: u32,
    pub image: &'a Image,
    /// The pod's, as far as it has any by now.
    pub addresses: &'a [IpAddr],
}

/// A container cannot be made as the pod asks; `CreateContainerConfigError` for users.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// `configmap "x" not found`, `couldn't find key k in Secret ns/x`.
    #[error("{0}")]
    Missing(String),
    /// The API cannot be asked; whatever was known before is not enough.
    #[error("{0}")]
    Unreachable(String),
    /// `container has runAsNonRoot and image will run as root`.
    #[error("{0}")]
    Refused(String),
}

impl Specs {
    pub fn sandbox(&self, _pod: &Pod, _attempt: u32) -> Result<SandboxSpec, ConfigError> {
        todo!()
    }

    pub async fn container(&self, _wanted: &Wanted<'_>) -> Result<ContainerSpec, ConfigError> {
        todo!()
    }
}
