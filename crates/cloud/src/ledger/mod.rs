//! The ledger: what was created in the cloud, written down before it is created and until it is seen gone.
//!
//! An entry is a [`CloudResource`]. Its name follows from its owner and slot, so that two who want the same thing write the same entry; its tag follows from
//! the name and is part of the create itself. Between any two steps a crash leaves this:
//!
//! | crash after | entry | cloud | what follows |
//! |---|---|---|---|
//! | the entry | `Intended`, no id | nothing | looked up by tag, not found: created, or forgotten if it is not wanted any more |
//! | the create | `Intended`, no id | the resource, with the tag | looked up by tag: adopted |
//! | the id | `Created` | the resource | nothing |
//! | the delete | `Deleting` | maybe | deleted again, which is harmless |
//! | seen gone | `Deleting` | nothing | seen gone again |
//!
//! A create without an answer may still take effect for as long as a service may take. So an entry whose create was tried lately is neither tried again nor
//! forgotten on the strength of one look that found nothing ([`Ledger::new`]'s `settle`).

pub mod drivers;
mod entry;

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use mainstay_api::cloud::cloud_resource::{CloudResource, CloudResourceSpec, ResourcePhase};
use mainstay_controllers::runtime::{ApiError, Cache, Clock, ObjectKey, error};
use serde_json::json;

pub use self::entry::{ClusterId, Intent, LedgerEntry, TAG_KEY};
use crate::openstack::CloudError;

/// When the create of an entry was last tried.
const ATTEMPTED: &str = "mainstay.dev/attempted";
/// Added to the time that a call may take before an unanswered create counts as one that never happened.
const SETTLE_MARGIN: Duration = Duration::from_secs(2);

pub struct Ledger {
    client: Client,
    cache: Arc<Cache<CloudResource>>,
    cluster: ClusterId,
    clock: Clock,
    settle: SignedDuration,
}

/// A step that did not complete; the next reconcile goes on.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{doing}")]
    Cloud {
        doing: String,
        #[source]
        source: Box<CloudError>,
    },
    #[error("a create of {resource} {name} had no answer; looking for it until {until}")]
    Unsettled { resource: String, name: String, until: Timestamp },
}

impl LedgerError {
    /// What the cloud said, if it was the cloud.
    pub fn cloud(&self) -> Option<&CloudError> {
        match self {
            Self::Cloud { source, .. } => Some(&**source),
            _ => None,
        }
    }

    /// When it is worth looking again, where that is known.
    pub fn settles_at(&self) -> Option<Timestamp> {
        match self {
            Self::Unsettled { until, .. } => Some(*until),
            _ => None,
        }
    }

    pub fn into_api_error(self, doing: impl Into<String>) -> ApiError {
        match self {
            Self::Api(error) => error,
            other => ApiError::other(doing, other),
        }
    }
}

/// What a removal has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Seen gone; the entry is no more.
    Done,
    /// Asked for; the cloud still shows it.
    Pending,
}

/// How one type of resource is found, created and deleted in a cloud. Everything is by tag or id; nothing is retried here.
pub trait ResourceDriver: Send + Sync {
    /// The ids of all resources with this tag.
    fn find(&self, tag: &str) -> impl Future<Output = Result<Vec<String>, CloudError>> + Send;
    /// Creates it with the tag; returns its id.
    fn create(&self, tag: &str) -> impl Future<Output = Result<String, CloudError>> + Send;
    /// Asks for its removal; what is not there counts as removed.
    fn delete(&self, id: &str) -> impl Future<Output = Result<(), CloudError>> + Send;
    /// Whether the cloud still shows it.
    fn exists(&self, id: &str) -> impl Future<Output = Result<bool, CloudError>> + Send;
}

impl Ledger {
    /// `settle` is the longest that an attempt of a create may take to have an effect.
    pub fn new(
        client: Client,
        cache: Arc<Cache<CloudResource>>,
        cluster: ClusterId,
        clock: Clock,
        settle: Duration,
    ) -> Self {
        let settle = SignedDuration::try_from(settle + SETTLE_MARGIN).unwrap_or(SignedDuration::from_secs(60));
        Self { client, cache, cluster, clock, settle }
    }

    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    fn api(&self) -> Api<CloudResource> {
        Api::all(self.client.clone())
    }

    /// The entry of an intent, if there is one.
    pub async fn entry(&self, intent: &Intent) -> Result<Option<LedgerEntry>, ApiError> {
        let name = intent.entry_name();
        let doing = format!("read ledger entry {name}");
        Ok(self.api().get_opt(&name).await.map_err(ApiError::when(doing))?.map(LedgerEntry::from))
    }

    /// The entries of an owner, from the cache.
    pub fn entries_of(&self, owner_uid: &str) -> Vec<LedgerEntry> {
        let of_owner = self.cache.select(|entry| entry.spec.owner.uid == owner_uid);
        let mut entries: Vec<_> = of_owner.iter().map(|entry| LedgerEntry::from((**entry).clone())).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    /// Writes down that something is about to be created. The second value says whether it was written just now; otherwise somebody intended
    /// it before, and may have created it.
    pub async fn intend(&self, intent: &Intent) -> Result<(LedgerEntry, bool), ApiError> {
        let name = intent.entry_name();
        let spec = CloudResourceSpec {
            cloud: intent.cloud.clone(),
            project: intent.project.clone(),
            resource: intent.resource,
            name: intent.name.clone(),
            tag: intent.tag(&self.cluster),
            parent: intent.parent.clone(),
            owner: intent.owner.clone(),
        };
        let mut object = CloudResource::new(&name, spec);
        let attempted = (ATTEMPTED.to_owned(), self.clock.now().to_string());
        object.metadata.annotations = Some([attempted].into());
        match self.api().create(&PostParams::default(), &object).await {
            Ok(created) => {
                self.cache.wrote(created.clone());
                Ok((created.into(), true))
            }
            Err(failure) if error::has_code(&failure, 409) => {
                let found = self.api().get(&name).await.map_err(ApiError::when(format!("read ledger entry {name}")))?;
                Ok((found.into(), false))
            }
            Err(failure) => Err(ApiError::new(format!("write ledger entry {name}"), failure)),
        }
    }

    /// Writes down the id of what was created.
    pub async fn created(&self, entry: &LedgerEntry, id: &str) -> Result<LedgerEntry, ApiError> {
        let now = self.clock.now().to_string();
        let status = json!({"id": id, "phase": ResourcePhase::Created, "observed": now, "message": ""});
        self.patch_status(entry, status).await
    }

    /// Writes down that its removal is about to be asked for.
    pub async fn deleting(&self, entry: &LedgerEntry) -> Result<LedgerEntry, ApiError> {
        if entry.phase == ResourcePhase::Deleting {
            return Ok(entry.clone());
        }
        self.patch_status(entry, json!({"phase": ResourcePhase::Deleting})).await
    }

    /// Writes down what hinders its creation or removal.
    pub async fn hindered(&self, entry: &LedgerEntry, message: &str) -> Result<(), ApiError> {
        if entry.message == message {
            return Ok(());
        }
        self.patch_status(entry, json!({"message": message})).await.map(drop)
    }

    /// Removes an entry whose resource was seen gone, or was never created.
    pub async fn gone(&self, entry: &LedgerEntry) -> Result<(), ApiError> {
        let preconditions = Preconditions { uid: Some(entry.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api().delete(&entry.name, &params).await {
            Ok(_) => {}
            Err(failure) if error::has_code(&failure, 404) || error::has_code(&failure, 409) => {} // gone, or another's by now
            Err(failure) => return Err(ApiError::new(format!("remove ledger entry {}", entry.name), failure)),
        }
        self.cache.removed(&ObjectKey::new("", &entry.name), &entry.uid);
        Ok(())
    }

    /// Has one resource of an intent: writes the entry, adopts what carries its tag already, creates it otherwise, and writes down the id.
    pub async fn ensure(&self, intent: &Intent, driver: &impl ResourceDriver) -> Result<LedgerEntry, LedgerError> {
        let (mut entry, is_new) = self.intend(intent).await?;
        if entry.id.is_some() {
            return Ok(entry);
        }
        if !is_new {
            if let Some(adopted) = self.adopt(&entry, driver).await? {
                return Ok(adopted);
            }
            self.refuse_unsettled(&entry)?;
            entry = self.record_attempt(&entry).await?;
        }
        match driver.create(&entry.tag).await {
            Ok(id) => Ok(self.created(&entry, &id).await?),
            Err(source) => {
                if !source.is_outcome_unknown() {
                    // It certainly does not exist: nothing is to be looked for.
                    self.gone(&entry).await?;
                }
                Err(cloud_error(intent, "create", source))
            }
        }
    }

    /// Removes what an entry stands for, in as many turns as the cloud needs.
    pub async fn remove(&self, entry: &LedgerEntry, driver: &impl ResourceDriver) -> Result<Removal, LedgerError> {
        let entry = match &entry.id {
            Some(_) => entry.clone(),
            None => match self.adopt(entry, driver).await? {
                Some(adopted) => adopted,
                None => {
                    self.refuse_unsettled(entry)?;
                    self.gone(entry).await?;
                    return Ok(Removal::Done);
                }
            },
        };
        let entry = self.deleting(&entry).await?;
        let id = entry.id.clone().unwrap_or_default();
        let failed = |doing: &str| {
            let doing = format!("{doing} {:?} {} ({id})", entry.resource, entry.cloud_name);
            move |source| LedgerError::Cloud { doing, source: Box::new(source) }
        };
        if !driver.exists(&id).await.map_err(failed("look for"))? {
            self.gone(&entry).await?;
            return Ok(Removal::Done);
        }
        match driver.delete(&id).await {
            Ok(()) => {}
            // In a state that forbids it (being changed, in use): the next turn asks again.
            Err(error) if error.is_conflict() => {
                self.hindered(&entry, &error.message()).await?;
                return Ok(Removal::Pending);
            }
            Err(error) => return Err(failed("delete")(error)),
        }
        if driver.exists(&id).await.map_err(failed("look for"))? {
            return Ok(Removal::Pending);
        }
        self.gone(&entry).await?;
        Ok(Removal::Done)
    }

    /// Ends the entry of something that is said to be gone, if another look by its id and one by its tag say the same; says whether they did. Nothing is deleted: the
    /// first answer may have been one from stale data.
    pub async fn forget_gone(&self, entry: &LedgerEntry, driver: &impl ResourceDriver) -> Result<bool, LedgerError> {
        let Some(id) = entry.id.as_deref() else { return Ok(false) };
        let failed = |source| {
            let doing = format!("look for {:?} {} ({id})", entry.resource, entry.cloud_name);
            LedgerError::Cloud { doing, source: Box::new(source) }
        };
        let is_there = driver.exists(id).await.map_err(failed)?
            || driver.find(&entry.tag).await.map_err(failed)?.iter().any(|found| found == id);
        if !is_there {
            self.gone(entry).await?;
        }
        Ok(!is_there)
    }

    /// Takes over what carries the tag; of several, which a create that was tried twice may leave, the first stays.
    async fn adopt(
        &self,
        entry: &LedgerEntry,
        driver: &impl ResourceDriver,
    ) -> Result<Option<LedgerEntry>, LedgerError> {
        let failed = |source| {
            let doing = format!("look for the tag {}", entry.tag);
            LedgerError::Cloud { doing, source: Box::new(source) }
        };
        let mut ids = driver.find(&entry.tag).await.map_err(failed)?;
        ids.sort();
        let mut ids = ids.into_iter();
        let Some(id) = ids.next() else { return Ok(None) };
        for surplus in ids {
            tracing::warn!(tag = entry.tag, id = surplus, "cloud holds a resource twice; deleting the second");
            driver.delete(&surplus).await.map_err(failed)?;
        }
        Ok(Some(self.created(entry, &id).await?))
    }

    fn refuse_unsettled(&self, entry: &LedgerEntry) -> Result<(), LedgerError> {
        let until = entry.attempted + self.settle;
        if self.clock.now() < until {
            let (resource, name) = (format!("{:?}", entry.resource), entry.cloud_name.clone());
            return Err(LedgerError::Unsettled { resource, name, until });
        }
        Ok(())
    }

    /// Before a create is tried once more.
    async fn record_attempt(&self, entry: &LedgerEntry) -> Result<LedgerEntry, ApiError> {
        let now = self.clock.now().to_string();
        let metadata = json!({"resourceVersion": entry.version, "annotations": {ATTEMPTED: now}});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let written = self.api().patch(&entry.name, &PatchParams::default(), &patch).await;
        let written = written.map_err(ApiError::when(format!("write ledger entry {}", entry.name)))?;
        self.cache.wrote(written.clone());
        Ok(written.into())
    }

    async fn patch_status(&self, entry: &LedgerEntry, status: serde_json::Value) -> Result<LedgerEntry, ApiError> {
        // By uid: the entry of another attempt is none of ours.
        let patch = Patch::Merge(json!({"metadata": {"uid": entry.uid}, "status": status}));
        let written = self.api().patch_status(&entry.name, &PatchParams::default(), &patch).await;
        let written = written.map_err(ApiError::when(format!("write ledger entry {}", entry.name)))?;
        self.cache.wrote(written.clone());
        Ok(written.into())
    }
}

fn cloud_error(intent: &Intent, verb: &str, source: CloudError) -> LedgerError {
    let doing = format!("{verb} {:?} {}", intent.resource, intent.name);
    LedgerError::Cloud { doing, source: Box::new(source) }
}

#[cfg(test)]
mod tests;
