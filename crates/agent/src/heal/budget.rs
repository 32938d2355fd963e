//! How many pods of a set may be restarted for failed liveness at a time, and which slot one takes. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{api::policy::v1::PodDisruptionBudgetSpec, apimachinery::pkg::util::intstr::IntOrString};
use mainstay_api::{
    heal::Budget,
    int_or_percent::{self, Rounding},
};

/// What a set without any word about it gets.
const STOCK_PERCENT: u32 = 25;

/// How many at a time; `None` for all. Never less than one: a set that may not be healed stays ill.
pub fn allowance(budget: Budget, disruption: Option<&PodDisruptionBudgetSpec>, size: u32) -> Option<u32> {
    let allowed = match (budget, disruption) {
        (Budget::Off, _) => return None,
        (Budget::Count(count), _) => count,
        (Budget::Percent(percent), _) => percentage(size, percent),
        (Budget::Stock, Some(spec)) => disruptions(spec, size),
        (Budget::Stock, None) => percentage(size, STOCK_PERCENT),
    };
    Some(allowed.max(1))
}

fn percentage(size: u32, percent: u32) -> u32 {
    (u64::from(size) * u64::from(percent) / 100) as u32
}

/// How many pods of a set this size a PodDisruptionBudget lets go when all are well.
fn disruptions(spec: &PodDisruptionBudgetSpec, size: u32) -> u32 {
    let count = |value: &IntOrString| {
        u32::try_from(int_or_percent::resolve(value, size.into(), Rounding::Up).max(0)).unwrap_or(u32::MAX)
    };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => count(most),
        (None, Some(least)) => size.saturating_sub(count(least)),
        (None, None) => percentage(size, STOCK_PERCENT),
    }
}

/// One slot of a budget, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub number: u32,
    /// Empty if nobody has it.
    pub holder: String,
    pub until: Timestamp,
    /// Of the object that stands for it; a change of it is refused if this is no longer so.
    pub version: String,
}

/// What to try next for a pod that wants a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotClaim {
    /// It has one.
    Held(u32),
    /// Nobody ever had this one.
    Create(u32),
    /// Its holder is gone or has had its time.
    TakeOver(Slot),
    /// So many are taken, and no more may be.
    Full { taken: u32 },
}

/// `first` is where to begin to look, so that those who come at once do not all want the same.
pub fn claim(slots: &[Slot], allowed: u32, pod: &str, first: u32, now: Timestamp) -> SlotClaim {
    let live = |slot: &Slot| !slot.holder.is_empty() && now < slot.until;
    if let Some(slot) = slots.iter().find(|slot| slot.holder == pod && live(slot)) {
        return SlotClaim::Held(slot.number);
    }
    // Slots beyond the budget still count: they were taken when it was larger.
    let taken = slots.iter().filter(|slot| live(slot)).count() as u32;
    if taken >= allowed {
        return SlotClaim::Full { taken };
    }
    for number in (0..allowed).map(|n| first.wrapping_add(n) % allowed) {
        match slots.iter().find(|slot| slot.number == number) {
            None => return SlotClaim::Create(number),
            Some(slot) if !live(slot) => return SlotClaim::TakeOver(slot.clone()),
            Some(_) => {}
        }
    }
    SlotClaim::Full { taken }
}

/// The end of a time that begins now.
pub fn until(now: Timestamp, settle: Duration) -> Timestamp {
    now.checked_add(settle).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
