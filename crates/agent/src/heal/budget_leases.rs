//! The restart budget of a set, shared by all nodes as Leases in the pods' namespace.
//!
//! Slot `n` of a set is the Lease `heal-<owner uid>-<n>`: created or taken over by compare-and-set, so two nodes
//! cannot have the same one, and there are only as many as the budget. It is deleted when its pod is well
//! again, and has been for as long as its probe would take to fail anew: a restart that cured nothing must
//! not let the next pod be restarted just as vainly. It is free for others when its time is over; the owner's end takes it
//! along. While the API cannot be reached, the budget is a share of this node's pods of the set, counted here.
//!
//! [`BudgetLeases::acquire`] asks the API and may take seconds, so it is an action that runs beside the pod's loop; its
//! outcome is what [`BudgetLeases::permission`] returns from then on.

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
    wellknown,
};
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;

use super::{
    RestartPermission,
    budget::{self, Slot, SlotClaim},
};
use crate::task_scope::TaskScope;

/// Longest time to wait for the API.
const API_TIMEOUT: Duration = Duration::from_secs(3);
/// How soon a pod that was denied may ask again.
const RETRY: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 8;

/// A pod that wants to be restarted, and the set whose budget counts.
pub struct RestartRequest<'a> {
    pub pod: &'a Pod,
    pub uid: &'a PodUid,
    pub controller: &'a OwnerReference,
    pub policy: &'a Policy,
    /// How many pods the set is to have, if known.
    pub size: Option<u32>,
    /// How many of them are on this machine.
    pub here: u32,
}

pub struct BudgetLeases {
    client: Option<Client>,
    tasks: TaskScope,
    pods: Arc<Mutex<BTreeMap<PodUid, Reservation>>>,
    denials: Mutex<BTreeMap<PodUid, Denial>>,
}

/// The slot that a pod of this node has.
#[derive(Clone, Debug)]
struct Reservation {
    set: String,
    until: Timestamp,
    lease: Option<LeaseRef>,
    /// The container for which it was taken has ended since. Before that, a pod that looks well is only not dead yet.
    used: bool,
    /// Since when it is well again.
    well: Option<Timestamp>,
}

#[derive(Clone, Debug)]
struct Denial {
    reason: String,
    retry_at: Timestamp,
}

#[derive(Clone, Debug)]
struct LeaseRef {
    namespace: String,
    name: String,
    version: String,
}

enum LeaseAnswer {
    Taken(Option<LeaseRef>),
    Full { taken: u32, allowed: u32 },
}

impl BudgetLeases {
    pub fn new(client: Option<Client>, tasks: TaskScope) -> Self {
        Self { client, tasks, pods: Arc::default(), denials: Mutex::default() }
    }

    /// The outcome of the pod's last request.
    pub fn permission(&self, pod: &PodUid, now: Timestamp) -> RestartPermission {
        if self.pods.lock().get(pod).is_some_and(|reservation| now < reservation.until) {
            return RestartPermission::Granted;
        }
        match self.denials.lock().get(pod).cloned() {
            Some(Denial { reason, retry_at }) => RestartPermission::Denied { reason, retry_at },
            None => RestartPermission::NotRequested,
        }
    }

    /// Requests a slot of the set's budget for the pod, a bounded time.
    pub async fn acquire(&self, request: &RestartRequest<'_>) {
        let now = Timestamp::now();
        if self.permission(request.uid, now) == RestartPermission::Granted {
            return;
        }
        let answer = match &self.client {
            Some(client) => match tokio::time::timeout(API_TIMEOUT, acquire_lease(client, request, now)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    tracing::debug!(
                        error = error_chain(&error),
                        "cannot read the restart budget of a set; this node's share of it counts"
                    );
                    self.count_local(request, now)
                }
                Err(_) => self.count_local(request, now),
            },
            None => self.count_local(request, now),
        };
        match answer {
            LeaseAnswer::Taken(lease) => {
                let until = budget::until(now, request.policy.settle);
                let set = request.controller.uid.clone();
                let reservation = Reservation { set, until, lease, used: false, well: None };
                self.pods.lock().insert(request.uid.clone(), reservation);
                self.denials.lock().remove(request.uid);
            }
            LeaseAnswer::Full { taken, allowed } => {
                let set = format!("{} {}", request.controller.kind, request.controller.name);
                let reason =
                    format!("{taken} pods of {set} are being restarted already, and its restart budget is {allowed}");
                let denial = Denial { reason, retry_at: Timestamp::now() + RETRY };
                self.denials.lock().insert(request.uid.clone(), denial);
            }
        }
    }

    /// The budget as far as this node alone can tell.
    fn count_local(&self, request: &RestartRequest<'_>, now: Timestamp) -> LeaseAnswer {
        let Some(allowed) = budget::allowance(request.policy.budget, None, request.here) else {
            return LeaseAnswer::Taken(None);
        };
        let reservations = self.pods.lock();
        let current = |r: &&Reservation| r.set == request.controller.uid && now < r.until;
        let taken = reservations.values().filter(current).count() as u32;
        if taken < allowed { LeaseAnswer::Taken(None) } else { LeaseAnswer::Full { taken, allowed } }
    }

    /// A container of the pod has ended: from now on the pod has to prove itself.
    pub fn mark_used(&self, pod: &PodUid) {
        if let Some(reservation) = self.pods.lock().get_mut(pod) {
            (reservation.used, reservation.well) = (true, None);
        }
        self.clear_denial(pod);
    }

    /// The pod no longer needs to be restarted.
    pub fn clear_denial(&self, pod: &PodUid) {
        self.denials.lock().remove(pod);
    }

    /// The pod is well, or looks so: its slot goes back once it has been restarted and has stayed well for `proof`.
    pub fn release_after(&self, pod: &PodUid, proof: Duration) {
        let now = Timestamp::now();
        match self.pods.lock().get_mut(pod) {
            Some(reservation) if reservation.used && reservation.well.is_none() => reservation.well = Some(now),
            Some(_) | None => return,
        }
        let (reservations, client, pod) = (self.pods.clone(), self.client.clone(), pod.clone());
        self.tasks.spawn(async move {
            tokio::time::sleep(proof).await;
            let reservation = {
                let mut reservations = reservations.lock();
                let still_well = reservations.get(&pod).is_some_and(|reservation| reservation.well == Some(now));
                if still_well { reservations.remove(&pod) } else { None }
            };
            if let (Some(Reservation { lease: Some(lease), .. }), Some(client)) = (reservation, client) {
                delete_lease(client, lease).await;
            }
        });
    }

    /// The pod is gone.
    pub fn forget(&self, pod: &PodUid) {
        self.clear_denial(pod);
        let reservation = self.pods.lock().remove(pod);
        if let (Some(Reservation { lease: Some(lease), .. }), Some(client)) = (reservation, &self.client) {
            self.tasks.spawn(delete_lease(client.clone(), lease));
        }
    }
}

async fn delete_lease(client: Client, lease: LeaseRef) {
    let leases: Api<Lease> = Api::namespaced(client, &lease.namespace);
    let ours = Preconditions { resource_version: Some(lease.version), uid: None };
    let parameters = DeleteParams { preconditions: Some(ours), ..Default::default() };
    // Whoever took it over meanwhile keeps it; if the API is away, its time runs out by itself.
    let _ = tokio::time::timeout(API_TIMEOUT, leases.delete(&lease.name, &parameters)).await;
}

async fn acquire_lease(
    client: &Client,
    request: &RestartRequest<'_>,
    now: Timestamp,
) -> Result<LeaseAnswer, kube::Error> {
    let namespace = request.pod.metadata.namespace.as_deref().unwrap_or(wellknown::namespace::DEFAULT);
    let disruption = match request.policy.budget {
        Budget::Stock => disruption_budget(client, namespace, request.pod).await?,
        Budget::Count(_) | Budget::Percent(_) | Budget::Off => None,
    };
    let spec = disruption.as_ref().and_then(|budget| budget.spec.as_ref());
    let size = request.size.unwrap_or(request.here).max(request.here);
    let Some(allowed) = budget::allowance(request.policy.budget, spec, size) else {
        return Ok(LeaseAnswer::Taken(None));
    };
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let of_set = ListParams::default().labels(&format!("{}={}", heal::SET_LABEL, request.controller.uid));
    for _ in 0..ATTEMPTS {
        let list = leases.list(&of_set).await?;
        let slots: Vec<Slot> = list.items.iter().filter_map(slot).collect();
        let written = match budget::claim(&slots, allowed, &request.uid.0, fastrand::u32(..allowed), now) {
            SlotClaim::Full { taken } => return Ok(LeaseAnswer::Full { taken, allowed }),
            SlotClaim::Held(number) => {
                let found = list.items.into_iter().find(|lease| slot(lease).is_some_and(|p| p.number == number));
                return Ok(LeaseAnswer::Taken(found.map(|lease| lease_ref(namespace, &lease))));
            }
            SlotClaim::Create(number) => {
                leases.create(&PostParams::default(), &lease(request, number, None, now)).await
            }
            SlotClaim::TakeOver(slot) => {
                let next = lease(request, slot.number, Some(slot.version), now);
                leases.replace(&lease_name(request, slot.number), &PostParams::default(), &next).await
            }
        };
        match written {
            Ok(lease) => return Ok(LeaseAnswer::Taken(Some(lease_ref(namespace, &lease)))),
            // Someone was faster, or gave it back.
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(LeaseAnswer::Full { taken: allowed, allowed })
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

fn lease_name(request: &RestartRequest<'_>, number: u32) -> String {
    heal::lease_name(&request.controller.uid, number)
}

fn lease_ref(namespace: &str, lease: &Lease) -> LeaseRef {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    LeaseRef {
        namespace: namespace.to_owned(),
        name: text(&lease.metadata.name),
        version: text(&lease.metadata.resource_version),
    }
}

fn lease(request: &RestartRequest<'_>, number: u32, version: Option<String>, now: Timestamp) -> Lease {
    let owner = OwnerReference { controller: None, block_owner_deletion: None, ..request.controller.clone() };
    let node = request.pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let settle = i32::try_from(request.policy.settle.as_secs()).unwrap_or(i32::MAX).max(1);
    Lease {
        metadata: ObjectMeta {
            name: Some(lease_name(request, number)),
            resource_version: version,
            labels: Some(BTreeMap::from([(heal::SET_LABEL.to_owned(), request.controller.uid.clone())])),
            annotations: Some(BTreeMap::from([(heal::NODE_ANNOTATION.to_owned(), node)])),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(request.uid.0.clone()),
            lease_duration_seconds: Some(settle),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            ..Default::default()
        }),
    }
}

fn slot(lease: &Lease) -> Option<Slot> {
    let number = lease.metadata.name.as_deref()?.rsplit_once('-')?.1.parse().ok()?;
    let spec = lease.spec.clone().unwrap_or_default();
    let settle = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
    let until = spec.renew_time.map_or(Timestamp::MIN, |MicroTime(at)| budget::until(at, settle));
    Some(Slot {
        number,
        holder: spec.holder_identity.unwrap_or_default(),
        until,
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    })
}
