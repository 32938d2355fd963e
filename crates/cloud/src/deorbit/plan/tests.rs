use mainstay_api::cloud::teardown_receipt::DELETED_BY_OWNER;

use super::*;
use crate::deorbit::{
    inventory::{BalancerItem, CloudItem},
    objects::{ClaimView, PodView, ServiceView, SnapshotView, StatefulSetView, VolumeView},
};

const HOUR: i64 = 3600;

fn time_at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn id(name: &str) -> ObjectId {
    ObjectId { namespace: "shop".to_owned(), name: name.to_owned(), uid: format!("uid-{name}") }
}

fn claim(name: &str) -> ClaimView {
    ClaimView { id: id(name), bound: true, volume: format!("pv-{name}"), deleting: false }
}

fn volume(name: &str) -> VolumeView {
    VolumeView {
        name: format!("pv-{name}"),
        handle: Some(format!("vol-{name}")),
        phase: "Bound".to_owned(),
        claim: format!("shop/{name}"),
        ..VolumeView::default()
    }
}

fn service(name: &str) -> ServiceView {
    ServiceView { id: id(name), is_load_balancer: true, ..ServiceView::default() }
}

fn cloud_volume(name: &str) -> CloudItem {
    CloudItem { id: format!("vol-{name}"), status: "in-use".to_owned(), ..CloudItem::default() }
}

fn balancer(service: &str) -> BalancerItem {
    BalancerItem {
        id: format!("lb-{service}"),
        name: format!("kube_service_kate_shop_{service}"),
        status: "ACTIVE".to_owned(),
        ..BalancerItem::default()
    }
}

fn world(objects: ClusterObjects, cloud: CloudInventory) -> DeorbitWorld {
    DeorbitWorld {
        began: time_at(0),
        contact: ClusterContact::Reached(objects),
        cloud: Ok(cloud),
        ledger: Vec::new(),
        cluster_name: "kate".to_owned(),
        status: ReceiptStatus::default(),
    }
}

/// A cluster with one of each.
fn full_world() -> DeorbitWorld {
    let objects = ClusterObjects {
        snapshots: vec![SnapshotView { id: id("snap"), deleting: false }],
        claims: vec![claim("data")],
        volumes: vec![volume("data")],
        services: vec![service("web")],
        ..ClusterObjects::default()
    };
    let cloud = CloudInventory {
        volumes: vec![cloud_volume("data")],
        load_balancers: vec![balancer("web")],
        ..CloudInventory::default()
    };
    world(objects, cloud)
}

fn objects(world: &mut DeorbitWorld) -> &mut ClusterObjects {
    let ClusterContact::Reached(objects) = &mut world.contact else { panic!("the cluster is not reached") };
    objects
}

/// Plans and keeps the receipt for the next look.
fn look(world: &mut DeorbitWorld, seconds: i64) -> DeorbitPlan {
    let plan = plan(world, time_at(seconds));
    world.status = plan.status.clone();
    plan
}

#[test]
fn snapshots_go_first_then_claims_then_services() {
    let mut world = full_world();
    let plan = look(&mut world, 0);
    assert_eq!(
        plan.actions,
        [Action::DeleteSnapshot(id("snap")), Action::DeleteClaim(id("data")), Action::DeleteService(id("web"))]
    );
    assert_eq!(plan.next_look, time_at(1), "what was deleted is looked at once at once");
    assert_eq!(plan.status.stage, "WaitingForSnapshots");
}

#[test]
fn a_clean_run_waits_for_each_in_turn_and_ends_with_a_complete_receipt() {
    let mut world = full_world();
    look(&mut world, 0);
    let objects_now = objects(&mut world);
    objects_now.snapshots.clear();
    objects_now.claims[0].deleting = true;
    objects_now.services[0].deleting = true;
    let waiting = look(&mut world, 1);
    assert_eq!((waiting.actions.len(), waiting.status.stage.as_str()), (0, "WaitingForVolumes"));
    assert_eq!(waiting.next_look, time_at(16));
    // The volume hangs in deleting; the PersistentVolume is gone already.
    objects(&mut world).claims.clear();
    objects(&mut world).volumes.clear();
    world.cloud.as_mut().unwrap().volumes[0].status = "deleting".to_owned();
    let hanging = look(&mut world, 61);
    assert_eq!(hanging.status.stage, "WaitingForVolumes");
    assert_eq!(
        hanging.status.items.iter().find(|item| item.id == "vol-data").unwrap().message,
        "the cloud still has it: deleting"
    );
    world.cloud.as_mut().unwrap().volumes.clear();
    assert_eq!(look(&mut world, 76).status.stage, "WaitingForLoadBalancers");
    objects(&mut world).services.clear();
    assert_eq!(
        look(&mut world, 91).status.stage,
        "WaitingForLoadBalancers",
        "the Service is gone, its load balancer is not"
    );
    world.cloud.as_mut().unwrap().load_balancers.clear();
    let settling = look(&mut world, 106);
    assert_eq!((settling.status.stage.as_str(), settling.end), ("Settling", None));
    let last = look(&mut world, 121);
    assert_eq!(last.end, Some(DeorbitEnd::Complete));
    assert_eq!((last.status.result.as_str(), last.status.finished), ("Complete", Some(Time(time_at(121)))));
    let gone: Vec<_> =
        last.status.items.iter().map(|item| (item.id.as_str(), item.action.as_str(), item.gone.clone())).collect();
    assert_eq!(
        gone,
        [
            ("vol-data", DELETED_BY_OWNER, Some(Time(time_at(76)))),
            ("lb-web", DELETED_BY_OWNER, Some(Time(time_at(106))))
        ]
    );
    assert!(last.status.items.iter().all(|item| item.message.is_empty()));
}

#[test]
fn a_service_that_is_made_anew_is_deleted_again_and_waited_for() {
    let mut world = world(ClusterObjects::default(), CloudInventory::default());
    assert_eq!(look(&mut world, 0).status.stage, "Settling");
    objects(&mut world).services.push(service("web"));
    let again = look(&mut world, 15);
    assert_eq!((again.end, again.actions), (None, vec![Action::DeleteService(id("web"))]));
    assert_eq!(again.notices.last().unwrap().reason, "WaitingForDeorbitLoadBalancers");
    objects(&mut world).services.clear();
    assert_eq!(look(&mut world, 30).end, None, "the time in which nothing appears begins anew");
    assert_eq!(look(&mut world, 44).end, None);
    assert_eq!(look(&mut world, 45).end, Some(DeorbitEnd::Complete));
}

#[test]
fn a_cluster_that_is_not_available_for_two_minutes_is_given_up() {
    let mut world = full_world();
    world.contact = ClusterContact::Unavailable("connection refused".to_owned());
    assert_eq!(look(&mut world, 0).end, None);
    let early = look(&mut world, 120);
    assert_eq!((early.end, early.failure.as_deref()), (None, Some("connection refused")));
    let last = look(&mut world, 121);
    assert_eq!(last.end, Some(DeorbitEnd::SelfDestruct(SelfDestructReason::ApiUnavailable)));
    assert_eq!(last.status.result, "APIUnavailable");
    assert_eq!(last.notices.last().unwrap().reason, "SuccessfulDeorbitSelfDestruct");
    let remaining: Vec<&str> = last.status.items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(remaining, ["lb-web"], "what the cloud itself shows of the cluster is named");
    assert!(last.status.items.iter().all(|item| item.gone.is_none() && !item.message.is_empty()));
}

#[test]
fn an_outage_in_the_middle_counts_from_its_beginning() {
    let mut world = full_world();
    let reached = world.contact.clone();
    look(&mut world, 0);
    world.contact = ClusterContact::Unavailable("504".to_owned());
    assert_eq!(look(&mut world, 600).end, None, "one failure is no outage of two minutes");
    world.contact = reached;
    assert_eq!(look(&mut world, 660).end, None);
    world.contact = ClusterContact::Unavailable("504".to_owned());
    assert_eq!(look(&mut world, 719).end, None);
    assert_eq!(look(&mut world, 838).end, None);
    assert!(look(&mut world, 839).end.is_some());
}

#[test]
fn a_refusal_is_no_outage_and_hangs_until_the_day_is_over() {
    let mut world = full_world();
    world.contact = ClusterContact::Refused("forbidden".to_owned());
    for seconds in [0, 121, HOUR, 24 * HOUR] {
        assert_eq!(look(&mut world, seconds).end, None, "{seconds}");
    }
    let last = look(&mut world, 24 * HOUR + 1);
    assert_eq!(last.end, Some(DeorbitEnd::SelfDestruct(SelfDestructReason::DeorbitHanging)));
}

#[test]
fn a_stuck_volume_fails_its_round_after_ten_minutes_and_the_whole_after_a_day() {
    let mut world = full_world();
    objects(&mut world).snapshots.clear();
    objects(&mut world).claims[0].deleting = true;
    objects(&mut world).services.clear();
    world.cloud.as_mut().unwrap().load_balancers.clear();
    look(&mut world, 0);
    assert!(look(&mut world, 599).notices.is_empty());
    let failed = look(&mut world, 600);
    assert_eq!(failed.notices.iter().map(|notice| notice.reason).collect::<Vec<_>>(), ["FailedDeorbitPVs"]);
    assert_eq!(failed.notices[0].operation, Some(("WaitForPersistentVolumeCleanup", false)));
    assert!(look(&mut world, 615).notices.is_empty(), "the next round has begun");
    assert_eq!(look(&mut world, 24 * HOUR).end, None);
    let last = look(&mut world, 24 * HOUR + 1);
    assert_eq!(last.status.result, "DeorbitHanging");
    assert_eq!(last.status.items[0].message, "the cloud still has it: in-use");
    assert!(last.actions.is_empty(), "giving up does nothing");
}

#[test]
fn volumes_of_failed_and_retained_persistent_volumes_are_not_waited_for() {
    let mut failed = volume("failed");
    (failed.phase, failed.message) = ("Failed".to_owned(), "it has snapshots".to_owned());
    let mut retained = volume("retained");
    retained.retained = true;
    let objects = ClusterObjects { volumes: vec![failed, retained], ..ClusterObjects::default() };
    let volumes = vec![cloud_volume("failed"), cloud_volume("retained")];
    let mut world = world(objects, CloudInventory { volumes, ..CloudInventory::default() });
    look(&mut world, 0);
    let last = look(&mut world, 15);
    assert_eq!(last.end, Some(DeorbitEnd::Complete));
    let left: Vec<(&str, &str)> =
        last.status.items.iter().map(|item| (item.action.as_str(), item.message.as_str())).collect();
    assert_eq!(
        left,
        [
            (LEFT, "PersistentVolume pv-failed failed: it has snapshots"),
            (LEFT, "the PersistentVolume's reclaim policy keeps it"),
        ]
    );
}

#[test]
fn nothing_is_over_while_the_cloud_does_not_answer() {
    let mut world = world(ClusterObjects::default(), CloudInventory::default());
    world.cloud = Err("503".to_owned());
    for seconds in [0, 15, 30, HOUR] {
        let plan = look(&mut world, seconds);
        assert_eq!((plan.end, plan.failure.as_deref()), (None, Some("503")));
    }
    world.cloud = Ok(CloudInventory::default());
    assert_eq!(look(&mut world, HOUR + 15).end, None);
    assert_eq!(look(&mut world, HOUR + 30).end, Some(DeorbitEnd::Complete));
}

#[test]
fn what_controllers_leave_behind_is_deleted_directly_after_a_while() {
    let mut world = full_world();
    objects(&mut world).snapshots.clear();
    objects(&mut world).claims[0].deleting = true;
    objects(&mut world).services[0].deleting = true;
    look(&mut world, 0);
    objects(&mut world).services.clear();
    objects(&mut world).claims.clear();
    objects(&mut world).volumes.clear();
    assert!(look(&mut world, 15).actions.is_empty());
    assert!(look(&mut world, 314).actions.is_empty());
    let plan = look(&mut world, 315);
    let delete = |resource, id: &str| Action::DeleteInCloud { resource, id: id.to_owned() };
    assert_eq!(plan.actions, [delete(ResourceType::LoadBalancer, "lb-web"), delete(ResourceType::Volume, "vol-data")]);
    assert!(plan.status.items.iter().all(|item| item.action == DELETED));
    assert_eq!(plan.next_look, time_at(330));
}

#[test]
fn data_is_not_deleted_on_the_strength_of_a_name() {
    let mut named = cloud_volume("old");
    named.metadata.insert("cinder.csi.openstack.org/cluster".to_owned(), "kate".to_owned());
    let cloud = CloudInventory { volumes: vec![named], ..CloudInventory::default() };
    let mut world = world(ClusterObjects::default(), cloud);
    assert_eq!(look(&mut world, 0).status.stage, "WaitingForVolumes");
    let plan = look(&mut world, 300);
    assert_eq!((plan.actions.len(), plan.status.items[0].action.as_str()), (0, LEFT));
    let later = look(&mut world, 315);
    assert_eq!((later.actions.len(), later.status.stage.as_str()), (0, "Settling"));
    assert_eq!(later.status.items[0].action, LEFT, "it stays so");
}

#[test]
fn pods_that_hold_claims_go_and_their_stateful_set_first() {
    let mut world = full_world();
    let objects_now = objects(&mut world);
    objects_now.claims[0].deleting = true;
    let pod = |name: &str, claim: &str, set: Option<&str>| PodView {
        id: id(name),
        claims: vec![claim.to_owned()],
        deleting: false,
        stateful_set: set.map(str::to_owned),
    };
    objects_now.pods = vec![pod("db-0", "data", Some("db")), pod("web", "other", None)];
    objects_now.stateful_sets = vec![
        StatefulSetView { id: id("db"), replicas: 1, makes_claims: true },
        StatefulSetView { id: id("else"), replicas: 1, makes_claims: true },
    ];
    let plan = look(&mut world, 0);
    assert!(
        plan.actions.ends_with(&[Action::ScaleDown(id("db")), Action::DeletePod(id("db-0"))]),
        "{:?}",
        plan.actions
    );
    assert!(!plan.actions.contains(&Action::DeletePod(id("web"))));
}

#[test]
fn old_clusters_wait_five_minutes_for_load_balancers_that_services_do_not_wait_for() {
    for (version, end) in [(Some((1, 16)), 300), (Some((1, 17)), 0), (None, 0)] {
        let mut world = world(ClusterObjects { version, ..ClusterObjects::default() }, CloudInventory::default());
        if end > 0 {
            assert_eq!(look(&mut world, end - 1).status.stage, "WaitingForLoadBalancers");
        }
        assert_eq!(look(&mut world, end).status.stage, "Settling", "{version:?}");
    }
}

#[test]
fn a_stale_list_does_not_make_a_volume_gone_for_good() {
    let mut world = full_world();
    look(&mut world, 0);
    let cloud = world.cloud.clone();
    world.cloud = Ok(CloudInventory::default());
    assert!(look(&mut world, 15).status.items.iter().all(|item| item.gone.is_some()));
    world.cloud = cloud;
    assert!(look(&mut world, 30).status.items.iter().all(|item| item.gone.is_none()));
}

#[test]
fn a_receipt_that_is_written_is_not_written_again() {
    let mut world = world(ClusterObjects::default(), CloudInventory::default());
    look(&mut world, 0);
    let last = look(&mut world, 15);
    objects(&mut world).services.push(service("late"));
    let again = look(&mut world, 30);
    assert_eq!((again.end, again.actions.len(), again.notices.len()), (Some(DeorbitEnd::Complete), 0, 0));
    assert_eq!(again.status, last.status);
}
