//! certificates.k8s.io: CertificateSigningRequest, ClusterTrustBundle, PodCertificateRequest.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
