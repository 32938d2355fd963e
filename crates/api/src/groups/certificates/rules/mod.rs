//! Rules of `certificates.k8s.io/v1`.

mod pod_request;
mod signing_request;
mod trust_bundle;

pub use pod_request::PodCertificateRequestRules;
pub use signing_request::CertificateSigningRequestRules;
pub use trust_bundle::ClusterTrustBundleRules;
