//! Healing policies of pods' owners, cached: the pod's own annotation, else its owner's, else the stock policy.
//!
//! Reading the cache never waits. An owner that has not been read yet counts as one without a policy; it is read in the
//! background, once per owner while its pods are well and at most once a minute while they fail. When the API cannot be
//! reached, what was last read stays in force.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use mainstay_api::{
    heal::{ANNOTATION, Policy},
    wellknown,
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::owner;
use crate::task_scope::TaskScope;

/// How long what was read counts as fresh, and how soon a read that failed is repeated.
const FRESH: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(10);
/// Longest time that one read may take.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Owners that no pod here has asked for so long are forgotten.
const UNUSED: Duration = Duration::from_secs(3600);

/// Owners of owners: a ReplicaSet's Deployment, a Job's CronJob.
const GENERATIONS: usize = 2;

/// What the API has about the controller of a set of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerFacts {
    pub policy: Option<Policy>,
    /// How many pods it is to have.
    pub size: Option<u32>,
}

#[derive(Clone)]
pub struct OwnerPolicies {
    client: Option<Client>,
    tasks: TaskScope,
    /// By the owner's uid.
    cache: Arc<Mutex<BTreeMap<String, Entry>>>,
    read_ended: Arc<Notify>,
}

struct Entry {
    /// Nothing before the first read that succeeded.
    facts: Option<OwnerFacts>,
    /// When it may be read again.
    refresh_at: Instant,
    reading: bool,
    used_at: Instant,
}

impl OwnerPolicies {
    /// Without a client, only pods' own annotations count.
    pub fn new(client: Option<Client>, tasks: TaskScope) -> Self {
        Self { client, tasks, cache: Arc::default(), read_ended: Arc::default() }
    }

    /// The policy as far as it is known. The first call for an owner has it read.
    pub fn policy(&self, pod: &Pod) -> Policy {
        if let Some(text) = pod.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)) {
            // Whatever was admitted can be parsed; a static pod was admitted by nobody.
            return Policy::parse(text).unwrap_or_default();
        }
        self.facts(pod).policy.unwrap_or_default()
    }

    pub fn facts(&self, pod: &Pod) -> OwnerFacts {
        let Some(controller) = owner::controller(pod) else { return OwnerFacts::default() };
        let now = Instant::now();
        let cached = {
            let mut cache = self.cache.lock();
            let entry = cache.get_mut(&controller.uid);
            entry.and_then(|entry| {
                entry.used_at = now;
                entry.facts.clone()
            })
        };
        if cached.is_none() {
            self.refresh(pod);
        }
        cached.unwrap_or_default()
    }

    /// Has the owner read in the background, unless what is known is fresh.
    pub fn refresh(&self, pod: &Pod) {
        if let Some(read) = self.begin_read(pod) {
            self.tasks.spawn(read);
        }
    }

    /// Reads the owner unless what is known is fresh, or waits for the read that is under way; a bounded time.
    pub async fn refresh_now(&self, pod: &Pod) {
        if let Some(read) = self.begin_read(pod) {
            return read.await;
        }
        let finished = async {
            loop {
                let mut ended = pin!(self.read_ended.notified());
                ended.as_mut().enable();
                if !self.is_being_read(pod) {
                    return;
                }
                ended.await;
            }
        };
        let _ = tokio::time::timeout(READ_TIMEOUT, finished).await;
    }

    fn is_being_read(&self, pod: &Pod) -> bool {
        let Some(controller) = owner::controller(pod) else { return false };
        self.cache.lock().get(&controller.uid).is_some_and(|entry| entry.reading)
    }

    /// The read that is due, if one is: one at a time per owner.
    fn begin_read(&self, pod: &Pod) -> Option<impl Future<Output = ()> + Send + 'static> {
        let (client, controller) = (self.client.clone()?, owner::controller(pod)?.clone());
        let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| wellknown::namespace::DEFAULT.to_owned());
        let now = Instant::now();
        {
            let mut cache = self.cache.lock();
            let unread = || Entry { facts: None, refresh_at: now, reading: false, used_at: now };
            let entry = cache.entry(controller.uid.clone()).or_insert_with(unread);
            if entry.reading || now < entry.refresh_at {
                return None;
            }
            entry.reading = true;
        }
        // A read that is cancelled is one that failed.
        let outcome = ReadOutcome { policies: self.clone(), owner: controller.uid.clone(), facts: None };
        Some(async move {
            let mut outcome = outcome;
            let read = tokio::time::timeout(READ_TIMEOUT, read(&client, &namespace, &controller)).await;
            outcome.facts = read.ok().and_then(Result::ok);
        })
    }
}

/// Enters the outcome of a read into the cache when dropped.
struct ReadOutcome {
    policies: OwnerPolicies,
    owner: String,
    facts: Option<OwnerFacts>,
}

impl Drop for ReadOutcome {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut cache = self.policies.cache.lock();
        cache.retain(|_, entry| entry.reading || now.duration_since(entry.used_at) < UNUSED);
        if let Some(entry) = cache.get_mut(&self.owner) {
            entry.reading = false;
            entry.refresh_at = now + if self.facts.is_some() { FRESH } else { RETRY };
            if self.facts.is_some() {
                entry.facts = self.facts.take();
            }
        }
        drop(cache);
        self.policies.read_ended.notify_waiters();
    }
}

async fn read(client: &Client, namespace: &str, controller: &OwnerReference) -> Result<OwnerFacts, kube::Error> {
    let mut facts = OwnerFacts::default();
    let mut next = Some(controller.clone());
    for generation in 0..GENERATIONS {
        let Some(owner) = next.take() else { break };
        let Some(found) = get(client, namespace, &owner).await? else { break };
        if generation == 0 {
            facts.size = desired_pods(&found);
        }
        if let Some(text) = found.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)) {
            facts.policy = Policy::parse(text).ok();
            break;
        }
        next = found.metadata.owner_references.into_iter().flatten().find(|o| o.controller == Some(true));
    }
    Ok(facts)
}

async fn get(client: &Client, namespace: &str, owner: &OwnerReference) -> Result<Option<DynamicObject>, kube::Error> {
    let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &owner.kind));
    let found = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind).get_opt(&owner.name).await;
    match found {
        Ok(found) => Ok(found.filter(|found| found.metadata.uid.as_deref() == Some(&owner.uid))),
        // A node may not read every kind that somebody invents.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where the usual kinds have the number of pods they want.
fn desired_pods(owner: &DynamicObject) -> Option<u32> {
    let paths = ["/spec/replicas", "/spec/parallelism", "/status/desiredNumberScheduled"];
    let found = paths.into_iter().find_map(|path| owner.data.pointer(path)?.as_u64());
    found.and_then(|size| u32::try_from(size).ok())
}
