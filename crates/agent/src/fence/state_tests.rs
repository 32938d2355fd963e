//! Tables, and a property over clocks that drift, lost answers and pauses.

use proptest::prelude::*;

use super::*;

const STOCK: fn() -> Timing = Timing::default;

fn at_millis(millis: u64) -> BootTime {
    Duration::from_millis(millis)
}

fn group(witnesses: &[&str]) -> FencePromise {
    let witnesses = witnesses.iter().map(|name| (*name).to_owned()).collect();
    FencePromise { stops_within: STOCK().stops_within(), witnesses }
}

fn contact(accepted: u64) -> Contact {
    Contact { began: at_millis(0), accepted: Some(at_millis(accepted)), unanswered: None }
}

fn open(until: u64) -> FenceState {
    FenceState::Open { until: at_millis(until), permit: StartPermit::Listed(PodList::default()) }
}

fn tick(
    state: FenceState,
    replies: &[(&str, u64, Option<ContactAnswer>)],
    now: u64,
) -> (FenceState, Option<FenceCommand>) {
    let mut all = Replies::default();
    replies.iter().for_each(|(name, asked, answer)| all.record(name, at_millis(*asked), *answer));
    let (contact, groups) = (contact(100_000), [group(&["b", "c"])]);
    state.next(FenceEvent::Tick { contact: &contact, groups: &groups, replies: &all }, &STOCK(), at_millis(now))
}

#[test]
fn a_witness_has_contact_until_it_misses_a_heartbeat_and_none_once_nothing_can_have_been_accepted() {
    let answer = |contact: Contact, now: u64| contact.answer(&STOCK(), at_millis(now));
    assert_eq!(answer(contact(10_000), 12_900), ContactAnswer::HasContact);
    assert_eq!(answer(contact(10_000), 13_000), ContactAnswer::Undecided);
    assert_eq!(answer(contact(10_000), 15_000), ContactAnswer::HasNoContact);
    let unanswered = Contact { unanswered: Some(at_millis(12_000)), ..contact(10_000) };
    assert_eq!(answer(unanswered, 15_000), ContactAnswer::Undecided, "a server may have heard it");
    assert_eq!(answer(unanswered, 17_000), ContactAnswer::HasNoContact);
    let new = Contact::new(at_millis(10_000));
    assert_eq!(answer(new, 11_000), ContactAnswer::Undecided, "an earlier process may have had contact");
    assert_eq!(answer(new, 15_000), ContactAnswer::HasNoContact);
}

#[test]
fn heartbeats_count_from_when_they_were_sent_and_never_backwards() {
    let mut contact = contact(10_000);
    contact.record(at_millis(12_000), RenewalOutcome::Refused);
    contact.record(at_millis(12_000), RenewalOutcome::Unanswered);
    assert_eq!(contact.silent_for(at_millis(13_000)), at_millis(3_000));
    contact.record(at_millis(14_000), RenewalOutcome::Accepted);
    contact.record(at_millis(11_000), RenewalOutcome::Accepted);
    assert_eq!(contact.silent_for(at_millis(15_000)), at_millis(1_000));
}

#[test]
fn a_node_without_contact_stops_unique_pods_as_soon_as_its_witnesses_have_contact_or_are_silent() {
    use ContactAnswer::{HasContact, HasNoContact, Undecided};
    let cut_off = (FenceState::Closed, Some(FenceCommand::Enforce));
    let has = |answer| Some(answer);
    assert_eq!(tick(open(110_500), &[("b", 105_500, has(HasContact)), ("c", 105_500, None)], 106_000), cut_off);
    assert_eq!(tick(open(110_500), &[("b", 105_500, None), ("c", 105_500, None)], 106_000), cut_off);
    assert_eq!(tick(open(110_500), &[("b", 105_500, has(HasContact))], 105_999).0, open(110_500), "not yet");
    assert_eq!(tick(open(110_500), &[("b", 105_500, has(Undecided)), ("c", 105_500, None)], 106_000).0, open(110_500));
    assert_eq!(tick(open(110_500), &[], 106_000).0, open(110_500), "nobody was asked yet");
    assert_eq!(tick(open(110_500), &[], 110_500), cut_off, "but not for ever");
    let down = tick(open(110_500), &[("b", 109_000, has(HasNoContact)), ("c", 109_000, None)], 109_100);
    assert_eq!(down.0, open(113_000), "answers count for two heartbeats");
    let changed = [("b", 107_000, has(HasNoContact)), ("b", 108_000, has(HasContact)), ("c", 108_000, None)];
    assert_eq!(tick(open(110_500), &changed, 109_000), cut_off);
    let lost = [("b", 107_000, has(HasNoContact)), ("b", 108_000, None), ("c", 108_000, None)];
    assert_eq!(tick(open(110_500), &lost, 109_000).0, open(111_000), "one question was lost");
}

#[test]
fn when_servers_are_back_for_witnesses_first_the_nodes_own_heartbeat_has_a_moment_to_follow() {
    let (none, has) = (Some(ContactAnswer::HasNoContact), Some(ContactAnswer::HasContact));
    let back = [("b", 129_000, none), ("b", 130_000, has), ("c", 130_000, None)];
    assert_eq!(tick(open(133_000), &back, 130_100), (open(133_000), None));
    assert_eq!(
        tick(open(133_000), &back, 133_000).0,
        FenceState::Closed,
        "no longer than the answers that it relied on count"
    );
}

#[test]
fn while_it_is_not_known_which_group_was_accepted_both_are_obeyed() {
    let mut replies = Replies::default();
    replies.record("b", at_millis(106_000), Some(ContactAnswer::HasNoContact));
    replies.record("c", at_millis(106_000), Some(ContactAnswer::HasContact));
    let contact = contact(100_000);
    let tick = |groups: &[FencePromise]| {
        let event = FenceEvent::Tick { contact: &contact, groups, replies: &replies };
        open(110_500).next(event, &STOCK(), at_millis(106_500)).0
    };
    assert_eq!(tick(&[group(&["b"])]), open(110_500));
    assert_eq!(tick(&[group(&["b"]), group(&["c"])]), FenceState::Closed);
}

#[test]
fn a_node_that_never_promised_anything_runs_its_pods_whatever_happens() {
    let state = FenceState::Unbound;
    assert!(state.permits_start("u", 0, at_millis(u64::MAX / 2)));
    assert_eq!(tick(state.clone(), &[], 900_000), (FenceState::Unbound, None));
    let (bound, command) = state.next(FenceEvent::Bind, &STOCK(), at_millis(1_000));
    assert_eq!((bound.clone(), command), (open(11_500), Some(FenceCommand::Enforce)));
    assert_eq!(bound.next(FenceEvent::Unbind, &STOCK(), at_millis(2_000)).0, FenceState::Unbound);
    assert_eq!(open(1_000).next(FenceEvent::Unbind, &STOCK(), at_millis(2_000)).0, FenceState::Closed);
}

#[test]
fn contact_extends_the_time_and_contact_that_came_too_late_does_not_bring_it_back() {
    let renewed = |state: FenceState, sent, now| {
        state.next(FenceEvent::Renewed { sent: at_millis(sent) }, &STOCK(), at_millis(now)).0
    };
    assert_eq!(renewed(open(10_500), 2_000, 2_100), open(12_500));
    assert_eq!(renewed(open(10_500), 10_400, 10_500), FenceState::Closed);
    assert_eq!(renewed(FenceState::Closed, 2_000, 2_100), FenceState::Closed);
}

#[test]
fn a_pod_that_was_replaced_does_not_start_again_and_one_that_was_not_does() {
    let list = PodList { uids: ["kept".to_owned()].into(), version: 70 };
    let listed = FenceEvent::Listed { list: list.clone(), contact: at_millis(20_000) };
    let (state, command) = FenceState::Closed.next(listed, &STOCK(), at_millis(20_100));
    assert_eq!(command, Some(FenceCommand::Start));
    assert!(!state.needs_list());
    assert!(state.permits_start("kept", 10, at_millis(20_200)), "its own version may be old");
    assert!(!state.permits_start("replaced", 69, at_millis(20_200)), "a late watch may still tell of it");
    assert!(state.permits_start("new", 71, at_millis(20_200)));
    assert!(!state.permits_start("kept", 10, at_millis(30_500)), "its time is up again");
    let late = FenceEvent::Listed { list, contact: at_millis(20_000) };
    assert_eq!(FenceState::Closed.next(late, &STOCK(), at_millis(31_000)), (FenceState::Closed, None));
}

#[test]
fn an_agent_that_starts_again_lets_pods_run_and_starts_none_before_it_has_listed_them() {
    let state = FenceState::Open { until: at_millis(10_500), permit: StartPermit::Unlisted };
    assert!(state.needs_list() && !state.permits_start("u", 5, at_millis(1_000)));
    let listed =
        FenceEvent::Listed { list: PodList { uids: ["u".to_owned()].into(), version: 9 }, contact: at_millis(1_000) };
    assert!(state.next(listed, &STOCK(), at_millis(1_100)).0.permits_start("u", 5, at_millis(1_200)));
}

/// One machine of a simulated cluster.
struct Machine {
    contact: Contact,
    state: FenceState,
    replies: Replies,
    /// When its next heartbeat is due.
    next: u64,
    /// Its clock runs by this many thousandths faster.
    drift: i64,
    /// Whether its heartbeats arrive, and whether their answers come back.
    sends: bool,
    hears: bool,
}

impl Machine {
    fn clock(&self, now: u64) -> BootTime {
        at_millis(now + 100_000).saturating_add(at_millis(now * self.drift.unsigned_abs() / 1000))
            - at_millis(if self.drift < 0 { 2 * now * self.drift.unsigned_abs() / 1000 } else { 0 })
    }
}

proptest! {
    /// A server that hears A silent for as long as it promised and half of its group without a gap never finds A still running
    /// the pod; whatever is cut, one way or both, whenever, and however clocks drift. The agents' steps are those of the program.
    #[test]
    fn no_pod_runs_twice(
        cuts in prop::collection::vec((0u64..60_000, 0usize..3, any::<bool>(), any::<bool>()), 0..12),
        drifts in prop::array::uniform3(-9i64..9),
        phases in prop::array::uniform3(0u64..2_000),
        lost_questions in prop::collection::vec(any::<bool>(), 16),
        frozen in (0u64..60_000, 0u64..20_000),
    ) {
        let timing = STOCK();
        let names = ["a", "b", "c"];
        let promise = group(&["b", "c"]);
        let mut machines: Vec<Machine> = (0..3).map(|index| {
            let mut machine = Machine { contact: Contact::new(at_millis(0)), state: open(0), replies: Replies::default(), next: phases[index], drift: drifts[index], sends: true, hears: true };
            machine.state = FenceState::Open { until: machine.clock(0) + timing.runs_without_contact(), permit: StartPermit::Listed(PodList::default()) };
            machine
        }).collect();
        // As the server sees them: when each was last heard, and since when without a gap.
        let mut heard: [(u64, u64); 3] = [(0, 0); 3];
        for step in 0..1_400u64 {
            let now = step * 50;
            for (_, machine, sends, hears) in cuts.iter().filter(|(when, ..)| when / 50 == step) {
                (machines[*machine].sends, machines[*machine].hears) = (*sends, *hears);
            }
            for (index, machine) in machines.iter_mut().enumerate() {
                let is_frozen = index == 0 && (frozen.0..frozen.0 + frozen.1).contains(&now);
                if is_frozen || now < machine.next { continue }
                machine.next = now + 2_000;
                let clock = machine.clock(now);
                let silent = machine.contact.unanswered.is_some_and(|sent| machine.contact.accepted.is_none_or(|accepted| accepted < sent));
                // After a heartbeat without an answer, something else must be answered first.
                if silent && !(machine.sends && machine.hears) { continue }
                let outcome = match (machine.sends, machine.hears) {
                    (true, true) => RenewalOutcome::Accepted,
                    (true, false) => RenewalOutcome::Unanswered,
                    (false, _) => RenewalOutcome::Refused,
                };
                if machine.sends {
                    let (last, since) = &mut heard[index];
                    if at_millis(now - *last) >= timing.witness_gap() { *since = now; }
                    *last = now;
                }
                machine.contact.record(clock, outcome);
                if outcome == RenewalOutcome::Accepted {
                    machine.state = machine.state.clone().next(FenceEvent::Renewed { sent: clock }, &timing, clock).0;
                }
            }
            let a = machines[0].clock(now);
            if now % 500 == 0 && !(frozen.0..frozen.0 + frozen.1).contains(&now) {
                for witness in [1, 2] {
                    let is_lost = lost_questions[(now / 500 + witness as u64 * 7) as usize % lost_questions.len()];
                    let answer = machines[witness].contact.answer(&timing, machines[witness].clock(now));
                    machines[0].replies.record(names[witness], a, (!is_lost).then_some(answer));
                }
                let Machine { contact, replies, state, .. } = &machines[0];
                let event = FenceEvent::Tick { contact, groups: std::slice::from_ref(&promise), replies };
                machines[0].state = state.clone().next(event, &timing, a).0;
            }
            // The shim stops the pod by itself, and has the time that was promised for it.
            let runs = matches!(machines[0].state, FenceState::Open { until, .. } if a < until + mainstay_api::node_loss::STOP_TIME);
            let is_heard = |name: &str| {
                let index = names.iter().position(|known| *known == name).unwrap();
                let (last, since) = heard[index];
                at_millis(now - last) < timing.witness_gap() && at_millis(now - since) >= promise.hearing_time()
            };
            let is_replaced = promise.allows_replacement(at_millis(now - heard[0].0), is_heard);
            prop_assert!(!(runs && is_replaced), "at {now}");
        }
    }
}

#[test]
fn an_agent_that_starts_gives_its_pods_no_more_time_than_a_heartbeat_would() {
    let (timing, now) = (Timing::default(), Duration::from_secs(1000));
    let most = now + timing.runs_without_contact();
    let resumed = |limit| match FenceState::resume(limit, &timing, now) {
        FenceState::Open { until, permit: StartPermit::Unlisted } => Some(until),
        FenceState::Closed => None,
        other => panic!("{other:?}"),
    };
    let until = |seconds| Some(FenceLimit::Until(Duration::from_secs(seconds)));
    assert_eq!(resumed(until(1003)), Some(Duration::from_secs(1003)));
    assert_eq!(resumed(until(99_999_999)), Some(most), "left by a machine that was up for years");
    assert_eq!([resumed(until(1000)), resumed(Some(FenceLimit::None)), resumed(None)], [None; 3]);
}
