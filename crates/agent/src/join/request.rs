//! CertificateSigningRequests of this node: creates one and waits until it is signed, denied or failed.

use std::{net::IpAddr, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};
use mainstay_errors::error_chain;
use mainstay_watch::{Event, Watch};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use sha2::{Digest, Sha256};

use super::{JoinError, files::Files};
use crate::{tls::Pair, watch_backoff::watch_fields};

/// How long the answer is awaited. The server answers at once or not at all.
const PATIENCE: Duration = Duration::from_secs(60);
const MEMBERS: &str = mainstay_api::wellknown::user::NODES_GROUP;

/// What a certificate is asked for.
pub enum Purpose<'a> {
    /// To call the API as this machine.
    Client,
    /// To be called under these addresses.
    Serving(&'a [IpAddr]),
}

impl Purpose<'_> {
    pub fn file(&self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Serving(_) => "serving",
        }
    }

    fn signer(&self) -> &'static str {
        match self {
            Self::Client => mainstay_api::wellknown::signer::KUBELET_CLIENT,
            Self::Serving(_) => mainstay_api::wellknown::signer::KUBELET_SERVING,
        }
    }

    fn usage(&self) -> &'static str {
        match self {
            Self::Client => "client auth",
            Self::Serving(_) => "server auth",
        }
    }
}

/// The certificate, asked for with this client. A key whose request was under way when the machine stopped is
/// used again: the request has its name, so the answer is found.
pub async fn obtain(client: &Client, node: &str, purpose: &Purpose<'_>, files: &Files) -> Result<Pair, JoinError> {
    let stored = files.pending_key(purpose.file())?.and_then(|pem| KeyPair::from_pem(&pem).ok());
    let key = match stored {
        Some(key) => key,
        None => KeyPair::generate().map_err(|source| JoinError::Request { source })?,
    };
    files.set_pending_key(purpose.file(), &key.serialize_pem())?;
    let request = request(node, purpose, &key).map_err(|source| JoinError::Request { source })?;
    let name = object_name(node, purpose, &key);
    let answered = tokio::time::timeout(PATIENCE, ask(client, &name, purpose, request)).await;
    match answered {
        Ok(Ok(certificate)) => Ok(Pair { certificate, key: key.serialize_pem() }),
        Ok(Err(error)) => {
            if matches!(error, JoinError::Refused { .. }) {
                files.drop_pending_key(purpose.file()); // the next attempt is a new one
            }
            Err(error)
        }
        Err(_) => Err(JoinError::NoAnswer { name }),
    }
}

/// The request's name follows from what is asked for, so that asking twice is asking once.
fn object_name(node: &str, purpose: &Purpose<'_>, key: &KeyPair) -> String {
    let digest = Sha256::digest([key.public_key_raw(), purpose.signer().as_bytes(), node.as_bytes()].concat());
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("node-csr-{digits}")
}

fn request(node: &str, purpose: &Purpose<'_>, key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, MEMBERS);
    subject.push(DnType::CommonName, format!("system:node:{node}"));
    params.distinguished_name = subject;
    if let Purpose::Serving(addresses) = purpose {
        params.subject_alt_names = addresses.iter().map(|address| SanType::IpAddress(*address)).collect();
        if let Ok(name) = node.try_into() {
            params.subject_alt_names.push(SanType::DnsName(name));
        }
    }
    params.serialize_request(key)?.pem()
}

async fn ask(client: &Client, name: &str, purpose: &Purpose<'_>, pem: String) -> Result<String, JoinError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: purpose.signer().to_owned(),
            usages: Some(vec!["digital signature".to_owned(), purpose.usage().to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    match requests.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(kube::Error::Api(status)) if status.code == 401 => return Err(JoinError::TokenRefused),
        Err(source) => return Err(JoinError::Api { doing: "ask for a certificate", source: Box::new(source) }),
    }
    let mut events = Watch::<CertificateSigningRequest>::new(requests, watch_fields(format!("metadata.name={name}")));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                if let Some(answer) = answer(&object) {
                    return answer;
                }
            }
            // Not there yet, or cleared away: the time limit decides.
            Ok(Event::Init | Event::InitDone | Event::Delete(_)) => {}
            Err(error) => {
                tracing::debug!(error = error_chain(&error), "cannot follow the request for a certificate; will retry");
            }
        }
    }
    Err(JoinError::NoAnswer { name: name.to_owned() })
}

fn answer(object: &CertificateSigningRequest) -> Option<Result<String, JoinError>> {
    let status = object.status.as_ref()?;
    let refused = status.conditions.iter().flatten().find(|c| c.type_ == "Denied" || c.type_ == "Failed");
    if let Some(condition) = refused {
        return Some(Err(JoinError::Refused { why: condition.message.clone().unwrap_or_default() }));
    }
    let certificate = status.certificate.as_ref().filter(|certificate| !certificate.0.is_empty())?;
    Some(Ok(String::from_utf8_lossy(&certificate.0).into_owned()))
}
