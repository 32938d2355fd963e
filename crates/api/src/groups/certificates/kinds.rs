//! `certificates.k8s.io/v1`.

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, ClusterTrustBundle, PodCertificateRequest};

use super::{
    rules::{CertificateSigningRequestRules, ClusterTrustBundleRules, PodCertificateRequestRules},
    table,
};
use crate::{
    descriptor::{Descriptor, NameRule, SelectableField, Subresource},
    groups::builder::{describe, field},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<CertificateSigningRequest>()
            .rules::<CertificateSigningRequestRules>()
            .columns(&table::CERTIFICATE_SIGNING_REQUESTS)
            .short("csr")
            .named(NameRule::PathSegment)
            .status()
            .subresources(&[Subresource::Approval])
            .select(FIELDS),
        describe::<ClusterTrustBundle>()
            .rules::<ClusterTrustBundleRules>()
            .columns(&table::CLUSTER_TRUST_BUNDLES)
            .named(NameRule::PathSegment)
            .select(FIELDS),
        describe::<PodCertificateRequest>()
            .rules::<PodCertificateRequestRules>()
            .columns(&table::POD_CERTIFICATE_REQUESTS)
            .status()
            .select(POD_REQUEST_FIELDS),
    ]
}

const FIELDS: &[SelectableField] = &[field("spec.signerName", &["spec", "signerName"])];

const POD_REQUEST_FIELDS: &[SelectableField] = &[
    field("spec.signerName", &["spec", "signerName"]),
    field("spec.podName", &["spec", "podName"]),
    field("spec.nodeName", &["spec", "nodeName"]),
];
