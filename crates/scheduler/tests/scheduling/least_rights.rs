//! Every right that the scheduler has is used: plays scenarios of the other modules and compares what it asked for with the
//! rules of its ClusterRole. That no right is lacking is checked by each scenario when its cluster stops.

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use mainstay_server::SCHEDULER_USER;
use mainstay_testing::rights::{unused_of, used_rights};

use crate::{cluster::Cluster, devices, faults, pods};

const SCENARIOS: &[fn()] = &[
    devices::a_claim_is_allocated_and_reserved_before_its_pods_are_bound,
    devices::an_extended_resource_of_a_class_is_claimed_for_the_pod,
    faults::a_silent_node_gets_no_pods_and_its_offer_is_deleted,
    pods::a_pod_of_higher_priority_preempts_one_of_lower,
    pods::an_unschedulable_pod_says_why_and_is_bound_as_soon_as_resources_are_free,
];

/// Rights that the scheduler itself does not use, and why it has them.
const NOT_SEEN: [&str; 5] = [
    // The program elects, before it runs the scheduler.
    "create leases",
    "get leases",
    "update leases",
    // Placements are no objects: what is asked of them is not recorded.
    "create placements",
    // An event that is repeated later than these scenarios last.
    "patch events",
];

#[test]
fn every_right_of_the_scheduler_is_used() {
    for scenario in SCENARIOS {
        scenario();
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let role = runtime.block_on(async {
        let cluster = Cluster::start().await;
        let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
        let role = roles.get(SCHEDULER_USER).await.expect("the scheduler's role");
        cluster.stop().await;
        role
    });
    let used = used_rights().get(SCHEDULER_USER).cloned().unwrap_or_default();
    let unused: Vec<String> = role.rules.iter().flatten().flat_map(|rule| unused_of(rule, &used)).collect();
    let unexpected: Vec<&String> = unused.iter().filter(|right| !NOT_SEEN.contains(&right.as_str())).collect();
    assert!(unexpected.is_empty(), "rights that no scenario used: {unexpected:?}");
    assert!(used.len() > 20, "what it did is not recorded: {used:?}");
}
