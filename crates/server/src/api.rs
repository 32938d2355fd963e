//! The API over one store: registry, store, schema and settings, as every request handler uses them.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_api::{descriptor::Descriptor, registry::Registry, schema::Schema};
use mainstay_store::{Entry, Outcome, Store, StoreError, Txn};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    admission::{self, EventRates, MatchConditionsCache, PolicyCache, QuotaLocks, RangeReservations},
    aggregator::Aggregator,
    auth::{jws, service_account, verified_tokens::VerifiedTokens},
    authorize::rbac::RbacCache,
    background::store_space::StoreSpace,
    custom_resources::{self, served_kinds::ServedKinds},
    fence::{Fence, TermEnded},
    flowcontrol::{FlowControl, ListSizes},
    http::status::{ApiError, ApiResult},
    objects::{keys, large_work::LargeWork, object, store_cache::StoreCache},
    settings::Settings,
    webhook::client::WebhookClient,
};

/// The API over one store.
pub struct Api {
    /// The built-in kinds.
    pub registry: Registry,
    /// The built-in kinds and those that are defined at run time.
    pub(crate) served: ServedKinds,
    /// Which requests go first.
    pub(crate) flow_control: FlowControl,
    pub(crate) list_sizes: ListSizes,
    /// Groups and versions that other servers serve.
    pub(crate) aggregator: Aggregator,
    pub store: Arc<dyn Store>,
    pub schema: &'static Schema,
    pub settings: Settings,
    pub(crate) rbac: RbacCache,
    /// What admission plugins look at on every write.
    pub(crate) admission_cache: StoreCache,
    /// Admission policies, compiled.
    pub(crate) policies: PolicyCache,
    pub(crate) mutating_policies: PolicyCache,
    /// Of webhooks, compiled.
    pub(crate) match_conditions: MatchConditionsCache,
    pub(crate) space: StoreSpace,
    /// Turns for requests with large bodies and, apart from them, for long lists.
    pub(crate) large_bodies: LargeWork,
    pub(crate) long_lists: LargeWork,
    /// How many Events each node has written of late.
    pub(crate) event_rates: EventRates,
    /// Held while a namespace's quotas are charged, so that requests of one server do not collide.
    pub(crate) quota_locks: QuotaLocks,
    pub(crate) webhooks: WebhookClient,
    token_key: OnceCell<Arc<jws::Key>>,
    pub(crate) verified_tokens: VerifiedTokens,
    /// Ranges of pod addresses that requests of this server are about to take, so that they do not collide.
    pub(crate) pod_ranges: RangeReservations,
}

/// The object or collection a request is about.
pub struct Target {
    pub d: Arc<Descriptor>,
    pub namespace: Option<String>,
    /// Empty for a collection.
    pub name: String,
}

/// Why nothing was committed, beside a conflict.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    TermEnded(#[from] TermEnded),
}

impl Api {
    pub fn new(registry: Registry, store: Arc<dyn Store>, settings: Settings) -> Self {
        Self {
            served: ServedKinds::new(registry.clone()),
            aggregator: Aggregator::new(&registry),
            flow_control: FlowControl::new(
                &registry,
                settings.max_reads + settings.max_writes,
                settings.request_timeout,
            ),
            list_sizes: ListSizes::default(),
            admission_cache: StoreCache::new(&registry, &admission::CACHED_KINDS),
            registry,
            store,
            schema: Schema::builtin(),
            settings,
            rbac: RbacCache::default(),
            space: StoreSpace::default(),
            large_bodies: LargeWork::default(),
            long_lists: LargeWork::default(),
            event_rates: EventRates::default(),
            quota_locks: QuotaLocks::default(),
            policies: PolicyCache::default(),
            mutating_policies: PolicyCache::default(),
            match_conditions: MatchConditionsCache::default(),
            webhooks: WebhookClient::default(),
            token_key: OnceCell::new(),
            verified_tokens: VerifiedTokens::default(),
            pod_ranges: RangeReservations::default(),
        }
    }

    /// Writes to the store, and learns from it whether the disk has room; caches have the write before its client knows.
    /// What was decided by a leader is written only if its term is not over.
    pub async fn commit(&self, mut txn: Txn, fence: Option<&Fence>) -> Result<Outcome, CommitError> {
        if let Some(fence) = fence {
            fence.check()?;
            txn.compares.push(fence.compare());
        }
        let needs_room = StoreSpace::needs_room(&txn);
        let definitions = custom_resources::written_definitions(&txn);
        let cached = self.admission_cache.cached_ops(&txn.ops);
        let flows = self.flow_control.objects.cached_ops(&txn.ops);
        let api_services = self.aggregator.objects.cached_ops(&txn.ops);
        let tried = self.store.commit(txn).await;
        self.space.observe(needs_room, &tried);
        if let Ok(Outcome::Committed(revision)) = &tried {
            self.admission_cache.observe_commit(&cached, *revision);
            self.flow_control.objects.observe_commit(&flows, *revision);
            self.aggregator.objects.observe_commit(&api_services, *revision);
            for (name, definition) in definitions {
                self.served.observe(&name, *revision, definition.as_ref());
            }
        }
        let mut outcome = tried?;
        if let (Some(fence), Outcome::Conflict { current }) = (fence, &mut outcome) {
            fence.check_found(current.pop().flatten().as_deref())?;
        }
        Ok(outcome)
    }

    /// Refuses what a deposed leader asks of somebody else's store, which cannot compare the term itself.
    pub async fn check_term(&self, fence: &Fence) -> Result<(), CommitError> {
        fence.check()?;
        let (found, _) = self.store.get(fence.key()).await?;
        Ok(fence.check_found(found.as_deref())?)
    }

    /// The key that signs tokens of service accounts.
    pub async fn token_key(&self) -> ApiResult<Arc<jws::Key>> {
        self.token_key.get_or_try_init(|| service_account::load_key(self)).await.cloned()
    }

    /// An object of the core group, if there is one.
    pub async fn core_object(&self, plural: &str, namespace: Option<&str>, name: &str) -> ApiResult<Option<Value>> {
        let Some(d) = self.registry.find("", "v1", plural) else { return Ok(None) };
        let entry = self.core_entry(plural, namespace, name).await?;
        entry.map(|entry| object::parse(d, &entry)).transpose()
    }

    /// An object of the core group as it is stored.
    pub async fn core_entry(&self, plural: &str, namespace: Option<&str>, name: &str) -> ApiResult<Option<Arc<Entry>>> {
        let Some(d) = self.registry.find("", "v1", plural).filter(|_| keys::is_segment(name)) else { return Ok(None) };
        Ok(self.store.get(&keys::key(d, namespace, name)).await?.0)
    }

    /// The stored object a request names.
    pub async fn existing(&self, target: &Target) -> ApiResult<Arc<Entry>> {
        let (entry, _) = self.store.get(&target.key()).await?;
        entry.ok_or_else(|| ApiError::not_found(&target.d, &target.name))
    }
}

impl Target {
    pub fn key(&self) -> Arc<str> {
        keys::key(&self.d, self.namespace.as_deref(), &self.name)
    }

    pub fn prefix(&self) -> String {
        keys::prefix(&self.d, self.namespace.as_deref())
    }
}

/// Now, as precise as API timestamps are.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
