//! Decoders of the kinds that several crates read from text, compiled once for all of them.
//!
//! The code that decodes a type is generic over what it is decoded from. It is compiled into the first crate that uses it, and crates that depend on that one
//! share it. The agent and the controllers do not depend on each other: without this list each has decoders of its own for the hundreds of types
//! that a pod consists of. For the same reason everything that arrives as text, from the API or from a file, is decoded from `&str` (not from bytes),
//! and a `Value` is decoded by reference, as in validation.

use k8s_openapi::api::{
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use serde::de::DeserializeOwned;

use crate::{machine::Machine, machine_file::MachineFile};

/// Whether a text is an object of a kind.
type TextDecoder = fn(&str) -> bool;

/// The kinds that both the agent and the controllers read. Nothing calls these: that the list names them has them compiled.
pub static SHARED_KINDS: [TextDecoder; 16] = [
    decodes::<CertificateSigningRequest>,
    decodes::<ConfigMap>,
    decodes::<EndpointSlice>,
    decodes::<Lease>,
    decodes::<Machine>,
    decodes::<MachineFile>,
    decodes::<Namespace>,
    decodes::<Node>,
    decodes::<PersistentVolume>,
    decodes::<PersistentVolumeClaim>,
    decodes::<Pod>,
    decodes::<PodDisruptionBudget>,
    decodes::<ResourceClaim>,
    decodes::<ResourceSlice>,
    decodes::<Secret>,
    decodes::<ServiceAccount>,
];

fn decodes<K: DeserializeOwned>(text: &str) -> bool {
    serde_json::from_str::<K>(text).is_ok()
}
