//! Issues certificates for requests: the keys of both authorities behind two verbs.

use std::sync::Arc;

use rcgen::ExtendedKeyUsagePurpose;

use super::{Authority, Pki, Request};

/// What a certificate is for. The two are signed by different authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatePurpose {
    /// A client of the API.
    Client,
    /// The agent of a machine, towards servers that call it.
    NodeServing,
}

pub struct CertificateIssuer {
    clients: Arc<Authority>,
    nodes: Arc<Authority>,
}

impl CertificateIssuer {
    pub fn new(pki: &Pki) -> Self {
        Self { clients: pki.authority.clone(), nodes: pki.node_authority.clone() }
    }

    /// A certificate for a request in PEM, as PEM; valid for so many seconds at most.
    pub fn issue(&self, request: &[u8], purpose: CertificatePurpose, seconds: Option<i32>) -> Result<String, String> {
        let request = Request::parse(request).map_err(|error| error.to_string())?;
        let (authority, purpose) = match purpose {
            CertificatePurpose::NodeServing => (&self.nodes, ExtendedKeyUsagePurpose::ServerAuth),
            CertificatePurpose::Client => (&self.clients, ExtendedKeyUsagePurpose::ClientAuth),
        };
        let life = seconds.map(|seconds| time::Duration::seconds(i64::from(seconds)));
        authority.sign_request(&request, purpose, life).map_err(|error| error.to_string())
    }
}
