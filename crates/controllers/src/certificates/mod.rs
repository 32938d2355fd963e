//! The certificate signer: approves the requests of machines that join and renew, signs what is approved, and deletes
//! requests that nobody needs any more.
//!
//! The keys are not here: [`CertificateAuthority`] reads and signs. One request at a time is reconciled, and the cache
//! has our own writes, so that of two machines that join under one name at once only the first gets in. A request that is
//! wrong is denied, with the reason; one that cannot be answered now is retried and holds up no other.

mod plan;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{
            CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
        },
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub use self::plan::Signer;
use self::plan::{Action as Verdict, SigningRequest, State};
use crate::{
    runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error},
    workloads::event_handlers,
};

/// What has to be escaped in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The content of a certificate request, as far as decisions depend on it.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// The first of them, or nothing.
    pub common_name: String,
    /// How many the subject has: more than one leave open who is meant.
    pub common_names: usize,
    pub organizations: Vec<String>,
    /// DNS names or addresses among the alternative names.
    pub has_host_names: bool,
    /// E-mail addresses, URIs and whatever else machines have no use for.
    pub has_other_names: bool,
    pub public_key: Vec<u8>,
}

/// Reads and signs certificate requests, which are PEM. Errors are for people.
pub trait CertificateAuthority: Send + Sync + 'static {
    /// The content of a request whose signature is good.
    fn read(&self, request: &[u8]) -> Result<CertificateRequest, String>;
    /// A certificate for a request, as PEM; valid for so many seconds, or for less.
    fn sign(&self, request: &[u8], signer: Signer, seconds: Option<i32>) -> Result<String, String>;
}

pub struct CertificateSigner {
    context: Arc<Context>,
    authority: Arc<dyn CertificateAuthority>,
}

pub fn controller(context: &Arc<Context>, authority: Arc<dyn CertificateAuthority>) -> Runnable {
    let queue = context.queue::<CertificateSigner>();
    context.caches.certificate_requests.on_change(event_handlers::add_object(&queue));
    let limits = Limits { concurrent_reconciles: 1, ..Limits::default() };
    context.runnable(Arc::new(CertificateSigner { context: context.clone(), authority }), queue, limits)
}

pub struct World {
    object: Arc<CertificateSigningRequest>,
    state: State,
    created: Timestamp,
    /// A requester has many answered requests, and this is one of the oldest.
    superfluous: bool,
    /// Nothing for signers that are not ours.
    request: Option<SigningRequest>,
    /// A Node of the name exists.
    member: bool,
    /// Other requests that may be for the same name.
    competing_requests: Vec<SigningRequest>,
}

/// Fenced by uid and version of the request that was judged.
#[derive(Debug)]
pub enum Action {
    Delete { uid: Option<String>, version: Option<String> },
    Answer { object: Arc<CertificateSigningRequest>, signer: Signer, verdict: Verdict, at: Timestamp },
}

impl CertificateSigner {
    fn requests(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.context.client.clone())
    }

    fn view(&self, object: &CertificateSigningRequest) -> Option<SigningRequest> {
        let spec = &object.spec;
        Some(SigningRequest {
            signer: Signer::named(&spec.signer_name)?,
            user: spec.username.clone().unwrap_or_default(),
            groups: spec.groups.clone().unwrap_or_default(),
            usages: spec.usages.clone().unwrap_or_default(),
            request: self.authority.read(&spec.request.0),
            state: state(object),
            created: created(object),
        })
    }

    /// Whether a Node of the name that the request is for exists.
    async fn is_member(&self, request: &SigningRequest) -> Result<bool, ApiError> {
        let (State::Pending, Some(name)) = (request.state, request.node()) else { return Ok(false) };
        // Past every cache: a name must not be given away twice.
        let found = Api::<Node>::all(self.context.client.clone()).get_metadata_opt(&path_segment(name)).await;
        found.map(|found| found.is_some()).map_err(ApiError::when(format!("look for node {name}")))
    }
}

impl Controller for CertificateSigner {
    const NAME: &'static str = "certificate";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(object) = self.context.caches.certificate_requests.get(key) else { return Ok(None) };
        let (state, created) = (state(&object), created(&object));
        let all = self.context.caches.certificate_requests.all();
        let is_own = |other: &&Arc<CertificateSigningRequest>| other.spec.username == object.spec.username;
        let of_user: Vec<_> = all.iter().filter(is_own).collect();
        let known: Vec<_> = of_user.iter().map(|other| ("", self::state(other), self::created(other))).collect();
        let superfluous = plan::superfluous(&known, self.context.clock.now());
        let superfluous = superfluous.iter().any(|index| ObjectKey::from_meta(&of_user[*index].metadata) == *key);
        // Reading a request verifies its signature: not worth while if nothing is to be decided.
        let is_open = matches!(state, State::Pending | State::Approved);
        let request = if is_open { self.view(&object) } else { None };
        let member = match &request {
            Some(request) => self.is_member(request).await?,
            None => false,
        };
        let may_compete = |other: &&Arc<CertificateSigningRequest>| {
            state == State::Pending
                && other.metadata.uid != object.metadata.uid
                && other.spec.signer_name == object.spec.signer_name
                && plan::is_at_once(created, self::created(other))
        };
        let competing_requests = all.iter().filter(may_compete).filter_map(|other| self.view(other)).collect();
        Ok(Some(World { object, state, created, superfluous, request, member, competing_requests }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, ()> {
        let meta = &world.object.metadata;
        if plan::is_old(world.state, world.created, now) || world.superfluous {
            return Plan::act([Action::Delete { uid: meta.uid.clone(), version: meta.resource_version.clone() }]);
        }
        let answer = world.request.as_ref().and_then(|request| {
            let verdict = plan::plan(request, world.member, &world.competing_requests)?;
            Some(Action::Answer { object: world.object.clone(), signer: request.signer, verdict, at: now })
        });
        let kept_until = world.created.saturating_add(plan::retention(world.state)).unwrap_or(Timestamp::MAX);
        let requeue_at = kept_until.saturating_add(jiff::SignedDuration::from_secs(1)).ok();
        Plan { actions: answer.into_iter().collect(), requeue_at, ..Plan::default() }
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        let cache = &self.context.caches.certificate_requests;
        match action {
            Action::Delete { uid, version } => {
                let preconditions = Some(Preconditions { uid: uid.clone(), resource_version: version });
                let params = DeleteParams { preconditions, ..DeleteParams::default() };
                match self.requests().delete(&path_segment(&key.name), &params).await {
                    Err(error) if !error::has_code(&error, 404) => {
                        Err(ApiError::new(format!("delete certificate signing request {}", key.name), error))
                    }
                    _ => {
                        cache.removed(key, uid.as_deref().unwrap_or_default());
                        Ok(())
                    }
                }
            }
            Action::Answer { object, signer, verdict, at } => {
                let sign = || self.authority.sign(&object.spec.request.0, signer, object.spec.expiration_seconds);
                let (subresource, next) = answer(&object, verdict, sign, at);
                let params = PostParams::default();
                let name = path_segment(&key.name);
                match self.requests().replace_subresource(subresource, &name, &params, &next).await {
                    Ok(written) => cache.wrote(written),
                    Err(error) if error::has_code(&error, 404) => {}
                    Err(error) => {
                        return Err(ApiError::new(format!("answer certificate signing request {}", key.name), error));
                    }
                }
                Ok(())
            }
        }
    }
}

/// The request with its answer, and the subresource to write it to.
fn answer(
    object: &CertificateSigningRequest,
    verdict: Verdict,
    sign: impl FnOnce() -> Result<String, String>,
    now: Timestamp,
) -> (&'static str, CertificateSigningRequest) {
    let (name, user) = (object.metadata.name.as_deref().unwrap_or_default(), object.spec.username.as_deref());
    let mut next = object.clone();
    let status = next.status.get_or_insert_default();
    let subresource = match verdict {
        Verdict::Approve(why) => {
            tracing::info!(name, user, "approve certificate");
            add_condition(status, "Approved", "AutoApproved", why, now);
            "approval"
        }
        Verdict::Deny(why) => {
            tracing::info!(name, user, why, "deny certificate");
            add_condition(status, "Denied", "AutoDenied", why, now);
            "approval"
        }
        Verdict::Fail(why) => {
            add_condition(status, "Failed", "SignerValidationFailure", why, now);
            "status"
        }
        Verdict::Issue => {
            match sign() {
                Ok(pem) => status.certificate = Some(ByteString(pem.into_bytes())),
                Err(why) => add_condition(status, "Failed", "SigningFailure", why, now),
            }
            "status"
        }
    };
    (subresource, next)
}

/// A name as a segment of a path. The client puts names into paths as they are, and a request may have any name that
/// a path segment can stand for: `a b`, `a?b`.
fn path_segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

fn add_condition(
    status: &mut CertificateSigningRequestStatus,
    type_: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
}

fn created(object: &CertificateSigningRequest) -> Timestamp {
    object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |Time(at)| *at)
}

fn state(object: &CertificateSigningRequest) -> State {
    let Some(status) = &object.status else { return State::Pending };
    let has = |type_: &str| status.conditions.iter().flatten().any(|condition| condition.type_ == type_);
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
