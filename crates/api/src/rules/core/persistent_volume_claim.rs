//! PersistentVolumeClaims, and the claims templates make.

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;

use crate::rules::{check::fill, resources};

/// Defaults of a claim's spec, in a claim or in a template of one.
pub fn default_spec(spec: &mut PersistentVolumeClaimSpec) {
    fill(&mut spec.volume_mode, "Filesystem");
    if let Some(requirements) = &mut spec.resources {
        resources::canonicalize(&mut requirements.limits);
        resources::canonicalize(&mut requirements.requests);
    }
}
