//! The `networking.k8s.io` group.

mod ingress;
mod ingress_class;
mod ip_address;
mod network_policy;
mod service_cidr;

use k8s_openapi::api::core::v1::TypedLocalObjectReference;

pub use ingress::IngressRules;
pub use ingress_class::IngressClassRules;
pub use ip_address::IPAddressRules;
pub use network_policy::NetworkPolicyRules;
pub use service_cidr::ServiceCIDRRules;

use crate::{
    field::{Errors, Path},
    validation::names,
};

/// A reference to an object of any kind in the same namespace.
fn validate_reference(reference: &TypedLocalObjectReference, path: &Path, errors: &mut Errors) {
    if let Some(group) = &reference.api_group {
        names::refuse(group, &path.child("apiGroup"), names::dns1123_subdomain, errors);
    }
    names::require(&reference.kind, &path.child("kind"), names::path_segment_name, errors);
    names::require(&reference.name, &path.child("name"), names::path_segment_name, errors);
}
