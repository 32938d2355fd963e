//! ServiceCIDRs: says of each that Services may have its addresses, and keeps one that is deleted while a Service has one of them.
//!
//! Addresses are given by the API server, of every ServiceCIDR that is ready and not being deleted; so none is given of one that goes. The
//! addresses in use are listed from the API before the finalizer is removed, because that is for good, and not before every server can know
//! of the deletion. Condition, finalizer and words are upstream's.

use std::{net::IpAddr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::networking::v1::{IPAddress, ServiceCIDR},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use mainstay_api::validation::names;
use serde_json::{Value, json};

use crate::runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
/// After its deletion a ServiceCIDR stays so long at least: other servers may not have heard of it yet, and still give its addresses.
const GRACE: SignedDuration = SignedDuration::from_secs(5);
/// How soon the addresses of one that is in use are looked at again, beside every change of a Service.
const RECHECK: SignedDuration = SignedDuration::from_secs(30);

pub struct ServiceCidrs {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<ServiceCidrs>();
    let cidrs = &context.service_cidrs;
    let add_deleted = {
        let (queue, cidrs) = (queue.clone(), Arc::downgrade(cidrs));
        move || {
            let Some(cidrs) = cidrs.upgrade() else { return };
            let deleted = cidrs.select(|cidr| cidr.metadata.deletion_timestamp.is_some());
            deleted.iter().for_each(|cidr| queue.add(cidr.name_any()));
        }
    };
    cidrs.on_change({
        let (queue, add_deleted) = (queue.clone(), add_deleted.clone());
        move |change| {
            queue.add(change.key.name.clone());
            add_deleted(); // another one may have its addresses, too
        }
    });
    context.caches.services.on_change(move |change| {
        if change.after.is_none() {
            add_deleted();
        }
    });
    let synced = {
        let cidrs = cidrs.clone();
        async move { cidrs.synced().await }
    };
    let controller = Arc::new(ServiceCidrs { context: context.clone() });
    context.runnable(controller, queue, Limits::default()).after(synced)
}

pub struct World {
    cidr: Arc<ServiceCIDR>,
    /// Whether a Service has an address that no other ServiceCIDR has; looked up only if it is deleted.
    is_used: bool,
}

#[derive(Debug, PartialEq)]
pub enum Change {
    Finalizers(Vec<String>),
    Ready(Box<Condition>),
}

/// Fenced by the version of the ServiceCIDR that was judged.
#[derive(Debug, PartialEq)]
pub struct Action {
    version: String,
    change: Change,
}

fn conditions(cidr: &ServiceCIDR) -> &[Condition] {
    cidr.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn ready(cidr: &ServiceCIDR) -> Option<&Condition> {
    conditions(cidr).iter().find(|condition| condition.type_ == READY)
}

fn condition(status: &str, reason: &str, message: &str, now: Timestamp) -> Change {
    Change::Ready(Box::new(Condition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    }))
}

fn plan(World { cidr, is_used }: &World, now: Timestamp) -> Plan<Action, ()> {
    let finalizers = cidr.finalizers();
    let is_held = finalizers.iter().any(|own| own == FINALIZER);
    let act = |change| Plan::act([Action { version: cidr.resource_version().unwrap_or_default(), change }]);
    let Some(Time(deleted)) = cidr.metadata.deletion_timestamp else {
        return match ready(cidr) {
            _ if !is_held => {
                act(Change::Finalizers(finalizers.iter().cloned().chain([FINALIZER.to_owned()]).collect()))
            }
            None => act(condition("True", "", "Kubernetes Service CIDR is ready", now)),
            Some(_) => Plan::default(),
        };
    };
    if !is_held {
        return Plan::default();
    }
    let free_from = deleted.saturating_add(GRACE).unwrap_or(Timestamp::MAX);
    if *is_used {
        let is_said = ready(cidr).is_some_and(|ready| ready.status == "False");
        let words =
            "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        let told = if is_said { Plan::default() } else { act(condition("False", "Terminating", words, now)) };
        return Plan { requeue_at: now.saturating_add(RECHECK).ok(), ..told };
    }
    if now < free_from {
        return Plan { requeue_at: Some(free_from), ..Plan::default() };
    }
    act(Change::Finalizers(finalizers.iter().filter(|own| *own != FINALIZER).cloned().collect()))
}

/// Whether an address is in a range: `10.0.0.0/24`.
fn contains(range: &str, address: IpAddr) -> bool {
    match (names::parse_cidr(range), address) {
        (Some((IpAddr::V4(base), bits)), IpAddr::V4(address)) => {
            let differing = u32::from(base) ^ u32::from(address);
            differing.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (Some((IpAddr::V6(base), bits)), IpAddr::V6(address)) => {
            let differing = u128::from(base) ^ u128::from(address);
            differing.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

fn has_address(cidr: &ServiceCIDR, address: IpAddr) -> bool {
    let ranges = cidr.spec.as_ref().and_then(|spec| spec.cidrs.as_deref()).unwrap_or_default();
    ranges.iter().any(|range| contains(range, address))
}

/// Whether an address is of this ServiceCIDR, and of no other one that stays.
fn depends_on(address: IpAddr, cidr: &ServiceCIDR, all: &[Arc<ServiceCIDR>]) -> bool {
    let mut others = all.iter().filter(|other| {
        other.metadata.uid != cidr.metadata.uid
            && other.metadata.deletion_timestamp.is_none()
            && ready(other).is_none_or(|ready| ready.status == "True")
    });
    has_address(cidr, address) && !others.any(|other| has_address(other, address))
}

impl ServiceCidrs {
    async fn is_used(&self, cidr: &ServiceCIDR) -> Result<bool, kube::Error> {
        let addresses: Api<IPAddress> = Api::all(self.context.client.clone());
        let all = self.context.service_cidrs.all();
        let listed = addresses.list(&ListParams::default()).await?;
        Ok(listed.iter().filter_map(|own| names::parse_ip(&own.name_any())).any(|own| depends_on(own, cidr, &all)))
    }
}

impl Controller for ServiceCidrs {
    const NAME: &'static str = "service_cidrs";
    type Key = String;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<World>, ApiError> {
        let Some(cidr) = self.context.service_cidrs.get(&ObjectKey::new("", name)) else { return Ok(None) };
        let is_used = match cidr.metadata.deletion_timestamp {
            Some(_) => {
                let doing = format!("look for addresses of service CIDR {name}");
                self.is_used(&cidr).await.map_err(ApiError::when(doing))?
            }
            None => false,
        };
        Ok(Some(World { cidr, is_used }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, ()> {
        plan(world, now)
    }

    async fn apply(&self, name: &String, Action { version, change }: Action) -> Result<(), ApiError> {
        let cidrs: Api<ServiceCIDR> = Api::all(self.context.client.clone());
        let params = PatchParams::default();
        let written = match change {
            Change::Finalizers(finalizers) => {
                let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
                cidrs.patch_metadata(name, &params, &Patch::Merge(patch)).await.map(drop)
            }
            Change::Ready(ready) => {
                let known = self.context.service_cidrs.get(&ObjectKey::new("", name));
                let others = known.iter().flat_map(|cidr| conditions(cidr)).filter(|other| other.type_ != READY);
                let conditions: Vec<Value> = others.chain([&*ready]).map(|condition| json!(condition)).collect();
                let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
                cidrs.patch_status(name, &params, &Patch::Merge(patch)).await.map(drop)
            }
        };
        match written {
            Ok(()) => Ok(()),
            // Somebody else was faster: the change itself brings it back to the queue.
            Err(error) if error::has_code(&error, 404) || error::has_code(&error, 409) => Ok(()),
            Err(error) => Err(ApiError::new(format!("write service CIDR {name}"), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELETED: &str = "2026-01-01T00:00:00Z";

    fn cidr(uid: &str, change: Value) -> Arc<ServiceCIDR> {
        let mut object = json!({
            "metadata": {"name": uid, "uid": uid, "resourceVersion": "7"}, "spec": {"cidrs": ["10.8.0.0/24"]},
        });
        mainstay_api::patch::merge(&mut object, &change);
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn planned(change: Value, is_used: bool, seconds: i64) -> (Vec<Change>, Option<i64>) {
        let deleted: Timestamp = DELETED.parse().unwrap();
        let now = deleted.saturating_add(SignedDuration::from_secs(seconds)).unwrap();
        let Plan { actions, requeue_at, .. } = plan(&World { cidr: cidr("a", change), is_used }, now);
        let again = requeue_at.map(|at| at.duration_since(deleted).as_secs());
        (actions.into_iter().map(|action| action.change).collect(), again)
    }

    fn states(changes: &[Change]) -> Vec<String> {
        let show = |change: &Change| match change {
            Change::Finalizers(all) => all.join(","),
            Change::Ready(condition) => format!("{} {}", condition.status, condition.reason),
        };
        changes.iter().map(show).collect()
    }

    #[test]
    fn a_range_is_held_and_then_said_to_be_ready_once() {
        let (held, _) = planned(json!({"metadata": {"finalizers": ["other"]}}), false, 0);
        assert_eq!(states(&held), [format!("other,{FINALIZER}")]);
        let (ready, _) = planned(json!({"metadata": {"finalizers": [FINALIZER]}}), false, 0);
        assert_eq!(states(&ready), ["True "]);
        let said = json!([{"type": READY, "status": "False", "reason": "Other", "message": "", "lastTransitionTime": DELETED}]);
        let known = json!({"metadata": {"finalizers": [FINALIZER]}, "status": {"conditions": said}});
        assert_eq!(planned(known, false, 0), (Vec::new(), None), "whoever said so");
    }

    #[test]
    fn a_range_goes_when_nobody_has_its_addresses_any_more() {
        let deleted = json!({"metadata": {"finalizers": [FINALIZER, "other"], "deletionTimestamp": DELETED}});
        let (told, again) = planned(deleted.clone(), true, 60);
        assert_eq!((states(&told), again), (vec!["False Terminating".to_owned()], Some(90)));
        assert_eq!(planned(deleted.clone(), false, 2), (Vec::new(), Some(5)), "another server may give one yet");
        let (released, again) = planned(deleted, false, 5);
        assert_eq!((states(&released), again), (vec!["other".to_owned()], None));
        let released = json!({"metadata": {"finalizers": ["other"], "deletionTimestamp": DELETED}});
        assert_eq!(planned(released, false, 60), (Vec::new(), None));
    }

    #[test]
    fn an_address_depends_on_the_only_range_that_has_it() {
        let own = cidr("a", json!({"spec": {"cidrs": ["10.8.0.0/24", "fd00::/112"]}}));
        let depends = |address: &str, others: &[Arc<ServiceCIDR>]| {
            let all: Vec<_> = others.iter().cloned().chain([own.clone()]).collect();
            depends_on(address.parse().unwrap(), &own, &all)
        };
        assert!(depends("10.8.0.7", &[]) && depends("fd00::7", &[]));
        assert!(!depends("10.8.1.7", &[]) && !depends("fd00::1:7", &[]));
        let wide = json!({"spec": {"cidrs": ["10.0.0.0/8"]}});
        assert!(!depends("10.8.0.7", &[cidr("b", wide.clone())]));
        let mut going = wide;
        going["metadata"] = json!({"deletionTimestamp": DELETED});
        assert!(depends("10.8.0.7", &[cidr("b", going)]));
        assert!(contains("0.0.0.0/0", "1.2.3.4".parse().unwrap()) && contains("::/0", "fd00::1".parse().unwrap()));
    }
}
