//! KMS v2: values are encrypted by keys that a plugin protects, in upstream's envelope `k8s:enc:kms:v2:NAME:`.
//!
//! * [`client`]: gRPC to the plugin over its unix socket
//! * [`envelope`]: a value sealed by a key derived from a seed, and the plugin's word for that seed
//! * [`provider`]: the seed in use, seeds that the plugin gave back, the plugin's health
//!
//! A seed is made and encrypted by the plugin once for each of its key ids; a write costs no call. The plugin is asked for its
//! status every minute. While it does not answer, values whose seed is known are read, and values are written for three minutes
//! more, as upstream does; then writes fail, and name the plugin. A server starts without its plugin, and is not ready until it answers.

mod client;
mod envelope;
mod provider;

pub use provider::{KmsConfiguration, KmsProvider, KmsSealError};

/// The generated messages.
mod messages {
    include!(concat!(env!("OUT_DIR"), "/v2.rs"));
}

#[cfg(test)]
mod tests;
