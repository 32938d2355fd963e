//! The signer of certificate signing requests: approves what nodes may have, and signs what is approved.
//!
//! Level-triggered: every look reads all requests there are, so that one that was missed, or one that people
//! approve, is answered at the next. Writes carry the version that was judged. A request that is wrong is denied, with
//! the reason; one that cannot be answered now is tried again, and holds up no other.

mod plan;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use mainstay_api::k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{
            CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
        },
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rcgen::ExtendedKeyUsagePurpose;
use tokio_util::sync::CancellationToken;

use self::plan::{Action, Signer, SigningRequest, State};
use crate::{
    client,
    handler::Handler,
    pki::{Authority, Pki, Request},
};

/// How often everything is looked at even if nothing is heard.
const SLOWLY: Duration = Duration::from_secs(60);
/// What has to be escaped in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub struct Authorities {
    clients: Arc<Authority>,
    machines: Arc<Authority>,
}

impl Authorities {
    pub fn of(pki: &Pki) -> Self {
        Self { clients: pki.authority.clone(), machines: pki.node_authority.clone() }
    }
}

/// Answers requests until `stop`.
pub async fn run(handler: Arc<Handler>, authorities: Authorities, stop: CancellationToken) {
    let client = client::internal(handler, "signer");
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let mut news = watcher(requests.clone(), watcher::Config::default()).default_backoff().boxed();
    let mut failures = Failures::default();
    loop {
        let heard = tokio::time::timeout(SLOWLY, news.try_next());
        match stop.run_until_cancelled(heard).await {
            None => return,
            Some(Ok(Err(error))) => tracing::debug!(%error, "cannot follow certificate signing requests"),
            Some(Ok(Ok(_)) | Err(_)) => {}
        }
        // Many that come together are answered in one look.
        while let Some(Ok(Some(_))) = news.try_next().now_or_never() {}
        if let Err(error) = look(&client, &requests, &authorities, &mut failures).await {
            tracing::warn!(%error, "cannot list certificate signing requests; will try again");
        }
    }
}

/// Looks at every request. One that cannot be answered is left for the next look and holds up no other.
async fn look(
    client: &Client,
    requests: &Api<CertificateSigningRequest>,
    authorities: &Authorities,
    failures: &mut Failures,
) -> Result<(), kube::Error> {
    let now = Timestamp::now();
    let all = requests.list(&ListParams::default()).await?.items;
    failures.keep_only(&all);
    let created = |object: &CertificateSigningRequest| object.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let known: Vec<(&str, State, Timestamp)> = all
        .iter()
        .map(|object| {
            let user = object.spec.username.as_deref().unwrap_or_default();
            (user, state(object), created(object).unwrap_or(now))
        })
        .collect();
    let superfluous = plan::superfluous(&known, now);
    // Reading a request verifies its signature: not worth while if nothing is to be decided.
    let open = known.iter().any(|(_, state, _)| matches!(state, State::Pending | State::Approved));
    let mut asked: Vec<(&CertificateSigningRequest, SigningRequest)> = Vec::new();
    for (index, object) in all.iter().enumerate() {
        let (_, state, created) = known[index];
        if plan::is_old(state, created, now) || superfluous.contains(&index) {
            failures.note(object, forget(requests, object).await);
        } else if let Some(view) = Some(object).filter(|_| open && state != State::Refused).and_then(view) {
            asked.push((object, view));
        }
    }
    for index in 0..asked.len() {
        let (object, one) = &asked[index];
        let member = match (one.state, one.node()) {
            (State::Pending, Some(name)) => {
                let found = Api::<Node>::all(client.clone()).get_metadata_opt(&path_segment(name)).await;
                match found {
                    Ok(found) => found.is_some(),
                    Err(error) => {
                        failures.note(object, Err(error));
                        continue;
                    }
                }
            }
            _ => false,
        };
        let others = asked.iter().map(|(_, other)| other);
        let Some(action) = plan::plan(one, member, others) else { continue };
        let approved = matches!(action, Action::Approve(_));
        let applied = apply(requests, object, one, action, authorities, now).await;
        let done = applied.is_ok();
        failures.note(object, applied);
        if done && approved {
            asked[index].1.state = State::Approved; // the next in line must know
        }
    }
    Ok(())
}

/// Requests that could not be answered, so that each failure is logged once and not at every look.
#[derive(Default)]
struct Failures(BTreeMap<String, String>);

impl Failures {
    fn note(&mut self, object: &CertificateSigningRequest, result: Result<(), kube::Error>) {
        let name = object.metadata.name.clone().unwrap_or_default();
        match result {
            Ok(()) => drop(self.0.remove(&name)),
            // Somebody else was faster: the watch event of it brings us back.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => {
                let error = error.to_string();
                if self.0.get(&name) != Some(&error) {
                    tracing::warn!(name, error, "cannot answer a certificate signing request; will try again");
                    self.0.insert(name, error);
                }
            }
        }
    }

    fn keep_only(&mut self, all: &[CertificateSigningRequest]) {
        self.0.retain(|name, _| all.iter().any(|object| object.metadata.name.as_ref() == Some(name)));
    }
}

/// A name as a segment of a path. The client puts names into paths as they are, and a request may have any name that
/// a path segment can stand for: `a b`, `a?b`.
fn path_segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

async fn apply(
    requests: &Api<CertificateSigningRequest>,
    object: &CertificateSigningRequest,
    asked: &SigningRequest,
    action: Action,
    authorities: &Authorities,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let mut next = object.clone();
    let status = next.status.get_or_insert_default();
    let subresource = match action {
        Action::Approve(why) => {
            tracing::info!(name, user = asked.user, "approve certificate");
            add(status, "Approved", "AutoApproved", why, now);
            "approval"
        }
        Action::Deny(why) => {
            tracing::info!(name, user = asked.user, why, "deny certificate");
            add(status, "Denied", "AutoDenied", why, now);
            "approval"
        }
        Action::Fail(why) => {
            add(status, "Failed", "SignerValidationFailure", why, now);
            "status"
        }
        Action::Issue => {
            match issue(object, asked, authorities) {
                Ok(pem) => status.certificate = Some(ByteString(pem.into_bytes())),
                Err(why) => add(status, "Failed", "SigningFailure", why, now),
            }
            "status"
        }
    };
    let params = PostParams::default();
    requests.replace_subresource(subresource, &path_segment(name), &params, &next).await.map(drop)
}

fn issue(
    object: &CertificateSigningRequest,
    asked: &SigningRequest,
    authorities: &Authorities,
) -> Result<String, String> {
    let request = asked.request.as_ref().map_err(Clone::clone)?;
    let (authority, purpose) = match asked.signer {
        Signer::NodeServing => (&authorities.machines, ExtendedKeyUsagePurpose::ServerAuth),
        Signer::NodeClient | Signer::Client => (&authorities.clients, ExtendedKeyUsagePurpose::ClientAuth),
    };
    let life = object.spec.expiration_seconds.map(|seconds| time::Duration::seconds(i64::from(seconds)));
    authority.sign_request(request, purpose, life).map_err(|error| error.to_string())
}

async fn forget(
    requests: &Api<CertificateSigningRequest>,
    object: &CertificateSigningRequest,
) -> Result<(), kube::Error> {
    let meta = object.meta();
    let ours = Preconditions { uid: meta.uid.clone(), resource_version: meta.resource_version.clone() };
    let params = DeleteParams { preconditions: Some(ours), ..DeleteParams::default() };
    requests.delete(&path_segment(meta.name.as_deref().unwrap_or_default()), &params).await.map(drop)
}

fn add(status: &mut CertificateSigningRequestStatus, kind: &str, reason: &str, message: String, now: Timestamp) {
    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
}

fn state(object: &CertificateSigningRequest) -> State {
    let Some(status) = &object.status else { return State::Pending };
    let has = |kind: &str| status.conditions.iter().flatten().any(|condition| condition.type_ == kind);
    if has("Denied") || has("Failed") {
        State::Refused
    } else if status.certificate.as_ref().is_some_and(|certificate| !certificate.0.is_empty()) {
        State::Issued
    } else if has("Approved") {
        State::Approved
    } else {
        State::Pending
    }
}

/// What concerns us of a request; `None` for signers that are not ours.
fn view(object: &CertificateSigningRequest) -> Option<SigningRequest> {
    let spec = &object.spec;
    Some(SigningRequest {
        signer: Signer::named(&spec.signer_name)?,
        user: spec.username.clone().unwrap_or_default(),
        groups: spec.groups.clone().unwrap_or_default(),
        usages: spec.usages.clone().unwrap_or_default(),
        request: Request::parse(&spec.request.0).map_err(|error| error.to_string()),
        state: state(object),
        created: object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
    })
}
