//! Which policy holds for a pod: its own annotation, else its owner's, else the stock one.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use mainstay_api::heal::{ANNOTATION, Policy};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::owner;

/// How long what an owner says is believed, and how long its silence.
const BELIEVED: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(3);

/// Owners of owners: a ReplicaSet's Deployment, a Job's CronJob.
const GENERATIONS: usize = 2;

/// What the API says about the owner of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub policy: Option<Policy>,
    /// How many pods it is to have.
    pub size: Option<u32>,
}

pub struct Policies {
    client: Option<Client>,
    /// By the owner's uid.
    known: Mutex<BTreeMap<String, (Instant, Set)>>,
}

impl Policies {
    /// Without a client, only pods themselves are asked.
    pub fn new(client: Option<Client>) -> Self {
        Self { client, known: Mutex::default() }
    }

    pub async fn of(&self, pod: &Pod) -> Policy {
        if let Some(text) = pod.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)) {
            // Whatever was admitted can be read; a static pod was admitted by nobody.
            return Policy::parse(text).unwrap_or_default();
        }
        self.set(pod).await.policy.unwrap_or_default()
    }

    pub async fn set(&self, pod: &Pod) -> Set {
        let (Some(client), Some(controller)) = (&self.client, owner::controller(pod)) else { return Set::default() };
        let now = Instant::now();
        if let Some((until, set)) = self.known.lock().get(&controller.uid)
            && now < *until
        {
            return set.clone();
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let asked = tokio::time::timeout(PATIENCE, ask(client, namespace, controller)).await;
        let mut known = self.known.lock();
        known.retain(|_, (until, _)| now < *until + BELIEVED);
        let (until, set) = match asked {
            Ok(Ok(set)) => (now + BELIEVED, set),
            // What was believed before is better than nothing.
            Ok(Err(_)) | Err(_) => {
                (now + RETRY, known.get(&controller.uid).map(|(_, set)| set.clone()).unwrap_or_default())
            }
        };
        known.insert(controller.uid.clone(), (until, set.clone()));
        set
    }
}

async fn ask(client: &Client, namespace: &str, controller: &OwnerReference) -> Result<Set, kube::Error> {
    let mut set = Set::default();
    let mut next = Some(controller.clone());
    for generation in 0..GENERATIONS {
        let Some(owner) = next.take() else { break };
        let Some(found) = get(client, namespace, &owner).await? else { break };
        if generation == 0 {
            set.size = size(&found);
        }
        if let Some(text) = found.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)) {
            set.policy = Policy::parse(text).ok();
            break;
        }
        next = found.metadata.owner_references.into_iter().flatten().find(|o| o.controller == Some(true));
    }
    Ok(set)
}

async fn get(client: &Client, namespace: &str, owner: &OwnerReference) -> Result<Option<DynamicObject>, kube::Error> {
    let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", &owner.api_version));
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &owner.kind));
    let found = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind).get_opt(&owner.name).await;
    match found {
        Ok(found) => Ok(found.filter(|found| found.metadata.uid.as_deref() == Some(&owner.uid))),
        // A machine may not look at every kind that somebody invents.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where the usual kinds say how many pods they want.
fn size(owner: &DynamicObject) -> Option<u32> {
    let places = ["/spec/replicas", "/spec/parallelism", "/status/desiredNumberScheduled"];
    let found = places.into_iter().find_map(|place| owner.data.pointer(place)?.as_u64());
    found.and_then(|size| u32::try_from(size).ok())
}
