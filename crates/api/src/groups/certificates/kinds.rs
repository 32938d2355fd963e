//! `certificates.k8s.io/v1`.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::{rules::CertificateSigningRequestRules, table};
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
    ]
}

const FIELDS: &[SelectableField] = &[field("spec.signerName", &["spec", "signerName"])];
