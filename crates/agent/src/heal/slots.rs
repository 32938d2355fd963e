//! The places of a set's budget, shared by all machines as Leases in the pods' namespace.
//!
//! Place `n` of a set is the Lease `heal-<owner uid>-<n>`: created or taken over by compare-and-set, so two agents
//! cannot have the same one, and there are only as many as the budget. It is deleted when its pod is well
//! again, and has been for as long as its probe would take to condemn it anew: a restart that cured nothing must
//! not let the next pod be restarted just as vainly. It is free for others when its time is over; the owner's end takes it along. While the API cannot be reached,
//! the budget is a share of this machine's pods of the set, counted here.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Pod,
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use mainstay_api::{
    heal::{self, Budget, Policy},
    validation::labels,
};
use mainstay_runtime::PodUid;
use parking_lot::Mutex;

use super::{
    Leave,
    budget::{self, Claim, Place},
};

const PATIENCE: Duration = Duration::from_secs(3);
const ATTEMPTS: usize = 8;

pub struct Asked<'a> {
    pub pod: &'a Pod,
    pub uid: &'a PodUid,
    pub controller: &'a OwnerReference,
    pub policy: &'a Policy,
    /// How many pods the set is to have, if known.
    pub size: Option<u32>,
    /// How many of them are on this machine.
    pub here: u32,
}

pub struct Slots {
    client: Option<Client>,
    held: Arc<Mutex<BTreeMap<PodUid, Held>>>,
}

/// What a pod of this machine has.
#[derive(Clone, Debug)]
struct Held {
    set: String,
    until: Timestamp,
    lease: Option<Named>,
    /// The container for which it was taken has ended since. Before that, a pod that looks well is only not dead yet.
    used: bool,
    /// Since when it is well again.
    well: Option<Timestamp>,
}

#[derive(Clone, Debug)]
struct Named {
    namespace: String,
    name: String,
    version: String,
}

enum Answer {
    Taken(Option<Named>),
    Full { taken: u32, allowed: u32 },
}

impl Slots {
    pub fn new(client: Option<Client>) -> Self {
        Self { client, held: Arc::default() }
    }

    pub async fn take(&self, asked: &Asked<'_>) -> Leave {
        let now = Timestamp::now();
        if asked.policy.budget == Budget::Off || self.held.lock().get(asked.uid).is_some_and(|held| now < held.until) {
            return Leave::Granted;
        }
        let answer = match &self.client {
            Some(client) => match tokio::time::timeout(PATIENCE, shared(client, asked, now)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the set's budget cannot be asked; this machine's share counts");
                    self.local(asked, now)
                }
                Err(_) => self.local(asked, now),
            },
            None => self.local(asked, now),
        };
        match answer {
            Answer::Taken(lease) => {
                let until = budget::until(now, asked.policy.settle);
                let held = Held { set: asked.controller.uid.clone(), until, lease, used: false, well: None };
                self.held.lock().insert(asked.uid.clone(), held);
                Leave::Granted
            }
            Answer::Full { taken, allowed } => {
                let set = format!("{} {}", asked.controller.kind, asked.controller.name);
                let why =
                    format!("{taken} pods of {set} are being restarted already, and its restart budget is {allowed}");
                Leave::Kept { why }
            }
        }
    }

    /// The budget as far as this machine alone can tell.
    fn local(&self, asked: &Asked<'_>, now: Timestamp) -> Answer {
        let Some(allowed) = budget::allowance(asked.policy.budget, None, asked.here) else {
            return Answer::Taken(None);
        };
        let held = self.held.lock();
        let mine = |held: &&Held| held.set == asked.controller.uid && now < held.until;
        let taken = held.values().filter(mine).count() as u32;
        if taken < allowed { Answer::Taken(None) } else { Answer::Full { taken, allowed } }
    }

    /// A container of the pod has ended.
    pub fn used(&self, pod: &PodUid) {
        if let Some(held) = self.held.lock().get_mut(pod) {
            (held.used, held.well) = (true, None);
        }
    }

    /// The pod is well, or looks so: its place goes back once it has been restarted and has proved itself that long.
    pub async fn release(&self, pod: &PodUid, proof: Duration) {
        let now = Timestamp::now();
        match self.held.lock().get_mut(pod) {
            Some(held) if held.used && held.well.is_none() => held.well = Some(now),
            Some(_) | None => return,
        }
        let (held, client, pod) = (self.held.clone(), self.client.clone(), pod.clone());
        let proved = async move {
            tokio::time::sleep(proof).await;
            let place = {
                let mut held = held.lock();
                let still_well = held.get(&pod).is_some_and(|held| held.well == Some(now));
                if still_well { held.remove(&pod) } else { None }
            };
            if let (Some(Held { lease: Some(lease), .. }), Some(client)) = (place, client) {
                give_back(client, lease).await;
            }
        };
        if proof.is_zero() {
            proved.await;
        } else {
            tokio::spawn(proved);
        }
    }

    /// The pod is gone.
    pub fn forget(&self, pod: &PodUid) {
        let held = self.held.lock().remove(pod);
        if let (Some(Held { lease: Some(lease), .. }), Some(client)) = (held, &self.client)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(give_back(client.clone(), lease));
        }
    }
}

async fn give_back(client: Client, lease: Named) {
    let leases: Api<Lease> = Api::namespaced(client, &lease.namespace);
    let ours = Preconditions { resource_version: Some(lease.version), uid: None };
    let parameters = DeleteParams { preconditions: Some(ours), ..Default::default() };
    // Whoever took it over meanwhile keeps it; if the API is away, its time runs out by itself.
    let _ = tokio::time::timeout(PATIENCE, leases.delete(&lease.name, &parameters)).await;
}

async fn shared(client: &Client, asked: &Asked<'_>, now: Timestamp) -> Result<Answer, kube::Error> {
    let namespace = asked.pod.metadata.namespace.as_deref().unwrap_or("default");
    let disruption = match asked.policy.budget {
        Budget::Stock => disruption_budget(client, namespace, asked.pod).await?,
        Budget::Count(_) | Budget::Percent(_) | Budget::Off => None,
    };
    let spec = disruption.as_ref().and_then(|budget| budget.spec.as_ref());
    let size = asked.size.unwrap_or(asked.here).max(asked.here);
    let Some(allowed) = budget::allowance(asked.policy.budget, spec, size) else { return Ok(Answer::Taken(None)) };
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let of_set = ListParams::default().labels(&format!("{}={}", heal::SET_LABEL, asked.controller.uid));
    for _ in 0..ATTEMPTS {
        let list = leases.list(&of_set).await?;
        let places: Vec<Place> = list.items.iter().filter_map(place).collect();
        let written = match budget::claim(&places, allowed, &asked.uid.0, fastrand::u32(..allowed), now) {
            Claim::Full { taken } => return Ok(Answer::Full { taken, allowed }),
            Claim::Held(number) => {
                let found = list.items.into_iter().find(|lease| place(lease).is_some_and(|p| p.number == number));
                return Ok(Answer::Taken(found.map(|lease| named(namespace, &lease))));
            }
            Claim::Create(number) => leases.create(&PostParams::default(), &lease(asked, number, None, now)).await,
            Claim::TakeOver(place) => {
                let next = lease(asked, place.number, Some(place.version), now);
                leases.replace(&name(asked, place.number), &PostParams::default(), &next).await
            }
        };
        match written {
            Ok(lease) => return Ok(Answer::Taken(Some(named(namespace, &lease)))),
            // Someone was faster, or gave it back.
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Answer::Full { taken: allowed, allowed })
}

async fn disruption_budget(
    client: &Client,
    namespace: &str,
    pod: &Pod,
) -> Result<Option<PodDisruptionBudget>, kube::Error> {
    let all = Api::<PodDisruptionBudget>::namespaced(client.clone(), namespace).list(&ListParams::default()).await?;
    let none = BTreeMap::new();
    let pods = pod.metadata.labels.as_ref().unwrap_or(&none);
    let covers = |budget: &PodDisruptionBudget| {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| labels::matches(selector, pods))
    };
    Ok(all.items.into_iter().find(covers))
}

fn name(asked: &Asked<'_>, number: u32) -> String {
    heal::lease_name(&asked.controller.uid, number)
}

fn named(namespace: &str, lease: &Lease) -> Named {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Named {
        namespace: namespace.to_owned(),
        name: text(&lease.metadata.name),
        version: text(&lease.metadata.resource_version),
    }
}

fn lease(asked: &Asked<'_>, number: u32, version: Option<String>, now: Timestamp) -> Lease {
    let owner = OwnerReference { controller: None, block_owner_deletion: None, ..asked.controller.clone() };
    let node = asked.pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let settle = i32::try_from(asked.policy.settle.as_secs()).unwrap_or(i32::MAX).max(1);
    Lease {
        metadata: ObjectMeta {
            name: Some(name(asked, number)),
            resource_version: version,
            labels: Some(BTreeMap::from([(heal::SET_LABEL.to_owned(), asked.controller.uid.clone())])),
            annotations: Some(BTreeMap::from([(heal::NODE_ANNOTATION.to_owned(), node)])),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(asked.uid.0.clone()),
            lease_duration_seconds: Some(settle),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            ..Default::default()
        }),
    }
}

fn place(lease: &Lease) -> Option<Place> {
    let number = lease.metadata.name.as_deref()?.rsplit_once('-')?.1.parse().ok()?;
    let spec = lease.spec.clone().unwrap_or_default();
    let settle = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
    let until = spec.renew_time.map_or(Timestamp::MIN, |MicroTime(at)| budget::until(at, settle));
    Some(Place {
        number,
        holder: spec.holder_identity.unwrap_or_default(),
        until,
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    })
}
