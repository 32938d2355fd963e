//! `RestartAllContainers`.

use super::*;

fn removed(plan: &Plan) -> Vec<String> {
    plan.actions
        .iter()
        .filter_map(|a| if let Action::Remove { ids } = a { Some(ids) } else { None })
        .flatten()
        .map(|id| id.0.clone())
        .collect()
}

/// An init container and a sidecar, `a` that ended well, `b` that runs, and `cause`, whose end with 42 restarts all.
fn ended_with(code: i32) -> World {
    let mut world = world(RestartPolicy::Never, &[("i", Role::Init), ("s", Role::Sidecar)], &["a", "b", "cause"])
        .with(container("i", 0, exited(0, 1)))
        .with(container("s", 0, running()))
        .with(container("a", 0, exited(0, 5)))
        .with(container("b", 0, running()))
        .with(container("cause", 0, exited(code, 10)));
    world.pod.main[2].restart_rules.rules = vec![rule(RestartAction::RestartAllContainers, false)];
    world
}

#[test]
fn everything_stops_and_starts_from_the_first_init_container_on_in_the_same_sandbox() {
    let mut world = ended_with(42);
    world.pod.ephemeral.push(view("debug", Role::Ephemeral));
    world = world.with(container("debug", 0, running()));
    assert_eq!(outcome(&world), None);
    let mut now = at_second(10);
    let first = plan(&world, now);
    assert_eq!(stopped(&first), ["b", "debug"], "sidecars last");
    assert!(removed(&first).is_empty());
    record(&mut world, &first);
    first.actions.into_iter().for_each(|action| apply(&mut world, action, now));
    let second = plan(&world, now);
    assert_eq!(stopped(&second), ["s"]);
    second.actions.into_iter().for_each(|action| apply(&mut world, action, now));
    let third = plan(&world, now);
    assert_eq!(removed(&third), ["a-0", "b-0", "i-0", "s-0", "cause-0"], "the cause last, and ephemeral ones stay");
    assert!(settle(&mut world, &mut now));
    let attempts: Vec<(&str, u32)> =
        ["i", "s", "a", "b", "cause"].map(|name| (name, world.newest(name).unwrap().attempt)).to_vec();
    assert_eq!(attempts, [("i", 1), ("s", 1), ("a", 1), ("b", 1), ("cause", 1)]);
    assert!(["s", "a", "b", "cause"].iter().all(|name| world.newest(name).unwrap().state.is_running()));
    assert!(!world.newest("debug").unwrap().state.is_running(), "ephemeral containers end for good");
    assert_eq!(world.sandboxes.len(), 1);
}

#[test]
fn another_end_is_what_the_policy_makes_of_it() {
    assert_eq!(stopped(&plan(&ended_with(1), at_second(10))), Vec::<&str>::new());
    let mut all_ended = ended_with(1);
    end(&mut all_ended, "b", &ContainerId("b-0".into()), 0, at_second(11));
    assert_eq!(outcome(&all_ended), Some(Outcome::Failed));
}

#[test]
fn a_sidecar_that_is_stopped_after_the_work_is_done_restarts_nothing() {
    let mut world = world(RestartPolicy::Never, &[("s", Role::Sidecar)], &["a"])
        .with(container("s", 0, exited(143, 12)))
        .with(container("a", 0, running()));
    world.pod.init[0].restart_rules.rules = vec![rule(RestartAction::RestartAllContainers, true)];
    assert!(restart_all_cause(&world).is_some(), "while there is work to do");
    end(&mut world, "a", &ContainerId("a-0".into()), 0, at_second(11));
    assert!(restart_all_cause(&world).is_none());
    assert_eq!(outcome(&world), Some(Outcome::Succeeded));
}

#[test]
fn repeated_restarts_back_off_and_the_evidence_stays_until_it_is_reported() {
    let cause = |attempt| {
        let mut world = world(RestartPolicy::Never, &[], &["cause"]).with(container("cause", attempt, exited(42, 10)));
        world.pod.main[0].restart_rules.rules = vec![rule(RestartAction::RestartAllContainers, false)];
        world
    };
    assert_eq!(removed(&plan(&cause(0), at_second(10))), ["cause-0"]);
    let later = plan(&cause(3), at_second(10));
    assert_eq!((removed(&later), later.wake_at), (vec![], Some(at_second(14))));
    assert_eq!(removed(&plan(&cause(3), at_second(14))), ["cause-3"]);
    let mut reporting = cause(0);
    reporting.retry_state.in_progress.insert(Operation::Report);
    assert_eq!(plan(&reporting, at_second(10)).actions, []);
    assert!(
        plan(&cause(0), at_second(10))
            .healing
            .iter()
            .all(|decision| !matches!(decision.diagnosis, Diagnosis::Failed { .. }))
    );
}

#[test]
fn the_first_rule_that_matches_counts() {
    let mut world = ended_with(42);
    world.pod.main[2].restart_rules.rules.insert(0, rule(RestartAction::Restart, false));
    assert!(restart_all_cause(&world).is_none());
    assert_eq!(plan(&world, at_second(10)).actions, [start("cause", 1)]);
}
