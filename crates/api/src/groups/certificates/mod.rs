//! certificates.k8s.io: CertificateSigningRequest.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
