//! CertificateApproval, CertificateSigning and ClusterTrustBundleAttest: who may approve or sign a certificate for a signer has
//! the verb `approve` or `sign` on it, beyond the right to write CertificateSigningRequests and PodCertificateRequests; who
//! writes a trust bundle of a signer has the verb `attest`.

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    authorize::{self, Attributes, RequestTarget, ResourceAttributes},
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, metadata},
};

pub struct CertificateSigners;

const TRUST_BUNDLE: &str = "ClusterTrustBundle";

#[async_trait]
impl Plugin for CertificateSigners {
    fn name(&self) -> &'static str {
        "CertificateSigners"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group == "certificates.k8s.io"
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        if request.target.d.kind == TRUST_BUNDLE { verify_attest(request, object) } else { Ok(()) }
    }

    fn review_update(&self, request: &Request<'_>, submitted: &Value, old: &Value) -> ApiResult<()> {
        if request.target.d.kind == TRUST_BUNDLE {
            return verify_attest(request, submitted);
        }
        let verb = match request.part {
            Part::Approval => "approve",
            Part::Status if submitted["status"] != old["status"] => "sign",
            _ => return Ok(()),
        };
        let signer = old["spec"]["signerName"].as_str().unwrap_or_default();
        if may(request, verb, signer) {
            return Ok(());
        }
        let name = metadata::string_field(old, "name").unwrap_or_default();
        let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
        Err(ApiError::forbidden(&request.target.d, name, &why))
    }
}

/// Trust in a signer is for those to spread who may speak for it.
fn verify_attest(request: &Request<'_>, bundle: &Value) -> ApiResult<()> {
    let signer = bundle["spec"]["signerName"].as_str().unwrap_or_default();
    if signer.is_empty() || may(request, "attest", signer) {
        return Ok(());
    }
    let name = metadata::string_field(bundle, "name").unwrap_or_default();
    let why = format!("user not permitted to attest for signerName {signer:?}");
    Err(ApiError::forbidden(&request.target.d, name, &why))
}

/// By the signer's own name, or by that of all signers of its domain: `example.com/*`.
fn may(request: &Request<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map(|(domain, _)| format!("{domain}/*"));
    [Some(signer.to_owned()), domain].into_iter().flatten().any(|name| {
        let target = ResourceAttributes {
            group: request.target.d.group.clone(),
            resource: "signers".into(),
            name: Some(name.into()),
            ..ResourceAttributes::default()
        };
        let asked = Attributes { verb, target: RequestTarget::Resource(target) };
        authorize::is_granted_by_role(request.api, request.user, &asked)
    })
}
