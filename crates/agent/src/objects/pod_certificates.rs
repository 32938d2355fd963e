//! Certificates of pods, for projected volumes with `podCertificate`: a private key that never leaves this machine, a
//! PodCertificateRequest to the signer, and another one when the signer says that it is time to renew.
//!
//! Each projection has a task that asks, waits for the answer and renews, with a new key each time. Whoever needs the
//! certificate gets what there is at once; the pod is woken when there is something new. A signer that refuses is asked
//! again after a while. What was issued before stays in use when renewal fails.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{PodCertificateRequest, PodCertificateRequestSpec},
        core::v1::{Node, Pod, PodCertificateProjection, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use mainstay_watch::{Event, Watch};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use x509_parser::pem::Pem;

use super::{changes::Changes, pod_keys::PodKey};
use crate::watch_backoff::{ApiRetries, watch_fields};

/// How long to wait after the API did not answer, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// After a signer refused, or wants a certificate renewed as soon as it is issued.
const LONG_PAUSE: Duration = Duration::from_secs(10 * 60);
/// The wall clock is looked at this often while waiting for renewal: the machine may have been suspended.
const CLOCK_CHECK: Duration = Duration::from_secs(60);

/// A private key and the certificates issued for it, as PEM.
pub struct PodCertificate {
    pub key: String,
    pub chain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The signer has not answered yet, or cannot be asked now.
    #[error("{0}")]
    Pending(String),
    #[error("{0}")]
    Refused(String),
}

/// A projection of a pod: the volume, and the place among its sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pod: PodUid,
    volume: String,
    source: usize,
}

type State = Result<Arc<PodCertificate>, CertificateError>;

struct Entry {
    state: Arc<Mutex<State>>,
    task: AbortHandle,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) struct PodCertificates {
    client: Client,
    changes: Changes,
    entries: Mutex<BTreeMap<Key, Entry>>,
}

impl PodCertificates {
    pub(super) fn new(client: Client, changes: Changes) -> Self {
        Self { client, changes, entries: Mutex::default() }
    }

    /// The present certificate. Asking for the first time begins to request it.
    pub(super) fn get(&self, pod: &Pod, volume: &str, source: usize, wanted: &PodCertificateProjection) -> State {
        let uid = PodUid(pod.metadata.uid.clone().unwrap_or_default());
        let key = Key { pod: uid.clone(), volume: volume.to_owned(), source };
        let mut entries = self.entries.lock();
        let entry = entries.entry(key).or_insert_with(|| {
            let pending = CertificateError::Pending(format!("requesting a certificate of {}", wanted.signer_name));
            let state = Arc::new(Mutex::new(Err(pending)));
            let requester = CertificateRequester {
                client: self.client.clone(),
                changes: self.changes.clone(),
                uid,
                pod: pod.clone(),
                wanted: wanted.clone(),
                state: state.clone(),
            };
            Entry { state, task: tokio::spawn(requester.run()).abort_handle() }
        });
        entry.state.lock().clone()
    }

    pub(super) fn forget(&self, pod: &PodUid) {
        self.entries.lock().retain(|key, _| key.pod != *pod);
    }
}

/// Keeps the certificate of one projection current.
struct CertificateRequester {
    client: Client,
    changes: Changes,
    uid: PodUid,
    pod: Pod,
    wanted: PodCertificateProjection,
    state: Arc<Mutex<State>>,
}

struct Issued {
    certificate: PodCertificate,
    refresh_at: Timestamp,
}

impl CertificateRequester {
    async fn run(self) {
        let mut retries = ApiRetries::new(RETRY.0, RETRY.1);
        loop {
            match self.request().await {
                Ok(Issued { certificate, refresh_at }) => {
                    retries.reset();
                    self.publish(Ok(Arc::new(certificate)));
                    let now = Timestamp::now();
                    sleep_until(if refresh_at > now { refresh_at } else { now + LONG_PAUSE }).await;
                }
                Err(error @ CertificateError::Refused(_)) => {
                    tracing::warn!(uid = %self.uid, %error, "a pod's certificate was refused; will ask again");
                    self.publish(Err(error));
                    tokio::time::sleep(LONG_PAUSE).await;
                }
                Err(error @ CertificateError::Pending(_)) => {
                    tracing::debug!(uid = %self.uid, %error, "cannot request a pod's certificate; will retry");
                    self.publish(Err(error));
                    tokio::time::sleep(retries.record_failure()).await;
                }
            }
        }
    }

    /// A certificate stays in use until there is a new one. The pod is woken when there is something to be done about it.
    fn publish(&self, next: State) {
        let mut state = self.state.lock();
        if next.is_err() && state.is_ok() {
            return;
        }
        let is_news = !matches!(next, Err(CertificateError::Pending(_)));
        *state = next;
        drop(state);
        if is_news {
            self.changes.record(&self.uid);
        }
    }

    async fn request(&self) -> Result<Issued, CertificateError> {
        let key_type = self.wanted.key_type.clone();
        let generated = tokio::task::spawn_blocking(move || PodKey::generate(&key_type)).await;
        let generated =
            generated.map_err(|error| CertificateError::Pending(format!("generate a private key: {error}")))?;
        let key = generated.map_err(|error| CertificateError::Refused(error_chain(&error)))?;
        let requests: Api<PodCertificateRequest> = Api::namespaced(self.client.clone(), &self.namespace());
        let asked = requests.create(&PostParams::default(), &self.new_request(&key).await?).await;
        let name = asked.map_err(|error| failed("create a PodCertificateRequest", &error))?.name_any();
        let signer = &self.wanted.signer_name;
        let request = format!("PodCertificateRequest {}/{name}", self.namespace());
        self.publish(Err(CertificateError::Pending(format!("waiting for signer {signer} to answer {request}"))));
        let decided = await_decision(requests, &name).await;
        let no_answer =
            || CertificateError::Pending(format!("{request} is gone, and signer {signer} did not answer it"));
        match decided.as_ref().and_then(signer_decision).ok_or_else(no_answer)? {
            SignerDecision::Issued { chain, refresh_at } => {
                let chain = normalize_chain(chain)
                    .ok_or_else(|| CertificateError::Refused(format!("{request} has no readable certificate")))?;
                Ok(Issued { certificate: PodCertificate { key: key.pem, chain }, refresh_at })
            }
            SignerDecision::Refused { how, reason, message } => {
                Err(CertificateError::Refused(format!("{request} was {how} by signer {signer}: {reason}: {message}")))
            }
        }
    }

    async fn new_request(&self, key: &PodKey) -> Result<PodCertificateRequest, CertificateError> {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let account = spec.service_account_name.as_deref().unwrap_or(mainstay_api::wellknown::DEFAULT_SERVICE_ACCOUNT);
        let node = spec.node_name.unwrap_or_default();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace());
        let nodes: Api<Node> = Api::all(self.client.clone());
        let account_uid = accounts.get(account).await.map_err(|error| failed("get the pod's ServiceAccount", &error));
        let node_uid = nodes.get(&node).await.map_err(|error| failed("get the Node", &error));
        let (name, uid) = (self.pod.name_any(), self.uid.0.clone());
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: name.clone(),
            uid: uid.clone(),
            ..OwnerReference::default()
        };
        Ok(PodCertificateRequest {
            metadata: ObjectMeta {
                generate_name: Some(format!("req-{name}-")),
                namespace: Some(self.namespace()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: self.wanted.signer_name.clone(),
                pod_name: name,
                pod_uid: uid,
                service_account_name: account.to_owned(),
                service_account_uid: account_uid?.metadata.uid.unwrap_or_default(),
                node_name: node,
                node_uid: node_uid?.metadata.uid.unwrap_or_default(),
                max_expiration_seconds: self.wanted.max_expiration_seconds,
                stub_pkc_s10_request: ByteString(key.request.clone()),
                unverified_user_annotations: self.wanted.user_annotations.clone(),
            },
            status: None,
        })
    }

    fn namespace(&self) -> String {
        self.pod.metadata.namespace.clone().unwrap_or_default()
    }
}

/// What the API refuses is not asked again at once.
fn failed(what: &str, error: &kube::Error) -> CertificateError {
    let text = format!("{what}: {}", error_chain(error));
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 403 | 404 | 422) => CertificateError::Refused(text),
        _ => CertificateError::Pending(text),
    }
}

/// What a signer decided.
enum SignerDecision<'a> {
    Issued { chain: &'a str, refresh_at: Timestamp },
    Refused { how: &'static str, reason: &'a str, message: &'a str },
}

/// The request as soon as its signer has decided about it; nothing if it is gone before that.
async fn await_decision(requests: Api<PodCertificateRequest>, name: &str) -> Option<PodCertificateRequest> {
    let mut events = Watch::<PodCertificateRequest>::new(requests, watch_fields(format!("metadata.name={name}")));
    let mut exists = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => exists = false,
            Ok(Event::InitApply(request) | Event::Apply(request)) => {
                if signer_decision(&request).is_some() {
                    return Some(request);
                }
                exists = true;
            }
            Ok(Event::InitDone) if exists => {}
            Ok(Event::InitDone | Event::Delete(_)) => return None,
            Err(error) => {
                tracing::debug!(error = error_chain(&error), name, "cannot watch a PodCertificateRequest; will retry");
            }
        }
    }
    None
}

fn signer_decision(request: &PodCertificateRequest) -> Option<SignerDecision<'_>> {
    let status = request.status.as_ref()?;
    status.conditions.iter().flatten().filter(|condition| condition.status == "True").find_map(|condition| {
        let (reason, message) = (condition.reason.as_str(), condition.message.as_str());
        match condition.type_.as_str() {
            "Issued" => Some(SignerDecision::Issued {
                chain: status.certificate_chain.as_deref().unwrap_or_default(),
                refresh_at: status.begin_refresh_at.as_ref().map_or(Timestamp::MAX, |time| time.0),
            }),
            "Denied" => Some(SignerDecision::Refused { how: "denied", reason, message }),
            "Failed" => Some(SignerDecision::Refused { how: "failed", reason, message }),
            _ => None,
        }
    })
}

/// The certificates alone: without headers, and without what a signer wrote between them.
fn normalize_chain(chain: &str) -> Option<String> {
    let mut normal = String::new();
    for block in Pem::iter_from_buffer(chain.as_bytes()) {
        let encoded = STANDARD.encode(block.ok().filter(|block| block.label == "CERTIFICATE")?.contents);
        normal.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in encoded.as_bytes().chunks(64) {
            normal.push_str(&String::from_utf8_lossy(line));
            normal.push('\n');
        }
        normal.push_str("-----END CERTIFICATE-----\n");
    }
    (!normal.is_empty()).then_some(normal)
}

async fn sleep_until(at: Timestamp) {
    loop {
        let left = Timestamp::now().duration_until(at);
        match Duration::try_from(left) {
            Ok(left) if left > Duration::ZERO => tokio::time::sleep(left.min(CLOCK_CHECK)).await,
            _ => return,
        }
    }
}
