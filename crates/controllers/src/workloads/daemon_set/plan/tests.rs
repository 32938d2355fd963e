//! Single steps.

use super::*;
use crate::workloads::daemon_set::model::Model;

fn brief(plan: &runtime::Plan<Action, DaemonSetStatus>) -> Vec<String> {
    let brief = |action: &Action| match action {
        Action::Revise(_) => "revise".to_owned(),
        Action::ClaimRevision(_) | Action::ClaimPod(_) => "claim".to_owned(),
        Action::Create { node, .. } => format!("create {node}"),
        Action::Delete { node, why, .. } => format!("delete {node} {why:?}"),
    };
    plan.actions.iter().map(brief).collect()
}

fn step(model: &mut Model) -> Vec<String> {
    brief(&model.step())
}

fn running(nodes: usize) -> Model {
    let mut model = Model::new(nodes);
    model.rest();
    assert_eq!(model.pods.len(), nodes);
    model
}

#[test]
fn every_machine_gets_a_pod_and_a_new_one_at_once() {
    let mut model = Model::new(2);
    assert_eq!(step(&mut model), ["revise", "create m0", "create m1"]);
    assert!(step(&mut model).is_empty());
    model.nodes.insert("m9".into(), Verdict::Runs);
    assert_eq!(step(&mut model), ["create m9"]);
    model.rest();
    let status = &model.status;
    let counts = (status.desired_number_scheduled, status.current_number_scheduled, status.number_ready);
    assert_eq!(counts, (3, 3, 3));
    assert_eq!((status.number_available, status.updated_number_scheduled), (Some(3), Some(3)));
    assert_eq!((status.number_unavailable, status.number_misscheduled), (None, 0));
}

#[test]
fn machines_that_do_not_fit_any_more_are_left() {
    let mut model = running(3);
    model.nodes.insert("m0".into(), Verdict::Leaves);
    model.nodes.insert("m1".into(), Verdict::Stays);
    assert_eq!(step(&mut model), ["delete m0 Misplaced"]);
    assert!(step(&mut model).is_empty(), "it is on its way");
    model.rest();
    assert_eq!(model.pods.len(), 2);
    assert_eq!((model.status.desired_number_scheduled, model.status.number_misscheduled), (1, 1));
    let name = model.on("m1").remove(0);
    model.evict(&name);
    model.rest();
    assert_eq!(model.pods.len(), 1, "one may stay there, but none is made");
}

#[test]
fn a_pod_that_leaves_is_replaced_when_it_is_gone() {
    let mut model = running(1);
    let name = model.on("m0").remove(0);
    model.evict(&name);
    assert!(step(&mut model).is_empty());
    model.finish(&name);
    assert_eq!(step(&mut model), ["create m0"]);
}

#[test]
fn what_ended_and_is_held_back_by_others_does_not_keep_a_machine_without() {
    let mut model = running(1);
    let name = model.on("m0").remove(0);
    model.end(&name, "Failed");
    model.evict(&name);
    assert_eq!(step(&mut model), ["create m0"]);
    assert_eq!(model.on("m0").len(), 2, "under another name");
}

#[test]
fn failed_pods_are_replaced_with_patience() {
    let mut model = running(1);
    let name = model.on("m0").remove(0);
    model.end(&name, "Failed");
    let until = model.now + jiff::SignedDuration::from_secs(4);
    model.pauses.insert("m0".into(), until);
    let plan = model.step();
    assert_eq!((brief(&plan).len(), plan.requeue_at), (0, Some(until)));
    model.pass(4);
    assert_eq!(step(&mut model), ["delete m0 Failed"]);
    model.rest();
    let name = model.on("m0").remove(0);
    model.end(&name, "Succeeded");
    assert_eq!(step(&mut model), ["delete m0 Succeeded"]);
}

#[test]
fn of_two_on_a_machine_the_older_stays() {
    let mut model = running(1);
    let mut second = model.pods.values().next().unwrap().clone();
    second.metadata.name = Some("log-a".into());
    second.metadata.uid = Some("second".into());
    second.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(model.now));
    model.pods.insert("log-a".into(), second);
    model.step();
    assert!(model.pods["log-a"].is_being_deleted());
    assert_eq!(model.pods.values().filter(|pod| pod.is_being_deleted()).count(), 1);
}

#[test]
fn updates_take_away_as_many_as_may_be_missing() {
    let mut model = running(4);
    (model.image, model.unavailable) = ("b", 2);
    assert_eq!(step(&mut model), ["revise", "delete m0 Outdated", "delete m1 Outdated"]);
    assert!(step(&mut model).is_empty());
    model.work();
    assert_eq!(step(&mut model), ["create m0", "create m1"]);
    assert!(step(&mut model).is_empty(), "the new ones do not serve yet");
    model.rest();
    assert_eq!(model.images(), ["b"; 4]);
}

#[test]
fn old_pods_that_do_not_serve_are_replaced_first() {
    let mut model = running(3);
    let broken = model.on("m2").remove(0);
    model.break_down(&broken);
    model.image = "b";
    assert_eq!(step(&mut model), ["revise", "delete m2 Broken"]);
}

#[test]
fn a_rollout_that_is_stuck_goes_on_when_the_template_is_mended() {
    for surge in [0, 1] {
        let mut model = running(3);
        (model.image, model.surge) = ("broken", surge);
        model.unavailable = i32::from(surge == 0);
        model.rest();
        let serving = model.pods.values().filter(|pod| pod.is_ready()).count();
        assert_eq!(serving, if surge == 0 { 2 } else { 3 }, "one, and no further");
        model.image = "c";
        model.rest();
        assert_eq!(model.images(), ["c"; 3]);
    }
}

#[test]
fn with_a_surge_the_new_pod_comes_first() {
    let mut model = running(2);
    (model.image, model.surge, model.unavailable) = ("b", 1, 0);
    assert_eq!(step(&mut model), ["revise", "create m0"]);
    assert!(step(&mut model).is_empty());
    model.work();
    assert_eq!(step(&mut model), ["delete m0 Succession"]);
    assert_eq!(step(&mut model), ["create m1"], "the other is on its way out");
    model.rest();
    assert_eq!(model.images(), ["b", "b"]);
}

#[test]
fn on_delete_waits_for_someone_to_delete() {
    let mut model = running(2);
    (model.image, model.on_delete) = ("b", true);
    assert_eq!(step(&mut model), ["revise"]);
    let name = model.on("m1").remove(0);
    model.evict(&name);
    model.rest();
    assert_eq!(model.images(), ["a", "b"]);
    assert_eq!(model.status.updated_number_scheduled, Some(1));
}

#[test]
fn pods_that_wait_for_a_machine_that_is_gone_are_removed() {
    let mut model = running(1);
    let mut world = model.world();
    world.nodes.clear();
    assert!(plan(&world, model.now).actions.is_empty(), "those that were placed are collected by others");
    let name = model.on("m0").remove(0);
    let mut waiting = model.pods[&name].clone();
    waiting.spec.node_name.clear();
    world.pods.insert("m0".into(), vec![Arc::new(waiting)]);
    assert_eq!(brief(&plan(&world, model.now)), ["delete m0 Misplaced"]);
    model.nodes.clear();
    model.rest();
}
