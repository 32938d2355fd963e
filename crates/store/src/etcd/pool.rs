//! Connections to the members of an etcd cluster: which member a call goes to, its deadline, and retries at other members.
//!
//! One member is asked until it fails, then the next. A read that failed is repeated at the other
//! members as long as the call's deadline allows; a write only if it certainly was not carried
//! out, because a repeated write could undo what somebody did in between, or if it compares what it
//! changes: then a second one changes nothing (see `txn`). An election is waited out, an etcd that is
//! not there is not.
//!
//! Calls and watches have a connection each per member. A call that ran out of time takes a fresh
//! connection for those after it: a peer that vanished without closing is otherwise noticed only
//! by the keepalive, many calls later.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep, timeout};
use tonic::{
    Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::{
    config::{EtcdConfig, EtcdConfigError, Target, targets},
    error::EtcdError,
    proto::{
        AuthenticateRequest, RangeRequest, StatusRequest, auth_client::AuthClient, kv_client::KvClient,
        maintenance_client::MaintenanceClient, watch_client::WatchClient,
    },
};
use crate::{Revision, StoreError};

/// Between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(50);

type Token = MetadataValue<Ascii>;
type AuthenticatedChannel = InterceptedService<Channel, RequestMetadata>;

/// What another attempt of a call would mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Twice is as good as once.
    Read,
    /// As `Read`, and what a member has at hand will do, whether or not it has a leader.
    StaleRead,
    /// Twice is not the same as once.
    Write,
    /// It compares what it changes: once it was carried out, it cannot be a second time.
    GuardedWrite,
}

/// The response of a member, and whether the call was made more than once.
pub(super) struct CountedResponse<T> {
    pub response: T,
    /// An earlier attempt may have been carried out.
    pub is_repeated: bool,
}

#[derive(Debug)]
pub(super) struct Pool {
    members: Vec<Member>,
    /// Index of the member that is asked.
    current: AtomicUsize,
    /// All endpoints, for messages.
    names: String,
    login: Option<Login>,
    probe_key: Vec<u8>,
    pub call_deadline: Duration,
    /// The highest compaction known.
    compacted: AtomicU64,
}

#[derive(Debug)]
struct Member {
    target: Target,
    calls: Mutex<Channel>,
    streams: Mutex<Channel>,
}

#[derive(Debug)]
struct Login {
    user: String,
    password: String,
    token: RwLock<Option<Token>>,
    /// Held while asking for a token, so that a lost token is replaced once.
    renewal: tokio::sync::Mutex<()>,
}

/// A connection to one member, with what every request carries.
#[derive(Clone, Debug)]
pub(super) struct MemberConnection {
    pub member: usize,
    channel: Channel,
    metadata: RequestMetadata,
}

/// The metadata of every request.
#[derive(Clone, Debug)]
pub(super) struct RequestMetadata {
    token: Option<Token>,
    needs_leader: bool,
}

impl Interceptor for RequestMetadata {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        // A member cut off from its leader says so instead of letting us wait.
        if self.needs_leader {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok(request)
    }
}

impl MemberConnection {
    pub fn kv(&self) -> KvClient<AuthenticatedChannel> {
        KvClient::with_interceptor(self.channel.clone(), self.metadata.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX)
    }

    pub fn watch(&self) -> WatchClient<AuthenticatedChannel> {
        WatchClient::with_interceptor(self.channel.clone(), self.metadata.clone()).max_decoding_message_size(usize::MAX)
    }

    /// The version of the member at the other end, if it tells.
    pub async fn version(&self) -> Option<String> {
        let mut client = MaintenanceClient::with_interceptor(self.channel.clone(), self.metadata.clone());
        client.status(StatusRequest {}).await.ok().map(|status| status.into_inner().version)
    }
}

impl Pool {
    /// Connects to nobody yet. Must be called within a tokio runtime.
    pub fn new(config: &EtcdConfig) -> Result<Self, EtcdConfigError> {
        let targets = targets(config)?;
        let names = targets.iter().map(|target| &*target.name).collect::<Vec<_>>().join(", ");
        let login = config.user.clone().zip(config.password.clone()).map(|(user, password)| Login {
            user,
            password,
            token: RwLock::new(None),
            renewal: tokio::sync::Mutex::new(()),
        });
        let member = |target: Target| Member {
            calls: Mutex::new(target.endpoint.connect_lazy()),
            streams: Mutex::new(target.endpoint.connect_lazy()),
            target,
        };
        Ok(Self {
            members: targets.into_iter().map(member).collect(),
            current: AtomicUsize::new(0),
            names,
            login,
            probe_key: config.probe_key.clone().into_bytes(),
            call_deadline: config.call_deadline,
            compacted: AtomicU64::new(0),
        })
    }

    /// Sends what `send` sends, to as many members as it takes, within the call's deadline.
    pub async fn call<T, F, Fut>(&self, kind: CallKind, send: F) -> Result<T, EtcdError>
    where
        F: Fn(MemberConnection) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_counted(kind, send).await.map(|answer| answer.response)
    }

    /// As [`call`](Self::call), and tells whether it was sent more than once.
    pub async fn call_counted<T, F, Fut>(&self, kind: CallKind, send: F) -> Result<CountedResponse<T>, EtcdError>
    where
        F: Fn(MemberConnection) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let members = self.members.len();
        let deadline = Instant::now() + self.call_deadline;
        let (rounds, share) = match kind {
            CallKind::Read | CallKind::StaleRead | CallKind::GuardedWrite => (2, self.call_deadline / members as u32),
            CallKind::Write => (1, self.call_deadline),
        };
        let (mut renewed, mut is_repeated) = (false, false);
        let mut fault = EtcdError::Unsent { why: "no member was asked".into() };
        let mut attempt = 0;
        while attempt < rounds * members || matches!(fault, EtcdError::Leaderless { .. }) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if attempt > 0 && attempt % members == 0 {
                sleep(PAUSE.min(left)).await;
            }
            let member = self.current.load(Relaxed) % members;
            let one = async {
                let needs_leader = kind != CallKind::StaleRead;
                let connection = self.connection(member, needs_leader, |member| member.calls.lock().clone()).await?;
                let metadata = connection.metadata.clone();
                send(connection)
                    .await
                    .map(Response::into_inner)
                    .map_err(|status| (EtcdError::from_status(&status), metadata))
            };
            match timeout(left.min(share), one).await {
                Ok(Ok(response)) => return Ok(CountedResponse { response, is_repeated }),
                Ok(Err((EtcdError::Token { why }, metadata))) => {
                    if renewed || self.login.is_none() {
                        return Err(EtcdError::Refused { why });
                    }
                    // Not the member's fault, so not an attempt.
                    renewed = true;
                    self.forget(metadata.token);
                    fault = EtcdError::Token { why };
                    continue;
                }
                Ok(Err((met, _))) => fault = met,
                Err(_) => {
                    self.reconnect(member);
                    fault = EtcdError::Late { why: format!("no answer from {}", self.members[member].target.name) };
                }
            }
            if !fault.is_outage() {
                return Err(fault);
            }
            self.switch_member(member);
            if kind == CallKind::Write && !fault.is_unsent() {
                return Err(fault);
            }
            is_repeated |= !fault.is_unsent();
            attempt += 1;
        }
        Err(fault)
    }

    /// A connection for a watch, to the member whose turn it is.
    pub async fn stream_connection(&self) -> Result<MemberConnection, EtcdError> {
        let member = self.current.load(Relaxed) % self.members.len();
        let connection = self.connection(member, true, |member| member.streams.lock().clone());
        match timeout(self.call_deadline, connection).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err((fault, _))) => Err(fault),
            Err(_) => Err(EtcdError::Late { why: "no answer to the login".into() }),
        }
    }

    /// A watch could not be had from this member.
    pub fn stream_failed(&self, connection: &MemberConnection, stuck: bool) {
        if stuck {
            let member = &self.members[connection.member];
            *member.streams.lock() = member.target.endpoint.connect_lazy();
        }
        self.switch_member(connection.member);
    }

    /// The newest revision, as of some moment after this was called.
    pub async fn newest(&self) -> Result<Revision, EtcdError> {
        let request = RangeRequest { key: self.probe_key.clone(), count_only: true, ..Default::default() };
        let answer = self.call(CallKind::Read, |connection| {
            let request = request.clone();
            async move { connection.kv().range(request).await }
        });
        Ok(revision(answer.await?.header.map(|header| header.revision)))
    }

    pub fn record_compaction(&self, at: Revision) {
        self.compacted.fetch_max(at.0, Relaxed);
    }

    pub fn known_compaction(&self) -> Revision {
        Revision(self.compacted.load(Relaxed))
    }

    /// The fault in the port's words. Callers deal with what is particular to their request first.
    pub fn error(&self, fault: EtcdError) -> StoreError {
        let at = |why: &str| -> Arc<str> { format!("etcd at {}: {why}", self.names).into() };
        match fault {
            EtcdError::Unsent { why } | EtcdError::Leaderless { why } | EtcdError::Unknown { why } => {
                StoreError::Unavailable { why: at(&why) }
            }
            EtcdError::Late { why } => StoreError::Timeout { why: at(&why) },
            EtcdError::Token { why } | EtcdError::Refused { why } => StoreError::Failed { why: at(&why) },
            EtcdError::NoSpace => StoreError::NoSpace,
            EtcdError::Compacted => StoreError::Failed { why: at("unexpectedly compacted") },
            EtcdError::Future => StoreError::Failed { why: at("unexpectedly in the future") },
            EtcdError::TooLarge { .. } => StoreError::Failed { why: at("request is too large") },
        }
    }

    /// The next call asks another member, unless somebody already saw to that.
    fn switch_member(&self, from: usize) {
        let next = (from + 1) % self.members.len();
        let _ = self.current.compare_exchange(from, next, Relaxed, Relaxed);
    }

    fn reconnect(&self, member: usize) {
        let member = &self.members[member];
        *member.calls.lock() = member.target.endpoint.connect_lazy();
    }

    async fn connection(
        &self,
        member: usize,
        needs_leader: bool,
        pick: impl Fn(&Member) -> Channel,
    ) -> Result<MemberConnection, (EtcdError, RequestMetadata)> {
        let channel = pick(&self.members[member]);
        let token = match &self.login {
            None => None,
            Some(login) => {
                let refused = |fault| (fault, RequestMetadata { token: None, needs_leader });
                login.token(&channel).await.map_err(refused)?
            }
        };
        Ok(MemberConnection { member, channel, metadata: RequestMetadata { token, needs_leader } })
    }

    fn forget(&self, stale: Option<Token>) {
        if let Some(login) = &self.login {
            let mut token = login.token.write();
            if *token == stale {
                *token = None;
            }
        }
    }

    /// As [`Self::forget`], for a watch that was refused.
    pub fn forget_token_of(&self, connection: &MemberConnection) {
        self.forget(connection.metadata.token.clone());
    }
}

impl Login {
    /// The token to use; none if etcd's authentication is switched off.
    async fn token(&self, channel: &Channel) -> Result<Option<Token>, EtcdError> {
        if let Some(token) = self.token.read().clone() {
            return Ok(Some(token));
        }
        let _one = self.renewal.lock().await;
        if let Some(token) = self.token.read().clone() {
            return Ok(Some(token));
        }
        let request = AuthenticateRequest { name: self.user.clone(), password: self.password.clone() };
        let token = match AuthClient::new(channel.clone()).authenticate(request).await {
            Ok(answer) => answer.into_inner().token,
            Err(status) if status.message().contains("authentication is not enabled") => return Ok(None),
            Err(status) => {
                return Err(match EtcdError::from_status(&status) {
                    // A login changes nothing, so the call behind it is unsent whatever happened.
                    EtcdError::Unknown { why } => EtcdError::Unsent { why },
                    EtcdError::Token { why } => EtcdError::Refused { why },
                    fault => fault,
                });
            }
        };
        let token = Token::try_from(token).map_err(|_| EtcdError::Refused { why: "token is not ASCII".into() })?;
        *self.token.write() = Some(token.clone());
        Ok(Some(token))
    }
}

/// etcd counts in signed numbers, but never below zero.
pub(super) fn revision(signed: Option<i64>) -> Revision {
    Revision(u64::try_from(signed.unwrap_or_default()).unwrap_or_default())
}

/// For a request. A revision beyond etcd's range is as much in the future as its last one.
pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}
