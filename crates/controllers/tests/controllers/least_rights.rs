//! Every right that a controller has is used: plays the scenarios of the other modules and compares what each controller
//! asked for with the rules of its ClusterRole. That no right is lacking is checked by each scenario when its cluster stops.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, api::ListParams};
use mainstay_testing::rights::{UsedRight, unused_of, used_rights};

use crate::{
    autoscaling, budgets, certificates, cluster::Cluster, config_rollouts, config_templates, cron_jobs, dependencies,
    deployments, followers, garbage, jobs, machines, migrations, namespaces, node_loss, quotas, release_workloads,
    releases, replicas, resource_claims, services, sets, tokens, volumes,
};

const SCENARIOS: &[fn()] = &[
    autoscaling::a_deployment_is_scaled_to_the_least_and_what_cannot_be_measured_is_said,
    certificates::a_node_gets_the_certificate_that_it_asks_for_itself,
    migrations::a_migration_is_run_and_says_so,
    budgets::a_budget_lets_one_pod_go_at_a_time,
    budgets::shares_follow_the_owners_scale_and_bare_pods_are_distinguished,
    budgets::pods_on_machines_that_are_gone_vanish,
    config_rollouts::a_changed_config_map_rolls_out_as_a_version_and_can_be_undone,
    config_rollouts::stateful_sets_and_daemon_sets_name_versions_as_well,
    config_rollouts::a_stateful_set_that_a_bad_value_stops_goes_back_by_itself,
    config_templates::a_template_follows_its_inputs_and_keeps_the_last_good_version,
    config_templates::a_key_of_somebody_else_is_a_conflict_and_not_a_fight,
    config_templates::secrets_are_rendered_into_secrets_and_pods_are_restarted_by_eviction,
    config_templates::pods_are_reached_by_the_api,
    config_templates::machines_get_the_output_as_a_file_in_waves_and_lose_it_with_their_label,
    cron_jobs::a_job_is_started_when_it_is_due_and_not_twice,
    cron_jobs::what_still_runs_is_waited_for_or_replaced,
    cron_jobs::a_finished_job_is_deleted_with_its_pods_after_its_time,
    dependencies::a_pod_learns_whether_the_objects_that_it_needs_are_there,
    deployments::a_deployment_rolls_out_and_back_and_remembers,
    deployments::sets_left_behind_are_adopted_by_the_next_deployment_and_go_with_it,
    followers::a_follower_moves_when_its_leader_has_moved_and_only_if_it_says_so,
    garbage::a_foreground_deletion_waits_for_dependents_that_block,
    garbage::orphans_lose_their_owner_and_stay,
    jobs::too_many_failures_fail_it_and_end_the_rest,
    jobs::pods_that_match_are_adopted_and_others_leave_in_peace,
    jobs::nothing_holds_the_pods_of_a_job_that_is_gone,
    machines::taints_follow_what_a_node_reports,
    releases::machines_of_nodes_are_accounted_for_and_those_to_be_provisioned_anew_get_no_pods,
    releases::a_release_moves_machines_in_waves_halts_and_goes_on,
    release_workloads::workloads_are_changed_in_waves_and_go_back_to_their_old_templates,
    release_workloads::changes_that_cannot_be_made_are_refused_or_fail_with_their_reason,
    node_loss::pods_are_evicted_by_taints_that_they_do_not_tolerate,
    node_loss::pods_of_a_lost_node_are_replaced_and_unique_ones_only_when_it_has_stopped_them,
    namespaces::a_deleted_namespace_is_emptied_and_gone,
    namespaces::a_finalizer_blocks_a_namespace_which_says_so_until_it_is_removed,
    namespaces::a_namespace_gets_its_defaults_again_when_they_are_deleted,
    quotas::what_was_there_counts_and_what_is_deleted_or_ends_is_given_back,
    replicas::pods_are_adopted_and_released_by_their_labels_and_others_are_left_alone,
    replicas::a_replication_controller_does_the_same,
    resource_claims::a_claim_of_a_template_comes_and_goes_with_its_pod,
    resource_claims::a_shared_claim_is_deallocated_when_its_last_pod_is_gone,
    resource_claims::pods_are_evicted_when_their_device_is_tainted_and_they_do_not_tolerate_it,
    services::slices_and_endpoints_follow_pods_from_first_to_last,
    services::endpoints_people_wrote_are_repeated_in_slices,
    services::a_deleted_pod_is_drained_once_every_live_node_acknowledges_it,
    services::a_range_of_services_is_ready_and_stays_while_a_service_has_its_addresses,
    sets::a_stateful_set_comes_in_order_keeps_names_and_claims_and_rolls_back,
    sets::claims_go_with_the_pods_and_the_set_where_it_says_so,
    sets::pods_that_were_left_alone_are_taken_over_with_their_history,
    sets::a_daemon_set_follows_its_machines_and_rolls_back,
    tokens::a_secret_gets_the_token_of_its_account_and_goes_with_it,
    volumes::a_claim_gets_a_volume_with_its_first_pod_and_takes_it_along,
    volumes::a_volume_that_someone_made_is_bound_and_kept,
    volumes::a_claim_within_a_pod_is_made_with_it_and_goes_with_it,
    volumes::a_class_of_attributes_is_matched_and_stays_while_a_volume_names_it,
];

/// Controllers that need more than this process has: a cloud, and machines with services of their own.
const NOT_PLAYED: [&str; 2] = ["cloud-controller", "host-service-controller"];

/// Rights that are used after minutes, or by code that another controller runs here, and why.
const NOT_SEEN: [(&str, &str); 17] = [
    // Requests are kept for an hour.
    ("certificate-controller", "delete certificatesigningrequests"),
    // Pods are listed where there are metrics of them.
    ("horizontal-pod-autoscaler", "list pods"),
    // Adoption is the same code for all workloads; ReplicaSets, Jobs, StatefulSets and Deployments adopt here.
    ("daemon-set-controller", "get daemonsets"),
    ("daemon-set-controller", "patch pods"),
    // ReplicationControllers are reconciled by the code of ReplicaSets.
    ("replication-controller", "get replicationcontrollers"),
    ("replication-controller", "delete pods"),
    ("replication-controller", "patch pods"),
    // Copies of Secrets are deleted as those of ConfigMaps are.
    ("config-template-controller", "delete secrets"),
    // Only after a write that met another one.
    ("config-template-controller", "get pods"),
    // For requests with other methods than the stock one.
    ("config-template-controller", "get pods/proxy"),
    ("config-template-controller", "update pods/proxy"),
    // Ten old revisions are kept before the first is deleted.
    ("daemon-set-controller", "delete controllerrevisions"),
    ("statefulset-controller", "delete controllerrevisions"),
    // Only for owners of kinds that this process does not serve.
    ("disruption-controller", "get */scale"),
    // Two minutes after a disruption that did not happen.
    ("disruption-controller", "patch pods/status"),
    // Of the slices of a Service the first stays.
    ("endpointslice-controller", "delete endpointslices"),
    // One by one where a whole collection cannot be deleted: of resources that other servers serve.
    ("namespace-controller", "delete *"),
];

#[test]
fn every_right_of_a_controller_is_used() {
    for scenario in SCENARIOS {
        scenario();
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let unused = runtime.block_on(unused_rights());
    let mut unused: Vec<(&str, &str)> = unused.iter().map(|(account, right)| (&**account, &**right)).collect();
    let seen_after_all: Vec<_> = NOT_SEEN.iter().filter(|right| !unused.contains(*right)).collect();
    assert!(seen_after_all.is_empty(), "these are used: {seen_after_all:?}");
    unused.retain(|right| !NOT_SEEN.contains(right));
    assert!(unused.is_empty(), "rights that no scenario used: {unused:#?}");
}

/// Of each controller, by its account.
async fn unused_rights() -> Vec<(String, String)> {
    let cluster = Cluster::start().await;
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    let roles = roles.list(&ListParams::default()).await.expect("list roles");
    let used: BTreeMap<String, BTreeSet<UsedRight>> = used_rights();
    let mut unused = Vec::new();
    let mut controllers = 0;
    for role in roles {
        let name = role.metadata.name.unwrap_or_default();
        let Some(account) = name.strip_prefix("system:controller:").filter(|account| !NOT_PLAYED.contains(account))
        else {
            continue;
        };
        controllers += 1;
        let used = used.get(&format!("system:serviceaccount:kube-system:{account}")).cloned().unwrap_or_default();
        for rule in role.rules.unwrap_or_default() {
            unused.extend(unused_of(&rule, &used).into_iter().map(|right| (account.to_owned(), right)));
        }
    }
    assert!(controllers > 15, "only {controllers} controllers have a role");
    cluster.stop().await;
    unused
}
