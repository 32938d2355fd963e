use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn spec(max_unavailable: Option<&str>, min_available: Option<&str>) -> PodDisruptionBudgetSpec {
    let value = |text: &str| text.parse().map_or_else(|_| IntOrString::String(text.into()), IntOrString::Int);
    PodDisruptionBudgetSpec {
        max_unavailable: max_unavailable.map(value),
        min_available: min_available.map(value),
        ..Default::default()
    }
}

#[test]
fn a_quarter_and_at_least_one() {
    let stock = |size| allowance(Budget::Stock, None, size);
    assert_eq!([0, 1, 3, 4, 7, 8, 50].map(stock), [1, 1, 1, 1, 1, 2, 12].map(Some));
    assert_eq!(allowance(Budget::Off, None, 50), None);
    assert_eq!(allowance(Budget::Count(3), None, 50), Some(3));
    assert_eq!(allowance(Budget::Percent(10), None, 5), Some(1));
}

#[test]
fn a_disruption_budget_counts_unless_the_annotation_says_otherwise() {
    let of = |most, least, size| allowance(Budget::Stock, Some(&spec(most, least)), size);
    assert_eq!(of(Some("2"), None, 50), Some(2));
    assert_eq!(of(Some("10%"), None, 25), Some(3));
    assert_eq!(of(None, Some("40"), 50), Some(10));
    assert_eq!(of(None, Some("100%"), 50), Some(1));
    assert_eq!(allowance(Budget::Count(7), Some(&spec(Some("1"), None)), 50), Some(7));
}

fn at_second(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn slot(number: u32, holder: &str, until: i64) -> Slot {
    Slot { number, holder: holder.into(), until: at_second(until), version: String::new() }
}

#[test]
fn a_place_is_kept_found_again_and_taken_over_when_its_time_is_over() {
    let slots = [slot(0, "a", 10), slot(1, "b", 20)];
    assert_eq!(claim(&slots, 2, "a", 0, at_second(5)), SlotClaim::Held(0));
    assert_eq!(claim(&slots, 2, "c", 0, at_second(5)), SlotClaim::Full { taken: 2 });
    assert_eq!(claim(&slots, 3, "c", 0, at_second(5)), SlotClaim::Create(2));
    assert_eq!(claim(&slots, 2, "c", 0, at_second(15)), SlotClaim::TakeOver(slots[0].clone()));
    assert_eq!(
        claim(&slots, 1, "c", 0, at_second(15)),
        SlotClaim::Full { taken: 1 },
        "the set shrank while b had its slot"
    );
    assert_eq!(claim(&[slot(0, "", 99)], 1, "c", 0, at_second(15)), SlotClaim::TakeOver(slot(0, "", 99)));
}

/// The API as agents see it: objects with versions, created once and updated by compare-and-set.
#[derive(Default)]
struct Model {
    slots: BTreeMap<u32, Slot>,
    clock: u64,
}

impl Model {
    fn list(&self) -> Vec<Slot> {
        self.slots.values().cloned().collect()
    }

    fn write(&mut self, number: u32, observed: Option<&str>, holder: &str, until: Timestamp) -> bool {
        if self.slots.get(&number).map(|slot| slot.version.as_str()) != observed {
            return false;
        }
        self.clock += 1;
        let version = self.clock.to_string();
        self.slots.insert(number, Slot { number, holder: holder.into(), until, version });
        true
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// An agent reads what is there.
    Look(usize),
    /// It acts upon what it read, however long ago.
    Claim(usize),
    /// Its pod is well again.
    Release(usize),
    Wait(i64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0usize..8).prop_map(Act::Look),
        4 => (0usize..8).prop_map(Act::Claim),
        1 => (0usize..8).prop_map(Act::Release),
        1 => (1i64..8).prop_map(Act::Wait),
    ];
    proptest::collection::vec(act, 0..120)
}

proptest! {
    /// However agents with stale views race, no more pods than allowed hold a slot at any time.
    #[test]
    fn the_budget_is_never_exceeded(acts in acts(), allowed in 1u32..4) {
        const SETTLE: i64 = 20;
        let mut model = Model::default();
        let mut views: Vec<Option<Vec<Slot>>> = vec![None; 8];
        let mut now = 0;
        for act in acts {
            match act {
                Act::Look(agent) => views[agent] = Some(model.list()),
                Act::Claim(agent) => {
                    let Some(view) = views[agent].take() else { continue };
                    let pod = format!("pod-{agent}");
                    match claim(&view, allowed, &pod, agent as u32, at_second(now)) {
                        SlotClaim::Create(n) => drop(model.write(n, None, &pod, at_second(now + SETTLE))),
                        SlotClaim::TakeOver(p) => drop(model.write(p.number, Some(&p.version), &pod, at_second(now + SETTLE))),
                        SlotClaim::Held(_) | SlotClaim::Full { .. } => {}
                    }
                }
                Act::Release(agent) => {
                    let pod = format!("pod-{agent}");
                    model.slots.retain(|_, slot| slot.holder != pod);
                }
                Act::Wait(seconds) => now += seconds,
            }
            let held = model.slots.values().filter(|p| !p.holder.is_empty() && at_second(now) < p.until).count();
            prop_assert!(held <= allowed as usize, "{held} of {allowed} at {now}: {:?}", model.slots);
        }
    }

    /// Whoever keeps asking gets a slot once others are done: nobody starves while there is room.
    #[test]
    fn a_free_place_is_always_found(holders in proptest::collection::vec(any::<bool>(), 0..6), allowed in 1u32..6) {
        let slots: Vec<_> = holders.iter().enumerate().map(|(n, live)| slot(n as u32, "x", if *live { 10 } else { 0 })).collect();
        let taken = holders.iter().filter(|live| **live).count() as u32;
        let full = matches!(claim(&slots, allowed, "me", 3, at_second(5)), SlotClaim::Full { .. });
        prop_assert!(!full || taken >= allowed);
    }
}
