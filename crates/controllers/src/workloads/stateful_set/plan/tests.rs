//! Single steps.

use super::*;
use crate::workloads::stateful_set::model::{Model, Spec};

fn done(plan: &runtime::Plan<Action, StatefulSetStatus>) -> Vec<String> {
    plan.actions.iter().map(brief).collect()
}

fn brief(action: &Action) -> String {
    match action {
        Action::Revise(Write::Create(_)) => "revise".to_owned(),
        Action::Revise(Write::Renumber { .. }) => "renumber".to_owned(),
        Action::Revise(Write::Drop { .. }) => "forget".to_owned(),
        Action::ClaimRevision(_) | Action::ClaimPod(_) => "claim".to_owned(),
        Action::Retain { claim, owners, .. } => format!("retain {claim} {}", owners.len()),
        Action::Create { ordinal, claims, .. } => format!("create {ordinal} +{}", claims.len()),
        Action::Supply { claims } => format!("supply {}", claims.len()),
        Action::Name { ordinal, .. } => format!("name {ordinal}"),
        Action::Delete { ordinal, why, .. } => format!("delete {ordinal} {why:?}"),
    }
}

/// All pods of image `a`, and available.
fn running(spec: Spec) -> Model {
    let mut model = Model::new(spec);
    model.rest();
    assert_eq!(model.pods.len() as i64, model.spec.replicas);
    model
}

fn step(model: &mut Model) -> Vec<String> {
    done(&model.step())
}

#[test]
fn pods_come_one_after_the_other() {
    let mut model = Model::new(Spec::default());
    assert_eq!(step(&mut model), ["revise", "create 0 +0"]);
    assert!(step(&mut model).is_empty(), "the first is not ready yet");
    model.ready(0);
    assert_eq!(step(&mut model), ["create 1 +0"]);
    model.ready(1);
    assert_eq!(step(&mut model), ["create 2 +0"]);
}

#[test]
fn or_all_at_once() {
    let mut model = Model::new(Spec { order: Order::Parallel, ..Spec::default() });
    assert_eq!(step(&mut model), ["revise", "create 0 +0", "create 1 +0", "create 2 +0"]);
}

#[test]
fn they_wait_to_be_available() {
    let mut model = Model::new(Spec { min_ready: 10, ..Spec::default() });
    step(&mut model);
    model.ready(0);
    let plan = model.step();
    assert!(plan.actions.is_empty());
    assert_eq!(plan.requeue_at, Some(model.now + jiff::SignedDuration::from_secs(10)));
    model.pass(10);
    assert_eq!(step(&mut model), ["create 1 +0"]);
}

#[test]
fn scaling_down_takes_the_highest_first_and_waits_for_it_to_be_gone() {
    let mut model = running(Spec::default());
    model.spec.replicas = 1;
    assert_eq!(step(&mut model), ["delete 2 Surplus"]);
    assert!(step(&mut model).is_empty(), "it is still there");
    model.finish(2);
    assert_eq!(step(&mut model), ["delete 1 Surplus"]);
    model.finish(1);
    assert!(step(&mut model).is_empty());
}

#[test]
fn a_broken_surplus_pod_goes_too() {
    let mut model = running(Spec::default());
    model.break_down(2);
    model.spec.replicas = 2;
    assert_eq!(step(&mut model), ["delete 2 Surplus"]);
}

#[test]
fn nothing_is_scaled_away_while_a_pod_before_it_is_ill() {
    let mut model = running(Spec::default());
    model.break_down(0);
    model.spec.replicas = 1;
    assert!(step(&mut model).is_empty());
}

#[test]
fn failed_pods_are_made_anew() {
    let mut model = running(Spec::default());
    model.end(1, "Failed");
    assert_eq!(step(&mut model), ["delete 1 Failed"]);
    assert!(step(&mut model).is_empty());
    model.finish(1);
    assert_eq!(step(&mut model), ["create 1 +0"]);
    model.end(1, "Succeeded");
    assert_eq!(step(&mut model), ["delete 1 Succeeded"]);
}

#[test]
fn updates_go_from_the_highest_and_wait_for_each() {
    let mut model = running(Spec::default());
    model.spec.image = "b";
    assert_eq!(step(&mut model), ["revise", "delete 2 Outdated"]);
    assert!(step(&mut model).is_empty());
    model.finish(2);
    assert_eq!(step(&mut model), ["create 2 +0"]);
    assert!(step(&mut model).is_empty());
    model.ready(2);
    assert_eq!(step(&mut model), ["delete 1 Outdated"]);
    model.rest();
    assert_eq!(model.status.current_revision, model.status.update_revision);
    assert_eq!(model.status.updated_replicas, Some(3));
}

#[test]
fn ordinals_before_the_partition_keep_what_they_have() {
    let mut model = running(Spec::default());
    (model.spec.image, model.spec.partition) = ("b", 2);
    model.rest();
    assert_eq!(model.images(), ["a", "a", "b"]);
    assert_ne!(model.status.current_revision, model.status.update_revision);
    let counts = (model.status.current_replicas, model.status.updated_replicas);
    assert_eq!(counts, (Some(2), Some(1)));
    model.end(0, "Failed");
    model.rest();
    assert_eq!(model.images(), ["a", "a", "b"], "one that was lost comes back as it was");
    model.spec.partition = 0;
    model.rest();
    assert_eq!(model.images(), ["b", "b", "b"]);
}

#[test]
fn scaling_down_halts_at_an_unhealthy_pod_unless_it_is_the_lowest_unhealthy_one() {
    let mut model = running(Spec { replicas: 4, ..Spec::default() });
    model.break_down(2);
    model.break_down(3);
    model.spec.replicas = 1;
    assert!(step(&mut model).is_empty(), "3 is not available, and 2 before it is not either");
    model.ready(2);
    assert_eq!(step(&mut model), ["delete 3 Surplus"]);
    model.finish(3);
    assert_eq!(step(&mut model), ["delete 2 Surplus"]);
}

#[test]
fn with_the_annotation_scaling_down_does_not_wait_for_unhealthy_pods() {
    let mut model = running(Spec { replicas: 4, replace_unready: true, ..Spec::default() });
    model.break_down(2);
    model.break_down(3);
    model.spec.replicas = 1;
    assert_eq!(step(&mut model), ["delete 3 Surplus"]);
    assert!(step(&mut model).is_empty(), "still one after the other");
    model.finish(3);
    assert_eq!(step(&mut model), ["delete 2 Surplus"]);
}

#[test]
fn a_parallel_set_scales_down_all_at_once_whatever_their_state() {
    let mut model = running(Spec { order: Order::Parallel, ..Spec::default() });
    model.break_down(1);
    model.spec.replicas = 1;
    assert_eq!(step(&mut model), ["delete 2 Surplus", "delete 1 Surplus"]);
}

#[test]
fn a_stuck_rollout_waits_for_somebody_to_delete_the_pod() {
    let mut model = running(Spec::default());
    model.spec.image = "broken";
    model.rest();
    assert_eq!(model.images(), ["a", "a", "broken"], "one, and no further");
    model.spec.image = "c";
    model.rest();
    assert_eq!(model.images(), ["a", "a", "broken"], "a mended template does not help");
    model.evict(2);
    model.rest();
    assert_eq!(model.images(), ["c", "c", "c"]);
}

#[test]
fn a_parallel_set_replaces_the_highest_outdated_pod_even_if_it_is_not_ready() {
    let mut model = running(Spec { order: Order::Parallel, ..Spec::default() });
    model.spec.image = "broken";
    model.rest();
    assert_eq!(model.images(), ["a", "a", "broken"], "it waits at the one that is not available");
    model.spec.image = "c";
    assert_eq!(step(&mut model), ["revise", "delete 2 Outdated"]);
    model.rest();
    assert_eq!(model.images(), ["c", "c", "c"]);
}

#[test]
fn the_annotation_lets_a_stuck_rollout_go_on_when_the_template_is_mended() {
    for order in [Order::OrderedReady, Order::Parallel] {
        let mut model = running(Spec { order, replace_unready: true, ..Spec::default() });
        model.spec.image = "broken";
        model.rest();
        assert_eq!(model.images(), ["a", "a", "broken"], "{order:?}: one, and no further");
        model.spec.image = "c";
        model.rest();
        assert_eq!(model.images(), ["c", "c", "c"], "{order:?}");
        model.spec.image = "broken";
        model.rest();
        model.spec.image = "c";
        model.rest();
        assert_eq!(model.images(), ["c", "c", "c"], "{order:?}: back to what it was");
    }
}

#[test]
fn with_the_annotation_only_a_pod_that_stayed_unready_is_replaced() {
    let mut model = running(Spec { replace_unready: true, ..Spec::default() });
    model.spec.image = "broken";
    model.rest();
    model.spec.image = "c";
    let plan = model.plan();
    let [.., Action::Delete { ordinal: 2, version: Some(_), why: Why::Broken, .. }] = &plan.actions[..] else {
        panic!("{:?}", plan.actions)
    };
    model.ready(2);
    model.apply(&plan);
    assert!(!model.pods[&2].is_being_deleted(), "it became ready meanwhile");
}

#[test]
fn on_delete_waits_for_someone_to_delete() {
    let mut model = running(Spec { on_delete: true, ..Spec::default() });
    model.spec.image = "b";
    assert_eq!(step(&mut model), ["revise"]);
    model.break_down(1);
    assert!(step(&mut model).is_empty());
    model.evict(1);
    model.rest();
    assert_eq!(model.images(), ["a", "b", "a"]);
}

#[test]
fn several_may_be_missing_if_the_set_says_so() {
    let mut model = running(Spec { order: Order::Parallel, unavailable: Some(2), ..Spec::default() });
    model.spec.image = "b";
    assert_eq!(step(&mut model), ["revise", "delete 2 Outdated", "delete 1 Outdated"]);
    assert!(step(&mut model).is_empty());
    model.rest();
    assert_eq!(model.images(), ["b", "b", "b"]);
}

#[test]
fn claims_are_made_before_the_pod_and_kept() {
    let mut model = Model::new(Spec { claims: true, replicas: 1, ..Spec::default() });
    assert_eq!(step(&mut model), ["revise", "create 0 +1"]);
    model.lose_claims();
    assert_eq!(step(&mut model), ["supply 1"], "a pod waits for it");
    model.rest();
    model.spec.replicas = 0;
    model.rest();
    assert_eq!(model.claims.len(), 1);
    model.spec.replicas = 1;
    assert_eq!(step(&mut model), ["create 0 +0"]);
}

#[test]
fn claims_that_go_with_their_pods_are_given_to_them_first() {
    let mut model = Model::new(Spec { claims: true, replicas: 1, with_pod: true, ..Spec::default() });
    model.rest();
    model.spec.replicas = 0;
    assert_eq!(step(&mut model), ["retain data-web-0 1"]);
    assert_eq!(step(&mut model), ["delete 0 Surplus"]);
    model.finish(0);
    model.spec.replicas = 1;
    assert!(step(&mut model).is_empty(), "its claim is about to go");
    model.lose_claims();
    assert_eq!(step(&mut model), ["create 0 +1"]);
}

#[test]
fn a_set_that_is_deleted_does_nothing_more() {
    let mut model = running(Spec::default());
    model.end(1, "Failed");
    model.spec.leaving = true;
    assert!(step(&mut model).is_empty());
}

#[test]
fn other_first_ordinals_replace_the_old_ones() {
    let mut model = running(Spec::default());
    model.spec.start = 2;
    model.rest();
    assert_eq!(model.pods.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn lost_labels_come_back() {
    let mut model = running(Spec::default());
    model.strip(1);
    assert_eq!(step(&mut model), ["name 1"]);
}

#[test]
fn old_revisions_are_forgotten() {
    let mut model = running(Spec { history: 1, ..Spec::default() });
    for image in ["b", "c", "d"] {
        model.spec.image = image;
        model.rest();
    }
    let retained: Vec<i64> = model.revisions.iter().filter_map(|revision| revision.revision).collect();
    assert_eq!(retained, [3, 4]);
}
