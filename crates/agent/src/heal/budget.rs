//! How many pods of a set may be restarted for failed liveness at a time, and which place one takes. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{api::policy::v1::PodDisruptionBudgetSpec, apimachinery::pkg::util::intstr::IntOrString};
use mainstay_api::{
    heal::Budget,
    share::{self, Round},
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
    let count =
        |value: &IntOrString| u32::try_from(share::of(value, size.into(), Round::Up).max(0)).unwrap_or(u32::MAX);
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => count(most),
        (None, Some(least)) => size.saturating_sub(count(least)),
        (None, None) => percentage(size, STOCK_PERCENT),
    }
}

/// One place of a budget, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub number: u32,
    /// Empty if nobody has it.
    pub holder: String,
    pub until: Timestamp,
    /// Of the object that stands for it; a change of it is refused if this is no longer so.
    pub version: String,
}

/// What to try next for a pod that wants a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It has one.
    Held(u32),
    /// Nobody ever had this one.
    Create(u32),
    /// Its holder is gone or has had its time.
    TakeOver(Place),
    /// So many are taken, and no more may be.
    Full { taken: u32 },
}

/// `first` is where to begin to look, so that those who come at once do not all want the same.
pub fn claim(places: &[Place], allowed: u32, pod: &str, first: u32, now: Timestamp) -> Claim {
    let live = |place: &Place| !place.holder.is_empty() && now < place.until;
    if let Some(place) = places.iter().find(|place| place.holder == pod && live(place)) {
        return Claim::Held(place.number);
    }
    // Places beyond the budget still count: they were taken when it was larger.
    let taken = places.iter().filter(|place| live(place)).count() as u32;
    if taken >= allowed {
        return Claim::Full { taken };
    }
    for number in (0..allowed).map(|n| first.wrapping_add(n) % allowed) {
        match places.iter().find(|place| place.number == number) {
            None => return Claim::Create(number),
            Some(place) if !live(place) => return Claim::TakeOver(place.clone()),
            Some(_) => {}
        }
    }
    Claim::Full { taken }
}

/// The end of a time that begins now.
pub fn until(now: Timestamp, settle: Duration) -> Timestamp {
    now.checked_add(settle).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
