use serde_json::{Value, json};

use super::*;
use crate::runtime::ObjectKey;

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn seconds(second: u64) -> Duration {
    Duration::from_secs(second)
}

/// Silent for so long, while others are heard.
fn silent(time: u64) -> NodeHeartbeat {
    NodeHeartbeat {
        silent_for: seconds(time),
        status_posted_ago: None,
        silent_while_others_are_heard: Some(seconds(time)),
        was_heard: true,
        mass_outage: None,
    }
}

fn world(ready: &str, spec: Value, heartbeat: NodeHeartbeat) -> World {
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": "m1", "resourceVersion": "7" }, "spec": spec,
        "status": { "conditions": [
            { "type": "Ready", "status": ready }, { "type": "MemoryPressure", "status": "False" },
            { "type": "DiskPressure", "status": "False" }, { "type": "PIDPressure", "status": "False" },
        ] },
    }))
    .unwrap();
    let execute = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).filter(|t| t.effect == NO_EXECUTE);
    let taint = |taint: &Taint| NoExecuteTaint { key: taint.key.clone(), value: String::new(), since: at_second(90) };
    World {
        taints: execute.map(taint).collect(),
        node: Arc::new(node),
        timing: Timing::default(),
        heartbeat,
        is_tainted_suspect: false,
        unique_pods_ended: false,
        pods: Vec::new(),
    }
}

fn all_unknown(mut world: World) -> World {
    let node = Arc::make_mut(&mut world.node);
    let conditions = node.status.as_mut().unwrap().conditions.iter_mut().flatten();
    conditions.for_each(|condition| condition.status = "Unknown".into());
    world
}

fn lost_taints() -> Value {
    json!({ "taints": [{ "key": UNREACHABLE, "effect": NO_SCHEDULE }, { "key": UNREACHABLE, "effect": NO_EXECUTE }] })
}

fn taints(plan: &Plan<Action, ConditionChanges>) -> Option<Vec<(String, String)>> {
    let [Action::Taint { taints, .. }] = &plan.actions[..] else { return None };
    Some(taints.iter().map(|taint| (taint.key.clone(), taint.effect.clone())).collect())
}

fn pair(key: &str, effect: &str) -> (String, String) {
    (key.to_owned(), effect.to_owned())
}

fn pod(is_unique: bool) -> PodView {
    PodView {
        key: ObjectKey::new("ns", "p"),
        uid: "u".to_owned(),
        created: at_second(0),
        tolerations: Box::default(),
        is_unique,
        is_controlled: true,
        is_ready: false,
        ends_at: None,
        is_removed: false,
    }
}

#[test]
fn a_node_with_heartbeats_is_left_alone_until_they_are_overdue() {
    let plan = plan(&world("True", json!({}), silent(7)), at_second(107));
    assert_eq!((plan.actions.len(), plan.status, plan.requeue_at), (0, None, Some(at_second(108))));
}

#[test]
fn a_node_without_heartbeats_becomes_unknown_and_unreachable() {
    let own = json!({ "taints": [{ "key": "own", "effect": "NoSchedule" }] });
    let plan = plan(&world("True", own, silent(8)), at_second(108));
    let expected = vec![pair("own", NO_SCHEDULE), pair(UNREACHABLE, NO_SCHEDULE), pair(UNREACHABLE, NO_EXECUTE)];
    assert_eq!(taints(&plan), Some(expected));
    let changes = plan.status.unwrap();
    assert_eq!((changes.conditions.len(), changes.is_now_unknown, changes.pause), (4, true, None));
    let ready = &changes.conditions[0];
    assert_eq!((ready.type_.as_str(), ready.reason.as_deref()), ("Ready", Some("NodeStatusUnknown")));
    assert_eq!(ready.message.as_deref(), Some("Kubelet stopped posting node status."));
}

#[test]
fn a_status_posted_after_the_last_heartbeat_stands_until_it_is_as_old_as_silence_may_be() {
    let heartbeat = |posted| NodeHeartbeat { status_posted_ago: Some(seconds(posted)), ..silent(40) };
    let returning = plan(&world("True", lost_taints(), heartbeat(3)), at_second(140));
    assert_eq!((returning.status, returning.requeue_at), (None, Some(at_second(145))));
    assert_eq!(returning.actions, [], "the Lease alone takes the taint of a lost node away");
    let silent_again = plan(&world("True", lost_taints(), heartbeat(8)), at_second(145));
    assert!(silent_again.status.unwrap().is_now_unknown);
}

#[test]
fn while_no_node_has_heartbeats_a_node_is_unknown_but_not_lost() {
    let heartbeat = NodeHeartbeat { silent_while_others_are_heard: None, ..silent(40) };
    let plan = plan(&world("True", json!({}), heartbeat), at_second(140));
    assert_eq!(taints(&plan), Some(vec![pair(UNREACHABLE, NO_SCHEDULE)]));
    assert_eq!((plan.status.unwrap().conditions.len(), plan.requeue_at), (4, None));
}

#[test]
fn after_an_outage_of_all_nodes_each_has_time_to_come_back() {
    let unknown = json!({ "taints": [{ "key": UNREACHABLE, "effect": NO_SCHEDULE }] });
    let heartbeat = |since| NodeHeartbeat { silent_while_others_are_heard: Some(seconds(since)), ..silent(200) };
    let early = plan(&world("Unknown", unknown.clone(), heartbeat(7)), at_second(300));
    assert_eq!((taints(&early), early.requeue_at), (None, Some(at_second(301))));
    let expected = vec![pair(UNREACHABLE, NO_SCHEDULE), pair(UNREACHABLE, NO_EXECUTE)];
    assert_eq!(taints(&plan(&world("Unknown", unknown, heartbeat(8)), at_second(301))), Some(expected));
}

#[test]
fn if_most_nodes_fell_silent_together_their_pods_stay_and_the_node_says_why() {
    let outage = MassOutage { silent: 3, of: 5 };
    let heartbeat = NodeHeartbeat { mass_outage: Some(outage), ..silent(9) };
    let begins = plan(&world("True", json!({}), heartbeat.clone()), at_second(109));
    assert_eq!(taints(&begins), Some(vec![pair(UNREACHABLE, NO_SCHEDULE)]));
    assert_eq!(begins.status.unwrap().pause, Some(EvictionPause::Begins(outage)));
    assert_eq!(begins.requeue_at, Some(at_second(111)));
    let mut tainted = all_unknown(world("Unknown", lost_taints(), heartbeat));
    tainted.pods = vec![pod(false)];
    assert_eq!(plan(&tainted, at_second(200)).actions, [], "one that was lost before the others is not evicted either");
    let mut over = world("True", json!({}), silent(1));
    let paused = paused(EvictionPause::Begins(outage), at_second(100));
    Arc::make_mut(&mut over.node).status.as_mut().unwrap().conditions.as_mut().unwrap().push(paused);
    let ends = plan(&over, at_second(120)).status.unwrap();
    assert_eq!((ends.pause, ends.conditions[0].status.as_str()), (Some(EvictionPause::Ends), "False"));
}

#[test]
fn a_lost_node_stays_lost_until_its_next_heartbeat() {
    let first_look = NodeHeartbeat { was_heard: false, ..silent(1) };
    let nobody_else = NodeHeartbeat { silent_while_others_are_heard: None, ..silent(300) };
    for heartbeat in [first_look, nobody_else] {
        let mut lost = world("Unknown", lost_taints(), heartbeat);
        lost.pods = vec![pod(false), pod(true)];
        let actions = plan(&lost, at_second(500)).actions;
        assert_eq!(actions, [], "neither its taints change nor is anything decided about its pods");
    }
}

#[test]
fn pods_are_removed_only_from_a_node_that_has_the_taint() {
    let mut first = world("True", json!({}), silent(8));
    first.pods = vec![pod(false)];
    assert!(matches!(plan(&first, at_second(108)).actions[..], [Action::Taint { .. }]));
    let mut lost = all_unknown(world("Unknown", lost_taints(), silent(13)));
    lost.pods = vec![pod(false), pod(true)];
    let removals = |plan: &Plan<Action, ConditionChanges>| {
        let is_removal = |action: &&Action| matches!(action, Action::Pod { action: PodAction::Remove { .. }, .. });
        plan.actions.iter().filter(is_removal).count()
    };
    let waiting = plan(&lost, at_second(113));
    assert_eq!((removals(&waiting), waiting.requeue_at), (1, Some(at_second(114))));
    lost.unique_pods_ended = true;
    assert_eq!(removals(&plan(&lost, at_second(114))), 2);
}

#[test]
fn taints_are_written_once_and_removed_again() {
    let rests = plan(&all_unknown(world("Unknown", lost_taints(), silent(500))), at_second(600));
    assert!(rests.actions.is_empty() && rests.status.is_none() && rests.requeue_at.is_none());
    assert_eq!(taints(&plan(&world("True", lost_taints(), silent(1)), at_second(600))), Some(vec![]));
    let mut returned = world("True", lost_taints(), silent(1));
    returned.pods = vec![pod(true), pod(false)];
    assert_eq!(taints(&plan(&returned, at_second(600))), Some(vec![]), "its pods were not replaced, and run on");
}

#[test]
fn taints_follow_conditions_and_cordons() {
    let mut pressed = world("False", json!({ "unschedulable": true }), silent(1));
    Arc::make_mut(&mut pressed.node).status.as_mut().unwrap().conditions.as_mut().unwrap()[1].status = "True".into();
    let expected = vec![
        pair(NOT_READY, NO_SCHEDULE),
        pair(NOT_READY, NO_EXECUTE),
        pair("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
        pair(taint::UNSCHEDULABLE, NO_SCHEDULE),
    ];
    assert_eq!(taints(&plan(&pressed, at_second(101))), Some(expected));
}

#[test]
fn pods_of_an_agent_that_was_stopped_stay_until_it_is_silent() {
    let mut stopped = world("False", json!({}), silent(7));
    Arc::make_mut(&mut stopped.node).status.as_mut().unwrap().conditions.as_mut().unwrap()[0].reason =
        Some(AGENT_STOPPED.to_owned());
    assert_eq!(taints(&plan(&stopped, at_second(107))), Some(vec![pair(NOT_READY, NO_SCHEDULE)]));
    stopped.heartbeat = silent(8);
    let expected = vec![pair(UNREACHABLE, NO_SCHEDULE), pair(UNREACHABLE, NO_EXECUTE)];
    assert_eq!(taints(&plan(&stopped, at_second(108))), Some(expected));
}

#[test]
fn a_suspect_node_is_tainted_while_it_is_among_the_few() {
    let suspect = World { is_tainted_suspect: true, ..world("True", json!({}), silent(1)) };
    assert_eq!(taints(&plan(&suspect, at_second(101))), Some(vec![pair(SUSPECT_TAINT, NO_SCHEDULE)]));
    let tainted = json!({ "taints": [{ "key": SUSPECT_TAINT, "effect": NO_SCHEDULE }] });
    assert_eq!(taints(&plan(&world("True", tainted, silent(1)), at_second(101))), Some(vec![]));
}

#[test]
fn that_unique_pods_ended_is_said_once_for_each_loss_and_taken_back() {
    let taint = json!([{ "key": UNREACHABLE, "effect": NO_SCHEDULE, "timeAdded": "1970-01-01T00:01:00Z" },
        { "key": UNREACHABLE, "effect": NO_EXECUTE, "timeAdded": "1970-01-01T00:01:00Z" }]);
    let lost = |ended: bool, said: Option<(&str, i64)>| {
        let mut world = all_unknown(world("Unknown", json!({ "taints": taint }), silent(20)));
        world.unique_pods_ended = ended;
        let conditions = Arc::make_mut(&mut world.node).status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.extend(said.map(|(status, time)| condition(UNIQUE_PODS_ENDED, status, "", "", at_second(time))));
        world
    };
    let said = |world: &World| {
        let status = plan(world, at_second(100)).status?;
        let [condition] = &status.conditions[..] else { panic!("{status:?}") };
        Some((condition.type_.clone(), condition.status.clone()))
    };
    let new = |status: &str| Some((UNIQUE_PODS_ENDED.to_owned(), status.to_owned()));
    assert_eq!(said(&lost(false, None)), None);
    assert_eq!(said(&lost(true, None)), new("True"));
    assert_eq!(said(&lost(true, Some(("True", 70)))), None, "said already");
    assert_eq!(said(&lost(true, Some(("True", 50)))), new("True"), "that was of an earlier loss");
    assert_eq!(said(&lost(false, Some(("True", 70)))), new("False"));
    let mut back = world("True", json!({ "taints": taint }), silent(0));
    let conditions = Arc::make_mut(&mut back.node).status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions.push(condition(UNIQUE_PODS_ENDED, "True", "", "", at_second(70)));
    assert_eq!(said(&back), new("False"));
}

#[test]
fn that_unique_pods_ended_holds_also_for_a_taint_that_a_fast_clock_has_dated() {
    let taint = json!([{ "key": UNREACHABLE, "effect": NO_SCHEDULE, "timeAdded": "1970-01-01T01:00:00Z" },
        { "key": UNREACHABLE, "effect": NO_EXECUTE, "timeAdded": "1970-01-01T01:00:00Z" }]);
    let mut world = all_unknown(world("Unknown", json!({ "taints": taint }), silent(20)));
    world.unique_pods_ended = true;
    let ended = plan(&world, at_second(100)).status.unwrap().conditions;
    assert_eq!((ended.len(), ended[0].type_.as_str()), (1, UNIQUE_PODS_ENDED));
    Arc::make_mut(&mut world.node).status.as_mut().unwrap().conditions.as_mut().unwrap().extend(ended);
    assert!(says_unique_pods_ended(&world.node));
    assert_eq!(plan(&world, at_second(101)).status, None, "said once");
}
