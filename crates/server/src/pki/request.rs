//! A certificate signing request (PKCS #10), read and its signature verified.

use std::net::IpAddr;

use rcgen::{CertificateSigningRequestParams, PublicKeyData, SanType};
use x509_parser::{
    certification_request::X509CertificationRequest,
    prelude::{FromDer, Pem},
};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotPem,
    #[error("{0}")]
    Unreadable(String),
}

pub struct Request {
    /// The first of them, or nothing.
    pub common_name: String,
    /// How many common names the subject has: more than one leave open who is meant.
    pub common_names: usize,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// E-mail addresses, URIs and whatever else machines have no use for.
    pub other_names: bool,
    pub public_key: Vec<u8>,
    pub(super) parsed: CertificateSigningRequestParams,
}

impl Request {
    pub fn parse(pem: &[u8]) -> Result<Self, RequestError> {
        let unreadable = |error: &dyn std::fmt::Display| RequestError::Unreadable(error.to_string());
        let block = match Pem::iter_from_buffer(pem).next() {
            Some(Ok(block)) if block.label == "CERTIFICATE REQUEST" => block,
            _ => return Err(RequestError::NotPem),
        };
        let parsed = CertificateSigningRequestParams::from_der(&block.contents.as_slice().into())
            .map_err(|error| unreadable(&error))?;
        let (_, raw) = X509CertificationRequest::from_der(&block.contents).map_err(|error| unreadable(&error))?;
        let subject = &raw.certification_request_info.subject;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().unwrap_or_default().to_owned();
        let (mut dns_names, mut addresses, mut other_names) = (Vec::new(), Vec::new(), false);
        for name in &parsed.params.subject_alt_names {
            match name {
                SanType::DnsName(name) => dns_names.push(name.as_str().to_owned()),
                SanType::IpAddress(ip) => addresses.push(*ip),
                _ => other_names = true,
            }
        }
        Ok(Self {
            common_name: subject.iter_common_name().map(text).next().unwrap_or_default(),
            common_names: subject.iter_common_name().count(),
            organizations: subject.iter_organization().map(text).collect(),
            dns_names,
            addresses,
            other_names,
            public_key: parsed.public_key.der_bytes().to_vec(),
            parsed,
        })
    }
}
