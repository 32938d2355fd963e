//! Decides what a deorbit does next: what to delete, what to wait for, and when it is over.
//!
//! The order is snapshots, claims, Services, then waiting for snapshots, volumes and load balancers. Each look decides anew from the cluster's objects, from what
//! the cloud shows and from the receipt so far, so that a crash between any two calls changes nothing, and no worker is held while the cloud
//! works. Whether something is gone is asked of the cloud; an error is never taken for an absence.
//!
//! It is over when nothing was left for [`SETTLE`]: automation in the cluster that makes a deleted Service anew is noticed, and its Service deleted as well.
//! It is given up ("self-destruct") when the cluster's API was not available for [`UNAVAILABLE_LIMIT`], of whatever kind the failure is, or [`HANGING_LIMIT`] after the
//! deletion. Nothing is done then; the receipt names what remains.
//!
//! What the rows of Kubernikus would wait a day for, though nobody will ever delete it, is left and named: volumes that a reclaim policy
//! keeps, and volumes of PersistentVolumes that were never bound.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mainstay_api::cloud::{
    cloud_resource::ResourceType,
    teardown_receipt::{API_UNAVAILABLE, COMPLETE, DELETED, DEORBIT_HANGING, LEFT, ReceiptItem, ReceiptStatus},
};

use super::{
    inventory::{CloudInventory, LedgerItem, discover},
    notice::{Notice, Stage},
    objects::{ClusterObjects, ObjectId},
};

/// How often everything is looked at while something is waited for.
pub const POLL: SignedDuration = SignedDuration::from_secs(15);
/// After deletes of its own, the first look comes at once.
const FIRST_POLL: SignedDuration = SignedDuration::from_secs(1);
/// A round that waits longer has failed, and the next one begins.
pub const ROUND: SignedDuration = SignedDuration::from_mins(10);
/// How long the cluster's API may be unavailable.
pub const UNAVAILABLE_LIMIT: SignedDuration = SignedDuration::from_mins(2);
/// How long it may take in all.
pub const HANGING_LIMIT: SignedDuration = SignedDuration::from_hours(24);
/// How long nothing may appear again before it is over.
pub const SETTLE: SignedDuration = SignedDuration::from_secs(15);
/// How long the cluster's controllers may take to remove what an object that is gone had; afterwards it is removed directly.
pub const ORPHAN_GRACE: SignedDuration = SignedDuration::from_mins(5);
/// How long load balancers of clusters before Kubernetes 1.17 get, where Services do not wait for them.
const OLD_SERVICE_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// What became of asking the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterContact {
    Reached(ClusterObjects),
    /// Nobody answers, or not as an API that works does.
    Unavailable(String),
    /// It answers, and refuses.
    Refused(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct DeorbitWorld {
    /// When the deletion was asked for.
    pub began: Timestamp,
    pub contact: ClusterContact,
    pub cloud: Result<CloudInventory, String>,
    pub ledger: Vec<LedgerItem>,
    /// What the cluster's controllers call it in the cloud.
    pub cluster_name: String,
    /// The receipt so far.
    pub status: ReceiptStatus,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    DeleteSnapshot(ObjectId),
    DeleteClaim(ObjectId),
    DeleteService(ObjectId),
    /// A StatefulSet would make its claims anew.
    ScaleDown(ObjectId),
    /// It keeps a claim that is being deleted.
    DeletePod(ObjectId),
    /// Its object is gone, and the cluster's controllers left it behind.
    DeleteInCloud {
        resource: ResourceType,
        id: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeorbitEnd {
    Complete,
    SelfDestruct(SelfDestructReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfDestructReason {
    ApiUnavailable,
    DeorbitHanging,
}

impl DeorbitEnd {
    const ALL: [Self; 3] = [
        Self::Complete,
        Self::SelfDestruct(SelfDestructReason::ApiUnavailable),
        Self::SelfDestruct(SelfDestructReason::DeorbitHanging),
    ];

    /// From the receipt; nothing if it is not over.
    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.text() == text)
    }

    /// As the receipt has it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Complete => COMPLETE,
            Self::SelfDestruct(SelfDestructReason::ApiUnavailable) => API_UNAVAILABLE,
            Self::SelfDestruct(SelfDestructReason::DeorbitHanging) => DEORBIT_HANGING,
        }
    }
}

#[derive(Debug, PartialEq)]
pub struct DeorbitPlan {
    /// In order; the first failure ends the round.
    pub actions: Vec<Action>,
    /// The receipt after this look.
    pub status: ReceiptStatus,
    pub notices: Vec<Notice>,
    pub end: Option<DeorbitEnd>,
    pub next_look: Timestamp,
    /// Why this look could not see everything.
    pub failure: Option<String>,
}

pub fn plan(world: &DeorbitWorld, now: Timestamp) -> DeorbitPlan {
    let mut status = world.status.clone();
    // The receipt was written, and whatever comes after that was not.
    if let Some(end) = DeorbitEnd::parse(&status.result) {
        let (actions, notices) = (Vec::new(), Vec::new());
        return DeorbitPlan { actions, status, notices, end: Some(end), next_look: now, failure: None };
    }
    status.started.get_or_insert(Time(now));
    let round = status.round_started.get_or_insert(Time(now)).0;
    let objects = match &world.contact {
        ClusterContact::Reached(objects) => Some(objects),
        ClusterContact::Unavailable(_) | ClusterContact::Refused(_) => None,
    };
    match &world.contact {
        ClusterContact::Unavailable(_) => {
            status.unavailable_since.get_or_insert(Time(now));
        }
        ClusterContact::Reached(_) | ClusterContact::Refused(_) => status.unavailable_since = None,
    }
    if let Ok(cloud) = &world.cloud {
        update_items(&mut status.items, world, objects, cloud, now);
    }
    let before = Stage::parse(&status.stage);
    let stage = match (objects, &world.cloud) {
        (Some(objects), Ok(_)) => find_stage(objects, &status.items, world.began, now),
        _ => before.unwrap_or_default(), // what is not known changes nothing
    };
    let mut notices = Stage::notices_between(before, stage);
    let is_clear = stage == Stage::Settling && objects.is_some() && world.cloud.is_ok();
    status.clear_since = if is_clear { status.clear_since.or(Some(Time(now))) } else { None };
    stage.text().clone_into(&mut status.stage);
    let actions = objects.map_or_else(Vec::new, |objects| choose_actions(objects, &mut status.items, now));
    let has_settled = status.clear_since.as_ref().is_some_and(|since| now.duration_since(since.0) >= SETTLE);
    let end = if has_settled { Some(DeorbitEnd::Complete) } else { find_self_destruct(&status, world.began, now) };
    if end.is_none() && now.duration_since(round) >= ROUND {
        notices.extend(stage.timeout_notice());
        status.round_started = Some(Time(now));
    }
    let failure = match (&world.contact, &world.cloud) {
        (ClusterContact::Unavailable(why) | ClusterContact::Refused(why), _) | (_, Err(why)) => Some(why.clone()),
        (ClusterContact::Reached(_), Ok(_)) => None,
    };
    if let Some(end) = end {
        finish(&mut status, end, now);
        if let DeorbitEnd::SelfDestruct(reason) = end {
            notices.push(Notice::self_destruct(reason));
        }
    }
    // What the cloud is asked to delete takes its time; what the API is asked for shows at once.
    let asks_api = actions.iter().any(|action| !matches!(action, Action::DeleteInCloud { .. }));
    let next_look = now + if asks_api { FIRST_POLL } else { POLL };
    let actions = if end.is_some() { Vec::new() } else { actions };
    DeorbitPlan { actions, status, notices, end, next_look, failure }
}

/// Takes in what the cloud shows: new items, items that are gone, and items whose object is gone.
fn update_items(
    items: &mut Vec<ReceiptItem>,
    world: &DeorbitWorld,
    objects: Option<&ClusterObjects>,
    cloud: &CloudInventory,
    now: Timestamp,
) {
    for found in discover(objects, cloud, &world.ledger, &world.cluster_name) {
        match items.iter_mut().find(|item| item.resource == found.resource && item.id == found.id) {
            Some(known) if known.action == DELETED || found.owner.is_empty() => {} // nothing new
            Some(known) => {
                (known.owner, known.action, known.message) = (found.owner, found.action, found.message);
            }
            None => items.push(found),
        }
    }
    for item in items {
        let Some(shown) = cloud.status_of(item.resource, &item.id) else {
            item.gone.get_or_insert(Time(now));
            item.message.clear();
            continue;
        };
        item.gone = None; // an earlier look was at stale data
        if item.action != LEFT {
            item.message = format!("the cloud still has it: {shown}");
        }
        if let Some(objects) = objects {
            item.released =
                if owner_exists(objects, &item.owner) { None } else { item.released.clone().or(Some(Time(now))) };
            if let Some(why) = find_failed_volume(objects, item) {
                LEFT.clone_into(&mut item.action);
                item.message = why;
            }
        }
    }
}

/// Whether the object that an item exists for is still in the cluster. Of kinds that are not read this is not known, and they count as there.
fn owner_exists(objects: &ClusterObjects, owner: &str) -> bool {
    let Some((kind, name)) = owner.split_once(' ') else { return false };
    let has_name = |id: &ObjectId| id.to_string() == name;
    match kind {
        "PersistentVolume" => objects.volumes.iter().any(|volume| volume.name == name),
        "PersistentVolumeClaim" => {
            let has_volume = objects.volumes.iter().any(|volume| volume.claim == name);
            has_volume || objects.claims.iter().any(|claim| has_name(&claim.id))
        }
        "Service" => objects.services.iter().any(|service| service.is_load_balancer && has_name(&service.id)),
        "VolumeSnapshotContent" => objects.contents.iter().any(|content| content.name == name),
        "VolumeSnapshot" => {
            let has_content = objects.contents.iter().any(|content| content.snapshot == name);
            has_content || objects.snapshots.iter().any(|snapshot| has_name(&snapshot.id))
        }
        _ => true,
    }
}

/// Why a volume is not waited for: its PersistentVolume is Failed.
fn find_failed_volume(objects: &ClusterObjects, item: &ReceiptItem) -> Option<String> {
    let handle = (item.resource == ResourceType::Volume).then_some(item.id.as_str())?;
    let volume = objects.volumes.iter().find(|volume| volume.handle.as_deref() == Some(handle))?;
    (volume.phase == "Failed").then(|| format!("PersistentVolume {} failed: {}", volume.name, volume.message))
}

fn is_awaited(item: &ReceiptItem) -> bool {
    item.gone.is_none() && item.action != LEFT
}

fn find_stage(objects: &ClusterObjects, items: &[ReceiptItem], began: Timestamp, now: Timestamp) -> Stage {
    let awaits =
        |resources: &[ResourceType]| items.iter().any(|item| resources.contains(&item.resource) && is_awaited(item));
    let too_early = objects.is_before_service_finalizers() && now.duration_since(began) < OLD_SERVICE_WAIT;
    let balancers = [ResourceType::LoadBalancer, ResourceType::FloatingIP, ResourceType::Port];
    if !objects.snapshots.is_empty() || awaits(&[ResourceType::Snapshot]) {
        Stage::Snapshots
    } else if awaits(&[ResourceType::Volume]) {
        Stage::Volumes
    } else if objects.load_balancer_services().next().is_some() || awaits(&balancers) || too_early {
        Stage::LoadBalancers
    } else {
        Stage::Settling
    }
}

fn choose_actions(objects: &ClusterObjects, items: &mut [ReceiptItem], now: Timestamp) -> Vec<Action> {
    let mut actions = Vec::new();
    let snapshots = objects.snapshots.iter().filter(|snapshot| !snapshot.deleting);
    actions.extend(snapshots.map(|snapshot| Action::DeleteSnapshot(snapshot.id.clone())));
    let claims = objects.claims_to_delete().filter(|claim| !claim.deleting);
    actions.extend(claims.map(|claim| Action::DeleteClaim(claim.id.clone())));
    let services = objects.load_balancer_services().filter(|service| !service.deleting);
    actions.extend(services.map(|service| Action::DeleteService(service.id.clone())));
    let holders: Vec<_> = objects.pods_that_hold_claims().collect();
    let sets = objects.stateful_sets.iter().filter(|set| set.makes_claims && set.replicas > 0).filter(|set| {
        let owns = |pod: &&&super::objects::PodView| {
            pod.id.namespace == set.id.namespace && pod.stateful_set.as_deref() == Some(&set.id.name)
        };
        holders.iter().find(owns).is_some()
    });
    actions.extend(sets.map(|set| Action::ScaleDown(set.id.clone())));
    let pods = holders.iter().filter(|pod| !pod.deleting);
    actions.extend(pods.map(|pod| Action::DeletePod(pod.id.clone())));
    for item in items.iter_mut().filter(|item| is_awaited(item)) {
        let is_orphan = item.released.as_ref().is_some_and(|since| now.duration_since(since.0) >= ORPHAN_GRACE);
        if !is_orphan {
            continue;
        }
        // Data is not deleted on the strength of a name alone.
        if item.owner.is_empty() && matches!(item.resource, ResourceType::Volume | ResourceType::Snapshot) {
            LEFT.clone_into(&mut item.action);
            "it bears the cluster's name, but no object of the cluster names it".clone_into(&mut item.message);
            continue;
        }
        DELETED.clone_into(&mut item.action);
        actions.push(Action::DeleteInCloud { resource: item.resource, id: item.id.clone() });
    }
    // A port or address goes with its load balancer, which therefore goes first.
    actions.sort_by_key(|action| match action {
        Action::DeleteInCloud { resource: ResourceType::LoadBalancer | ResourceType::Snapshot, .. } => 1,
        Action::DeleteInCloud { .. } => 2,
        _ => 0,
    });
    actions
}

fn find_self_destruct(status: &ReceiptStatus, began: Timestamp, now: Timestamp) -> Option<DeorbitEnd> {
    let since_deletion = now.duration_since(began);
    if since_deletion > HANGING_LIMIT {
        return Some(DeorbitEnd::SelfDestruct(SelfDestructReason::DeorbitHanging));
    }
    let unavailable = status.unavailable_since.as_ref().map(|since| now.duration_since(since.0));
    let is_unavailable = unavailable.is_some_and(|unavailable| unavailable >= UNAVAILABLE_LIMIT);
    (is_unavailable && since_deletion > UNAVAILABLE_LIMIT)
        .then_some(DeorbitEnd::SelfDestruct(SelfDestructReason::ApiUnavailable))
}

fn finish(status: &mut ReceiptStatus, end: DeorbitEnd, now: Timestamp) {
    status.finished = Some(Time(now));
    end.text().clone_into(&mut status.result);
    status.stage.clear();
    (status.round_started, status.unavailable_since, status.clear_since) = (None, None, None);
    for item in status.items.iter_mut().filter(|item| item.gone.is_none() && item.message.is_empty()) {
        "the cloud was not seen without it".clone_into(&mut item.message);
    }
}

#[cfg(test)]
mod tests;
