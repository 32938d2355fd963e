use std::time::Duration;

use proptest::prelude::*;

use super::*;

const CRASH: Cause = Cause::Crashed { exit_code: 1 };

fn at_second(seconds: u64) -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

fn fail(policy: &Policy, history: &mut History, may_move: bool, seconds: u64) -> Rung {
    history.settle(policy, at_second(seconds));
    let step = step(policy, history, may_move, "web", &CRASH, at_second(seconds));
    history.record(&step.rung, at_second(seconds));
    step.rung
}

fn short(rung: &Rung) -> char {
    match rung {
        Rung::Restart => '.',
        Rung::Recreate { .. } => 'R',
        Rung::Move { .. } => 'M',
    }
}

fn climb(policy: &Policy, may_move: bool, failures: impl Iterator<Item = u64>) -> String {
    let mut history = History::default();
    failures.map(|at| short(&fail(policy, &mut history, may_move, at))).collect()
}

#[test]
fn a_pod_that_keeps_failing_climbs_rung_by_rung() {
    assert_eq!(climb(&Policy::default(), true, (0..18).map(|n| n * 20)), ".....R.....R.....M");
}

#[test]
fn a_pod_that_nobody_would_make_again_never_moves() {
    assert_eq!(climb(&Policy::default(), false, (0..24).map(|n| n * 20)), ".....R.....R.....R.....R");
    let stay = Policy::parse("move=off").unwrap();
    assert_eq!(climb(&stay, true, (0..24).map(|n| n * 20)), ".....R.....R.....R.....R");
}

#[test]
fn failures_that_are_far_apart_are_only_restarted() {
    assert_eq!(climb(&Policy::default(), true, (0..20).map(|n| n * 150)), ".".repeat(20));
}

#[test]
fn rungs_can_be_left_out() {
    let no_recreate = Policy::parse("restarts=1/1h, recreate=off").unwrap();
    assert_eq!(climb(&no_recreate, true, 0..3), ".MM");
    let nothing_else = Policy::parse("restarts=1/1h, recreate=off, move=off").unwrap();
    assert_eq!(climb(&nothing_else, true, 0..4), "....");
    let upstream = Policy::parse("restarts=unlimited").unwrap();
    assert_eq!(climb(&upstream, true, 0..200), ".".repeat(200));
}

#[test]
fn a_step_says_what_and_why() {
    let mut history = History::default();
    let policy = Policy::parse("restarts=1/5m").unwrap();
    let first = step(&policy, &history, true, "web", &CRASH, at_second(0));
    assert_eq!(first.message, "Restarting container web: ended with exit code 1");
    history.record(&first.rung, at_second(0));
    let second = step(&policy, &history, true, "web", &Cause::OutOfMemory, at_second(1));
    assert_eq!(
        second.message,
        "Recreating the pod on this machine (1 of 2 in 1h): container web was killed for want of memory; restarting \
         it did not help (1 in 5m)"
    );
}

#[test]
fn a_short_spell_of_health_forgets_nothing_and_a_long_one_everything() {
    let policy = Policy::parse("restarts=2/1h, reset=10m").unwrap();
    let mut history = History::default();
    assert_eq!(fail(&policy, &mut history, true, 0), Rung::Restart);
    history.well(at_second(1));
    assert_eq!(fail(&policy, &mut history, true, 500), Rung::Restart);
    history.well(at_second(501));
    history.well(at_second(1000)); // repeated; it began at 501
    assert!(matches!(fail(&policy, &mut history.clone(), true, 1000), Rung::Recreate { .. }));
    assert_eq!(fail(&policy, &mut history, true, 1101), Rung::Restart);
    assert_eq!(history.restarts.len(), 1);
}

fn policies() -> impl Strategy<Value = Policy> {
    let limit = prop_oneof![
        Just(Limit::Never),
        Just(Limit::Unlimited),
        (0u32..5, 1u64..100).prop_map(|(times, s)| Limit::Within { times, window: Duration::from_secs(s) }),
    ];
    (limit.clone(), limit, any::<bool>(), 1u64..200).prop_map(|(restarts, recreate, may_move, reset)| Policy {
        restarts,
        recreate,
        may_move,
        reset: Duration::from_secs(reset),
        ..Policy::default()
    })
}

fn height(rung: &Rung) -> u8 {
    match rung {
        Rung::Restart => 0,
        Rung::Recreate { .. } => 1,
        Rung::Move { .. } => 2,
    }
}

proptest! {
    /// Whoever failed more often stands at least as high.
    #[test]
    fn the_ladder_is_monotone(
        policy in policies(),
        restarts in proptest::collection::vec(0u64..300, 0..12),
        recreates in proptest::collection::vec(0u64..300, 0..6),
        more in (0u64..300, any::<bool>()),
        may_move: bool,
    ) {
        let times = |list: &[u64]| list.iter().map(|s| at_second(*s)).collect::<Vec<_>>();
        let less = History { restarts: times(&restarts), recreates: times(&recreates), healthy_since: None };
        let mut greater = less.clone();
        if more.1 { greater.restarts.push(at_second(more.0)) } else { greater.recreates.push(at_second(more.0)) }
        let rung = |history: &History| height(&step(&policy, history, may_move, "c", &CRASH, at_second(300)).rung);
        prop_assert!(rung(&greater) >= rung(&less));
        prop_assert!(may_move && policy.may_move || rung(&greater) < 2);
    }

    /// However a pod got there, a long enough spell of health brings it back to the bottom.
    #[test]
    fn a_healthy_spell_resets(policy in policies(), gaps in proptest::collection::vec(0u64..50, 0..40), may_move: bool) {
        let mut history = History::default();
        let mut now = 0;
        for gap in gaps {
            now += gap;
            fail(&policy, &mut history, may_move, now);
        }
        history.well(at_second(now));
        history.settle(&policy, at_second(now) + policy.reset);
        prop_assert!(history.is_empty());
    }
}
