use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, strategy::Strategy as Generator};

use super::*;
use crate::{Amount, Strategy};

const SOAK: SignedDuration = SignedDuration::from_secs(60);
const DEADLINE: SignedDuration = SignedDuration::from_secs(600);

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).expect("a time")
}

fn old(name: &str) -> Member {
    Member { name: name.to_owned(), position: Position::Old, health: Health::Healthy { since: second(-1_000) } }
}

fn moving(name: &str, since: i64) -> Member {
    Member {
        position: Position::Moving { since: second(since) },
        health: Health::Unhealthy { since: second(since) },
        ..old(name)
    }
}

fn arrived(name: &str, since: i64) -> Member {
    Member {
        position: Position::AtTarget { since: second(since) },
        health: Health::Healthy { since: second(since) },
        ..old(name)
    }
}

fn unhealthy(member: Member, since: i64) -> Member {
    Member { health: Health::Unhealthy { since: second(since) }, ..member }
}

fn silent(member: Member) -> Member {
    Member { health: Health::Unknown { since: second(0) }, ..member }
}

fn broken(member: Member) -> Member {
    Member { health: Health::Failed { since: second(0), why: "exit code 1".to_owned() }, ..member }
}

/// A canary named `c`, then half, then the rest, two at a time.
fn strategy() -> Strategy {
    Strategy {
        waves: vec![Wave::Named(BTreeSet::from(["c".to_owned()])), Wave::UpTo(Amount::Percent(50))],
        max_unavailable: Amount::Count(2),
        soak: SOAK,
        progress_deadline: Some(DEADLINE),
        max_failed: Amount::ZERO,
        max_failed_of_waves: vec![],
    }
}

fn plan_with(strategy: &Strategy, members: &[Member], gates: &[Gate], now: i64) -> Plan {
    plan(&Rollout { strategy, members, gates, paused: None, began: second(0) }, second(now))
}

fn planned(members: &[Member], now: i64) -> (Vec<String>, String) {
    let Plan { start, state, .. } = plan_with(&strategy(), members, &[], now);
    (start, state.to_string())
}

#[test]
fn the_canary_moves_first_and_the_next_wave_after_its_soak() {
    assert_eq!(planned(&["a", "b", "c", "d"].map(old), 0), (vec!["c".into()], "wave 1 starts".into()));
    let with = |canary| [old("a"), old("b"), canary, old("d")];
    assert_eq!(planned(&with(moving("c", 0)), 5), (vec![], "wave 1: c moving".into()));
    let plan = plan_with(&strategy(), &with(arrived("c", 10)), &[], 20);
    assert_eq!(plan.state, State::Soaking { wave: 0, until: second(70) });
    assert_eq!((plan.start, plan.wake_at), (vec![], Some(second(70))));
    // Half of four are two, of which the canary is one.
    assert_eq!(planned(&with(arrived("c", 10)), 70), (vec!["a".into()], "wave 2 starts".into()));
}

#[test]
fn what_no_wave_has_comes_last_and_the_end_is_soaked_too() {
    let done = |name| arrived(name, 10);
    assert_eq!(planned(&[done("a"), old("b"), done("c"), old("d")], 100).0, ["b", "d"]);
    let all = ["a", "b", "c", "d"].map(|name| arrived(name, 100));
    assert_eq!(planned(&all, 150).1, "wave 1 is healthy and is watched until 1970-01-12T13:49:20Z");
    assert_eq!(planned(&all, 160), (vec![], "complete".into()));
    assert_eq!(planned(&[], 0), (vec![], "complete".into()));
}

#[test]
fn whatever_is_unavailable_counts_and_says_so() {
    let members = [arrived("c", 0), unhealthy(arrived("x", 0), 90), silent(old("y")), old("a"), old("b"), old("d")];
    assert_eq!(
        planned(&members, 100),
        (vec![], "wave 2: x not healthy at the new version".into()),
        "x is waited for: its wave is not finished"
    );
    let members = [arrived("c", 0), silent(old("x")), silent(old("y")), old("a"), old("b"), old("d")];
    assert_eq!(planned(&members, 100), (vec![], "wave 3: at most 2 may be unavailable, and 2 are: x, y".into()));
}

#[test]
fn a_member_that_is_out_of_service_moves_without_costing_anything() {
    let members = [arrived("c", 0), unhealthy(old("x"), 0), unhealthy(old("y"), 0), unhealthy(old("z"), 0), old("a")];
    assert_eq!(planned(&members, 100).0, ["x", "y"], "half of five are three, and the canary is one of them");
}

#[test]
fn silent_members_are_passed_over_and_follow_when_they_return() {
    let done = |name| arrived(name, 10);
    let members = |last| [done("c"), done("a"), done("b"), last];
    assert_eq!(planned(&members(silent(old("d"))), 100), (vec![], "wave 3: nothing heard of d".into()));
    assert_eq!(planned(&members(old("d")), 9_000_000).0, ["d"]);
}

#[test]
fn failures_beyond_what_is_allowed_stop_everything() {
    let members = [broken(moving("c", 0)), old("a"), old("b")];
    assert_eq!(planned(&members, 5), (vec![], "stopped in wave 1: 1 failed, 0 may: c (exit code 1)".into()));
    let lenient = Strategy { max_failed: Amount::ONE, ..strategy() };
    assert_eq!(plan_with(&lenient, &members, &[], 5).start, ["a"], "one may fail, and is left behind");
    let all = [broken(moving("c", 0)), arrived("a", 0), arrived("b", 0)];
    assert_eq!(plan_with(&lenient, &all, &[], 100).state, State::Complete { failed: vec!["c".into()] });
}

#[test]
fn a_wave_that_has_used_up_its_own_budget_stops_everything_although_more_may_fail_in_all() {
    let strategy = Strategy {
        max_failed: Amount::Count(3),
        max_failed_of_waves: vec![Some(Amount::ZERO), Some(Amount::Percent(50))],
        max_unavailable: Amount::Count(10),
        ..strategy()
    };
    let plan = |members: &[Member]| {
        let plan = plan_with(&strategy, members, &[], 100);
        (plan.start, plan.state.to_string())
    };
    let canary = [broken(moving("c", 0)), old("a"), old("b"), old("d"), old("e"), old("f")];
    let words = "stopped in wave 1: 1 failed, 0 of this wave may: c (exit code 1)";
    assert_eq!(plan(&canary), (vec![], words.into()));
    // The second wave has two members; one of them may fail.
    let one = [arrived("c", 0), broken(moving("a", 0)), arrived("b", 0), old("d"), old("e"), old("f")];
    assert_eq!(plan(&one).0, ["d", "e", "f"]);
    let both = [arrived("c", 0), broken(moving("a", 0)), broken(moving("b", 0)), old("d"), old("e"), old("f")];
    let words = "stopped in wave 2: 2 failed, 1 of this wave may: a (exit code 1), b (exit code 1)";
    assert_eq!(plan(&both), (vec![], words.into()));
    // What is left over has no budget of its own.
    let last =
        [arrived("c", 0), arrived("a", 0), arrived("b", 0), broken(moving("d", 0)), broken(moving("e", 0)), old("f")];
    assert_eq!(plan(&last).0, ["f"]);
}

#[test]
fn who_moves_or_stays_unhealthy_for_too_long_has_failed() {
    let at = |member: Member, now| {
        let plan = plan_with(&strategy(), &[member, old("a")], &[], now);
        (plan.state.to_string(), plan.wake_at)
    };
    assert_eq!(at(moving("c", 10), 609), ("wave 1: c moving".into(), Some(second(610))));
    assert!(at(moving("c", 10), 610).0.starts_with("stopped in wave 1: 1 failed, 0 may: c (moving since"));
    let sick = || unhealthy(arrived("c", 10), 300);
    assert_eq!(at(sick(), 899).1, Some(second(900)));
    assert!(at(sick(), 900).0.contains("c (not healthy since"));
    let patient = Strategy { progress_deadline: None, ..strategy() };
    assert_eq!(plan_with(&patient, &[moving("c", 10)], &[], 9_000_000).wake_at, None);
}

#[test]
fn a_closed_gate_keeps_its_wave_from_beginning_and_not_from_ending() {
    let closed = || Gate::Closed { why: "waits for an approval".into() };
    let gates = [Gate::Open, closed()];
    let members = [arrived("c", 0), old("a"), old("b"), old("d"), old("e"), old("f")];
    let plan = plan_with(&strategy(), &members, &gates, 100);
    assert_eq!(plan.state, State::Gated { wave: 1, why: "waits for an approval".into() });
    assert_eq!(plan.start, Vec::<String>::new());
    let begun = [arrived("c", 0), moving("a", 90), old("b"), old("d"), old("e"), old("f")];
    assert_eq!(plan_with(&strategy(), &begun, &gates, 100).start, ["b"]);
    // A member that was at the version before makes nothing begin.
    let before = [arrived("c", 0), arrived("a", -50), old("b"), old("d"), old("e"), old("f")];
    assert_eq!(plan_with(&strategy(), &before, &gates, 100).start, Vec::<String>::new());
}

#[test]
fn nothing_starts_while_paused() {
    let (strategy, members) = (strategy(), ["a", "c"].map(old));
    let rollout =
        Rollout { strategy: &strategy, members: &members, gates: &[], paused: Some("by alice"), began: second(0) };
    let plan = plan(&rollout, second(0));
    assert_eq!((plan.start.len(), plan.state.to_string()), (0, "paused: by alice".into()));
}

fn amounts() -> impl Generator<Value = Amount> {
    prop_oneof![(0usize..6).prop_map(Amount::Count), (0u8..=100).prop_map(Amount::Percent)]
}

fn strategies() -> impl Generator<Value = Strategy> {
    let wave = prop_oneof![
        amounts().prop_map(Wave::UpTo),
        prop::collection::btree_set((0usize..14).prop_map(|number| format!("m{number}")), 0..4).prop_map(Wave::Named),
    ];
    (prop::collection::vec(wave, 0..4), amounts(), 0i64..120, prop::option::of(100i64..900), amounts()).prop_map(
        |(waves, max_unavailable, soak, deadline, max_failed)| Strategy {
            max_unavailable,
            soak: SignedDuration::from_secs(soak),
            progress_deadline: deadline.map(SignedDuration::from_secs),
            max_failed_of_waves: waves.iter().map(|_| None).collect(),
            waves,
            max_failed,
        },
    )
}

/// How a member behaves when it is asked to move, and what happens to it meanwhile.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    Arrives { after: i64 },
    Hangs,
    Breaks { after: i64 },
    Vanishes { from: i64, back: i64 },
    Ails { from: i64, until: i64 },
}

fn behaviours() -> impl Generator<Value = Behaviour> {
    prop_oneof![
        6 => (1i64..300).prop_map(|after| Behaviour::Arrives { after }),
        1 => Just(Behaviour::Hangs),
        1 => (1i64..300).prop_map(|after| Behaviour::Breaks { after }),
        1 => (0i64..2_000, 1i64..2_000).prop_map(|(from, lasts)| Behaviour::Vanishes { from, back: from + lasts }),
        1 => (0i64..2_000, 1i64..2_000).prop_map(|(from, lasts)| Behaviour::Ails { from, until: from + lasts }),
    ]
}

/// A set that obeys its plans, as of some second.
struct Fleet {
    behaviours: Vec<Behaviour>,
    asked: BTreeMap<usize, i64>,
}

impl Fleet {
    fn observe(&self, now: i64) -> Vec<Member> {
        let member = |(index, behaviour): (usize, &Behaviour)| {
            let asked = self.asked.get(&index).copied();
            let travel = match behaviour {
                Behaviour::Arrives { after } => Some(*after),
                Behaviour::Hangs | Behaviour::Breaks { .. } => None,
                Behaviour::Vanishes { .. } | Behaviour::Ails { .. } => Some(30),
            };
            let there = asked.zip(travel).map(|(asked, travel)| asked + travel).filter(|there| *there <= now);
            let position = match (asked, there) {
                (None, _) => Position::Old,
                (Some(_), Some(there)) => Position::AtTarget { since: second(there) },
                (Some(asked), None) => Position::Moving { since: second(asked) },
            };
            let health = match (*behaviour, asked) {
                (Behaviour::Vanishes { from, back }, _) if (from..back).contains(&now) => {
                    Health::Unknown { since: second(from) }
                }
                (Behaviour::Ails { from, until }, _) if (from..until).contains(&now) => {
                    Health::Unhealthy { since: second(from) }
                }
                (Behaviour::Breaks { after }, Some(asked)) if asked + after <= now => {
                    Health::Failed { since: second(asked + after), why: "broke".into() }
                }
                (Behaviour::Vanishes { back: end, .. } | Behaviour::Ails { until: end, .. }, _) if end <= now => {
                    Health::Healthy { since: second(end) }
                }
                _ => Health::Healthy { since: second(there.unwrap_or(-1_000)) },
            };
            Member { name: format!("m{index}"), position, health }
        };
        self.behaviours.iter().enumerate().map(member).collect()
    }
}

proptest! {
    #[test]
    fn a_rollout_keeps_its_width_and_order_and_ends_or_says_what_it_waits_for(
        strategy in strategies(),
        behaviours in prop::collection::vec(behaviours(), 0..14),
    ) {
        let mut fleet = Fleet { behaviours, asked: BTreeMap::new() };
        let mut last = None;
        for now in (0..12_000).step_by(10) {
            let members = fleet.observe(now);
            let rollout = Rollout { strategy: &strategy, members: &members, gates: &[], paused: None, began: second(0) };
            let plan = plan(&rollout, second(now));
            let entry = |member| Entry { member, standing: Standing::classify(member, &strategy, second(now)) };
            let entries: Vec<_> = members.iter().map(entry).collect();
            let unavailable = |entry: &Entry| !entry.standing.is_available() || plan.start.contains(&entry.member.name);
            let before = entries.iter().filter(|entry| !entry.standing.is_available()).count();
            let after = entries.iter().filter(|entry| unavailable(entry)).count();
            let limit = strategy.max_unavailable.resolve(members.len()).max(1);
            prop_assert!(after <= limit.max(before), "{after} of {limit}, {before} before");

            let waves = assign(&strategy.waves, &members);
            prop_assert_eq!(waves.iter().flatten().collect::<BTreeSet<_>>().len(), members.len());
            for name in &plan.start {
                let started = entries.iter().position(|entry| entry.member.name == *name).expect("a member");
                prop_assert_eq!(members[started].position, Position::Old);
                let wave = waves.iter().position(|wave| wave.contains(&started)).expect("a wave");
                for &earlier in waves[..wave].iter().flatten() {
                    let finished = match &entries[earlier].standing {
                        Standing::Done { since } => add(*since, strategy.soak) <= second(now),
                        Standing::Failed { .. } | Standing::Silent => true,
                        Standing::Waiting { .. } | Standing::UnderWay { .. } => false,
                    };
                    prop_assert!(finished, "{} starts before {}", name, members[earlier].name);
                }
                fleet.asked.insert(started, now);
            }
            if let State::Progressing { waits, .. } = &plan.state {
                prop_assert!(!plan.start.is_empty() || !waits.is_empty(), "nothing is done or waited for");
            }
            last = Some(plan.state);
        }
        let hangs = fleet.behaviours.iter().any(|behaviour| matches!(behaviour, Behaviour::Hangs));
        match last.expect("a plan") {
            State::Complete { .. } | State::Stuck { .. } => {}
            // Who hangs is waited for as long as no deadline is given.
            State::Progressing { .. } => prop_assert!(hangs && strategy.progress_deadline.is_none() || strategy.max_failed != Amount::ZERO),
            state => prop_assert!(false, "{state:?}"),
        }
    }
}
